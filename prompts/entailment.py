"""The LLM as an entailment judge (DENSE section 4.2): a question and two answers in, one of three words out."""

from ..state.messages import Message
from . import render

OPTIONS = ("entailment", "neutral", "contradiction")


def messages(question: str, first: str, second: str) -> list[Message]:
    """Ask whether the first answer entails the second. Question and answers are put on one line each."""
    return render("entailment", question=_one_line(question), first=_one_line(first), second=_one_line(second))


def _one_line(text: str) -> str:
    # in the prompt a line break ends an answer
    return " ".join(text.split())
