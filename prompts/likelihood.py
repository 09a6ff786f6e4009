"""The chat under which a plan's step is scored: the likelier the step, the better the passages support it."""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import render


def messages(chunks: Sequence[Chunk]) -> list[Message]:
    """The chat whose reply is scored; without chunks, what the model would say anyway."""
    return render("likelihood", chunks=chunks)
