"""The chunks a question is answered from, before any are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..models.interfaces import Vectors
from ..state.records import Chunk


@dataclass(frozen=True)
class Pool:
    """N candidate chunks with their vectors and the question's vector, all L2-normalised float32.

    query: [d]; vectors: [N, d], not to be written to; chunk(i): the chunk of row i, without a score;
    left_out: the corpus records that could not be read and were skipped, as the caller chose.
    """

    query: Vectors
    vectors: Vectors
    chunk: Callable[[int], Chunk]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        """N."""
        return len(self.vectors)


class Retriever(Protocol):
    """Where pools come from: an index of ours, or any LangChain retriever or vector store."""

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """The top_n chunks nearest to the query, best first; with None every chunk there is, in corpus order."""
        ...
