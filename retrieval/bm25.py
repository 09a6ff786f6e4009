"""BM25 over the chunks of an index, by bm25s: built once per set of chunks, kept on disk, read memory-mapped.

The variant is Lucene's (Kamphuis et al. 2020): Σ over the query's words of idf · tf / (tf + k1 (1 − b + b · l / l̄)),
with idf = log(1 + (N − df + 0.5) / (df + 0.5)), k1 = 1.5 and b = 0.75. Repeated words of the query count repeatedly.
A word is a run of two or more letters or digits, in lower case; 33 English stop words are left out. No stemming.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..state.records import Chunk
from .chunking import Progress, batches, embedding_text
from .derived_files import Derived, get_or_build, read_array
from .fusion import Ranking, best
from .index import Index

K1, B = 1.5, 0.75

BATCH = 4096
"""Chunks between two reports of progress."""

WORDS = "words"
"""The subfolder of bm25s's own files."""


class Bm25Manifest(Derived):
    """The inputs of a BM25 index."""

    kind: str = "BM25 index"
    format: int = 1
    k1: float = K1
    b: float = B


class Bm25:
    """Ranks an index's rows by BM25 over titles and texts."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - bm25s has no types
        """model: a bm25s model; None if no chunk has a word."""
        self._model = model

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`; rows without any word of the query are left out."""
        return await asyncio.to_thread(self._rank, query, n)

    def _rank(self, query: str, n: int) -> Ranking:
        words = [] if self._model is None else self._model.get_tokens_ids(words_of([query])[0])
        if not words:
            return Ranking(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
        return best(self._model.get_scores_from_ids(words), n)


def words_of(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text for BM25."""
    words: list[list[str]] = _bm25s().tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return words


async def open_bm25(index: Index, cache: Path, progress: Progress | None = None) -> Bm25:
    """The BM25 index of an index's chunks, built at the first use; progress: gets the number of chunks read.

    `UserFault` if the package is missing or the cache folder cannot be written to.
    """
    await asyncio.to_thread(_bm25s)  # its import reads files
    manifest = Bm25Manifest(chunks=len(index.chunks), chunks_sha256=index.manifest.chunks_sha256)

    async def build() -> Callable[[Path], None]:
        return await asyncio.to_thread(_built, await _words(index.chunks, progress))

    return await get_or_build(cache, manifest, _read, build)


async def _words(chunks: Sequence[Chunk], progress: Progress | None) -> tuple[list[array[int]], dict[str, int]]:
    """The numbers of each chunk's words, and the number of each word."""
    ids: list[array[int]] = []
    known: dict[str, int] = {}
    for batch in batches(chunks, BATCH, progress):
        texts = await asyncio.to_thread(words_of, list(map(embedding_text, batch)))
        ids += [array("i", [known.setdefault(word, len(known)) for word in words]) for words in texts]
    return ids, known


def _built(words: tuple[list[array[int]], dict[str, int]]) -> Callable[[Path], None]:
    """Build the index; returns the function that writes it into a folder."""
    ids, known = words
    if not known:
        return lambda _: None  # bm25s would divide by the mean length, 0
    model = _bm25s().BM25(k1=K1, b=B, method="lucene", backend="numpy")
    model.index((ids, known), create_empty_token=False, show_progress=False)
    return lambda folder: model.save(str(folder / WORDS), show_progress=False)


def _read(folder: Path) -> Bm25:
    if not (folder / WORDS).exists():
        return Bm25(None)
    for name, dtype in (("data", "float32"), ("indices", "int32"), ("indptr", "int64")):
        read_array(folder / WORDS / f"{name}.csc.index.npy", dtype, [None])
    return Bm25(_bm25s().BM25.load(str(folder / WORDS), mmap=True, load_corpus=False, show_progress=False))


def _bm25s() -> Any:  # noqa: ANN401 - bm25s has no types
    import bm25s  # noqa: PLC0415 - loaded when first needed

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return bm25s
