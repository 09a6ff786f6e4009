"""Rows of a pool turned into the chunk records that travel in the state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..models.interfaces import Vectors
from ..retrieval.pool import Pool
from ..state.records import Chunk


def by_similarity(rows: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """Rows ordered by cosine to the question, highest first; equals by row."""
    return tuple(sorted(rows, key=lambda row: (-_cosine(pool, row), row)))


def scored_chunk(pool: Pool, row: int) -> Chunk:
    """The chunk of a row with its cosine to the question as score."""
    return {**pool.chunk(row), "score": _cosine(pool, row)}


def selectable(pool: Pool, k: int) -> tuple[int, list[str]]:
    """How many chunks can be selected, k at most, with a warning for each thing that is less than was asked for."""
    warnings = []
    if pool.left_out:
        warnings.append(f"Skipped corpus records: {len(pool.left_out)}, the first one: {pool.left_out[0]}")
    if not len(pool):
        warnings.append("The retriever found no chunks; the answer is made without evidence.")
    elif len(pool) < k:
        warnings.append(f"There are only {len(pool)} chunks to select from, fewer than k = {k}; all are used.")
    return min(k, len(pool)), warnings


def nearest(vectors: Vectors, vector: Vectors, count: int) -> list[int]:
    """The rows of [N, d] of the highest cosines to [d], N or fewer, highest first; equals by row."""
    similarity = vectors @ vector
    if count >= len(similarity):
        rows = np.arange(len(similarity))
    else:  # all that are as near as the last one, so that equals at the cut are told apart by row
        rows = np.flatnonzero(similarity >= np.partition(similarity, -count)[-count]) if count else np.arange(0)
    ordered: list[int] = rows[np.lexsort((rows, -similarity[rows]))][:count].tolist()
    return ordered


def _cosine(pool: Pool, row: int) -> float:
    return float(pool.vectors[row] @ pool.query)
