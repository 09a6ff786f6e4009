"""Load a dataset: from a file of a known kind, from the hub, or from the user's own file."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ...errors import UserFault, either
from ...resources.opening import SAMPLE, sample_file
from ...retrieval.corpus import Document, refusal, shown
from ..questions import GoldQuestion
from .fields import Record
from .hub import rows_on_hub
from .kinds import KINDS, PLAIN, Kind, kind_named, looks_like
from .open_domain import plain
from .reading import Broken, PlacedRecord, records_of


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions in their order, with unique ids, and the problems of the source.

    problems: skipped records, repeated records, paragraphs without text, and supporting paragraphs that are not among
    the question's own.
    """

    name: str
    questions: tuple[GoldQuestion, ...]
    problems: tuple[str, ...]


def load_dataset(spec: str, *, on_bad_record: Literal["refuse", "skip"] = "refuse") -> Dataset:
    """Read questions with their gold answers, paragraphs and gold documents.

    spec: `KIND:FILE` with a kind of `KINDS`; `KIND:hub:NAME[/CONFIG][#SPLIT]` or `KIND:hub` for the HuggingFace hub or
    a folder in its form; `FILE` for the user's own JSON lines; `sample` for the questions about the sample corpus.
    Raises `UserFault` for an unknown kind, a missing source, a source without questions, and a broken record, with its
    place. With `skip`, broken records are left out and listed in `Dataset.problems`.
    """
    kind, rest = _kind_and_rest(spec)
    if kind.name != PLAIN and (rest == "hub" or rest.startswith("hub:")):
        name = rest[4:] or kind.hub
        if name is None:
            raise UserFault(f"The place of '{kind.name}' on the hub is unknown: give {kind.name}:hub:OWNER/NAME.")
        taken, records = rows_on_hub(name)
        return _collected(f"{kind.name}:hub:{taken}", f"'{taken}'", kind, None, records, on_bad_record=on_bad_record)
    path = sample_file("questions.jsonl") if spec == SAMPLE else Path(rest).expanduser()
    name = spec if spec == SAMPLE else path.name if kind.name == PLAIN else f"{kind.name}:{path.name}"
    return _collected(name, f"'{shown(path)}'", kind, path.parent, records_of(path), on_bad_record=on_bad_record)


def _kind_and_rest(spec: str) -> tuple[Kind, str]:
    name, colon, rest = spec.partition(":")
    if colon and name in KINDS and rest:
        return KINDS[name], rest
    if spec in KINDS or (colon and name in KINDS):
        raise UserFault(f"'{spec}' is a kind of dataset without a file: give {name}:FILE.")
    if colon and not Path(spec).expanduser().exists():
        kind_named(name)
    return KINDS[PLAIN], spec


@dataclass(slots=True)
class _Collection:
    """The questions read so far.

    likenesses: the kinds that plain records look like, with the first place of each.
    """

    questions: dict[str, GoldQuestion] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    likenesses: dict[str, str] = field(default_factory=dict)

    def add(self, question: GoldQuestion, place: str) -> None:
        """Add a question, or note that it is repeated. Raises ValueError if it cannot be added."""
        question, notes = _without_empty_paragraphs(question)
        _check_unicode(question)
        before = self.questions.get(question.id)
        if before is not None and before != question:
            other = f"{self.places[question.id]} has the same id '{question.id}' and is another question"
            raise ValueError(f"{other}: give each question its own id")
        if before is not None:
            self.notes.append(f"{place}: it repeats {self.places[question.id]}, which is kept")
            return
        self.questions[question.id] = replace(question, documents=tuple(map(self._shared, question.documents)))
        self.places[question.id] = place
        self.notes += [f"{place}: {note}" for note in notes]

    def _shared(self, document: Document) -> Document:
        """The document object of an earlier question, if it has the same one: many questions may share a book."""
        kept = self.documents.setdefault(document.id, document)
        if kept != document:
            raise ValueError(f"two different paragraphs have the id '{document.id}'")
        return kept


def _collected(
    name: str,
    source: str,
    kind: Kind,
    folder: Path | None,
    records: Iterator[PlacedRecord],
    *,
    on_bad_record: Literal["refuse", "skip"],
) -> Dataset:
    collection = _Collection()
    question_of = kind.open(folder) if kind.open else kind.question_of
    assert question_of is not None  # noqa: S101 - a kind has one or the other
    for place, row in _rows(kind, records):
        _take(collection, row, place, question_of)
    collection.notes += [
        f"{place}: {likeness} to read all its fields" for likeness, place in collection.likenesses.items()
    ]
    problems = tuple(f"{source}, {problem}" for problem in collection.faults + collection.notes)
    if collection.faults and (on_bad_record == "refuse" or not collection.questions):
        nothing_left = None if collection.questions else "there are no questions"
        raise UserFault(refusal(problems[: len(collection.faults)], nothing_left))
    if not collection.questions:
        raise UserFault(f"{source} has no questions: give a file with at least one.")
    return Dataset(name, tuple(collection.questions.values()), problems)


def _rows(kind: Kind, records: Iterator[PlacedRecord]) -> Iterator[tuple[str, Record | Broken]]:
    """The row of each question and its place; a record of another kind becomes `Broken`."""
    for place, record in records:
        if isinstance(record, Broken) or not isinstance(record, Mapping):
            yield place, record if isinstance(record, Broken) else Broken("it is not a JSON object")
        elif kind.name != PLAIN and (others := _other_kinds(kind, record)):
            yield place, Broken(f"{_likeness(others)} in place of {kind.name}")
        else:
            for number, row in enumerate(kind.rows(record) if kind.rows else [record], start=1):
                yield (f"{place}, question {number}" if kind.rows and row is not record else place), row


def _other_kinds(kind: Kind, record: Record) -> tuple[str, ...]:
    """The kinds that the record looks like, if `kind` is not among them; a plain record fits any kind."""
    kinds = looks_like(record)
    return () if kind.name in kinds or kinds == (PLAIN,) else kinds


def _likeness(kinds: tuple[str, ...]) -> str:
    return f"it looks like a record of {either(kinds)}: give {kinds[0]}:FILE"


def _take(
    collection: _Collection, row: Record | Broken, place: str, question_of: Callable[[Record], GoldQuestion]
) -> None:
    if isinstance(row, Broken):
        collection.faults.append(f"{place}: {row.what}")
        return
    others = _other_kinds(KINDS[PLAIN], row) if question_of is plain else ()
    try:
        collection.add(question_of(row), place)
    except (ValueError, RecursionError) as fault:
        collection.faults.append(f"{place}: {fault}{f'; {_likeness(others)}' if others else ''}")
    else:
        if others:
            collection.likenesses.setdefault(_likeness(others), place)


def _without_empty_paragraphs(question: GoldQuestion) -> tuple[GoldQuestion, list[str]]:
    """The question without empty paragraphs, and notes. Raises ValueError if a gold paragraph is empty."""
    notes: list[str] = []
    blank = {document.id: document.title for document in question.documents if not document.text.strip()}
    for name, title in blank.items():
        if name in question.gold_documents or len(question.documents) == 1:
            raise ValueError(f"its supporting paragraph '{title}' has no text")
        notes.append(f"the paragraph '{title}' has no text and is left out")
    documents = tuple(document for document in question.documents if document.id not in blank)
    own = {document.id for document in documents}
    if documents:
        notes += [
            f"'{name}' supports the answer but is not among its paragraphs"
            for name in question.gold_documents
            if name not in own
        ]
    return replace(question, documents=documents), notes


def _check_unicode(question: GoldQuestion) -> None:
    texts = [text for document in question.documents for text in (document.title, document.text)]
    try:
        for text in (question.id, *question.gold_documents, *texts):
            text.encode()
    except UnicodeEncodeError as fault:
        raise ValueError("its text is not valid Unicode: save the file as UTF-8") from fault
