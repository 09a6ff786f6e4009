"""The meta evidence reasoner's prompt (SUNAR section 3.2): all reasoning and the best evidence in, an answer out."""

from __future__ import annotations

from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from ..state.sunar import Hop
from . import render


def messages(question: str, hops: Sequence[Hop], sequential_answer: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask for the answer once more."""
    return render("meta_evidence", question=question, hops=hops, sequential_answer=sequential_answer, chunks=chunks)
