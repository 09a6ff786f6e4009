"""prepare: refuse what cannot be answered, before any model is called."""

from __future__ import annotations

from typing import Any

from ..errors import CapabilityMissing, UserFault
from ..models.interfaces import ChatModel
from ..models.resources import Resources
from ..state.context import BaseContext
from ..state.flow import Flow

LONGEST_QUESTION = 20_000
"""Characters."""


async def prepare(state: Flow, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Open what the run needs and begin its usage and warnings anew.

    Raises `UserFault` for an empty or overlong question, an unknown model, a corpus that cannot be read, and
    `CapabilityMissing` for a chat model that cannot do what the settings ask.
    """
    check_question(state.get("question"))
    llm = await resources.llm(context.llm, context.concurrency)
    check_capabilities(llm, context)
    await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    return {"usage": None, "warnings": None}


def check_question(question: object) -> None:
    """Refuse a question that is missing, empty or longer than `LONGEST_QUESTION` characters."""
    if not isinstance(question, str) or not question.strip():
        raise UserFault('The question is empty: give the graph {"question": "..."} with some text.')
    if len(question) > LONGEST_QUESTION:
        raise UserFault(
            f"The question has {len(question)} characters and the limit is {LONGEST_QUESTION}: "
            "ask in fewer words, and put long material into the corpus."
        )


def check_capabilities(llm: ChatModel, context: BaseContext) -> None:
    """Refuse a chat model that lacks what the settings need."""
    if missing := sorted(context.needs() - llm.capabilities):
        raise CapabilityMissing(
            f"The chat model '{llm.name}' has no {' or '.join(missing)}, which these settings need: use a vllm:, hf:, "
            "gguf: or embedded model, or another value of the setting that needs it (such as evaluator or reranker)."
        )
