"""The prompt of the chat form that rewrites a follow-up question so that it stands alone."""

from collections.abc import Sequence

from ..errors import ContractFault
from ..state.chat import Turn
from ..state.messages import Message
from . import bare, render

MOST_TURNS = 10
"""The model sees this many turns of the conversation, the last ones."""


def messages(turns: Sequence[Turn], question: str) -> list[Message]:
    """Ask for the last question in a form that can be understood without the conversation."""
    return render("standalone", turns=list(turns)[-MOST_TURNS:], question=question)


def parse(reply: str) -> str:
    """The question; `ContractFault` if the reply is empty."""
    if not (question := bare(bare(reply, '"').removeprefix("Last question:"), '"')):
        raise ContractFault("it is empty", reply)
    return question
