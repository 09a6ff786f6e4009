"""rephrase: a semantically equivalent rephrasing of a chunk (DENSE section 4.1, equation 3)."""

from ..errors import ContextOverflow, ContractFault
from ..prompts import rephrase as prompt
from ..resources.resources import Resources
from ..state.dense import DenseContext, DenseState, RephraseInput, text_key
from .structured_reply import ask_with_retry, reply_within

MARGIN = 64
"""Tokens that a rephrasing may have beyond 1 for every 2 bytes of its text, which is about twice the text's length."""


async def rephrase(state: RephraseInput, context: DenseContext, resources: Resources) -> DenseState:
    """Rephrase one chunk in isolation, greedily.

    A rephrasing that is empty, unchanged, cut off or a refusal is asked for once more. If that fails too, the chunk
    keeps its own text, and a warning says that it was not rephrased.
    """
    chunk = state["chunk"]
    text = chunk["text"]
    llm = await resources.rephraser(context)
    # bytes, not tokens: a server would need one more request to count tokens
    longest = len(text.encode("utf-8", "replace")) // 2 + MARGIN
    sampling = reply_within(longest, context)
    try:
        rephrasing = await ask_with_retry(
            llm, prompt.messages(text), sampling, lambda reply: prompt.parse(reply, text), whole=True
        )
    except ContractFault as fault:
        problem = f"the model's reply cannot be used ({fault.problem})"
    except ContextOverflow:
        problem = "the chunk and its rephrasing do not fit the model's window"
    else:
        return {"rephrased": {text_key(text): rephrasing}}
    return {"rephrased": {text_key(text): text}, "warnings": [f"Chunk '{chunk['id']}' was not rephrased: {problem}."]}
