"""What the kinds' records are made of: ids, answers, paragraphs. What is wrong with one raises ValueError."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...retrieval.corpus import Document
from ...retrieval.passages import joined
from ..questions import GoldQuestion, text_of
from .reading import Broken

Record = Mapping[str, Any]

ID_NAMES = ("id", "_id", "qid", "question_id", "QuestionId", "example_id")

_ID_DIGITS = 16
_TITLED_ID_DIGITS = 8


def has(record: Record, *names: str) -> bool:
    """Are all of these there? A null is not: tables fill columns that a record lacks with it."""
    return all(record.get(name) is not None for name in names)


def needed(record: Record, name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What a record holds under this name."""
    if not has(record, name):
        held = ", ".join(str(field) for field in record)[:120] or "nothing"
        raise ValueError(f'the "{name}" is missing (the record holds {held})')
    return record[name]


def question_text(record: Record, name: str = "question") -> str:
    """The question of a record."""
    return text_of(needed(record, name), f'the "{name}"')


def id_of(record: Record, question: str) -> str:
    """The record's own id, or else a hash of its question, the same in every run."""
    for name in ID_NAMES:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return _digest(question)[:_ID_DIGITS]


def answers_of(*given: object) -> tuple[str, ...]:
    """Texts and lists of texts as one list without repetitions; a true is a yes, nothing is left out but a null."""
    some = [one for part in given if part is not None for one in (part if isinstance(part, list | tuple) else [part])]
    spelled = [("yes" if one else "no") if isinstance(one, bool) else one for one in some]
    return tuple(dict.fromkeys(text_of(one, "an answer") for one in spelled))


def listed(value: object, what: str) -> list[object]:
    """A list that may stand in a text, as JSON or as Python writes it."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        raise ValueError(f"{what} is no list")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found = None
    if not isinstance(found, list):
        raise ValueError(f"{what} is a text that is no list ({value.strip()[:40]})")  # noqa: TRY004 - as for a field
    return found


def gold_question(
    record: Record,
    question: str,
    answers: Iterable[str],
    *,
    answerable: bool = True,
    documents: Iterable[Document] = (),
    gold: Iterable[str] = (),
) -> GoldQuestion:
    """Put together; a question whose gold answers are all yes or no is one of the kind `yes_no`.

    Raises ValueError if it is answerable and has no gold answer.
    """
    answers = tuple(answers)
    spelled = tuple(dict.fromkeys(answer.lower().removesuffix(".") for answer in answers))
    is_yes_no = bool(answers) and set(spelled) <= {"yes", "no"}
    if answerable and not answers:
        raise ValueError("there is no gold answer")
    return GoldQuestion(
        question,
        spelled if is_yes_no else answers,
        id_of(record, question),
        "yes_no" if is_yes_no else "text",
        answerable,
        tuple({document.id: document for document in documents}.values()),
        tuple(dict.fromkeys(gold)),
    )


def document(title: object, text: object) -> Document:
    """A paragraph under an id that is the same in every file: its title and a hash of title and text.

    text: one text, or its sentences; empty if there are none.
    """
    title = "" if title is None else title
    whole = "" if text is None or text == [] else joined(text)
    if not isinstance(title, str) or whole is None:
        raise ValueError(f"a paragraph's {'text' if isinstance(title, str) else 'title'} is no text")
    title = title.strip()
    digest = _digest(title, whole)
    return Document(f"{title} #{digest[:_TITLED_ID_DIGITS]}" if title else digest[:_ID_DIGITS], title, whole)


def beside(folder: Path | None, *names: str) -> Path | None:
    """The first of these files that is in the folder."""
    paths = (folder / name for name in names) if folder else ()
    return next((path for path in paths if path.is_file()), None)


def each(given: object, what: str) -> Iterator[Record | Broken]:
    """The records of a list, and a `Broken` in the place of what is none."""
    if not isinstance(given, list):
        yield Broken(f"{what} is {'missing' if given is None else 'no list'}")
        return
    for one in given:
        yield one if isinstance(one, Mapping) else Broken(f"a part of {what} is no object")


def rows_of(columns: object, what: str) -> list[Record]:
    """A list of records, which a table gives as one list a field."""
    if isinstance(columns, Mapping):
        lists = list(columns.values())
        if not all(isinstance(one, list) and len(one) == len(lists[0]) for one in lists):
            raise ValueError(f"{what} is no table of lists of the same length")
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    if not isinstance(columns, list) or not all(isinstance(one, Mapping) for one in columns):
        raise ValueError(f"{what} is {'missing' if columns is None else 'no list of records'}")
    return columns


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
