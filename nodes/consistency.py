"""measure_consistency: how often the model gives SUNAR's final answer again when it is sampled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import ContractFault
from ..models.interfaces import Message
from ..prompts import answer, decompose, unparsed
from ..resources.resources import Resources
from ..state.sunar import SunarContext, SunarState
from .decompose import MAX_TOKENS
from .entail import links
from .generate import sampled_answers


async def measure_consistency(state: SunarState, context: SunarContext, resources: Resources) -> dict[str, Any]:
    """Sample m answers with the final answer's prompt; `consistency` is the share that means the same as it.

    Two answers mean the same if each entails the other. An empty sample counts as different; an empty final answer has
    consistency 0. `resampled` holds the samples.
    """
    if not state["answer"].strip():
        return {"consistency": 0.0, "resampled": [], "warnings": []}
    llm = await resources.llm(context)
    messages, max_tokens, parse = _final_prompt(state, context)
    reply = await llm.complete(messages, replace(sampled_answers(context), max_tokens=max_tokens))
    samples = [parse(completion.text) for completion in reply.completions]
    judge = await resources.judge(context)
    pairs = [(state["answer"], sample) for sample in samples]
    strengths, warnings = await links(judge, state["question"], pairs)
    share = sum(strength == 1 for strength in strengths) / len(samples)
    return {"consistency": share, "resampled": samples, "warnings": warnings}


def _final_prompt(state: SunarState, context: SunarContext) -> tuple[list[Message], int, Callable[[str], str]]:
    """The final answer's prompt, its longest reply in tokens, and its parser. A malformed reply is an empty answer."""
    question, hops = state["question"], state["hops"]
    if context.meta_evidence:
        messages = unparsed.meta_evidence(question, hops, state["sequential_answer"], state["evidence"])
        return messages, context.max_answer_tokens, answer.parse_or_empty
    return decompose.messages(question, hops, must_answer=True), MAX_TOKENS, _final_answer


def _final_answer(reply: str) -> str:
    try:
        step = decompose.parse(reply)
    except ContractFault:
        return ""
    return step.text if step.is_final else ""
