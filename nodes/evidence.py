"""Rows of a pool turned into the chunk records that travel in the state."""

from __future__ import annotations

from collections.abc import Sequence

from ..retrieval.pool import Pool
from ..state.records import Chunk


def by_similarity(rows: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """Rows ordered by cosine to the question, highest first; equals by row."""
    return tuple(sorted(rows, key=lambda row: (-_cosine(pool, row), row)))


def scored_chunk(pool: Pool, row: int) -> Chunk:
    """The chunk of a row with its cosine to the question as score."""
    return {**pool.chunk(row), "score": _cosine(pool, row)}


def _cosine(pool: Pool, row: int) -> float:
    return float(pool.vectors[row] @ pool.query)
