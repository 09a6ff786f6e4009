"""The folder of an evaluation: which questions are put to which systems, and all that is needed to go on with it."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from .. import __version__
from ..errors import UserFault
from .datasets import Dataset, pooled, sample, write_corpus
from .questions import GoldQuestion

VERSION = 1
"""Of the folder's form; a folder of another one is refused."""

MANIFEST, QUESTIONS, RESULTS, CALLS, CORPORA = (
    "run.json",
    "questions.jsonl",
    "results.sqlite",
    "calls.sqlite",
    "corpora",
)

POOLED, OWN = "pooled", "own"
"""A corpus of all paragraphs of a dataset's questions, and one of each question's own."""


@dataclass(frozen=True)
class System:
    """A graph and its settings under a name; context: as JSON, its corpus replaced by that of each question.

    A system that looks nothing up has no corpus.
    """

    label: str
    graph: str
    context: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question of a run; id: unique in the run; corpus: where it is looked up, empty for each system's own."""

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    kind: Literal["text", "yes_no"]
    answerable: bool
    gold_documents: tuple[str, ...]
    corpus: str

    @property
    def gold(self) -> GoldQuestion:
        """The same as the metrics know it."""
        return GoldQuestion(
            self.question,
            self.answers,
            id=self.id,
            kind=self.kind,
            answerable=self.answerable,
            gold_documents=self.gold_documents,
        )


@dataclass(frozen=True)
class Task:
    """One question to be put to one system."""

    system: str
    question: str
    graph: str
    context: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Bench:
    """An evaluation in its folder. about: the rest of what run.json holds."""

    folder: Path
    systems: tuple[System, ...]
    questions: tuple[Asked, ...]
    about: Mapping[str, Any]

    @property
    def results(self) -> Path:
        """The file of a `Store`."""
        return self.folder / RESULTS

    @property
    def calls(self) -> Path:
        """The file of a `CallMemory`."""
        return self.folder / CALLS

    @property
    def name(self) -> str:
        """Names the run among all others."""
        return str(self.about["id"])

    @property
    def seed(self) -> int:
        """What samples are drawn with."""
        return int(self.about["seed"])

    def tasks(self) -> list[Task]:
        """Every question under every system: question by question, so that all systems get on alike, and the datasets
        in turn, so that they do too."""
        places: Counter[str] = Counter()
        turns: list[tuple[int, Asked]] = []
        for asked in self.questions:
            turns.append((places[asked.dataset], asked))
            places[asked.dataset] += 1
        turns.sort(key=lambda turn: turn[0])
        return [
            Task(system.label, asked.id, system.graph, self._context(system, asked), asked.question)
            for _, asked in turns
            for system in self.systems
        ]

    def _context(self, system: System, asked: Asked) -> Mapping[str, Any]:
        if not asked.corpus or "corpus" not in system.context:
            return system.context
        # a path of the folder is kept relative, so that the folder may be moved
        return {**system.context, "corpus": str(self.folder / asked.corpus)}


def begin(
    folder: Path,
    systems: Sequence[System],
    datasets: Sequence[Dataset],
    *,
    corpus: str | None,
    limit: int | None,
    seed: int,
    more: Mapping[str, Any],
) -> Bench:
    """Make the folder of a new run.

    corpus: `POOLED`, `OWN`, or None for each system's own, as it is where no system looks anything up; limit: questions
    of each dataset, drawn with the seed; more: what else run.json is to hold. Raises `UserFault` for a folder that
    holds something, and for questions that have no paragraphs to make a corpus from.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserFault(
            f"'{folder}' is there already: go on with it by dubito eval --resume '{folder}', or give another --out."
        )
    _check_labels(systems)
    if not any("corpus" in system.context for system in systems):
        corpus = None
    drawn = [(data, sample(data.questions, limit, seed) if limit else data.questions) for data in datasets]
    names = _names([data.name for data in datasets])
    for name, (_, some) in zip(names, drawn, strict=True):
        _check_paragraphs(name, some, corpus)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        asked = [
            one for name, (_, some) in zip(names, drawn, strict=True) for one in _asked(folder, name, some, corpus)
        ]
        about = {
            "version": VERSION,
            "id": uuid.uuid4().hex,
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "dubito": __version__,
            "seed": seed,
            "corpus": corpus,
            "datasets": [
                {
                    "name": name,
                    "spec": data.name,
                    "questions": len(some),
                    "of": len(data.questions),
                    "left_out": list(data.problems),
                }
                for name, (data, some) in zip(names, drawn, strict=True)
            ],
            **more,
        }
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in asked)
        (folder / QUESTIONS).write_text(lines, encoding="utf-8")
        # last: a folder with a run.json is a whole one
        manifest = {**about, "systems": [asdict(system) for system in systems]}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be written ({fault.strerror}): give another --out.") from fault
    return Bench(folder, tuple(systems), tuple(asked), about)


def read(folder: Path) -> Bench:
    """The run in a folder; `UserFault` if there is none, or one in a form that this version does not read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        version = manifest.pop("version")
        if version != VERSION:
            raise UserFault(
                f"'{folder}' is a run in form {version}, and this dubito reads form {VERSION}: use dubito "
                f"{manifest.get('dubito', 'of another version')}, or run the evaluation anew."
            )
        systems = tuple(System(**one) for one in manifest.pop("systems"))
        lines = (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()
        questions = tuple(_as_asked(json.loads(line)) for line in lines)
    except FileNotFoundError as fault:
        raise UserFault(f"There is no run in '{folder}': give a folder that dubito eval --out has made.") from fault
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be read: {fault.strerror}.") from fault
    except (KeyError, TypeError, ValueError) as fault:
        if isinstance(fault, UserFault):
            raise
        raise UserFault(
            f"'{folder}/{MANIFEST}' is not that of a run: was it edited? Run the evaluation anew."
        ) from fault
    return Bench(folder, systems, questions, {**manifest, "version": version})


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep others from working on the run at the same time; `UserFault` if somebody is."""
    # SQLite's lock ends with its process, however that ends, on every system
    lock = sqlite3.connect(folder / "lock.sqlite", timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        yield
    except sqlite3.OperationalError as fault:
        raise UserFault(
            f"Another dubito eval is at work in '{folder}' ({fault}): wait for it, or give another --out."
        ) from fault
    finally:
        lock.close()


def _asked(folder: Path, dataset: str, questions: Sequence[GoldQuestion], corpus: str | None) -> Iterator[Asked]:
    if corpus == POOLED:
        (folder / CORPORA).mkdir(exist_ok=True)
        write_corpus(pooled(questions), folder / CORPORA / f"{dataset}.jsonl")
    for one in questions:
        place = f"{CORPORA}/{dataset}.jsonl" if corpus == POOLED else ""
        if corpus == OWN:
            place = f"{CORPORA}/{dataset}/{hashlib.sha256(one.id.encode()).hexdigest()[:16]}.jsonl"
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            write_corpus(pooled([one]), folder / place)
        yield Asked(
            id=f"{dataset}/{one.id}",
            dataset=dataset,
            question=one.question,
            answers=one.answers,
            kind=one.kind,
            answerable=one.answerable,
            gold_documents=one.gold_documents,
            corpus=place,
        )


def _check_paragraphs(dataset: str, questions: Sequence[GoldQuestion], corpus: str | None) -> None:
    if corpus is not None and not all(one.documents for one in questions):
        raise UserFault(
            f"Questions of {dataset} come without paragraphs, so there is nothing to make a corpus from: give --corpus "
            "PATH with the documents to look in."
        )


def _as_asked(kept: Mapping[str, Any]) -> Asked:
    return Asked(**{**kept, "answers": tuple(kept["answers"]), "gold_documents": tuple(kept["gold_documents"])})


def _check_labels(systems: Sequence[System]) -> None:
    labels = [system.label for system in systems]
    try:
        "".join(labels).encode()
    except UnicodeEncodeError as fault:
        raise UserFault("A system's name is not UTF-8 text: give it another one, as in NAME=GRAPH:...") from fault
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserFault(f"Two systems are named '{twice}': name one of them, as in other={twice}.")


def _names(specs: Sequence[str]) -> list[str]:
    """A short name for each dataset, fit for a file: its kind, or of a plain file its name; equal ones numbered."""
    short = [
        re.sub(r"[^\w.-]", "_", kind if colon else Path(spec).stem)
        for spec in specs
        for kind, colon, _ in [spec.partition(":")]
    ]
    return [
        name if name not in short[:place] else f"{name}-{short[:place].count(name) + 1}"
        for place, name in enumerate(short)
    ]
