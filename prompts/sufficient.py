"""The self-evaluation as a closed choice (DENSE section 5.2): question and context in, yes or no out."""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import render

YES, NO = "yes", "no"


def messages(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask whether the context suffices."""
    return render("sufficient", question=question, chunks=chunks)
