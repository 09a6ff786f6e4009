"""The corpus graph: each document's nearest other documents."""

from collections.abc import Sequence
from typing import Protocol

from ..state.records import Chunk


class CorpusGraph(Protocol):
    """The neighbours of documents, by chunk id; `DocumentGraph` is the usual one."""

    def neighbours(self, chunk_id: str) -> Sequence[tuple[str, float]]:
        """The ids and similarities of the nearest other documents, nearest first; empty for an unknown id."""
        ...

    def chunk(self, chunk_id: str) -> Chunk:
        """The chunk with this id; `KeyError` for an unknown id."""
        ...


class EmptyCorpusGraph:
    """A graph without edges."""

    def neighbours(self, chunk_id: str) -> Sequence[tuple[str, float]]:
        """No neighbours."""
        return []

    def chunk(self, chunk_id: str) -> Chunk:
        """Always `KeyError`: the graph has no documents."""
        raise KeyError(chunk_id)
