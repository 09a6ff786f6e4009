"""candidates: one chunk set per diversity level λ (DF-RAG sections 3.1 and 3.4)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..resources.resources import Resources
from ..retrieval.pool import Pool
from ..state.df_rag import CandidateSet, DFRagContext, DFRagState
from ..state.records import Chunk
from .choose_lambda import chosen_set, upper_median
from .evidence import by_similarity, scored_chunk, select_diverse, selectable


async def candidates(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Select k chunks for every λ of `lambdas`. Equal sets are kept once, with every λ that selects them.

    incremental_sets: every λ adds one chunk to the set that was chosen last. The first two are selected at once, since
    every λ begins with the chunk that is nearest to the question.
    """
    retriever = await resources.candidates(context)
    pool = await retriever.pool(state["question"], context.top_n if context.search == "ann" else None)
    most, warnings = selectable(pool, context.k)
    begun = _chosen_rows(state) if context.incremental_sets else []
    k = min(most, max(2, len(begun) + 1)) if context.incremental_sets else most
    chunks: dict[str, Chunk] = {}
    sets: list[CandidateSet] = []
    rows: list[list[int]] = []
    if k:
        levels = context.levels()
        selected = await select_diverse(pool, context.diversity, levels, k, begun)
        chunks, sets, rows = distinct_sets(selected, levels, pool, context.chunk_order)
    return {
        "chunks_by_id": chunks,
        "candidates": sets,
        "rows": rows,
        "incomplete": k < most,
        "evaluations": None,  # type: ignore[typeddict-item] # None clears the evaluations of earlier candidates
        "warnings": [] if begun else warnings,
    }


def _chosen_rows(state: DFRagState) -> list[int]:
    """The rows of the set that was chosen last; none before the first choice."""
    if state.get("lambda_star") is None:
        return []
    return state["rows"][chosen_set(state["lambda_star"], state["candidates"])]


def distinct_sets(
    rows: NDArray[np.int64], lambdas: Sequence[float], pool: Pool, order: Literal["similarity", "selection"]
) -> tuple[dict[str, Chunk], list[CandidateSet], list[list[int]]]:
    """The selected chunks by id, the distinct chunk sets in the order of their smallest λ, and each set's rows.

    rows: [L, k], the pool's rows that each λ selects, in the order of selection; order: see `chunk_order`.
    """
    selections: dict[tuple[int, ...], dict[float, list[int]]] = {}
    for lam, selected in zip(lambdas, rows.tolist(), strict=True):
        selections.setdefault(by_similarity(selected, pool), {})[lam] = selected
    chunks = {row: scored_chunk(pool, row) for chosen in selections for row in chosen}
    sets: list[CandidateSet] = []
    rows_of_sets: list[list[int]] = []
    for chosen, by_level in selections.items():
        ordered = list(chosen) if order == "similarity" else by_level[upper_median(list(by_level))]
        sets.append({"lambdas": list(by_level), "chunk_ids": [chunks[row]["id"] for row in ordered]})
        rows_of_sets.append(ordered)
    return {chunk["id"]: chunk for chunk in chunks.values()}, sets, rows_of_sets
