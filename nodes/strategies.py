"""conclude, reason_over_knowledge, choose_strategy: from steps and knowledge to one answer (SeaKR section 3.3)."""

from __future__ import annotations

import math

from ..models.answer_text import normalised
from ..models.interfaces import ChatModel, Message, Sampling
from ..models.resources import Resources
from ..prompts import reasoning as prompt
from ..state.reasoning import ReasoningContext, ReasoningState
from ..state.seakr import Concluded, SeaKRContext, SeaKRState
from .doubt import ONE_LINE, Prompt, think

UNKNOWN = frozenset({"unknown", "not known", "i do not know", "i dont know", "unclear", "none", "nobody knows"})
"""Answers, normalised, that are none."""


NO_ANSWER = "The model gave no final answer."


async def conclude(state: ReasoningState, context: ReasoningContext, resources: Resources) -> SeaKRState:
    """The answer from the rationales: the last one's, or what the model says they lead to; U is their steps' mean."""
    answer = await _from_rationales(state, context, resources)
    added = state["steps"][: len(state["rationales"])]  # the last one may have said nothing new
    known = [step["uncertainty"] for step in added if step["uncertainty"] is not None]
    concluded: Concluded = {
        "strategy": "rationales",
        "answer": answer,
        "reasoning": " ".join(state["rationales"]),
        "uncertainty": math.fsum(known) / len(known) if known else None,
    }
    return {"conclusions": [concluded]}


async def reason_over_knowledge(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The answer from all that was kept, reasoned through in one reply, and U of that."""
    chunks = state["knowledge"]
    messages = prompt.whole_messages(state["question"], chunks)
    thought = await think(
        Prompt(state["question"], chunks, [], messages, ONE_LINE, context.max_reasoning_tokens), context, resources
    )
    reasoning = thought.said.text.strip()
    answer = prompt.final_answer(reasoning)
    if not answer and reasoning:
        llm = await resources.llm(context.llm, context.concurrency)
        answer = await _end(prompt.end_messages(state["question"], [reasoning]), context, llm)
    concluded: Concluded = {
        "strategy": "knowledge",
        "answer": answer or "",
        "reasoning": reasoning,
        "uncertainty": thought.uncertainty,
    }
    return {"conclusions": [concluded], "warnings": thought.warnings}


async def choose_strategy(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The less uncertain answer stands, of equals the rationales'; one that is empty or unknown only if both are."""

    def rank(one: Concluded) -> tuple[bool, bool, bool, float, bool]:
        unknown = one["uncertainty"] is None
        empty = not one["answer"]
        return empty, _says_nothing(one["answer"]), unknown, one["uncertainty"] or 0.0, one["strategy"] == "knowledge"

    best = min(state["conclusions"], key=rank)
    warnings = [] if best["answer"] else [NO_ANSWER]
    return {
        "answer": best["answer"],
        "strategy": best["strategy"],
        "evidence": state["knowledge"],
        "warnings": warnings,
    }


async def give_answer(state: ReasoningState, context: ReasoningContext, resources: Resources) -> ReasoningState:
    """The answer from the rationales, where there is no other strategy."""
    answer = await _from_rationales(state, context, resources)
    return {"answer": answer, "evidence": state["knowledge"], "warnings": [] if answer else [NO_ANSWER]}


async def _from_rationales(state: ReasoningState, context: ReasoningContext, resources: Resources) -> str:
    answer = prompt.final_answer(state["rationales"][-1]) if state["rationales"] else None
    if answer:
        return answer
    llm = await resources.llm(context.llm, context.concurrency)
    return await _end(prompt.end_messages(state["question"], state["rationales"]), context, llm)


async def _end(messages: list[Message], context: ReasoningContext, llm: ChatModel) -> str:
    reply = await llm.complete(messages, Sampling(max_tokens=context.max_answer_tokens, stop=ONE_LINE))
    return prompt.end_of(reply.text)


def _says_nothing(answer: str) -> bool:
    return normalised(answer) in UNKNOWN
