"""The Generator's prompt (DF-RAG section 3.4): question and passages in, a short answer out."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import render


def messages(question: str, chunks: Sequence[Chunk], notes: Sequence[str] = ()) -> list[Message]:
    """Ask for the answer; notes are DF-RAG's incremental context."""
    return render("answer", question=question, chunks=chunks, notes=notes)


def parse(reply: str) -> str:
    """The reply without white space around it and without a repeated 'Answer:'; `ContractFault` if nothing is left."""
    answer = reply.strip().removeprefix("Answer:").strip()
    if not answer:
        raise ContractFault("it is empty", reply)
    return answer
