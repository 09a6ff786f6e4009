"""update_frontier: penalise the batch's scores, add its neighbours to the frontier (SUNAR section 3.2, Algorithm 1)."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from ..resources.resources import Resources
from ..state.calibration import PenaltyCalibration
from ..state.neighbourhood import (
    FrontierEntry,
    NeighbourhoodContext,
    NeighbourhoodState,
    Penalty,
    ScoredDocument,
)
from ..uncertainty.conformal import conformal_p_value

FACTORS: Mapping[Penalty, Callable[[int, NeighbourhoodContext, Sequence[int]], float]] = {
    "1/s": lambda s, context, calibration_scores: 1 / s,
    "1/sqrt(s)": lambda s, context, calibration_scores: 1 / math.sqrt(s),
    "fixed": lambda s, context, calibration_scores: context.fixed_penalty if s > 1 else 1.0,
    "conformal": lambda s, context, calibration_scores: conformal_p_value(s, calibration_scores),
    "none": lambda s, context, calibration_scores: 1.0,
}


async def read_calibration_scores(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Put the scores of `penalty_file` into the state, for penalty=conformal.

    Raises `UserFault` for a file that is no calibration, or one of another model or other settings.
    """
    if context.penalty != "conformal":
        return {}
    llm = await resources.llm(context)
    calibration = await asyncio.to_thread(PenaltyCalibration.load, context.penalty_file, "penalty", context, llm.name)
    return {"calibration_scores": calibration.scores}


async def update_frontier(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Multiply the batch's scores by the penalty; its documents' neighbours that are not scored enter the frontier."""
    graph = await resources.document_graph(context)
    factor = penalty(state["number_of_semantic_sets"], context, state["calibration_scores"])
    from_frontier = state["frontier"] if state["pool"] == "frontier" else []
    parents = {entry["chunk_id"]: entry["parent"] for entry in from_frontier}
    batch: list[ScoredDocument] = [
        {
            "chunk_id": chunk_id,
            "iteration": state["iteration"],
            "pool": state["pool"],
            "parent": parents.get(chunk_id),
            "raw_score": raw_score,
            "number_of_semantic_sets": state["number_of_semantic_sets"],
            "score": raw_score * factor,
        }
        for chunk_id, raw_score in zip(state["batch_ids"], state["raw_scores"], strict=True)
    ]
    scored = [*state["scored"], *batch]
    scored_ids = {document["chunk_id"] for document in scored}
    neighbours = {chunk_id: [other for other, _ in graph.neighbours(chunk_id)] for chunk_id in state["batch_ids"]}
    improved = improves(state["scored"], scored, context)
    return {
        "scored": batch,
        "first_stage": [chunk_id for chunk_id in state["first_stage"] if chunk_id not in scored_ids],
        "frontier": updated_frontier(state["frontier"], batch, neighbours, scored_ids, context.frontier_score),
        "iteration": state["iteration"] + 1,
        "batches_without_improvement": 0 if improved else state["batches_without_improvement"] + 1,
    }


def penalty(s: int | None, context: NeighbourhoodContext, calibration_scores: Sequence[int] = ()) -> float:
    """The factor of a batch's scores, in (0, 1]; 1 if no answers were compared.

    s: the number of semantic sets; calibration_scores: for penalty=conformal.
    """
    return 1.0 if s is None else FACTORS[context.penalty](s, context, calibration_scores)


def updated_frontier(
    frontier: Sequence[FrontierEntry],
    batch: Sequence[ScoredDocument],
    neighbours: Mapping[str, Sequence[str]],
    scored_ids: Collection[str],
    frontier_score: Literal["penalised", "raw"],
) -> list[FrontierEntry]:
    """The frontier after a batch: a document has the score of its best parent so far, of equal parents the first."""
    entries = {entry["chunk_id"]: entry for entry in frontier if entry["chunk_id"] not in scored_ids}
    for parent in ranked(batch):
        score = parent["raw_score"] if frontier_score == "raw" else parent["score"]
        for chunk_id in neighbours[parent["chunk_id"]]:
            is_better = chunk_id not in entries or score > entries[chunk_id]["score"]
            if chunk_id not in scored_ids and is_better:
                entries[chunk_id] = {"chunk_id": chunk_id, "score": score, "parent": parent["chunk_id"]}
    return list(entries.values())


def improves(before: Sequence[ScoredDocument], after: Sequence[ScoredDocument], context: NeighbourhoodContext) -> bool:
    """Did the mean score of the k best documents grow by more than the tolerance?"""
    return mean_of_best(after, context.k) > mean_of_best(before, context.k) + context.tolerance


def mean_of_best(scored: Sequence[ScoredDocument], count: int) -> float:
    """The mean of the `count` highest scores; missing documents count as 0."""
    return sum(document["score"] for document in ranked(scored)[:count]) / count


def ranked(scored: Sequence[ScoredDocument]) -> list[ScoredDocument]:
    """Highest score first; of equal scores the document that was scored first."""
    return sorted(scored, key=lambda document: -document["score"])
