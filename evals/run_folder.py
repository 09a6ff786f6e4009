"""The folder of an evaluation: the systems, the questions, the corpora made from them, and what a resumed run needs."""

import hashlib
import json
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import UserFault
from ..server_url import checked_url
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
    Raises `UserFault` for a folder that is not empty, for equal labels, and for questions that have no paragraphs to
    make a corpus from.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserFault(f"'{folder}' exists already: resume the run in it, or choose another folder.")
    _check_labels(systems)
    if not any("corpus" in system.context for system in systems):
        corpus = None
    drawn = [sample(dataset.questions, limit, seed) if limit else dataset.questions for dataset in datasets]
    names = _names([dataset.name for dataset in datasets])
    for name, questions in zip(names, drawn, strict=True):
        if corpus is not None and not all(question.documents for question in questions):
            raise UserFault(
                f"Some questions of {name} have no paragraphs, so no corpus can be made from them: name a corpus."
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
        run_questions = [
            question
            for name, questions in zip(names, drawn, strict=True)
            for question in _with_corpora(folder, name, questions, corpus)
        ]
        lines = "".join(json.dumps(asdict(question)) + "\n" for question in run_questions)
        (folder / QUESTIONS).write_text(lines, encoding="utf-8")
        # written last: a folder with a run.json is complete
        manifest = {**about, "systems": [asdict(system) for system in systems]}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be written ({fault.strerror}): choose another folder.") from fault
    return EvaluationRun(folder, tuple(systems), tuple(run_questions), about)


def read(folder: Path) -> EvaluationRun:
    """Read the run in a folder; `UserFault` if the folder has no run, or a run of another version."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        version = manifest.pop("version")
        if version != VERSION:
            raise UserFault(
                f"'{folder}' is a run of version {version}, and this dubito reads version {VERSION}: use dubito "
                f"{manifest.get('dubito', '(another version)')}, or evaluate again."
            )
        systems = tuple(System(**system) for system in manifest.pop("systems"))
        lines = (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()
        questions = tuple(_run_question(json.loads(line)) for line in lines)
    except FileNotFoundError as fault:
        raise UserFault(f"There is no run in '{folder}': give the folder of an evaluation.") from fault
    except OSError as fault:
        raise UserFault(f"'{folder}' cannot be read: {fault.strerror}.") from fault
    except (KeyError, TypeError, ValueError) as fault:
        if isinstance(fault, UserFault):
            raise
        raise UserFault(f"'{folder}/{MANIFEST}' does not describe a run: was it edited? Evaluate again.") from fault
    return EvaluationRun(folder, systems, questions, {**manifest, "version": version})


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock the run against other processes; `UserFault` if another process has the lock."""
    # SQLite releases its lock when the process ends, in whatever way, on every operating system
    lock = sqlite3.connect(folder / "lock.sqlite", timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        yield
    except sqlite3.OperationalError as fault:
        raise UserFault(
            f"Another process evaluates in '{folder}' ({fault}): wait until it ends, or choose another folder."
        ) from fault
    finally:
        lock.close()


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


def _run_question(entry: Mapping[str, Any]) -> RunQuestion:
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return RunQuestion(**given)


def _check_labels(systems: Sequence[System]) -> None:
    labels = [system.label for system in systems]
    try:
        "".join(labels).encode()
    except UnicodeEncodeError as fault:
        raise UserFault("A system's name is not UTF-8 text: give it another name, as in NAME=GRAPH:...") from fault
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UserFault(f"Two systems are named '{twice}': rename one of them, as in other={twice}.")


def _names(specs: Sequence[str]) -> list[str]:
    """A short file name for each dataset: its kind, or for a plain file the file's stem; equal names are numbered."""
    short = [
        re.sub(r"[^\w.-]", "_", kind if colon else Path(spec).stem)
        for spec in specs
        for kind, colon, _ in [spec.partition(":")]
    ]
    return [
        name if name not in short[:place] else f"{name}-{short[:place].count(name) + 1}"
        for place, name in enumerate(short)
    ]
