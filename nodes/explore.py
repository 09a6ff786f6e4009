"""explore: the next batch of documents to score (SUNAR Algorithm 1; Graph-based Adaptive Re-ranking)."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.resources import Resources
from ..state.neighbourhood import MOST_BATCHES, Ending, NeighbourhoodContext, NeighbourhoodState, Offer
from .sources import graph_of


async def explore(state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources) -> NeighbourhoodState:
    """Take the best documents of the first stage R and of the frontier N in turn, R first; an empty pool is skipped.

    A batch has `batch` documents, or as many as the pool or the budget has left.
    """
    if stopped := ending(state, context):
        warnings = (
            [f"Exploring ended after {MOST_BATCHES} batches, many of them small."] if stopped == "batches" else []
        )
        return {"batch": [], "stopped": stopped, "warnings": warnings}
    size = min(context.batch, context.budget - len(state["scored"]))
    if state["frontier"] and (state["turn"] == "frontier" or not state["first_stage"]):
        batch = [offer["chunk_id"] for offer in best(state["frontier"], size)]
        # read only now: most of what is offered is never scored, and would weigh on every checkpoint
        graph = await graph_of(context, resources)
        documents = {one: graph.chunk(one) for one in batch if one not in state["documents"]}
        return {
            "batch": batch,
            "documents": {**state["documents"], **documents},
            "pool": "frontier",
            "turn": "first_stage",
            "stopped": None,
        }
    return {"batch": state["first_stage"][:size], "pool": "first_stage", "turn": "frontier", "stopped": None}


def ending(state: NeighbourhoodState, context: NeighbourhoodContext) -> Ending | None:
    """Why nothing more is to be scored; None if there is."""
    if len(state["scored"]) >= context.budget:
        return "budget"
    if not state["first_stage"] and not state["frontier"]:
        return "exhausted"
    if state["iteration"] >= MOST_BATCHES:
        return "batches"
    return "converged" if context.patience and state["stale"] >= context.patience else None


def best(frontier: Sequence[Offer], size: int) -> list[Offer]:
    """The offers of the highest scores; of equal ones those that were first offered."""
    return sorted(frontier, key=lambda offer: -offer["score"])[:size]
