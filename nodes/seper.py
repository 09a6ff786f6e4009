"""sample_responses, judge_responses, measure_seper: the belief with the chunks and without (SePer, Algorithm 1)."""

from ..models.answer_stream import show_answer
from ..resources.resources import Resources
from ..state.seper import WITH, WITHOUT, SampleInput, SePerContext, SePerState
from .seper_scoring import (
    belief_of,
    distinct_answers,
    judge_sides,
    likeliest_answer,
    sample_side,
    unlabelled_warnings,
)

NO_CHUNKS = "There are no chunks to measure: SePer with chunks is SePer without."


async def take_gold_answers(state: SePerState, context: SePerContext, resources: Resources) -> SePerState:
    """Write the caller's right answers, each once, to `gold_answers`; `UserFault` if there is none."""
    return {"gold_answers": distinct_answers(state.get("answers"))}


async def sample_responses(state: SampleInput, context: SePerContext, resources: Resources) -> SePerState:
    """Sample n responses of one side, with or without the chunks, with their log-probabilities."""
    llm = await resources.llm(context)
    responses, warnings = await sample_side(state["question"], state["evidence"], context, llm)
    return {"responses_by_side": {state["side"]: responses}, "warnings": warnings}


async def judge_responses(state: SePerState, context: SePerContext, resources: Resources) -> SePerState:
    """Judge the responses of both sides against the right answers; for the hard rule also against each other."""
    judge = await resources.judge(context)
    responses = state["responses_by_side"]
    sides = [(responses[side], state["gold_answers"]) for side in responses]
    judgements = await judge_sides(judge, state["question"], sides, context)
    return {
        "judgements_by_side": dict(zip(responses, judgements, strict=True)),
        "warnings": unlabelled_warnings(judge, judgements),
    }


async def measure_seper(state: SePerState, context: SePerContext, resources: Resources) -> SePerState:
    """SePer with the chunks and without, and their difference ΔSePer (equation 11); the answer is the likeliest one.

    `uncertainty` stays null: SePer measures the chunks against known answers, not how sure the model is.
    """
    beliefs = {
        side: belief_of(responses, state["judgements_by_side"][side], context)
        for side, responses in state["responses_by_side"].items()
    }
    without = beliefs[WITHOUT]
    with_chunks = beliefs.get(WITH, without)
    answer = likeliest_answer(with_chunks["responses"])
    show_answer(answer)
    return {
        "answer": answer,
        "seper": with_chunks["seper"],
        "seper_without": without["seper"],
        "delta": with_chunks["seper"] - without["seper"],
        "with_context": with_chunks,
        "without_context": without,
        "warnings": [] if WITH in beliefs else [NO_CHUNKS],
    }
