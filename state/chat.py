"""State of a graph's chat form: a conversation whose last message is a question."""

from typing import Annotated

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from .flow import Answered, Flow


class Turn(TypedDict):
    """A message of a conversation, as a prompt shows it. role: user or assistant."""

    role: str
    text: str


class Conversation(TypedDict):
    """The input of a chat form: messages, as chat front ends and Studio's chat mode send and show them."""

    messages: Annotated[list[AnyMessage], add_messages]


class ChatState(Conversation, Flow, total=False):
    """The state of a chat form. turns: the messages before the last question."""

    turns: list[Turn]


class ChatOutput(Conversation, Answered):
    """The conversation with the answer as its last message, and the output of the graph for the rewritten question."""

    question: str
