"""The follow-up prompt of the chat form: a conversation and its last question in, a question that stands alone out."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ContractFault
from ..state.chat import Turn
from ..state.messages import Message
from . import bare, render

MOST_TURNS = 10
"""Turns of the conversation that the model is shown, the last ones."""


def messages(turns: Sequence[Turn], question: str) -> list[Message]:
    """Ask for the last question of a conversation in a form that needs none of it."""
    return render("standalone", turns=list(turns)[-MOST_TURNS:], question=question)


def parse(reply: str) -> str:
    """The question; `ContractFault` if the reply is empty."""
    if not (question := bare(reply, '"')):
        raise ContractFault("it is empty", reply)
    return question.removeprefix("Last question:").strip()
