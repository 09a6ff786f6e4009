"""Neighbours by late interaction: dense candidates, compared again token by token (ColBERT's MaxSim).

The score of two chunks is the mean, over the tokens of the first, of the largest cosine with a token of the second.
Both are encoded as documents, once; their token vectors wait in a file in float16, so memory does not grow with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Vectors
from .chunking import Progress, embedding_text
from .corpus import shown
from .derived_files import cache_folder, kept
from .document_graph import DocumentGraph, cached_graph, known_graph, manifest_of
from .index import Index
from .neighbours import Neighbours, Rows, none_yet

CANDIDATES = 4
"""Dense neighbours that are compared again for each neighbour that is kept."""

BATCH = 256
"""Chunks encoded, or compared, between two reports of progress."""

Found = NDArray[np.int32]
"""Rows of chunks' candidates, [N, candidates], -1 where there are fewer."""


class TokenModel(Protocol):
    """What gives a text's tokens vectors; a `LateInteractionModel` is one."""

    @property
    def name(self) -> str:
        """The name it was opened by."""
        ...

    async def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """For each text the vectors of its tokens, float32 [t, d], L2-normalised or zero."""
        ...


def maxsim(one: Vectors, others: Sequence[Vectors]) -> Vectors:
    """How well each of n texts covers one (Khattab and Zaharia 2020, section 3.3, divided by the tokens of `one`).

    one: [t, d], others: [t_i, d] each, L2-normalised rows. Returns float32 [n] in [-1, 1], 0 where either is empty.
    """
    scores = np.zeros(len(others), dtype=np.float32)
    filled = [i for i, other in enumerate(others) if len(other)]
    if len(one) and filled:
        products = one @ np.concatenate([others[i] for i in filled]).T
        starts = np.cumsum([0, *(len(others[i]) for i in filled[:-1])])
        scores[filled] = np.maximum.reduceat(products, starts, axis=1).mean(axis=0)
    return scores


async def cached_late_graph(
    index: Index,
    k: int,
    cache: Path,
    model: TokenModel,
    progress: Progress | None = None,
    *,
    encoding: Progress | None = None,
    before: Index | None = None,
) -> DocumentGraph:
    """The k nearest by late interaction among `CANDIDATES` times as many dense neighbours, built once and kept.

    The candidates are a document graph of the index's own vectors, which is kept too. progress, before: as of
    `cached_graph`; encoding: hears how many chunks' tokens are encoded. Raises as `cached_graph` and the model do.
    """
    dense = manifest_of(index, CANDIDATES * k)
    manifest = dense.model_copy(update={"k": k, "late_interaction": model.name, "candidates": dense.k})
    folder = cache_folder(cache, manifest)

    async def build() -> Callable[[Path], None]:
        candidates = (await cached_graph(index, dense.k, cache, progress, before=before)).found.rows
        found, fresh = none_yet(len(index.chunks), k), candidates
        if before is not None:
            known = await asyncio.to_thread(known_graph, cache, manifest, before)
            earlier = await asyncio.to_thread(known_graph, cache, dense, before)
            if known is not None and earlier is not None:
                fresh = await asyncio.to_thread(_taken_over, found, known.found, candidates, earlier.found.rows)
        stale = np.flatnonzero((fresh >= 0).any(axis=1))
        needed = np.union1d(stale, fresh[fresh >= 0])
        texts = [embedding_text(index.chunks[row]) for row in needed]
        with _saying_where(cache):
            tokens = await _encoded(texts, model, folder.parent, encoding)
        for start in range(0, len(stale), BATCH):
            some = stale[start : start + BATCH]
            await asyncio.to_thread(_rescore, found, some, fresh, needed, tokens)
            if progress is not None:
                progress(start + len(some), len(stale))
        return DocumentGraph(manifest, index.chunks, found).fill

    return await kept(folder, manifest, lambda: DocumentGraph.read(folder, index, manifest), build)


def _taken_over(found: Neighbours, known: Neighbours, candidates: Found, earlier: Found) -> Found:
    """Copy what is known of the first rows into `found`; the candidates that are still to be compared, the others -1.

    Where all neighbours that a row had are candidates still, these and the candidates that it had not are all that can
    be its neighbours now.
    """
    fresh = candidates.copy()
    for row, (had, scores) in enumerate(zip(*known, strict=True)):
        if np.isin(had[had >= 0], candidates[row]).all():
            found.rows[row], found.scores[row] = had, scores
            fresh[row, np.isin(candidates[row], earlier[row])] = -1
    return fresh


@contextmanager
def _saying_where(cache: Path) -> Iterator[None]:
    """Make a full or missing disk a sentence."""
    try:
        yield
    except OSError as fault:
        raise UserFault(f"The token vectors cannot be written to {shown(cache)}: {fault.strerror}.") from fault


class _Tokens:
    """The token vectors of n texts in a file; text i has the rows from ends[i] to ends[i + 1]."""

    def __init__(self, file: IO[bytes], ends: NDArray[np.int64], dimension: int) -> None:
        shape = int(ends[-1]), dimension
        # a file that is empty cannot be mapped
        self._rows = np.memmap(file, np.float16, "r", shape=shape) if ends[-1] else np.zeros(shape, np.float16)
        self._ends = ends

    def of(self, text: int) -> Vectors:
        """One text's, float32 [t, d]."""
        rows: Vectors = self._rows[self._ends[text] : self._ends[text + 1]].astype(np.float32)
        return rows


async def _encoded(texts: Sequence[str], model: TokenModel, folder: Path, progress: Progress | None) -> _Tokens:
    """The texts' tokens in a file without a name, which is gone when nobody reads it any more."""
    lengths, dimension = [0], 0
    file: IO[bytes] = await asyncio.to_thread(lambda: TemporaryFile(dir=folder))  # noqa: SIM115 - closed below
    try:
        for start in range(0, len(texts), BATCH):
            found = await model.tokens(texts[start : start + BATCH])
            lengths += [len(rows) for rows in found]
            dimension = found[0].shape[1]
            await asyncio.to_thread(file.writelines, [rows.astype(np.float16).tobytes() for rows in found])
            if progress is not None:
                progress(start + len(found), len(texts))
        await asyncio.to_thread(file.flush)
        return await asyncio.to_thread(_Tokens, file, np.cumsum(lengths), dimension)
    finally:
        file.close()  # a map outlives its file


def _rescore(found: Neighbours, rows: Rows, fresh: Found, needed: Rows, tokens: _Tokens) -> None:
    """Write into `found` the best by MaxSim among what is there and each row's fresh candidates, equals by row.

    tokens: of the chunks in `needed`, rising.
    """
    k = found.rows.shape[1]
    for row in rows:
        others = fresh[row][fresh[row] >= 0]
        one = tokens.of(int(np.searchsorted(needed, row)))
        scores = maxsim(one, [tokens.of(int(place)) for place in np.searchsorted(needed, others)])
        others = np.concatenate([found.rows[row][found.rows[row] >= 0], others])
        scores = np.concatenate([found.scores[row][: len(others) - len(scores)], scores])
        best = np.lexsort((others, -scores))[:k]
        found.rows[row, : len(best)], found.scores[row, : len(best)] = others[best], scores[best]
