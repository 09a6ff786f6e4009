"""consistency: does the model give SUNAR's final answer again when it is asked several times?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ContractFault
from ..models.interfaces import Message, Sampling
from ..models.resources import Resources
from ..prompts import answer, decompose, meta_evidence
from ..state.sunar import SunarContext, SunarState
from .decompose import LONGEST_STEP
from .entail import links


async def consistency(state: SunarState, context: SunarContext, resources: Resources) -> dict[str, Any]:
    """Sample m answers from all that the final one was made from; `consistency` is the share that means the same.

    Two answers mean the same if each entails the other; an empty sample means something else, and an empty final
    answer has consistency 0. `resampled` are the samples.
    """
    if not state["answer"].strip():
        return {"consistency": 0.0, "resampled": [], "warnings": []}
    llm = await resources.llm(context.llm, context.concurrency)
    messages, longest, parse = _final_prompt(state, context)
    sampling = Sampling(
        n=context.samples, temperature=context.temperature, max_tokens=longest, thinking=context.thinking
    )
    reply = await llm.complete(messages, sampling)
    said = [_read(completion.text, parse) for completion in reply.completions]
    judge = await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
    found, warnings = await links(judge, state["question"], [(state["answer"], one) for one in said])
    return {"consistency": sum(link == 1 for link in found) / len(said), "resampled": said, "warnings": warnings}


def _final_prompt(state: SunarState, context: SunarContext) -> tuple[list[Message], int, Callable[[str], str]]:
    """What the final answer is asked with, how many tokens it may have and how it is read."""
    question, hops = state["question"], state["hops"]
    if context.meta_evidence:
        asked = meta_evidence.messages(question, hops, state["sequential_answer"], state["evidence"])
        return asked, context.max_answer_tokens, answer.parse
    return decompose.messages(question, hops, must_answer=True), LONGEST_STEP, _final_answer


def _final_answer(reply: str) -> str:
    step = decompose.parse(reply)
    return step.text if step.is_final else ""


def _read(text: str, parse: Callable[[str], str]) -> str:
    try:
        return parse(text)
    except ContractFault:
        return ""
