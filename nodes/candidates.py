"""candidates: one chunk set per diversity level λ (DF-RAG sections 3.1 and 3.4)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..resources.resources import Resources
from ..retrieval.pool import Pool
from ..state.df_rag import CandidateSet, DFRagContext, DFRagState
from ..state.records import Chunk
from .choose_lambda import upper_median
from .evidence import by_similarity, scored_chunk, select_diverse, selectable


async def candidates(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Select k chunks for every λ of `lambdas`. Equal sets are kept once, with every λ that selects them."""
    retriever = await resources.candidates(context)
    pool = await retriever.pool(state["question"], context.top_n if context.search == "ann" else None)
    k, warnings = selectable(pool, context.k)
    chunks: dict[str, Chunk] = {}
    sets: list[CandidateSet] = []
    if k:
        levels = context.levels()
        rows = await select_diverse(pool, context.diversity, levels, k)
        chunks, sets = distinct_sets(rows, levels, pool, context.chunk_order)
    # None clears the evaluations of earlier candidates
    return {"chunks_by_id": chunks, "candidates": sets, "evaluations": None, "warnings": warnings}  # type: ignore[typeddict-item]


def distinct_sets(
    rows: NDArray[np.int64], lambdas: Sequence[float], pool: Pool, order: Literal["similarity", "selection"]
) -> tuple[dict[str, Chunk], list[CandidateSet]]:
    """The selected chunks by id, and the distinct chunk sets in the order of their smallest λ.

    rows: [L, k], the pool's rows that each λ selects, in the order of selection; order: see `chunk_order`.
    """
    selections: dict[tuple[int, ...], dict[float, list[int]]] = {}
    for lam, selected in zip(lambdas, rows.tolist(), strict=True):
        selections.setdefault(by_similarity(selected, pool), {})[lam] = selected
    chunks = {row: scored_chunk(pool, row) for chosen in selections for row in chosen}
    sets: list[CandidateSet] = []
    for chosen, by_level in selections.items():
        ordered = chosen if order == "similarity" else by_level[upper_median(list(by_level))]
        sets.append({"lambdas": list(by_level), "chunk_ids": [chunks[row]["id"] for row in ordered]})
    return {chunk["id"]: chunk for chunk in chunks.values()}, sets
