"""decompose: the next sub-question, or the answer the path arrives at (SUNAR section 3.1)."""

from __future__ import annotations

from ..errors import ContractFault
from ..models.answer_text import normalised
from ..models.interfaces import ChatModel, Sampling
from ..models.resources import Resources
from ..prompts import decompose as prompt
from ..state.sunar import SunarContext, SunarState
from .contract import ask

LONGEST_STEP = 96
"""Tokens."""


async def decompose(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Put the next sub-question into `query`, or null there and the answer into `sequential_answer`.

    The path ends when the model gives an answer, asks what was asked before, or has asked `max_hops` sub-questions.
    A reply that cannot be read twice makes the question itself the sub-question, if nothing was looked up yet, and
    ends the path otherwise.
    """
    llm = await resources.llm(context.llm, context.concurrency)
    hops = state.get("hops", [])
    if len(hops) >= context.max_hops:
        return await _final(state, context, llm, f"The sub-questions are used up (max_hops {context.max_hops}).")
    try:
        step = await ask(llm, prompt.messages(state["question"], hops), _sampling(context), prompt.parse)
    except ContractFault as fault:
        unread = f"The decomposition could not be read ({fault.problem})"
        if hops:
            return await _final(state, context, llm, f"{unread}.")
        return {"query": state["question"], "warnings": [f"{unread}; the question itself is looked up."]}
    if step.is_final:
        # an answer without any evidence is no path: what the question asks is looked up first
        return {"query": None, "sequential_answer": step.text} if hops else {"query": state["question"]}
    if normalised(step.text) in {normalised(hop["question"]) for hop in hops}:
        return await _final(state, context, llm, "The decomposition asked the same sub-question again.")
    return {"query": step.text}


async def _final(state: SunarState, context: SunarContext, llm: ChatModel, warning: str) -> SunarState:
    """Ask for the answer now; where none comes, the last sub-question's answer is it."""
    messages = prompt.messages(state["question"], state["hops"], must_answer=True)
    try:
        step = await ask(llm, messages, _sampling(context), prompt.parse)
    except ContractFault:
        step = prompt.Step(is_final=False, text="")
    answer = step.text if step.is_final else state["hops"][-1]["answer"]
    return {"query": None, "sequential_answer": answer, "warnings": [warning]}


def _sampling(context: SunarContext) -> Sampling:
    return Sampling(max_tokens=LONGEST_STEP, thinking=context.thinking)
