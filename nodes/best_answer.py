"""update_best, give_best_answer: the best answer so far, and whether to stop (DENSE section 5.2, Algorithm 3)."""

from ..models.answer_stream import show_answer
from ..resources.resources import Resources
from ..state.dense_rag import BestAnswer, DenseRagContext, DenseRagState, StopReason
from .measure_dse import dse_uncertainty, is_probed
from .refine import round_record

RECORDED: frozenset[StopReason] = frozenset({"unchanged", "nothing_left"})
"""With these reasons `refine` ended the run, and has recorded the last context."""


async def update_best(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Keep the latest answer if it is the best so far; stop if it is accepted or the budget exhausted (lines 4-14)."""
    latest, best = latest_answer(state), state["best"]
    if best is None or is_better(latest, best, context):
        best = latest
    if context.accept == "either" and (is_low(latest, context) or (latest["sufficient"] and latest["answer"])):
        return {"best": latest, "stop_reason": "accepted"}
    if context.accept == "both" and is_low(best, context) and suffices(best, context):
        return {"best": best, "stop_reason": "accepted"}
    return {"best": best, "stop_reason": budget_exhausted(state, context)}


async def give_best_answer(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Give the best answer so far, or the answer of the last measurement if nothing was refined."""
    stop_reason: StopReason = state["stop_reason"] or ("certain" if state["certain"] else "not_refined")
    best = state["best"] or latest_answer(state)
    show_answer(best["answer"])
    return {
        "answer": best["answer"],
        "evidence": [state["visited"][chunk_id] for chunk_id in best["chunk_ids"]],
        "dse": best["dse"],
        "certain": best["dse"] <= context.dse_threshold and best["probed"],
        "uncertainty": dse_uncertainty(best["dse"], context, probed=best["probed"]),
        "sufficient": best["sufficient"],
        "stop_reason": stop_reason,
        "rounds": [] if stop_reason in RECORDED else [round_record(state)],
    }


def latest_answer(state: DenseRagState) -> BestAnswer:
    """The answer of the context that was measured last."""
    return {
        "answer": state["answer"],
        "chunk_ids": [chunk["id"] for chunk in state["context_chunks"]],
        "dse": state["dse"],
        "probed": is_probed(state["answer"], state["rephrasings"], state["context_chunks"]),
        "sufficient": state["sufficient"],
    }


def is_better(new: BestAnswer, best: BestAnswer, context: DenseRagContext) -> bool:
    """A new minimum of DSE, unless the best context was judged sufficient and the new one was not.

    The DSE of an empty answer is no minimum, nor is that of a context of which no chunk was rephrased. An answer is
    better than an empty one.
    """
    new_rank, best_rank = ((bool(one["answer"].strip()), one["probed"]) for one in (new, best))
    if new_rank != best_rank:
        return new_rank > best_rank
    return new["dse"] < best["dse"] and (not suffices(best, context) or suffices(new, context))


def suffices(answer: BestAnswer, context: DenseRagContext) -> bool:
    """Was the context judged sufficient? Without self-evaluation every context counts as sufficient."""
    return bool(answer["sufficient"]) or not context.self_evaluation


def is_low(answer: BestAnswer, context: DenseRagContext) -> bool:
    """Is the DSE below the threshold, and was the answer probed?"""
    return answer["dse"] < context.dse_threshold and answer["probed"]


def budget_exhausted(state: DenseRagState, context: DenseRagContext) -> StopReason | None:
    """Why the context cannot be refined again; None if it can."""
    if 0 < state["total"] <= len(state["visited"]):
        return "all_visited"
    return "max_rounds" if state["round"] >= context.max_rounds else None
