"""decompose: the next sub-question, or the sequential answer (SUNAR section 3.1, after self-ask)."""

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Sampling
from ..prompts import decompose as prompt
from ..resources.resources import Resources
from ..state.answer_text import normalised
from ..state.sunar import SunarContext, SunarState
from .structured_reply import ask_with_retry

MAX_TOKENS = 96
"""Of a sub-question or an answer."""


async def decompose(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Put the next sub-question into `query`; or null, and the path's answer into `sequential_answer`.

    The path ends when the model answers, repeats a sub-question, or has asked `max_hops` of them. If a reply is
    unreadable twice, the path ends; if nothing was looked up yet, the question itself becomes the sub-question.
    """
    llm = await resources.llm(context)
    hops = state.get("hops", [])
    if len(hops) >= context.max_hops:
        return await _end_path(state, context, llm, f"The sub-questions are used up (max_hops {context.max_hops}).")
    try:
        step = await ask_with_retry(llm, prompt.messages(state["question"], hops), _sampling(context), prompt.parse)
    except ContractFault as fault:
        unreadable = f"The decomposition could not be read ({fault.problem})"
        if hops:
            return await _end_path(state, context, llm, f"{unreadable}.")
        return {"query": state["question"], "warnings": [f"{unreadable}; the question itself is looked up."]}
    if step.is_final:
        # an answer needs evidence: before the first look-up, the question itself is looked up
        return {"query": None, "sequential_answer": step.text} if hops else {"query": state["question"]}
    if normalised(step.text) in {normalised(hop["question"]) for hop in hops}:
        return await _end_path(state, context, llm, "The decomposition asked the same sub-question again.")
    return {"query": step.text}


async def _end_path(state: SunarState, context: SunarContext, llm: ChatModel, warning: str) -> SunarState:
    """Ask for the answer now; if the model gives none, the last intermediate answer stands."""
    messages = prompt.messages(state["question"], state["hops"], must_answer=True)
    try:
        step = await ask_with_retry(llm, messages, _sampling(context), prompt.parse)
    except ContractFault:
        step = prompt.DecompositionStep(is_final=False, text="")
    answer = step.text if step.is_final else state["hops"][-1]["answer"]
    return {"query": None, "sequential_answer": answer, "warnings": [warning]}


def _sampling(context: SunarContext) -> Sampling:
    return Sampling(max_tokens=MAX_TOKENS, thinking=context.thinking)
