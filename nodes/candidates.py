"""candidates: one chunk set per diversity level λ (DF-RAG sections 3.1 and 3.4)."""

import numpy as np
from numpy.typing import NDArray

from ..resources.resources import Resources
from ..retrieval.pool import Pool
from ..state.df_rag import LAMBDAS, CandidateSet, DFRagContext, DFRagState
from ..state.records import Chunk
from .evidence import by_similarity, scored_chunk, select_diverse, selectable


async def candidates(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Select k chunks for every λ in 0.1..1.0. Equal sets are kept once, with every λ that selects them."""
    retriever = await resources.retriever(context)
    pool = await retriever.pool(state["question"], context.top_n if context.search == "ann" else None)
    k, warnings = selectable(pool, context.k)
    chunks, sets = distinct_sets(await select_diverse(pool, context.diversity, LAMBDAS, k), pool) if k else ({}, [])
    # None clears the evaluations of earlier candidates
    return {"chunks_by_id": chunks, "candidates": sets, "evaluations": None, "warnings": warnings}  # type: ignore[typeddict-item]


def distinct_sets(rows: NDArray[np.int64], pool: Pool) -> tuple[dict[str, Chunk], list[CandidateSet]]:
    """The selected chunks by id, and the distinct chunk sets in the order of their smallest λ.

    rows: [10, k], the pool's rows that each λ selects.
    """
    levels: dict[tuple[int, ...], list[float]] = {}
    for lam, selected in zip(LAMBDAS, rows.tolist(), strict=True):
        levels.setdefault(by_similarity(selected, pool), []).append(lam)
    chunks = {row: scored_chunk(pool, row) for chosen in levels for row in chosen}
    sets: list[CandidateSet] = [
        {"lambdas": lambdas, "chunk_ids": [chunks[row]["id"] for row in chosen]} for chosen, lambdas in levels.items()
    ]
    return {chunk["id"]: chunk for chunk in chunks.values()}, sets
