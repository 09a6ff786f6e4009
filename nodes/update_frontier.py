"""update_frontier: penalise the batch's scores, add its neighbours to the frontier (SUNAR section 3.2, Algorithm 1)."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from ..resources.resources import Resources
from ..state.neighbourhood import FrontierEntry, NeighbourhoodContext, NeighbourhoodState, ScoredDocument

PENALTIES: Mapping[str, Callable[[int, NeighbourhoodContext], float]] = {
    "1/s": lambda s, context: 1 / s,
    "1/sqrt(s)": lambda s, context: 1 / math.sqrt(s),
    "fixed": lambda s, context: context.fixed_penalty if s > 1 else 1.0,
    "none": lambda s, context: 1.0,
}


async def update_frontier(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Multiply the batch's scores by the penalty; its documents' neighbours that are not scored enter the frontier."""
    graph = await resources.document_graph(context)
    factor = penalty(state["number_of_semantic_sets"], context)
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
        "frontier": updated_frontier(state["frontier"], batch, neighbours, scored_ids),
        "iteration": state["iteration"] + 1,
        "batches_without_improvement": 0 if improved else state["batches_without_improvement"] + 1,
    }


def penalty(number_of_semantic_sets: int | None, context: NeighbourhoodContext) -> float:
    """The factor of a batch's scores, in (0, 1]; 1 if no answers were compared."""
    return 1.0 if number_of_semantic_sets is None else PENALTIES[context.penalty](number_of_semantic_sets, context)


def updated_frontier(
    frontier: Sequence[FrontierEntry],
    batch: Sequence[ScoredDocument],
    neighbours: Mapping[str, Sequence[str]],
    scored_ids: Collection[str],
) -> list[FrontierEntry]:
    """The frontier after a batch: a document has the score of its best parent so far, of equal parents the first."""
    entries = {entry["chunk_id"]: entry for entry in frontier if entry["chunk_id"] not in scored_ids}
    for parent in ranked(batch):
        for chunk_id in neighbours[parent["chunk_id"]]:
            is_better = chunk_id not in entries or parent["score"] > entries[chunk_id]["score"]
            if chunk_id not in scored_ids and is_better:
                entries[chunk_id] = {"chunk_id": chunk_id, "score": parent["score"], "parent": parent["chunk_id"]}
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
