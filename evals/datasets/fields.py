"""The parts of dataset records: ids, answers, paragraphs. A wrong part raises ValueError with the reason."""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...retrieval.corpus import Document
from ...retrieval.passages import joined
from ..questions import GoldQuestion
from .reading import Broken

Record = Mapping[str, Any]

ID_NAMES = ("id", "_id", "qid", "question_id", "QuestionId", "example_id")
ANSWER_NAMES = ("answers", "answer", "golden_answers", "aliases", "answer_aliases")

_ID_DIGITS = 16
_TITLED_ID_DIGITS = 8


def has(record: Record, *names: str) -> bool:
    """Does a record have all these fields? A null counts as missing, because tables fill missing fields with nulls."""
    return all(record.get(name) is not None for name in names)


def needed(record: Record, name: str) -> Any:  # noqa: ANN401 - any JSON
    """A field that must exist."""
    if not has(record, name):
        fields = ", ".join(str(field) for field in record)[:120] or "nothing"
        raise ValueError(f'"{name}" is missing (the record has {fields})')
    return record[name]


def text_of(value: Any, what: str) -> str:  # noqa: ANN401
    """A text without surrounding white space; ValueError if it is empty or not a text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {'missing' if value is None else 'not a text'}")  # noqa: TRY004 - one kind of fault
    if not value.strip():
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as fault:
        raise ValueError(f"{what} is not valid Unicode") from fault
    return value.strip()


def question_text(record: Record, name: str = "question") -> str:
    """The question of a record."""
    return text_of(needed(record, name), f'"{name}"')


def id_of(record: Record, question: str) -> str:
    """The record's own id, else a hash of its question, which is the same in every run."""
    for name in ID_NAMES:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return _digest(question)[:_ID_DIGITS]


def answers_of(*given: object) -> tuple[str, ...]:
    """Texts and lists of texts as one tuple without repetitions. True becomes "yes", false "no"; nulls are left out."""
    parts = (part if isinstance(part, list | tuple) else [part] for part in given if part is not None)
    values = [value for part in parts for value in part]
    texts = [("yes" if value else "no") if isinstance(value, bool) else value for value in values]
    return tuple(dict.fromkeys(text_of(text, "an answer") for text in texts))


def listed(value: object, what: str) -> list[object]:
    """A list, or a text that holds a list in JSON or Python."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        raise ValueError(f"{what} is not a list")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        try:
            parsed = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            parsed = None
    if not isinstance(parsed, list):
        raise ValueError(f"{what} is a text that holds no list ({value.strip()[:40]})")  # noqa: TRY004 - as above
    return parsed


def listed_answers(record: Record, name: str) -> tuple[str, ...]:
    """The gold answers in a field with a list, or with a text that holds a list."""
    return answers_of(listed(needed(record, name), f'"{name}"'))


def supporting(paragraphs: Iterable[Record], text: str) -> tuple[list[Document], list[str]]:
    """The paragraphs, and the ids of those with `is_supporting`. text: the name of the field with the text."""
    documents = [(document(record.get("title"), record.get(text)), record) for record in paragraphs]
    gold = [paragraph.id for paragraph, record in documents if record.get("is_supporting") is True]
    return [paragraph for paragraph, _ in documents], gold


def gold_question(
    record: Record,
    answers: Iterable[str],
    *,
    question: str = "question",
    answerable: bool = True,
    documents: Iterable[Document] = (),
    gold: Iterable[str] = (),
) -> GoldQuestion:
    """A question from its parts. If all gold answers are yes or no, its kind is `yes_no`.

    question: the name of the field with the question. Raises ValueError if it is answerable and has no gold answer.
    """
    text = question_text(record, question)
    answers = tuple(answers)
    lowered = tuple(dict.fromkeys(answer.lower().removesuffix(".") for answer in answers))
    is_yes_no = bool(answers) and set(lowered) <= {"yes", "no"}
    if answerable and not answers:
        raise ValueError("there is no gold answer")
    return GoldQuestion(
        text,
        lowered if is_yes_no else answers,
        id_of(record, text),
        "yes_no" if is_yes_no else "text",
        answerable,
        tuple({document.id: document for document in documents}.values()),
        tuple(dict.fromkeys(gold)),
    )


def document(title: object, text: object) -> Document:
    """A paragraph. Its id is the same in every file: its title and a hash of title and text.

    text: a text or a list of sentences; may be empty.
    """
    title = "" if title is None else title
    whole = "" if text is None or text == [] else joined(text)
    if not isinstance(title, str) or whole is None:
        raise ValueError(f"a paragraph's {'text' if isinstance(title, str) else 'title'} is not a text")
    title = title.strip()
    digest = _digest(title, whole)
    return Document(f"{title} #{digest[:_TITLED_ID_DIGITS]}" if title else digest[:_ID_DIGITS], title, whole)


def beside(folder: Path | None, *names: str) -> Path | None:
    """The first of these files that exists in the folder."""
    paths = (folder / name for name in names) if folder else ()
    return next((path for path in paths if path.is_file()), None)


def each(given: object, what: str) -> Iterator[Record | Broken]:
    """The records of a list; a `Broken` for anything else in it."""
    if not isinstance(given, list):
        yield Broken(f"{what} is {'missing' if given is None else 'not a list'}")
        return
    for record in given:
        yield record if isinstance(record, Mapping) else Broken(f"a part of {what} is not an object")


def rows_of(columns: object, what: str) -> list[Record]:
    """A list of records; a table may have it as one list per field."""
    if isinstance(columns, Mapping):
        lists = list(columns.values())
        if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
            raise ValueError(f"{what} is not a table with columns of equal length")
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    if not isinstance(columns, list) or not all(isinstance(record, Mapping) for record in columns):
        raise ValueError(f"{what} is {'missing' if columns is None else 'not a list of records'}")
    return columns


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
