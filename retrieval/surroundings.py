"""What lies near a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..state.records import Chunk


class Surroundings(Protocol):
    """The neighbours of documents, by chunk id; a `DocumentGraph` is one."""

    def neighbours(self, chunk_id: str) -> Sequence[tuple[str, float]]:
        """The ids of the nearest other documents with their similarities, nearest first; none of an unknown id."""
        ...

    def chunk(self, chunk_id: str) -> Chunk:
        """A neighbour itself."""
        ...


class NoSurroundings:
    """Nothing is near anything."""

    def neighbours(self, chunk_id: str) -> Sequence[tuple[str, float]]:
        """None."""
        return []

    def chunk(self, chunk_id: str) -> Chunk:
        """Never asked for, as nothing is a neighbour."""
        raise KeyError(chunk_id)
