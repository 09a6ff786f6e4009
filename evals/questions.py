"""Questions with gold answers, from a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserFault

if TYPE_CHECKING:
    from ..retrieval.corpus import Document

ANSWER_NAMES = ("answers", "answer", "golden_answers", "aliases", "answer_aliases")


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question, the answers that count as right, and what a dataset says of it.

    answers: gold answers and their aliases, at least one if it is answerable; id: its own in the dataset, empty where
    it was read without one; kind: `yes_no` if every gold answer is "yes" or "no"; answerable: from the dataset's
    paragraphs (the gold answers of a question that is not are those it would have had);
    documents: the paragraphs that came with it, distractors too; gold_documents: ids of those that support the
    answer, which are documents of the dataset's corpus where none came with it.
    """

    question: str
    answers: tuple[str, ...]
    id: str = ""
    kind: Literal["text", "yes_no"] = "text"
    answerable: bool = True
    documents: tuple[Document, ...] = ()
    gold_documents: tuple[str, ...] = ()


def read_questions(path: Path, limit: int | None = None) -> list[GoldQuestion]:
    """The questions of a file in its order, the first `limit` of them.

    A line is an object with a "question" and one answer or a list of them under one or more of `ANSWER_NAMES`; other
    names are not read, empty lines are passed over. Raises `UserFault`, with the line's number, for a line that
    is something else and for a question that an earlier line has, and for a file that cannot be read or has none.
    """
    try:
        lines = path.expanduser().read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as fault:
        raise UserFault(f"The questions cannot be read from '{path}': {fault.strerror}.") from fault
    found: dict[str, tuple[int, GoldQuestion]] = {}
    for number, one in islice(_questions(path, lines), limit):
        if one.question in found:
            before = found[one.question][0]
            raise UserFault(f"'{path}', line {number}: the question is that of line {before}: leave one of them out.")
        found[one.question] = number, one
    if not found:
        raise UserFault(f"'{path}' holds no questions: {_FORM}.")
    return [one for _, one in found.values()]


_FORM = 'give one JSON object a line, such as {"question": "Who?", "answers": ["Ada"]}'


def _questions(path: Path, lines: list[bytes]) -> Iterator[tuple[int, GoldQuestion]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, plain_question(json.loads(line.decode()))
        except UnicodeDecodeError as fault:
            raise UserFault(f"'{path}', line {number}: it is not UTF-8 text: save the file as UTF-8.") from fault
        except json.JSONDecodeError as fault:
            what = f"the JSON is broken ({fault.msg[:1].lower()}{fault.msg[1:]}, column {fault.colno})"
            raise UserFault(f"'{path}', line {number}: {what}: {_FORM}.") from fault
        except (ValueError, RecursionError) as fault:
            raise UserFault(f"'{path}', line {number}: {fault}: {_FORM}.") from fault


def plain_question(record: Any) -> GoldQuestion:  # noqa: ANN401 - whatever JSON holds
    """A record of a "question" and its answers under one of `ANSWER_NAMES`; ValueError says what is wrong with it."""
    if not isinstance(record, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - one kind of fault for one line
    question = text_of(record.get("question"), 'the "question"')
    given = [record[name] for name in ANSWER_NAMES if record.get(name) is not None]
    answers = [one for some in given for one in (some if isinstance(some, list) else [some])]
    if not answers:
        raise ValueError('there is no "answers"')
    return GoldQuestion(question, tuple(dict.fromkeys(text_of(answer, "an answer") for answer in answers)))


def text_of(value: Any, what: str) -> str:  # noqa: ANN401
    """A text without the white space around it; ValueError if it is none, or empty."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {'missing' if value is None else 'no text'}")  # noqa: TRY004
    if not value.strip():
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as fault:
        raise ValueError(f"{what} is not valid Unicode") from fault
    return value.strip()
