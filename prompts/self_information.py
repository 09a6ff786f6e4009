"""The chat under which a passage is scored: what a sentence of it says that could not be expected."""

from __future__ import annotations

from ..state.messages import Message
from . import render


def messages() -> list[Message]:
    """The chat whose reply is scored; it says nothing of the passage, so that all its sentences have to."""
    return render("self_information")
