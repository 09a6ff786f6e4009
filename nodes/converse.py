"""listen, standalone, reply: what a graph's chat form does before and after the graph."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from ..errors import ContractFault, UserFault
from ..models.interfaces import Sampling
from ..models.resources import Resources
from ..prompts import standalone as prompt
from ..state.chat import ChatState, Turn
from ..state.context import BaseContext
from .contract import ask
from .prepare import check_question

LONGEST = 200
"""Tokens of a question that stands alone."""

NO_ANSWER = "I found no answer to that."


async def listen(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Take the conversation's last question into `question`, and what was said before it into `turns`.

    Raises `UserFault` where the last message is nobody's question.
    """
    messages = state.get("messages") or []
    before, last = messages[:-1], messages[-1] if messages else None
    if not isinstance(last, HumanMessage):
        raise UserFault('The last message is no question: end the messages with {"role": "user", "content": "..."}.')
    question = _text(last)
    check_question(question)
    turns: list[Turn] = [
        {"role": "user" if isinstance(one, HumanMessage) else "assistant", "text": _text(one)}
        for one in before
        if isinstance(one, HumanMessage | AIMessage) and _text(one)
    ]
    return {"question": question, "turns": turns, "usage": None, "warnings": None}


async def standalone(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Put a follow-up question into words that need none of what was said before; as it is if the model cannot."""
    llm = await resources.llm(context.llm, context.concurrency)
    asked = prompt.messages(state["turns"], state["question"])
    try:
        return {"question": await ask(llm, asked, Sampling(max_tokens=LONGEST), prompt.parse)}
    except ContractFault:
        return {"warnings": ["The question could not be put so that it stands alone; it was asked as it is."]}


async def reply(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Say the answer; the message's `response_metadata` holds the question as it was asked, evidence and warnings."""
    about = {"question": state["question"], "evidence": state.get("evidence", []), "warnings": state["warnings"]}
    return {"messages": [AIMessage(state["answer"].strip() or NO_ANSWER, response_metadata=about)]}


def _text(message: AnyMessage) -> str:
    """A message's text; parts that are none, such as pictures, are left out."""
    return str(message.text).strip()
