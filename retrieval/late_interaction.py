"""Neighbours by late interaction: dense candidates, re-ranked token by token (ColBERT's MaxSim).

The score of two chunks is the largest cosine with a token of the second, averaged over the tokens of the first. Every
chunk is encoded once, as a document; the token vectors are kept in a float16 file, so memory does not grow with them.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Vectors, weights_of
from ..models.late_interaction import LateInteractionModel
from .chunking import Progress, batches, embedding_text
from .corpus import shown
from .derived_files import get_or_build
from .document_graph import DocumentGraph, cached_graph, known_graph, manifest_of
from .index import Index
from .neighbours import Neighbours, Rows, none_yet

CANDIDATES = 4
"""Dense candidates for each neighbour that is kept."""

BATCH = 256
"""Chunks encoded or compared between two reports of progress."""

Candidates = NDArray[np.int32]
"""Rows of the candidates of N chunks, [N, candidates], filled up with -1."""


def maxsim(text: Vectors, others: Sequence[Vectors]) -> Vectors:
    """MaxSim of a text with n others (Khattab and Zaharia 2020, section 3.3), divided by the text's tokens.

    text: [t, d], others: [t_i, d] each, L2-normalised rows. Returns float32 [n] in [-1, 1], 0 where either is empty.
    """
    scores = np.zeros(len(others), dtype=np.float32)
    filled = [i for i, other in enumerate(others) if len(other)]
    if len(text) and filled:
        products = text @ np.concatenate([others[i] for i in filled]).T
        starts = np.cumsum([0, *(len(others[i]) for i in filled[:-1])])
        scores[filled] = np.maximum.reduceat(products, starts, axis=1).mean(axis=0)
    return scores


async def cached_late_graph(
    index: Index,
    k: int,
    cache: Path,
    model: LateInteractionModel,
    progress: Progress | None = None,
    *,
    encoding: Progress | None = None,
    before: Index | None = None,
) -> DocumentGraph:
    """The k nearest by late interaction among `CANDIDATES` · k dense neighbours, built once and kept in the cache.

    The candidates are a document graph of the index's own vectors, which is kept too. progress, before: see
    `cached_graph`; encoding: gets the number of chunks encoded. Raises as `cached_graph` and the model do.
    """
    dense = manifest_of(index, CANDIDATES * k)
    late = {"late_interaction": model.name, "late_weights": weights_of(model), "candidates": dense.k}
    manifest = dense.model_copy(update={"k": k, **late})

    async def build() -> Callable[[Path], None]:
        candidates = (await cached_graph(index, dense.k, cache, progress, before=before)).nearest.rows
        nearest, fresh = none_yet(len(index.chunks), k), candidates
        if before is not None:
            known = await asyncio.to_thread(known_graph, cache, manifest, before)
            earlier = await asyncio.to_thread(known_graph, cache, dense, before)
            if known is not None and earlier is not None:
                fresh = await asyncio.to_thread(_taken_over, nearest, known.nearest, candidates, earlier.nearest.rows)
        stale = np.flatnonzero((fresh >= 0).any(axis=1))
        needed = np.union1d(stale, fresh[fresh >= 0])
        texts = [embedding_text(index.chunks[row]) for row in needed]
        try:
            tokens = await _encoded(texts, model, cache, encoding)
        except OSError as fault:
            raise UserFault(f"The token vectors cannot be written to {shown(cache)}: {fault.strerror}.") from fault
        for batch in batches(stale, BATCH, progress):
            await asyncio.to_thread(_rescore, nearest, batch, fresh, needed, tokens)
        return DocumentGraph(manifest, index.chunks, nearest).fill

    return await get_or_build(cache, manifest, lambda folder: DocumentGraph.read(folder, index, manifest), build)


def _taken_over(nearest: Neighbours, known: Neighbours, candidates: Candidates, earlier: Candidates) -> Candidates:
    """Copy known neighbours into `nearest`; returns the candidates that are still to be compared, the others as -1.

    known, earlier: the neighbours and candidates of the first rows before the index grew. If all known neighbours of a
    row are still candidates, its neighbours are among them and the new candidates.
    """
    fresh = candidates.copy()
    for row, (neighbours, scores) in enumerate(zip(*known, strict=True)):
        if np.isin(neighbours[neighbours >= 0], candidates[row]).all():
            nearest.rows[row], nearest.scores[row] = neighbours, scores
            fresh[row, np.isin(candidates[row], earlier[row])] = -1
    return fresh


class _Tokens:
    """The token vectors of n texts in a file; text i has rows ends[i] to ends[i + 1]."""

    def __init__(self, file: IO[bytes], ends: NDArray[np.int64], dimension: int) -> None:
        shape = int(ends[-1]), dimension
        # an empty file cannot be mapped
        self._rows = np.memmap(file, np.float16, "r", shape=shape) if ends[-1] else np.zeros(shape, np.float16)
        self._ends = ends

    def of(self, text: int) -> Vectors:
        """The vectors of one text, float32 [t, d]."""
        rows: Vectors = self._rows[self._ends[text] : self._ends[text + 1]].astype(np.float32)
        return rows


async def _encoded(
    texts: Sequence[str], model: LateInteractionModel, folder: Path, progress: Progress | None
) -> _Tokens:
    """The texts' token vectors in a temporary file without a name."""
    lengths, dimension = [0], 0
    file: IO[bytes] = await asyncio.to_thread(lambda: TemporaryFile(dir=folder))  # noqa: SIM115 - closed below
    try:
        for batch in batches(texts, BATCH, progress):
            encoded = await model.tokens(batch)
            lengths += [len(vectors) for vectors in encoded]
            dimension = encoded[0].shape[1]
            await asyncio.to_thread(file.writelines, [vectors.astype(np.float16).tobytes() for vectors in encoded])
        await asyncio.to_thread(file.flush)
        return await asyncio.to_thread(_Tokens, file, np.cumsum(lengths), dimension)
    finally:
        file.close()  # a map outlives its file


def _rescore(nearest: Neighbours, rows: Rows, fresh: Candidates, needed: Rows, tokens: _Tokens) -> None:
    """Improve the neighbours of these rows by their fresh candidates, compared by MaxSim; equals by row.

    tokens: of the chunks in `needed`, ascending.
    """
    k = nearest.rows.shape[1]
    for row in rows:
        others = fresh[row][fresh[row] >= 0]
        text = tokens.of(int(np.searchsorted(needed, row)))
        scores = maxsim(text, [tokens.of(int(place)) for place in np.searchsorted(needed, others)])
        others = np.concatenate([nearest.rows[row][nearest.rows[row] >= 0], others])
        scores = np.concatenate([nearest.scores[row][: len(others) - len(scores)], scores])
        best = np.lexsort((others, -scores))[:k]
        nearest.rows[row, : len(best)], nearest.scores[row, : len(best)] = others[best], scores[best]
