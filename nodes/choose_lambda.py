"""choose_lambda: λ* and its chunk set (DF-RAG equations 4 and 5, and the Tie-Breaking Gate)."""

from collections.abc import Sequence
from typing import Literal

from ..resources.resources import Resources
from ..state.df_rag import NO_CHUNKS, CandidateSet, DFRagContext, DFRagState, Evaluation, Support
from ..state.records import Uncertainty

HIGHEST_SCORE = {"report": 5.0, "choice": 5.0}
"""By evaluator. The likelihood evaluator's gains have no upper bound."""


async def choose_lambda(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Choose the chunk set with the highest Retrieval Support as evidence.

    Of tied λ the median wins (see `chosen_level`). With incremental context (variant IC), the plan's steps and the
    Evaluator's short answers are kept for the Generator.
    """
    supports = retrieval_supports(state)
    if not supports:
        nothing: DFRagState = {"supports": [], "lambda_star": None, "evidence": [], "incremental_context": []}
        return {**nothing, "uncertainty": missing_support([], context.evaluator)}
    lambda_star = chosen_level(supports, state["candidates"], context.sampling)
    chosen = chosen_set(lambda_star, state["candidates"])
    evaluation = {evaluation["candidate"]: evaluation for evaluation in state["evaluations"]}[chosen]
    return {
        "supports": supports,
        "lambda_star": lambda_star,
        "evidence": [state["chunks_by_id"][chunk_id] for chunk_id in state["candidates"][chosen]["chunk_ids"]],
        "incremental_context": _incremental_context(state["plan"], evaluation) if context.incremental_context else [],
        "uncertainty": missing_support(evaluation["scores"], context.evaluator),
    }


def chosen_set(lambda_star: float | None, candidates: Sequence[CandidateSet]) -> int:
    """The number of the set that a level selects."""
    return next(i for i, candidate in enumerate(candidates) if lambda_star in candidate["lambdas"])


def retrieval_supports(state: DFRagState) -> list[Support]:
    """Retrieval Support of every evaluated set (equation 4), in the order of the sets' smallest λ.

    If the empty set was evaluated too (likelihood evaluator), the support is the gain over it.
    """
    totals = {evaluation["candidate"]: sum(evaluation["scores"]) for evaluation in state.get("evaluations", [])}
    without_chunks = totals.pop(NO_CHUNKS, 0.0)
    return [
        {"lambdas": state["candidates"][candidate]["lambdas"], "support": totals[candidate] - without_chunks}
        for candidate in sorted(totals)
    ]


def chosen_level(
    supports: Sequence[Support], candidates: Sequence[CandidateSet], sampling: Literal["uniform", "binary"]
) -> float:
    """λ* (equation 5): the level with the highest support; of tied levels the upper median.

    Binary sampling does not know which of the sets that it did not evaluate are tied too. So of several tied sets it
    takes the level nearest to the median of all levels, toward which its search moves. If all sets are tied, this is
    the level that uniform sampling takes.
    """
    best = max(entry["support"] for entry in supports)
    tied = [entry["lambdas"] for entry in supports if entry["support"] == best]
    levels = [level for lambdas in tied for level in lambdas]
    if sampling == "uniform" or len(tied) == 1:
        return upper_median(levels)
    median = upper_median([level for candidate in candidates for level in candidate["lambdas"]])
    return min(levels, key=lambda level: (round(abs(level - median), 9), -level))


def set_of_median(candidates: Sequence[CandidateSet]) -> int:
    """The number of the set that the median of all levels selects; 0 without candidates."""
    numbers = {level: number for number, candidate in enumerate(candidates) for level in candidate["lambdas"]}
    return numbers[upper_median(list(numbers))] if numbers else 0


def upper_median(values: Sequence[float]) -> float:
    """The median of the values; the greater of the two middle values if their number is even."""
    return sorted(values)[len(values) // 2]


def missing_support(scores: Sequence[float], evaluator: str) -> Uncertainty:
    """How much support the chosen set lacks: 1 − Σ r(p_i) / (5·m) for m steps, 0 to 1, without a threshold.

    scores: r(p_i) of the chosen set. The measure is ours, not the paper's. Its value is null if nothing was retrieved,
    and for the likelihood evaluator, whose scores are not on the scale from 0 to 5.
    """
    highest = HIGHEST_SCORE.get(evaluator)
    value = 1.0 - sum(scores) / (highest * len(scores)) if highest and scores else None
    return {"signal": "missing support", "value": value, "threshold": None}


def _incremental_context(plan: Sequence[str], evaluation: Evaluation) -> list[str]:
    # a step without an answer, not even an empty one: the report could not be read, or the step was added in Studio
    answered = [f"{step}: {answer or 'not found'}" for step, answer in zip(plan, evaluation["answers"], strict=False)]
    return [*answered, *plan[len(answered) :]]
