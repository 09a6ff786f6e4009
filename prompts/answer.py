"""The Generator's prompt (DF-RAG section 3.4): question and passages in, a short answer out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import render


def messages(question: str, chunks: Sequence[Chunk], notes: Sequence[str] = ()) -> list[Message]:
    """Ask for the answer; notes are DF-RAG's incremental context."""
    return render("answer", question=question, chunks=chunks, notes=notes)


def parse(reply: str) -> str:
    """The reply without bold around it, a repeated 'Answer:' and the marks of passages that a small model repeats.

    Raises `ContractFault` if nothing is left.
    """
    answer = _unbold(_LABEL.sub("", _unbold(_MARK.sub("", reply))))
    if not answer:
        raise ContractFault("it is empty", reply)
    return answer


_LABEL = re.compile(r"\A(\*\*)?answer(\*\*)?:(\*\*)?", re.IGNORECASE)
_MARK = re.compile(r"</?passage\b[^>\n]*>\s*", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*]*)\*\*")


def _unbold(text: str) -> str:
    bold = _BOLD.fullmatch(text.strip())
    return (bold[1] if bold else text).strip()
