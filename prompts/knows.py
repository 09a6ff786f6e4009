"""The self-report as a closed choice (SeaKR section 5.1, the prompt-based estimator): does the model know enough?"""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import render

YES, NO = "yes", "no"


def messages(question: str, chunks: Sequence[Chunk], rationales: Sequence[str]) -> list[Message]:
    """Ask whether the model can go on without looking anything up."""
    return render("knows", question=question, chunks=chunks, rationales=rationales)
