"""State of a graph's chat form: a conversation whose last message is a question."""

from __future__ import annotations

from typing import Annotated

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from .records import Chunk, Usage, add_new, add_usage


class Turn(TypedDict):
    """A message of a conversation as a prompt shows it."""

    role: str
    text: str


class Conversation(TypedDict):
    """What a chat form takes and gives: messages, as chat front ends and Studio's chat mode send and show them."""

    messages: Annotated[list[AnyMessage], add_messages]


class ChatState(Conversation, total=False):
    """The conversation, and of its last question: in a form that stands alone, the answer, and what it comes from.

    turns: what was said before it.
    """

    turns: list[Turn]

    question: str
    answer: str
    evidence: list[Chunk]
    usage: Annotated[Usage, add_usage]
    warnings: Annotated[list[str], add_new]


class ChatOutput(Conversation):
    """The conversation with the answer behind it, and what the answer comes from."""

    question: str
    answer: str
    evidence: list[Chunk]
    usage: Usage
    warnings: list[str]
