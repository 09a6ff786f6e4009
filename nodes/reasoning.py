"""pseudo_generate, draft_step, write_step, append: one sentence after the other (SeaKR section 3.1)."""

from __future__ import annotations

from ..models.answer_text import normalised
from ..models.interfaces import Completion, Sampling
from ..models.resources import Resources
from ..prompts import reasoning as prompt
from ..state.reasoning import Draft, Ending, ReasoningContext, ReasoningState, Step
from ..state.seakr import SeaKRContext, SeaKRState
from .doubt import ONE_LINE, ONE_SENTENCE, Prompt, think
from .wording import first_sentence, words_of


async def pseudo_generate(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The step that the model would write without looking anything up, and U there.

    Where something is looked up at every step, U is not needed and null.
    """
    asked = step_prompt(state, context.max_step_tokens)
    thought = await think(asked, context, resources, measured=context.self_aware_retrieval)
    return {
        "draft": {**drafted(thought.said), "uncertainty": thought.uncertainty},
        "query": None,
        "kept": None,
        "warnings": thought.warnings,
    }


async def draft_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step that the model would write from what was kept; nothing is measured."""
    return {"draft": drafted(await _said(state, context, resources)), "query": None, "kept": None}


async def write_step(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The step, from the snippet that was kept for it too."""
    draft = drafted(await _said(state, context, resources))
    kept = state["kept"]
    if kept and draft["rationale"]:
        return {"kept": {**kept, "rationale": draft["rationale"]}}
    return {"kept": None, "draft": state["draft"] or draft}  # a draft stands where nothing comes of the snippet


async def append(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """Add the step to the reasoning, unless it says what an earlier one said, and see whether that was the last."""
    draft, kept = state["draft"], state["kept"]
    written = kept or draft
    assert written is not None  # noqa: S101 - a step was written
    rationale = written["rationale"]
    step: Step = {
        "draft": draft,
        "query": state["query"],
        "attempts": state["attempts"] if state["query"] is not None else [],
        "chunk_id": kept["chunk_id"] if kept else None,
        "rationale": rationale,
        "uncertainty": written["uncertainty"],
    }
    ended = _ended(rationale, state, context)
    new = [] if ended in {"repeated", "nothing_found"} else [rationale]
    return {"steps": [step], "rationales": new, "ended": ended}


def _ended(rationale: str, state: ReasoningState, context: ReasoningContext) -> Ending | None:
    if not rationale:
        return "nothing_found"
    if prompt.final_answer(rationale) is not None:
        return "answered"
    if normalised(rationale) in map(normalised, state["rationales"]):
        return "repeated"
    if context.ends_with_documents and len(state["knowledge"]) >= context.documents() > 0:
        return "max_docs"
    return "max_steps" if len(state["steps"]) + 1 >= context.max_steps else None


async def _said(state: ReasoningState, context: ReasoningContext, resources: Resources) -> Completion:
    llm = await resources.llm(context.llm, context.concurrency)
    messages = step_prompt(state, context.max_step_tokens).messages
    sampling = Sampling(max_tokens=context.max_step_tokens, stop=ONE_LINE, logprobs="logprobs" in context.needs())
    return (await llm.complete(messages, sampling)).completions[0]


def drafted(said: Completion) -> Draft:
    """The first sentence of what was said, and its words."""
    start, end = first_sentence(said.text)
    return {"rationale": said.text[start:end], "words": words_of(said, start, end), "uncertainty": None}


def step_prompt(state: ReasoningState, longest: int) -> Prompt:
    """The prompt for the next step, from all that was kept."""
    question, chunks, rationales = state["question"], state["knowledge"], state["rationales"]
    messages = prompt.step_messages(question, chunks, rationales)
    return Prompt(question, chunks, rationales, messages, ONE_SENTENCE, longest)
