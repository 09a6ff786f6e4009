"""A dataset by its name: from a file of a known kind, from the hub, or from a file of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ...errors import UserFault, either
from ...retrieval.corpus import Document, shown
from ..questions import GoldQuestion
from .fields import Record
from .hub import rows_on_hub
from .kinds import KINDS, PLAIN, Kind, kind_named, looks_like, rows_in
from .open_domain import plain
from .reading import Broken, Placed, records_of


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions in their order, ids unique, and what is wrong or odd about the source.

    problems: each record that was left out (`on_error="skip"`), repeated records, paragraphs without text, supporting
    paragraphs that are not among a question's own.
    """

    name: str
    questions: tuple[GoldQuestion, ...]
    problems: tuple[str, ...]


def load_dataset(spec: str, *, on_error: Literal["refuse", "skip"] = "refuse") -> Dataset:
    """Read questions with their gold answers, paragraphs and gold documents.

    spec: `KIND:FILE` with one of `KINDS`; `KIND:hub:NAME[/CONFIG][#SPLIT]` or `KIND:hub`, from the HuggingFace hub or
    a folder in its form; `FILE`, JSON lines of the user's own.
    Raises `UserFault` for a kind, file or name that is not there or holds no questions, and for a record that cannot
    be read, with its place; with `skip` such records are left out and listed in `Dataset.problems`.
    """
    kind, rest = _kind_and_rest(spec)
    if kind.name != PLAIN and (rest == "hub" or rest.startswith("hub:")):
        name = rest[4:] or kind.hub
        if name is None:
            raise UserFault(f"Where '{kind.name}' is on the hub is not known: give {kind.name}:hub:OWNER/NAME.")
        taken, records = rows_on_hub(name)
        return _collected(f"{kind.name}:hub:{taken}", f"'{taken}'", kind, None, records, on_error=on_error)
    path = Path(rest).expanduser()
    name = path.name if kind.name == PLAIN else f"{kind.name}:{path.name}"
    return _collected(name, f"'{shown(path)}'", kind, path.parent, records_of(path), on_error=on_error)


def _kind_and_rest(spec: str) -> tuple[Kind, str]:
    name, colon, rest = spec.partition(":")
    if colon and name in KINDS and rest:
        return KINDS[name], rest
    if spec in KINDS or (colon and name in KINDS):
        raise UserFault(f"'{spec}' names a kind of dataset and no file: give {name}:FILE.")
    if colon and not Path(spec).expanduser().exists():
        kind_named(name)
    return KINDS[PLAIN], spec


@dataclass(slots=True)
class _Collection:
    """What was read; likenesses: what records read as plain ones look like, with the first place of each."""

    questions: dict[str, GoldQuestion] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    likenesses: dict[str, str] = field(default_factory=dict)

    def add(self, question: GoldQuestion, place: str) -> None:
        """Keep a question that is not there yet. Raises ValueError for one that cannot be kept."""
        question, odd = _mended(question)
        _check_unicode(question)
        before = self.questions.get(question.id)
        if before is not None and before != question:
            told = f"{self.places[question.id]} has the id '{question.id}' too, and is another question"
            raise ValueError(f"{told}: give each an id of its own")
        if before is not None:
            self.notes.append(f"{place}: it is {self.places[question.id]} again, and is kept once")
            return
        self.questions[question.id] = replace(question, documents=tuple(map(self._shared, question.documents)))
        self.places[question.id] = place
        self.notes += [f"{place}: {what}" for what in odd]

    def _shared(self, document: Document) -> Document:
        """The same document where another question has it too, for a book may come with many questions."""
        kept = self.documents.setdefault(document.id, document)
        if kept != document:
            raise ValueError(f"two of its paragraphs that differ have the id '{document.id}'")
        return kept


def _collected(
    name: str,
    source: str,
    kind: Kind,
    folder: Path | None,
    records: Iterator[Placed],
    *,
    on_error: Literal["refuse", "skip"],
) -> Dataset:
    found = _Collection()
    question_of = kind.open(folder)
    for place, row in _rows(kind, records):
        _take(found, row, place, question_of)
    found.notes += [f"{place}: {like} for all that it says" for like, place in found.likenesses.items()]
    problems = tuple(f"{source}, {what}" for what in found.faults + found.notes)
    if found.faults and (on_error == "refuse" or not found.questions):
        raise UserFault(_refusal(problems[: len(found.faults)], some_left=bool(found.questions)))
    if not found.questions:
        raise UserFault(f"{source} holds no questions: give a file with at least one.")
    return Dataset(name, tuple(found.questions.values()), problems)


def _rows(kind: Kind, records: Iterator[Placed]) -> Iterator[tuple[str, Record | Broken]]:
    """Each question's row and its place; what is no record of the kind is `Broken`."""
    for place, record in records:
        if isinstance(record, Broken) or not isinstance(record, Mapping):
            yield place, record if isinstance(record, Broken) else Broken("it is no JSON object")
        elif kind.name != PLAIN and (others := _other_kinds(kind, record)):
            yield place, Broken(f"{_likeness(others)} in place of {kind.name}")
        else:
            for number, row in enumerate(rows_in(kind, record), start=1):
                yield (f"{place}, question {number}" if kind.rows and row is not record else place), row


def _other_kinds(kind: Kind, record: Record) -> tuple[str, ...]:
    """What the record looks like, if it is not this; any record with a question and answers looks like a plain one."""
    kinds = looks_like(record)
    return () if kind.name in kinds or kinds == (PLAIN,) else kinds


def _likeness(kinds: tuple[str, ...]) -> str:
    return f"it looks like a record of {either(kinds)}: give {kinds[0]}:FILE"


def _take(found: _Collection, row: Record | Broken, place: str, question_of: Callable[[Record], GoldQuestion]) -> None:
    if isinstance(row, Broken):
        found.faults.append(f"{place}: {row.what}")
        return
    others = _other_kinds(KINDS[PLAIN], row) if question_of is plain else ()
    try:
        found.add(question_of(row), place)
    except (ValueError, RecursionError) as fault:
        found.faults.append(f"{place}: {fault}{f'; {_likeness(others)}' if others else ''}")
    else:
        if others:
            found.likenesses.setdefault(_likeness(others), place)


def _mended(question: GoldQuestion) -> tuple[GoldQuestion, list[str]]:
    """Without paragraphs that have no text, and what is odd about it. Raises ValueError if gold is without text."""
    odd: list[str] = []
    blank = {document.id: document.title for document in question.documents if not document.text.strip()}
    for name, title in blank.items():
        if name in question.gold_documents or len(question.documents) == 1:
            raise ValueError(f"its supporting paragraph '{title}' has no text")
        odd.append(f"the paragraph '{title}' has no text and is left out")
    documents = tuple(document for document in question.documents if document.id not in blank)
    own = {document.id for document in documents}
    if documents:
        odd += [
            f"'{name}' supports the answer and is not among its paragraphs"
            for name in question.gold_documents
            if name not in own
        ]
    return replace(question, documents=documents), odd


def _check_unicode(question: GoldQuestion) -> None:
    texts = [text for document in question.documents for text in (document.title, document.text)]
    try:
        for text in (question.id, *question.gold_documents, *texts):
            text.encode()
    except UnicodeEncodeError as fault:
        raise ValueError("its text is not valid Unicode: save the file as UTF-8") from fault


def _refusal(faults: tuple[str, ...], *, some_left: bool) -> str:
    more = {1: "", 2: " (and 1 problem more)"}.get(len(faults), f" (and {len(faults) - 1} problems more)")
    if not some_left:
        return f"{faults[0]}{more}, so there is no question to read."
    advice = "leave out what cannot be read (--on-bad-record skip, in Python on_error='skip')"
    return f"{faults[0]}{more}; mend it, or {advice}."
