"""The Evaluator's question as a closed choice: one step and one chunk set in, a number from 0 to 5 out."""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import render

OPTIONS = ("0", "1", "2", "3", "4", "5")


def messages(step: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask how well one chunk set supports one step."""
    return render("choice", step=step, chunks=chunks)
