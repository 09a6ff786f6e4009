"""The candidate chunks of a question, before selection."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import UserFault
from ..models.interfaces import Vectors
from ..state.records import Chunk


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
        """N."""
        return len(self.vectors)


class Retriever(Protocol):
    """A source of pools: an index, or any LangChain retriever or vector store."""

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """The top_n chunks nearest to the query, best first; None: every chunk, in corpus order."""
        ...


def at_least_one(n: int) -> int:
    """n; `UserFault` if the number of chunks to search for is below 1."""
    if n < 1:
        raise UserFault(f"The number of chunks to search for is {n}: it must be at least 1.")
    return n


def nearest(vectors: Vectors, vector: Vectors, count: int) -> list[int]:
    """The rows of `vectors` [N, d] with the highest cosines to `vector` [d], highest first. Ties: the lower row first.

    Returns min(count, N) rows.
    """
    similarity = vectors @ vector
    if count >= len(similarity):
        rows = np.arange(len(similarity))
    else:  # every row tied with the last one is a candidate, so that the lower rows win
        rows = np.flatnonzero(similarity >= np.partition(similarity, -count)[-count]) if count else np.arange(0)
    ordered: list[int] = rows[np.lexsort((rows, -similarity[rows]))][:count].tolist()
    return ordered
