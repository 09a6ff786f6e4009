"""What is made of many questions: a sample of them, one corpus of their paragraphs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import UserFault
from ...retrieval.corpus import Document, shown
from ..questions import GoldQuestion


def sample(questions: Sequence[GoldQuestion], n: int, seed: int = 0) -> tuple[GoldQuestion, ...]:
    """n of the questions, in their order; all if there are no more.

    Those whose SHA-256 of seed and id is lowest, so that the same are drawn everywhere, whatever else is in the
    dataset and in whatever order, and a smaller sample is a part of a larger one. Raises `UserFault` if n < 1.
    """
    if n < 1:
        raise UserFault(f"A sample of {n} questions cannot be drawn: give 1 or more.")
    drawn = sorted(range(len(questions)), key=lambda place: _rank(questions[place], seed))[:n]
    return tuple(questions[place] for place in sorted(drawn))


def _rank(question: GoldQuestion, seed: int) -> bytes:
    return hashlib.sha256(json.dumps([seed, question.id or question.question]).encode()).digest()


def pooled(questions: Iterable[GoldQuestion]) -> tuple[Document, ...]:
    """The paragraphs of all the questions as one corpus, each once, in the order in which they come first.

    Raises `UserFault` if two that differ have the same id, which no dataset that `load_dataset` reads has.
    """
    documents: dict[str, Document] = {}
    for question in questions:
        for document in question.documents:
            if documents.setdefault(document.id, document) != document:
                raise UserFault(f"Two documents that differ have the id '{document.id}': give each an id of its own.")
    return tuple(documents.values())


def write_corpus(documents: Iterable[Document], path: str | Path) -> None:
    """Write documents as the JSON lines that `read_corpus` reads, with the same ids.

    Raises `UserFault` if there are none, if one has no text or an id that another has, and where the file cannot be
    written.
    """
    path = Path(path).expanduser()
    if path.suffix != ".jsonl":
        raise UserFault(
            f"A corpus is written as JSON lines, not as '{shown(path)}': give a name that ends with .jsonl."
        )
    documents = list(documents)
    if not documents:
        raise UserFault("There are no documents to write: the questions of this dataset come without paragraphs.")
    if len({document.id for document in documents}) < len(documents):
        raise UserFault("Documents with the same id cannot be written as one corpus: give each an id of its own.")
    for document in documents:
        if not document.text.strip() or not document.id or document.id != document.id.strip():
            raise UserFault(f"The document '{document.id}' has no text, or an id with white space around it.")
    lines = [{"id": one.id, "title": one.title, "text": one.text} for one in documents]
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    except OSError as fault:
        raise UserFault(f"The corpus cannot be written to '{shown(path)}': {fault.strerror}.") from fault
