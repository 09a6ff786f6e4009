"""generate: the Generator (DF-RAG section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Message, Sampling
from ..models.resources import Resources
from ..prompts import answer as prompt
from ..state.context import BaseContext
from ..state.flow import Grounded
from .contract import ask


async def generate(state: Grounded, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Answer the question from the evidence, greedily; notes that an earlier step left are shown to the model too."""
    llm = await resources.llm(context.llm, context.concurrency)
    notes: Sequence[str] = state.get("incremental_context", [])
    text, warnings = await answer_to(prompt.messages(state["question"], state["evidence"], notes), context, llm)
    return {"answer": text, "warnings": warnings}


async def answer_to(messages: Sequence[Message], context: BaseContext, llm: ChatModel) -> tuple[str, list[str]]:
    """The model's answer, with a warning if it is empty twice."""
    sampling = Sampling(max_tokens=context.max_answer_tokens, thinking=context.thinking)
    try:
        return await ask(llm, messages, sampling, prompt.parse), []
    except ContractFault:
        return "", ["The model gave an empty answer twice."]
