"""pseudo_generate, draft_step, write_step, append_rationale: reasoning one sentence at a time (SeaKR section 3.1)."""

from collections.abc import Sequence
from contextlib import nullcontext

from ..models.answer_stream import showing
from ..models.interfaces import Completion, Sampling
from ..prompts import reasoning as prompt
from ..resources.resources import Resources
from ..state.answer_text import normalised
from ..state.reasoning import Draft, ReasoningContext, ReasoningState, ReasoningStep, StopReason
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, SeaKRState
from .query_formulation import first_sentence, words_of
from .uncertainty_estimators import ONE_LINE, ONE_SENTENCE, Prompt, continue_with_uncertainty


async def pseudo_generate(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The step that the model would write without retrieval, and U there.

    Without self-aware retrieval every step retrieves: U is not needed and stays null.
    """
    completion, estimate = await continue_with_uncertainty(
        step_prompt(state["question"], state["knowledge"], state["rationales"], context),
        context,
        resources,
        measure=context.self_aware_retrieval,
    )
    return {
        "draft": {**draft_of(completion), "uncertainty": estimate.uncertainty},
        "query": None,
        "kept": None,
        "warnings": [*_warnings(completion), *estimate.warnings],
    }


async def draft_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step that the model writes from the knowledge kept so far."""
    # with the probabilities of its words it may be thrown away
    stands = "logprobs" not in context.needs()
    with showing(_beginning_of_answer) if stands else nullcontext():
        completion = await _next_step(state, context, resources)
    return {"draft": draft_of(completion), "query": None, "kept": None, "warnings": _warnings(completion)}


async def write_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step that the model writes with the snippet just kept; if it is empty, the draft stands."""
    with showing(_beginning_of_answer):
        completion = await _next_step(state, context, resources)
    written, kept = draft_of(completion), state["kept"]
    if kept and written["rationale"]:
        return {"kept": {**kept, "rationale": written["rationale"]}}
    return {"kept": None, "draft": state["draft"] or written, "warnings": _warnings(completion)}


async def append_rationale(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """Record the step; append its rationale unless it is empty or a repetition; decide whether to stop."""
    draft, kept = state["draft"], state["kept"]
    written = kept or draft
    assert written is not None  # noqa: S101 - a step was written
    rationale = written["rationale"]
    step: ReasoningStep = {
        "draft": draft,
        "query": state["query"],
        "attempts": state["attempts"] if state["query"] is not None else [],
        "chunk_id": kept["chunk_id"] if kept else None,
        "rationale": rationale,
        "uncertainty": written["uncertainty"],
    }
    stop_reason = _stop_reason(rationale, state, context)
    appended = [] if stop_reason in {"step_repeated", "step_empty"} else [rationale]
    return {"steps": [step], "rationales": appended, "stop_reason": stop_reason}


def _stop_reason(rationale: str, state: ReasoningState, context: ReasoningContext) -> StopReason | None:
    if not rationale:
        return "step_empty"
    if prompt.final_answer(rationale) is not None:
        return "answered"
    if normalised(rationale) in map(normalised, state["rationales"]):
        return "step_repeated"
    if context.ends_with_documents and len(state["knowledge"]) >= context.documents() > 0:
        return "max_docs"
    return "max_steps" if len(state["steps"]) + 1 >= context.max_steps else None


async def _next_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> Completion:
    llm = await resources.llm(context)
    messages = prompt.step_messages(state["question"], state["knowledge"], state["rationales"])
    sampling = Sampling(max_tokens=context.max_step_tokens, stop=ONE_LINE, logprobs="logprobs" in context.needs())
    return (await llm.complete(messages, sampling)).completions[0]


def _warnings(completion: Completion) -> list[str]:
    why = completion.why_empty
    return [f"The model's reply gave no next sentence: {why}."] if why else []


def _beginning_of_answer(reply: str) -> str:
    """The answer in an unfinished last step; empty for any other step."""
    if not prompt.beginning_of_answer(reply):
        return ""
    start, end = first_sentence(reply)
    return prompt.beginning_of_answer(reply[start:end])


def draft_of(completion: Completion) -> Draft:
    """The first sentence of a reply, and its words."""
    start, end = first_sentence(completion.text)
    return {"rationale": completion.text[start:end], "words": words_of(completion, start, end), "uncertainty": None}


def step_prompt(
    question: str, knowledge: Sequence[Chunk], rationales: Sequence[str], context: ReasoningContext
) -> Prompt:
    """The prompt for the next step."""
    messages = prompt.step_messages(question, knowledge, rationales)
    return Prompt(question, knowledge, rationales, messages, ONE_SENTENCE, context.max_step_tokens)
