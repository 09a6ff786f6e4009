"""rephrase: a chunk in other sentences (DENSE section 4.1, equation 3)."""

from __future__ import annotations

from ..errors import ContextOverflow, ContractFault
from ..models.interfaces import Sampling
from ..models.resources import Resources
from ..prompts import rephrase as prompt
from ..state.dense import DenseContext, DenseState, RephraseInput, text_key
from .contract import ask

ROOM = 64
"""Tokens that a rephrasing may have beyond one for every two bytes of its text, which is about twice the text's own."""


async def rephrase(state: RephraseInput, context: DenseContext, resources: Resources) -> DenseState:
    """Rephrase one chunk in isolation, greedily.

    A rephrasing that is empty, unchanged, cut off or a refusal is asked for once more; then the text itself stands,
    and a warning says that the chunk was not probed.
    """
    chunk = state["chunk"]
    text = chunk["text"]
    llm = await resources.llm(context.llm, context.concurrency)
    # not counted: a server would be asked for that, which is a round of latency more
    longest = len(text.encode("utf-8", "replace")) // 2 + ROOM
    sampling = Sampling(max_tokens=longest, thinking=context.thinking)
    try:
        found = await ask(llm, prompt.messages(text), sampling, lambda reply: prompt.parse(reply, text), whole=True)
    except ContractFault as fault:
        return _unprobed(
            text, f"Chunk '{chunk['id']}' was not probed: its rephrasing cannot be used ({fault.problem})."
        )
    except ContextOverflow:
        return _unprobed(text, f"Chunk '{chunk['id']}' was not probed: it does not fit the model's window twice.")
    return {"rephrased": {text_key(text): found}}


def _unprobed(text: str, warning: str) -> DenseState:
    return {"rephrased": {text_key(text): text}, "warnings": [warning]}
