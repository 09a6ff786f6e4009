"""The prompt for a summary (DENSE appendix H.1): what to do and passages in, a few sentences out."""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import render


def messages(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask for a summary of the chunks; the question says what of."""
    return render("summary", question=question, chunks=chunks)
