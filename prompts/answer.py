"""The Generator's prompt (DF-RAG section 3.4): question and passages in, a short answer out."""

import re
from collections.abc import Callable, Sequence

from ..errors import ContractFault
from ..state.messages import Message
from ..state.records import Chunk
from . import render


def messages(question: str, chunks: Sequence[Chunk], notes: Sequence[str] = ()) -> list[Message]:
    """Ask for the answer. notes: DF-RAG's incremental context."""
    return render("answer", question=question, chunks=chunks, notes=notes)


def around_passages(question: str, ask: Callable[[str, Sequence[Chunk]], list[Message]] = messages) -> list[str]:
    """The texts of the prompt with an empty passage: what fills the window beside the passages.

    ask: makes the prompt.
    """
    empty: Chunk = {"id": "", "doc_id": "", "title": "", "text": ""}
    return [message["content"] for message in ask(question, [empty])]


def parse(reply: str) -> str:
    """The answer, without bold type, a leading 'Answer:' and passage marks, which small models repeat.

    Raises `ContractFault` for an empty answer.
    """
    answer = _unbold(_LABEL.sub("", _unbold(_MARK.sub("", reply))))
    if not answer:
        raise ContractFault("it is empty", reply)
    return answer


def beginning(reply: str) -> str:
    """The part of an unfinished reply that `parse` keeps, however the reply goes on."""
    text = _MARK.sub("", reply).partition("<")[0].lstrip()  # a passage mark may have begun
    label = _LABEL.match(text)
    if label is not None and bool(label[1]) == bool(label[2] or label[3]):
        text = text[label.end() :].lstrip()
    elif label is not None or any(start.startswith(text[: len(start)].lower()) for start in _STARTS):
        return ""  # a label may have begun
    return "" if text.startswith("*") else text.rstrip()  # the whole reply may be bold


def parse_or_empty(reply: str) -> str:
    """Like `parse`, but an empty answer is an empty text."""
    try:
        return parse(reply)
    except ContractFault:
        return ""


_STARTS = ("answer:", "answer**:")
_LABEL = re.compile(r"\A(\*\*)?answer(\*\*)?:(\*\*)?", re.IGNORECASE)
_MARK = re.compile(r"</?passage\b[^<>\n]*>\s*", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*]*)\*\*")


def _unbold(text: str) -> str:
    bold = _BOLD.fullmatch(text.strip())
    return (bold[1] if bold else text).strip()
