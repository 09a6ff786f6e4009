"""answer, repeat, ablate: the model's answers to variants of one context (DENSE equations 1, 4 and 9)."""

from __future__ import annotations

from ..models.resources import Resources
from ..prompts import answer as answer_prompt
from ..prompts import summary as summary_prompt
from ..state.dense import REPEATED, AnswerInput, DenseContext, DenseState
from ..state.dense_rag import DenseRagContext, DenseRagState
from .generate import answer_to

PROMPTS = {"answer": answer_prompt, "summarise": summary_prompt}


async def answer(state: AnswerInput, context: DenseContext, resources: Resources) -> DenseState:
    """r_i: answer the question from one context, greedily."""
    text, warnings = await _answer(state, context, resources)
    return {"replies": {state["key"]: text}, "warnings": warnings}


async def repeat(state: AnswerInput, context: DenseContext, resources: Resources) -> DenseState:
    """Answer from the original context again, to see whether the model repeats itself."""
    text, _ = await _answer(state, context, resources)
    return {"replies": {REPEATED: text}}


async def ablate(state: AnswerInput, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """ar_i: answer from the context without chunk i, whose id is the key."""
    text, warnings = await _answer(state, context, resources)
    return {"ablations": {state["key"]: text}, "warnings": warnings}


async def _answer(state: AnswerInput, context: DenseContext, resources: Resources) -> tuple[str, list[str]]:
    llm = await resources.llm(context.llm, context.concurrency)
    messages = PROMPTS[context.task].messages(state["question"], state["evidence"])
    return await answer_to(messages, context, llm)
