"""choose: λ* and its chunk set (DF-RAG equations 4 and 5, and the Tie-Breaking Gate)."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.resources import Resources
from ..state.df_rag import NOTHING, DFRagContext, DFRagState, Evaluation, Support


async def choose(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Keep the chunk set of highest Retrieval Support; of tied λ the median, the upper one of an even number.

    With incremental context the plan's steps and the Evaluator's short answers go along.
    """
    found = supports(state)
    if not found:
        return {"supports": [], "lambda_star": None, "evidence": [], "incremental_context": []}
    best = max(support["support"] for support in found)
    lambda_star = upper_median([lam for s in found if s["support"] == best for lam in s["lambdas"]])
    index = next(i for i, candidate in enumerate(state["candidates"]) if lambda_star in candidate["lambdas"])
    return {
        "supports": found,
        "lambda_star": lambda_star,
        "evidence": [state["chunks"][chunk_id] for chunk_id in state["candidates"][index]["chunk_ids"]],
        "incremental_context": _notes(state, index) if context.incremental_context else [],
    }


def supports(state: DFRagState) -> list[Support]:
    """Retrieval Support of every evaluated set (equation 4), by smallest λ.

    Where the Evaluator also looked at no chunks at all (likelihood), the support is the gain over that.
    """
    totals = {e["candidate"]: sum(e["scores"]) for e in state.get("evaluations", [])}
    without = totals.pop(NOTHING, 0.0)
    return [
        {"lambdas": state["candidates"][index]["lambdas"], "support": totals[index] - without}
        for index in sorted(totals)
    ]


def upper_median(values: Sequence[float]) -> float:
    """The middle value; of an even number the upper one of the two in the middle."""
    return sorted(values)[len(values) // 2]


def _notes(state: DFRagState, index: int) -> list[str]:
    evaluation: Evaluation = next(e for e in state["evaluations"] if e["candidate"] == index)
    # an unread report has no answers, and a step that somebody added in Studio has none
    answers = [*evaluation["answers"], *[""] * len(state["plan"])]
    return [f"{step}: {answer or 'not found'}" for step, answer in zip(state["plan"], answers, strict=False)]
