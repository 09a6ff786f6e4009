"""The folder of an evaluation: the systems, the questions, the corpora made from them, and what a resumed run needs."""

import hashlib
import itertools
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .. import __version__, file_lock
from ..errors import UserFault
from ..json_files import BrokenJson, content_of, parsed
from ..server_url import checked_url
from .answers import Standard
from .datasets import Dataset, pooled, sample, write_corpus
from .questions import GoldQuestion

VERSION = 1
"""Version of the folder's form. A folder of another version is refused."""

MANIFEST, QUESTIONS, RESULTS, CALLS, CORPORA = (
    "run.json",
    "questions.jsonl",
    "results.sqlite",
    "calls.sqlite",
    "corpora",
)

UNFINISHED = "run.json.partial"
"""The manifest of a folder whose other files are still being written."""

LOCK = "lock.sqlite"
"""The file of the lock. SQLite makes another beside it."""

POOLED, OWN = "pooled", "own"
"""Corpora made from a dataset: the paragraphs of all its questions together, or each question's own paragraphs."""


@dataclass(frozen=True)
class System:
    """A graph with its settings, under a label.

    context: the settings as JSON. A system that retrieves nothing has no `corpus` there; in the others each question's
    corpus replaces it.
    """

    label: str
    graph: str
    context: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunQuestion(GoldQuestion):
    """A question of a run, whose id is unique in the run. Its paragraphs are only in its corpus.

    corpus: the path of its corpus in the folder, empty if each system uses its own corpus.
    """

    dataset: str
    corpus: str


class _DatasetEntry(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    of: int | None = None
    left_out: list[str] = []


class _Entries(BaseModel):
    """The entries of run.json that are read again, beside the systems."""

    model_config = ConfigDict(strict=True)

    id: str
    seed: int = Field(ge=0)
    corpus: str | None = None
    datasets: list[_DatasetEntry] = []
    command: str | None = None
    metrics: list[str] = []
    traces: bool = True
    memory: bool = True
    at_once: int = Field(default=4, ge=1)
    standard: Standard = "squad"
    known_by: dict[str, str] = {}


_SYSTEMS: TypeAdapter[tuple[System, ...]] = TypeAdapter(Annotated[tuple[System, ...], Field(min_length=1)])
_QUESTION = TypeAdapter(RunQuestion)


@dataclass(frozen=True)
class EvaluationTask:
    """One question for one system. question: its id; text: its words."""

    system: str
    question: str
    graph: str
    context: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class EvaluationRun:
    """An evaluation in its folder. about: the other entries of run.json."""

    folder: Path
    systems: tuple[System, ...]
    questions: tuple[RunQuestion, ...]
    about: Mapping[str, Any]

    @property
    def results(self) -> Path:
        """The file of the `Store`."""
        return self.folder / RESULTS

    @property
    def calls(self) -> Path:
        """The file of the `CallMemory`."""
        return self.folder / CALLS

    @property
    def name(self) -> str:
        """An id that no other run has."""
        return str(self.about["id"])

    @property
    def seed(self) -> int:
        """The seed of samples."""
        return int(self.about["seed"])

    @property
    def standard(self) -> Standard:
        """How its answers are compared with the gold answers."""
        standard: Standard = self.about.get("standard", "squad")
        return standard

    @property
    def known_by(self) -> Mapping[str, str]:
        """By what each system's corpus is known again, by label (see `Resources.known_by`). Unknown: missing."""
        return dict(self.about.get("known_by") or {})

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are measured after the questions, with their settings."""
        return tuple(self.about.get("metrics", []))

    def with_entries(self, **entries: object) -> "EvaluationRun":
        """The run with these entries in its run.json; `UserFault` if that cannot be written."""
        about = {**self.about, **entries}
        partial = self.folder / UNFINISHED
        try:
            partial.write_text(_manifest(about, self.systems), encoding="utf-8")
            partial.replace(self.folder / MANIFEST)
        except OSError as fault:
            raise UserFault(f"'{self.folder}' cannot be written ({fault.strerror}): choose another folder.") from fault
        return replace(self, about=about)

    def one_context(self, system: System) -> Mapping[str, Any] | None:
        """The settings of a system with the corpus of all its questions; None if the questions have several."""
        if "corpus" in system.context and len({question.corpus for question in self.questions}) > 1:
            return None
        return self._context(system, self.questions[0])

    def tasks(self) -> list[EvaluationTask]:
        """Every question for every system.

        The order is question by question and alternates between datasets, so that all systems and datasets progress
        equally.
        """
        places: Counter[str] = Counter()
        by_place: list[tuple[int, RunQuestion]] = []
        for question in self.questions:
            by_place.append((places[question.dataset], question))
            places[question.dataset] += 1
        by_place.sort(key=lambda item: item[0])
        return [
            EvaluationTask(system.label, question.id, system.graph, self._context(system, question), question.question)
            for _, question in by_place
            for system in self.systems
        ]

    def _context(self, system: System, question: RunQuestion) -> Mapping[str, Any]:
        if not question.corpus or "corpus" not in system.context:
            return system.context
        # the stored path is relative, so that the folder can be moved
        return {**system.context, "corpus": str(self.folder / question.corpus)}


def spread(tasks: Sequence[EvaluationTask], urls: Sequence[str]) -> list[EvaluationTask]:
    """Assign the questions to servers in turn.

    All systems ask a question at the same server, whose prefix cache then holds its passages. urls: such as
    http://host:8000/v1; each server must serve the model that the settings name. Raises `UserFault` for a task whose
    chat model is not on a server.
    """
    places = {question: place for place, question in enumerate(dict.fromkeys(task.question for task in tasks))}
    for url in urls:
        checked_url(url, "http://host:8000/v1")
    return [_at(task, urls[places[task.question] % len(urls)]) for task in tasks]


def _at(task: EvaluationTask, url: str) -> EvaluationTask:
    kind, _, rest = str(task.context["llm"]).partition(":")
    if kind not in {"vllm", "openai", "http", "https"}:
        raise UserFault(
            f"Replicas are servers of one chat model, and the chat model of {task.system} is "
            f"'{task.context['llm']}': name a served model, such as vllm:URL#model."
        )
    model = rest.partition("#")[2]
    served = f"{url}#{model}" if kind in {"http", "https"} else f"{kind}:{url}#{model}"
    return replace(task, context={**task.context, "llm": served})


def begin(
    folder: Path,
    systems: Sequence[System],
    datasets: Sequence[Dataset],
    *,
    corpus: str | None,
    limit: int | None,
    seed: int,
    more: Mapping[str, Any],
) -> EvaluationRun:
    """Make the folder of a new run.

    corpus: `POOLED`, `OWN`, or None if each system uses its own corpus; ignored if no system retrieves anything;
    limit: number of questions drawn from each dataset with the seed; more: other entries for run.json.
    The folder may hold a run that was never begun to the end. Raises `UserFault` for a folder that holds anything
    else, for one in which another process begins a run, for equal labels, and for questions that have no paragraphs to
    make a corpus from.
    """
    _check_free(folder)
    _check_labels(systems)
    if not any("corpus" in system.context for system in systems):
        corpus = None
    drawn = [sample(dataset.questions, limit, seed) if limit else dataset.questions for dataset in datasets]
    names = _names([dataset.name for dataset in datasets])
    for name, questions in zip(names, drawn, strict=True):
        if corpus is not None and not all(question.documents for question in questions):
            raise UserFault(
                f"{name} has questions without paragraphs, so no corpus can be made from it: name one (--corpus)."
            )
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
                "spec": dataset.name,
                "questions": len(questions),
                "of": len(dataset.questions),
                "left_out": list(dataset.problems),
            }
            for name, dataset, questions in zip(names, datasets, drawn, strict=True)
        ],
        **more,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder):
            _check_free(folder)  # another process may have begun a run since
            # written first and renamed last: a folder with a run.json is complete, and one without it can be begun anew
            (folder / UNFINISHED).write_text(_manifest(about, systems), encoding="utf-8")
            rmtree(folder / CORPORA, ignore_errors=True)
            run_questions = [
                question
                for name, questions in zip(names, drawn, strict=True)
                for question in _with_corpora(folder, name, questions, corpus)
            ]
            lines = "".join(json.dumps(asdict(question)) + "\n" for question in run_questions)
            (folder / QUESTIONS).write_text(lines, encoding="utf-8")
            (folder / UNFINISHED).replace(folder / MANIFEST)
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be written ({fault.strerror}): choose another folder.") from fault
    return EvaluationRun(folder, tuple(systems), tuple(run_questions), about)


def _manifest(about: Mapping[str, Any], systems: Sequence[System]) -> str:
    """The text of run.json."""
    return json.dumps({**about, "systems": [asdict(system) for system in systems]}, indent=2) + "\n"


def read(folder: Path) -> EvaluationRun:
    """Read the run in a folder; `UserFault` if the folder has no run, a run of another version, or damaged files."""
    try:
        manifest = parsed(content_of(folder / MANIFEST))
        if not isinstance(manifest, dict):
            raise _damaged(folder / MANIFEST, "it is not a JSON object")
        if (version := manifest.get("version")) != VERSION:
            raise UserFault(
                f"'{folder}' is a run of version {version}, and this dubito reads version {VERSION}: use dubito "
                f"{manifest.get('dubito', '(another version)')}, or evaluate again."
            )
        systems = _SYSTEMS.validate_python(manifest.pop("systems", None))
        _check_labels(systems)
        _Entries.model_validate(manifest)
    except FileNotFoundError as fault:
        if (folder / UNFINISHED).exists():
            raise UserFault(
                f"The run in '{folder}' ended before its first question: repeat the command that began it."
            ) from fault
        raise UserFault(f"There is no run in '{folder}': give the folder of an evaluation.") from fault
    except OSError as fault:
        raise UserFault(f"'{folder / MANIFEST}' cannot be read: {fault.strerror}.") from fault
    except (BrokenJson, ValidationError) as fault:
        raise _damaged(folder / MANIFEST, fault) from fault
    return EvaluationRun(folder, systems, _questions_in(folder), manifest)


def _questions_in(folder: Path) -> tuple[RunQuestion, ...]:
    path, number = folder / QUESTIONS, 0
    questions: dict[str, RunQuestion] = {}
    try:
        for number, line in enumerate(content_of(path).splitlines(), 1):
            question = _QUESTION.validate_python(parsed(line))
            if questions.setdefault(question.id, question) is not question:
                raise _damaged(path, BrokenJson("it repeats an id"), number)
            question.id.encode()
    except OSError as fault:
        raise UserFault(f"'{path}' cannot be read: {fault.strerror}.") from fault
    except (BrokenJson, ValidationError, UnicodeEncodeError) as fault:
        raise _damaged(path, fault, number) from fault
    if not questions:
        raise _damaged(path, "it is empty")
    return tuple(questions.values())


def _damaged(path: Path, fault: Exception | str, line: int | None = None) -> UserFault:
    """The sentence about a file of the run that is not as it was written."""
    reason = str(fault)
    if isinstance(fault, ValidationError):
        first = fault.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        reason = f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}" if name else first["msg"]
    place = "" if line is None else f"line {line}, "
    return UserFault(
        f"'{path}' does not describe a run ({place}{reason}): was it edited? Correct it, or evaluate again in another "
        "folder."
    )


def _check_free(folder: Path) -> None:
    """Refuse a folder in which no run may be begun: it holds more than a lock and a run without its run.json."""
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    names -= {LOCK, f"{LOCK}-journal"}
    if names and not (UNFINISHED in names and names <= {UNFINISHED, QUESTIONS, CORPORA}):
        raise UserFault(f"'{folder}' exists already: resume the run in it, or choose another folder.")


def exclusive_lock(folder: Path) -> AbstractContextManager[None]:
    """Lock the run against other processes; `UserFault` if another process has the lock."""
    busy = f"Another process evaluates in '{folder}': wait until it ends, or choose another folder."
    return file_lock.exclusive_lock(folder / LOCK, busy)


def _with_corpora(
    folder: Path, dataset: str, questions: Sequence[GoldQuestion], corpus: str | None
) -> Iterator[RunQuestion]:
    """Write the corpora of a dataset, and yield its questions with the path of their corpus."""
    if corpus == POOLED:
        (folder / CORPORA).mkdir(exist_ok=True)
        write_corpus(pooled(questions), folder / CORPORA / f"{dataset}.jsonl")
    for question in questions:
        path = f"{CORPORA}/{dataset}.jsonl" if corpus == POOLED else ""
        if corpus == OWN:
            path = f"{CORPORA}/{dataset}/{hashlib.sha256(question.id.encode()).hexdigest()[:16]}.jsonl"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_corpus(pooled([question]), folder / path)
        own: dict[str, Any] = {field.name: getattr(question, field.name) for field in fields(question)}
        own |= {"id": f"{dataset}/{question.id}", "documents": ()}
        yield RunQuestion(**own, dataset=dataset, corpus=path)


def _check_labels(systems: Sequence[System]) -> None:
    labels = [system.label for system in systems]
    try:
        "".join(labels).encode()
    except UnicodeEncodeError as fault:
        raise UserFault("A system's name is not UTF-8 text: give it another name, as in NAME=GRAPH:...") from fault
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserFault(f"Two systems are named '{twice}': rename one of them, as in other={twice}.")


def _names(specs: Sequence[str]) -> list[str]:
    """A short file name for each dataset: its kind, or for a plain file the file's stem; equal names are numbered.

    No two names are equal, whatever the case of their letters.
    """
    short = [
        re.sub(r"[^\w.-]", "_", kind if colon else Path(spec).stem)
        for spec in specs
        for kind, colon, _ in [spec.partition(":")]
    ]
    # some file systems take Dev.jsonl for dev.jsonl
    own, given = {name.casefold() for name in short}, dict[str, str]()
    for name in short:
        numbered = (f"{name}-{number}" for number in itertools.count(2) if f"{name}-{number}".casefold() not in own)
        free = next(one for one in itertools.chain([name], numbered) if one.casefold() not in given)
        given[free.casefold()] = free
    return list(given.values())
