"""The candidate chunks of a question, before selection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Vectors
from ..models.question_memory import current_memory
from ..state.records import Chunk
from ..state.where import Condition
from .fusion import Ranking
from .gmmr import dots

BLOCK = 4_096
"""Rows gathered together."""


@dataclass(frozen=True)
class Pool:
    """N candidate chunks with their vectors and the question's vector, all L2-normalised float32.

    query: [d]; vectors: [N, d], read-only; chunk(i): the chunk of row i, without a score; left_out: the problems of
    corpus records that were skipped.
    """

    query: Vectors
    vectors: Vectors
    chunk: Callable[[int], Chunk]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, rows: NDArray[np.int64]) -> Self:
        """The pool of some of its rows, in this order."""
        return replace(self, vectors=self.vectors[rows], chunk=lambda row: self.chunk(int(rows[row])))


class Retriever(Protocol):
    """A source of pools: an index, or any LangChain retriever or vector store."""

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """The top_n chunks nearest to the query, best first; None: every chunk, in corpus order."""
        ...


class SearchedOnce:
    """A live retriever that is not asked twice for one question of a cascade (see `QuestionMemory`)."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`."""
        memory = current_memory.get()
        if memory is None:
            return await self._retriever.pool(query, top_n)
        key = (self, query, top_n)
        if key not in memory.known:
            memory.known[key] = await self._retriever.pool(query, top_n)
        found: Pool = memory.known[key]
        return found

    @property
    def restricted(self) -> "Callable[[Condition], SearchedOnce]":
        """See `Collection.restricted`; `AttributeError` for a retriever without filters."""
        restricted: Callable[[Condition], Retriever] = getattr(self._retriever, "restricted")  # noqa: B009 - of some
        return lambda condition: SearchedOnce(restricted(condition))


def at_least_one(n: int) -> int:
    """n; `UserFault` if the number of chunks to search for is below 1."""
    if n < 1:
        raise UserFault(f"The number of chunks to search for is {n}: it must be at least 1.")
    return n


def nearest(vectors: Vectors, vector: Vectors, count: int) -> list[int]:
    """The rows of `vectors` [N, d] with the highest cosines to `vector` [d]; see `ranked`."""
    rows: list[int] = ranked(vectors, vector, count).rows.tolist()
    return rows


def ranked(vectors: Vectors, vector: Vectors, count: int, among: NDArray[np.int64] | None = None) -> Ranking:
    """The rows of `vectors` [N, d] with the highest cosines to `vector` [d], highest first. Ties: the lower row first.

    among: the rows that are compared, None for all; min(count, their number) are returned. All vectors are
    L2-normalised. A float32 product of equal rows may differ in its last digits, so the rows that it cannot tell apart
    are compared in float64.
    """
    rows = among
    total = len(vectors) if among is None else len(among)
    if count < 1 or not total:
        return Ranking(np.zeros(0, np.int64), np.zeros(0))
    if count < total:
        rounded = _products(vectors, vector, among)
        error = (len(vector) + 64) * 2.0**-24
        near = np.flatnonzero(rounded >= np.partition(rounded, -count)[-count] - 2 * error)
        rows = near if among is None else among[near]
    elif rows is None:
        rows = np.arange(total)
    similarity = np.concatenate([cosines(vectors, rows[i : i + 256], vector) for i in range(0, len(rows), 256)])
    order = np.lexsort((rows, -similarity))[:count]
    return Ranking(rows[order], similarity[order])


def _products(vectors: Vectors, vector: Vectors, among: NDArray[np.int64] | None) -> Vectors:
    """The products of some rows with a vector, in float32."""
    if among is None:
        return vectors @ vector
    if len(among) > len(vectors) // 4:  # gathering rows takes as long as comparing four times as many in order
        return (vectors @ vector)[among]
    return np.concatenate([vectors[among[i : i + BLOCK]] @ vector for i in range(0, len(among), BLOCK)])


def cosines(vectors: Vectors, rows: Sequence[int] | NDArray[np.int64], vector: Vectors) -> NDArray[np.float64]:
    """The cosines of some rows of `vectors` [N, d] to `vector` [d]; equal vectors have equal cosines."""
    return dots(vectors[rows].astype(np.float64), vector.astype(np.float64))
