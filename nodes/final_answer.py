"""The last nodes of step-by-step reasoning: from rationales and knowledge to one answer (SeaKR section 3.3)."""

import math
from collections.abc import Sequence

from ..models.answer_stream import show_answer, showing
from ..models.interfaces import Sampling
from ..prompts import reasoning as prompt
from ..resources.resources import Resources
from ..state.abstention import abstains
from ..state.baselines import FlareContext
from ..state.mixins import ExamplesContext
from ..state.reasoning import ReasoningContext, ReasoningState
from ..state.records import Chunk, Uncertainty
from ..state.seakr import SeaKRContext, SeaKRState, StrategyAnswer
from .reasoning import whole_prompt
from .structured_reply import NO_ANSWER, why_no_answer
from .uncertainty_estimators import ONE_LINE, Prompt, continue_with_uncertainty


async def reason_over_rationales(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The answer of the strategy "rationales"; its U is the mean over the rationales' steps, or is measured anew."""
    rationales, warnings = state["rationales"], list[str]()
    if context.rationales_uncertainty == "anew" and context.mode != "one_pass":
        if rationales and prompt.final_answer(rationales[-1]) is not None:
            rationales = rationales[:-1]
        messages = prompt.end_messages(state["question"], [], rationales, await resources.examples(context))
        last = Prompt(state["question"], [], rationales, messages, ONE_LINE, context.max_answer_tokens)
        completion, estimate = await continue_with_uncertainty(last, context, resources)
        text = prompt.end_of(completion.text)
        problem, uncertainty, warnings = why_no_answer(completion, text), estimate.uncertainty, estimate.warnings
    else:
        steps = state["steps"][: len(rationales)]  # without a last step that was empty or repeated
        measured = [step["uncertainty"] for step in steps if step["uncertainty"] is not None]
        # an unknown U counts as the highest, so the mean is unknown with it
        uncertainty = math.fsum(measured) / len(steps) if steps and len(measured) == len(steps) else None
        # a reasoning in one pass has read the snippet
        shown = state["knowledge"] if context.mode == "one_pass" else []
        text, problem = await _from_rationales(state, shown, context, resources)
    answer: StrategyAnswer = {
        "strategy": "rationales",
        "answer": text,
        "problem": problem,
        "reasoning": " ".join(rationales),
        "uncertainty": uncertainty,
    }
    return {"strategy_answers": [answer], "warnings": warnings}


async def reason_over_knowledge(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The answer of the strategy "knowledge": one chain of thought over all snippets that were kept, and its U."""
    question, knowledge = state["question"], state["knowledge"]
    whole = await whole_prompt(question, knowledge, context, resources)
    completion, estimate = await continue_with_uncertainty(whole, context, resources)
    reasoning = completion.text.strip()
    text, problem = prompt.final_answer(reasoning) or "", ""
    if not reasoning:
        problem = why_no_answer(completion, text)
    elif not text:
        text, problem = await ask_final_answer(question, knowledge, [reasoning], context, resources)
    answer: StrategyAnswer = {
        "strategy": "knowledge",
        "answer": text,
        "problem": problem,
        "reasoning": reasoning,
        "uncertainty": estimate.uncertainty,
    }
    return {"strategy_answers": [answer], "warnings": estimate.warnings}


async def choose_strategy(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """Choose the answer with the lower U; on a tie the one from the rationales.

    An unknown answer loses against any other but an empty one; an empty answer loses against any other.
    """

    def rank(answer: StrategyAnswer) -> tuple[bool, bool, bool, float, bool]:
        text, uncertainty = answer["answer"], answer["uncertainty"]
        return not text, abstains(text), uncertainty is None, uncertainty or 0.0, answer["strategy"] == "knowledge"

    best = min(state["strategy_answers"], key=rank)
    show_answer(best["answer"])
    return {
        "answer": best["answer"],
        "strategy": best["strategy"],
        "evidence": state["knowledge"],
        "uncertainty": _highest_u(state),
        "warnings": [] if best["answer"] else [NO_ANSWER.format(problem=best["problem"])],
    }


async def answer_from_rationales(
    state: ReasoningState, context: ReasoningContext, resources: Resources
) -> ReasoningState:
    """The answer to which the rationales lead (CoT, IRCoT)."""
    with showing(prompt.beginning_of_answer):
        answer, problem = await _from_rationales(state, state["knowledge"], context, resources)
    show_answer(answer)
    warnings = [] if answer else [NO_ANSWER.format(problem=problem)]
    return {"answer": answer, "evidence": state["knowledge"], "warnings": warnings}


async def answer_with_uncertainty(state: ReasoningState, context: FlareContext, resources: Resources) -> ReasoningState:
    """The same for FLARE, with the least likely word of all drafts as its uncertainty."""
    words = [word for step in state["steps"] if step["draft"] for word in step["draft"]["words"]]
    known = [word["probability"] for word in words if word["probability"] is not None]
    uncertainty: Uncertainty = {
        "signal": "1 − lowest probability of a word",
        "value": 1.0 - min(known) if known else None,
        "threshold": 1.0 - context.likely_from,
    }
    update = await answer_from_rationales(state, context, resources)
    update["uncertainty"] = uncertainty
    return update


def _highest_u(state: SeaKRState) -> Uncertainty:
    """U of the most uncertain step; null if a step's U is unknown, because that U could be the highest."""
    values = [step["uncertainty"] for step in state["steps"]]
    known = [value for value in values if value is not None]
    highest = max(known) if known and len(known) == len(values) else None
    return {"signal": "highest U", "value": highest, "threshold": state["threshold"]}


async def _from_rationales(
    state: ReasoningState, shown: Sequence[Chunk], context: ReasoningContext, resources: Resources
) -> tuple[str, str]:
    rationales = state["rationales"]
    if rationales and (answer := prompt.final_answer(rationales[-1])):
        return answer, ""
    return await ask_final_answer(state["question"], shown, rationales, context, resources)


async def ask_final_answer(
    question: str,
    chunks: Sequence[Chunk],
    rationales: Sequence[str],
    context: ExamplesContext,
    resources: Resources,
) -> tuple[str, str]:
    """The answer in the model's reply to the prompt for the last sentence, and `why_no_answer`."""
    llm, examples = await resources.llm(context), await resources.examples(context)
    sampling = Sampling(max_tokens=context.max_answer_tokens, stop=ONE_LINE)
    messages = prompt.end_messages(question, chunks, rationales, examples)
    completion = (await llm.complete(messages, sampling)).completions[0]
    answer = prompt.end_of(completion.text)
    return answer, why_no_answer(completion, answer)
