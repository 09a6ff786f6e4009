"""The LLM as an entailment judge (DENSE section 4.2): a question and two answers in, one of three words out."""

from __future__ import annotations

from ..state.messages import Message
from . import render

OPTIONS = ("entailment", "neutral", "contradiction")


def messages(question: str, first: str, second: str) -> list[Message]:
    """Ask whether the first answer entails the second; each stands on a line of its own, whatever is in it."""
    return render("entailment", question=_one_line(question), first=_one_line(first), second=_one_line(second))


def _one_line(text: str) -> str:
    # the end of a line is what ends an answer, so there must be none in it
    return " ".join(text.split())
