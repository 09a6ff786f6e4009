"""keep: the best answer so far, and whether it is good enough (DENSE Algorithm 3, lines 4 and 7-14)."""

from __future__ import annotations

from ..models.resources import Resources
from ..state.dense_rag import Best, DenseRagContext, DenseRagState, Stop


async def keep(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Keep this context's answer if it is better than the one that is kept; stop if it is accepted or time is up."""
    current = candidate(state)
    kept = state["best"]
    if kept is None or is_better(current, kept, context):
        kept = current
    if context.accept == "either" and (is_low(current, context) or current["sufficient"]):
        return {"best": current, "stopped": "accepted"}
    if context.accept == "both" and is_low(kept, context) and suffices(kept, context):
        return {"best": kept, "stopped": "accepted"}
    return {"best": kept, "stopped": out_of_reach(state, context)}


def candidate(state: DenseRagState) -> Best:
    """What the context that was just measured offers."""
    return {
        "answer": state["answer"],
        "chunk_ids": [chunk["id"] for chunk in state["chunks"]],
        "dse": state["dse"],
        "probed": any(said != chunk["text"] for said, chunk in zip(state["rephrasings"], state["chunks"], strict=True)),
        "sufficient": state["sufficient"],
    }


def is_better(new: Best, kept: Best, context: DenseRagContext) -> bool:
    """A new minimum of DSE, unless the kept context was judged sufficient and the new one is not.

    A DSE of 0 for want of any rephrasing is no minimum.
    """
    if new["probed"] != kept["probed"]:
        return new["probed"]
    return new["dse"] < kept["dse"] and (not suffices(kept, context) or suffices(new, context))


def suffices(one: Best, context: DenseRagContext) -> bool:
    """Was the context judged sufficient? Without self-evaluation every context is."""
    return bool(one["sufficient"]) or not context.self_evaluation


def is_low(one: Best, context: DenseRagContext) -> bool:
    """Is the DSE below the threshold, and not for want of any rephrasing?"""
    return one["dse"] < context.threshold and one["probed"]


def out_of_reach(state: DenseRagState, context: DenseRagContext) -> Stop | None:
    """Why the context cannot be refined any further; None if it can."""
    if len(state["visited"]) >= state["total"]:
        return "all_visited"
    return "max_rounds" if state["round"] >= context.max_rounds else None
