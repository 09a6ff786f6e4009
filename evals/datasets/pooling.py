"""Make a sample of questions, and a corpus of their paragraphs."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import UserFault
from ...retrieval.corpus import Document, shown
from ...traces.files import write_file
from ..questions import GoldQuestion


def sample(questions: Sequence[GoldQuestion], n: int, seed: int = 0) -> tuple[GoldQuestion, ...]:
    """Draw n questions and keep their order; all questions if there are at most n.

    The sample has the questions with the lowest SHA-256 of seed and id. It is the same on every machine, does not
    depend on the order or on other questions, and contains every smaller sample. Raises `UserFault` if n < 1.
    """
    if n < 1:
        raise UserFault(f"A sample of {n} questions cannot be drawn: give 1 or more.")
    drawn = sorted(range(len(questions)), key=lambda place: _rank(questions[place], seed))[:n]
    return tuple(questions[place] for place in sorted(drawn))


def _rank(question: GoldQuestion, seed: int) -> bytes:
    return hashlib.sha256(json.dumps([seed, question.id or question.question]).encode()).digest()


def pooled(questions: Iterable[GoldQuestion]) -> tuple[Document, ...]:
    """The paragraphs of all questions as one corpus, each once, in the order of first appearance.

    Raises `UserFault` if two different paragraphs have the same id, which `load_dataset` rules out.
    """
    documents: dict[str, Document] = {}
    for question in questions:
        for document in question.documents:
            if documents.setdefault(document.id, document) != document:
                raise UserFault(f"Two different documents have the id '{document.id}': give each its own id.")
    return tuple(documents.values())


def write_corpus(documents: Iterable[Document], path: str | Path) -> None:
    """Write documents as JSON lines for `read_corpus`, with the same ids.

    Raises `UserFault` if there are no documents, if a document has no text, if two have the same id, and if the file
    cannot be written.
    """
    path = Path(path).expanduser()
    if path.suffix != ".jsonl":
        raise UserFault(
            f"A corpus is written as JSON lines: give a name that ends with .jsonl in place of '{shown(path)}'."
        )
    documents = list(documents)
    if not documents:
        raise UserFault("There are no documents to write: the questions of this dataset have no paragraphs.")
    if len({document.id for document in documents}) < len(documents):
        raise UserFault("Documents with the same id cannot be written as one corpus: give each its own id.")
    for document in documents:
        if not document.text.strip() or not document.id or document.id != document.id.strip():
            raise UserFault(f"The document '{document.id}' has no text, or an id with white space around it.")
    lines = [{"id": document.id, "title": document.title, "text": document.text} for document in documents]
    write_file(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(), "corpus")
