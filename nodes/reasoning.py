"""pseudo_generate, draft_step, write_step, append_rationale: reasoning one sentence at a time (SeaKR section 3.1)."""

from collections.abc import Sequence
from contextlib import nullcontext

from ..models.answer_stream import showing
from ..models.interfaces import Completion, Sampling
from ..prompts import reasoning as prompts
from ..resources.resources import Resources
from ..state.answer_text import normalised
from ..state.reasoning import Draft, ReasoningContext, ReasoningState, ReasoningStep, StopReason
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, SeaKRState
from .query_formulation import first_sentence, words_of
from .uncertainty_estimators import ONE_LINE, ONE_SENTENCE, Estimate, Prompt, greedy_continuation, uncertainty_of


async def pseudo_generate(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The step that the model would write without retrieval, and U there.

    Without self-aware retrieval U is needed only where nothing is looked up; else it stays null.
    """
    prompt = await step_prompt(state["question"], state["knowledge"], state["rationales"], context, resources)
    completion = await greedy_continuation(prompt, context, await resources.llm(context))
    draft, estimate = draft_of(completion, whole=context.mode == "one_pass"), Estimate(None)
    if context.self_aware_retrieval or not may_retrieve(draft, state, context):
        estimate = await uncertainty_of(prompt, completion, context, resources)
    return {
        "draft": {**draft, "uncertainty": estimate.uncertainty},
        "query": None,
        "kept": None,
        "warnings": [*_warnings(completion), *estimate.warnings],
    }


def may_retrieve(draft: Draft, state: SeaKRState, context: SeaKRContext) -> bool:
    """May something be looked up for a drafted step? Not for one that states the final answer (section 3.1)."""
    states_answer = context.mode != "one_pass" and prompts.final_answer(draft["rationale"]) is not None
    return not states_answer and len(state["knowledge"]) < context.documents()


async def draft_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step that the model writes from the knowledge kept so far; FLARE's paper writes it from none."""
    # with the probabilities of its words it may be thrown away
    stands = "logprobs" not in context.needs()
    knowledge = state["knowledge"] if context.shows_collected() else []
    with showing(_beginning_of_answer) if stands else nullcontext():
        completion = await _next_step(state, knowledge, context, resources)
    return {"draft": draft_of(completion), "query": None, "kept": None, "warnings": _warnings(completion)}


async def write_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step that the model writes with the snippets just kept; if it is empty, the draft stands.

    It is written from all knowledge kept so far, in FLARE's paper from these snippets alone.
    """
    kept, knowledge = state["kept"], state["knowledge"]
    if not context.shows_collected():
        knowledge = [chunk for chunk in state["snippets"] if kept and chunk["id"] in kept["chunk_ids"]]
    with showing(_beginning_of_answer):
        completion = await _next_step(state, knowledge, context, resources)
    written = draft_of(completion)
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
        "chunk_ids": kept["chunk_ids"] if kept else [],
        "rationale": rationale,
        "uncertainty": written["uncertainty"],
    }
    stop_reason = _stop_reason(rationale, state, context)
    appended = [] if stop_reason in {"step_repeated", "step_empty"} else [rationale]
    return {"steps": [step], "rationales": appended, "stop_reason": stop_reason}


def _stop_reason(rationale: str, state: ReasoningState, context: ReasoningContext) -> StopReason | None:
    if not rationale:
        return "step_empty"
    if prompts.final_answer(rationale) is not None:
        return "answered"
    if normalised(rationale) in map(normalised, state["rationales"]):
        return "step_repeated"
    if context.ends_with_documents and len(state["knowledge"]) >= context.documents() > 0:
        return "max_docs"
    return "max_steps" if len(state["steps"]) + 1 >= context.steps() else None


async def _next_step(
    state: ReasoningState, knowledge: Sequence[Chunk], context: ReasoningContext, resources: Resources
) -> Completion:
    llm, examples = await resources.llm(context), await resources.examples(context)
    messages = prompts.step_messages(state["question"], knowledge, state["rationales"], examples)
    sampling = Sampling(max_tokens=context.max_step_tokens, stop=ONE_LINE, logprobs="logprobs" in context.needs())
    return (await llm.complete(messages, sampling)).completions[0]


def _warnings(completion: Completion) -> list[str]:
    why = completion.why_empty
    return [f"The model's reply gave no next sentence: {why}."] if why else []


def _beginning_of_answer(reply: str) -> str:
    """The answer in an unfinished last step; empty for any other step."""
    if not prompts.beginning_of_answer(reply):
        return ""
    start, end = first_sentence(reply)
    return prompts.beginning_of_answer(reply[start:end])


def draft_of(completion: Completion, *, whole: bool = False) -> Draft:
    """The first sentence of a reply, or the whole of it, and its words."""
    start, end = first_sentence(completion.text)
    if whole:
        end = start + len(completion.text[start:].partition("\n")[0].rstrip())
    return {"rationale": completion.text[start:end], "words": words_of(completion, start, end), "uncertainty": None}


async def step_prompt(
    question: str,
    knowledge: Sequence[Chunk],
    rationales: Sequence[str],
    context: SeaKRContext,
    resources: Resources,
) -> Prompt:
    """The prompt for the next step, which is the whole reasoning in a reasoning in one pass."""
    if context.mode == "one_pass":
        return await whole_prompt(question, knowledge, context, resources)
    messages = prompts.step_messages(question, knowledge, rationales, await resources.examples(context))
    return Prompt(question, knowledge, rationales, messages, ONE_SENTENCE, context.max_step_tokens)


async def whole_prompt(
    question: str, knowledge: Sequence[Chunk], context: SeaKRContext, resources: Resources
) -> Prompt:
    """The prompt for a whole reasoning in one reply."""
    messages = prompts.whole_messages(question, knowledge, await resources.examples(context))
    return Prompt(question, knowledge, [], messages, ONE_LINE, context.max_reasoning_tokens)
