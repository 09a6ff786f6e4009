"""The chat under which a question is scored: the likelier it is as a reply, the better the passage answers it."""

from __future__ import annotations

from ..state.messages import Message
from . import render


def messages(text: str) -> list[Message]:
    """The chat whose reply is scored; text: the document, its title included."""
    return render("query_likelihood", text=text)
