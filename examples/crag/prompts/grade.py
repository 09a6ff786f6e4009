"""CRAG's grade as a closed choice: question and one chunk in, yes or no out."""

from __future__ import annotations

from ..state.messages import Message
from ..state.records import Chunk
from . import render

YES, NO = "yes", "no"


def messages(question: str, chunk: Chunk) -> list[Message]:
    """Ask whether the chunk helps to answer the question."""
    return render("grade", question=question, chunk=chunk)
