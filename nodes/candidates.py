"""candidates: one chunk set per diversity level λ (DF-RAG sections 3.1 and 3.4)."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from ..models.resources import Resources
from ..retrieval.gmmr import gmmr_sweep, mmr_sweep
from ..retrieval.pool import Pool
from ..state.context import LAMBDAS
from ..state.df_rag import CandidateSet, DFRagContext, DFRagState
from ..state.records import Chunk
from .evidence import by_similarity, scored_chunk, selectable

SWEEPS = {"gmmr": gmmr_sweep, "mmr": mmr_sweep}


async def candidates(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Select k chunks for every λ in 0.1..1.0 and keep the distinct sets, each with the λ that select it."""
    retriever = await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    pool = await retriever.pool(state["question"], context.top_n if context.search == "ann" else None)
    k, warnings = selectable(pool, context.k)
    if not k:
        return _update({}, [], warnings)
    rows = await asyncio.to_thread(
        SWEEPS[context.diversity], pool.query, pool.vectors, np.array(LAMBDAS, dtype=np.float32), k
    )
    return _update(*distinct_sets(rows, pool), warnings)


def distinct_sets(rows: NDArray[np.int64], pool: Pool) -> tuple[dict[str, Chunk], list[CandidateSet]]:
    """The chunks of rows [L, k] by id, and the distinct sets among them in the order of their smallest λ."""
    levels: dict[tuple[int, ...], list[float]] = {}
    for lam, row in zip(LAMBDAS, rows.tolist(), strict=True):
        levels.setdefault(by_similarity(row, pool), []).append(lam)
    chunks = {row: scored_chunk(pool, row) for ordered in levels for row in ordered}
    sets: list[CandidateSet] = [
        {"lambdas": lambdas, "chunk_ids": [chunks[row]["id"] for row in ordered]} for ordered, lambdas in levels.items()
    ]
    return {chunk["id"]: chunk for chunk in chunks.values()}, sets


def _update(chunks: dict[str, Chunk], sets: list[CandidateSet], warnings: list[str]) -> DFRagState:
    # new candidates make what was said of earlier ones void
    return {"chunks": chunks, "candidates": sets, "evaluations": None, "warnings": warnings}  # type: ignore[typeddict-item]
