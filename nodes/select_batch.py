"""select_batch: the next documents to score (SUNAR Algorithm 1, after graph-based adaptive re-ranking)."""

from ..resources.resources import Resources
from ..state.neighbourhood import MOST_BATCHES, NeighbourhoodContext, NeighbourhoodState, StopReason


async def select_batch(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Take the best documents of the first stage R and of the frontier N in turn, R first; skip an empty pool.

    A batch has `batch_size` documents, or fewer if the pool or the budget has fewer left. If the exploration is over,
    the batch is empty and `stop_reason` says why.
    """
    if stop_reason := reason_to_stop(state, context):
        too_many = [f"Exploring ended after {MOST_BATCHES} batches, many of them small."]
        return {
            "batch_ids": [],
            "stop_reason": stop_reason,
            "warnings": too_many if stop_reason == "batches" else [],
        }
    size = min(context.batch_size, context.budget - len(state["scored"]))
    if not state["frontier"] or (state["next_pool"] == "first_stage" and state["first_stage"]):
        batch_ids = state["first_stage"][:size]
        return {"batch_ids": batch_ids, "pool": "first_stage", "next_pool": "frontier", "stop_reason": None}
    # of equal scores the entry that was there first
    best = sorted(state["frontier"], key=lambda entry: -entry["score"])[:size]
    batch_ids = [entry["chunk_id"] for entry in best]
    # texts are read only now: most of the frontier is never scored and would make every checkpoint larger
    graph = await resources.document_graph(context)
    unknown = [chunk_id for chunk_id in batch_ids if chunk_id not in state["documents_by_id"]]
    return {
        "batch_ids": batch_ids,
        "documents_by_id": {chunk_id: graph.chunk(chunk_id) for chunk_id in unknown},
        "pool": "frontier",
        "next_pool": "first_stage",
        "stop_reason": None,
    }


def reason_to_stop(state: NeighbourhoodState, context: NeighbourhoodContext) -> StopReason | None:
    """Why no further batch is scored; None if there is one."""
    if len(state["scored"]) >= context.budget:
        return "budget"
    if not state["first_stage"] and not state["frontier"]:
        return "exhausted"
    if state["iteration"] >= MOST_BATCHES:
        return "batches"
    return "converged" if context.patience and state["batches_without_improvement"] >= context.patience else None
