"""From rows of a pool to the chunk records in the state: how many, which rows, in which order, with which scores."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..retrieval.gmmr import gmmr_sweep, mmr_sweep
from ..retrieval.pool import Pool
from ..state.records import Chunk

SWEEPS = {"gmmr": gmmr_sweep, "mmr": mmr_sweep}


def selectable(pool: Pool, k: int) -> tuple[int, list[str]]:
    """The number of chunks to select, k or fewer, and warnings about skipped records and a pool smaller than k."""
    warnings = []
    if pool.left_out:
        warnings.append(f"Skipped corpus records: {len(pool.left_out)}, the first one: {pool.left_out[0]}")
    if not len(pool):
        warnings.append("The retriever found no chunks; the answer is made without evidence.")
    elif len(pool) < k:
        warnings.append(f"There are only {len(pool)} chunks to select from, fewer than k = {k}; all are used.")
    return min(k, len(pool)), warnings


async def select_diverse(
    pool: Pool, diversity: Literal["gmmr", "mmr"], lambdas: Sequence[float], k: int
) -> NDArray[np.int64]:
    """The rows that gMMR or MMR selects at each of L diversity levels λ, [L, k], in the order of selection."""
    levels = np.array(lambdas, dtype=np.float32)
    return await asyncio.to_thread(SWEEPS[diversity], pool.query, pool.vectors, levels, k)


def by_similarity(rows: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """The rows ordered by cosine to the question, highest first. Ties: the lower row first."""
    return tuple(sorted(rows, key=lambda row: (-_cosine(pool, row), row)))


def scored_chunk(pool: Pool, row: int) -> Chunk:
    """The chunk of a row, with its cosine to the question as score."""
    return {**pool.chunk(row), "score": _cosine(pool, row)}


def _cosine(pool: Pool, row: int) -> float:
    return float(pool.vectors[row] @ pool.query)
