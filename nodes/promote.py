"""promote: penalise a batch that makes answers waver, and let its neighbours in (SUNAR section 3.2, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from ..models.resources import Resources
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState, Offer, Scored
from .sources import graph_of

PENALTIES: Mapping[str, Callable[[int, NeighbourhoodContext], float]] = {
    "1/s": lambda sets, context: 1 / sets,
    "1/sqrt(s)": lambda sets, context: 1 / math.sqrt(sets),
    "fixed": lambda sets, context: context.fixed_penalty if sets > 1 else 1.0,
    "none": lambda sets, context: 1.0,
}


async def promote(state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources) -> NeighbourhoodState:
    """Multiply the batch's scores by the penalty; its documents' neighbours that are not scored enter the frontier."""
    graph = await graph_of(context, resources)
    factor = penalty(state["sets"], context)
    via = {offer["chunk_id"]: offer["via"] for offer in state["frontier"]} if state["pool"] == "frontier" else {}
    fresh: list[Scored] = [
        {
            "chunk_id": chunk_id,
            "iteration": state["iteration"],
            "pool": state["pool"],
            "via": via.get(chunk_id),
            "raw": raw,
            "sets": state["sets"],
            "score": raw * factor,
        }
        for chunk_id, raw in zip(state["batch"], state["raw"], strict=True)
    ]
    scored = [*state["scored"], *fresh]
    done = {one["chunk_id"] for one in scored}
    neighbours = {one["chunk_id"]: [other for other, _ in graph.neighbours(one["chunk_id"])] for one in fresh}
    frontier = offered(state["frontier"], fresh, neighbours, done)
    return {
        "scored": fresh,
        "first_stage": [one for one in state["first_stage"] if one not in done],
        "frontier": frontier,
        "iteration": state["iteration"] + 1,
        "stale": 0 if improves(state["scored"], scored, context) else state["stale"] + 1,
    }


def penalty(sets: int | None, context: NeighbourhoodContext) -> float:
    """The factor for a batch whose answers make s semantic sets; 1 where none were sampled or clustered."""
    return 1.0 if sets is None else PENALTIES[context.penalty](sets, context)


def offered(
    frontier: Sequence[Offer],
    fresh: Sequence[Scored],
    neighbours: Mapping[str, Sequence[str]],
    done: Collection[str],
) -> list[Offer]:
    """The frontier after a batch: the best document's neighbours first, each with the highest score offered so far."""
    offers = {offer["chunk_id"]: offer for offer in frontier if offer["chunk_id"] not in done}
    for one in sorted(fresh, key=lambda scored: -scored["score"]):
        for other in neighbours[one["chunk_id"]]:
            if other not in done and (other not in offers or one["score"] > offers[other]["score"]):
                offers[other] = {"chunk_id": other, "score": one["score"], "via": one["chunk_id"]}
    return list(offers.values())


def improves(before: Sequence[Scored], after: Sequence[Scored], context: NeighbourhoodContext) -> bool:
    """Did the mean score of the best documents grow by more than the tolerance?"""
    return mean_of_best(after, context.k) > mean_of_best(before, context.k) + context.tolerance


def mean_of_best(scored: Sequence[Scored], count: int) -> float:
    """The mean of the `count` highest scores, missing ones counting 0."""
    return sum(sorted((one["score"] for one in scored), reverse=True)[:count]) / count


def ranked(scored: Sequence[Scored]) -> list[Scored]:
    """Highest score first; of equal ones the one that was scored first."""
    return sorted(scored, key=lambda one: -one["score"])
