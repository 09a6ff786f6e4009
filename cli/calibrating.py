"""The work of `dubito calibrate`: ask the questions, let the technique find its threshold, show the result."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from .. import __version__
from ..errors import DubitoError, UserFault, either
from ..evals.answer_calibration import AnswerOptions, hash_of
from ..evals.answers import MEASURED, answer_rule
from ..evals.calibration import (
    CalibrationReport,
    CalibrationRequest,
    Calibrator,
    Measured,
    Outputs,
    judged,
    not_measured,
)
from ..evals.cascade_calibration import calibrate_cascade, check_cascade, rung_answers
from ..evals.datasets import load_dataset
from ..evals.measuring import BERTSCORE, RATINGS
from ..evals.questions import GoldQuestion
from ..evals.run_folder import MANIFEST, EvaluationTask, read
from ..evals.runner import Asker, unfinished
from ..evals.store import Outcome, Store
from ..graphs.context_from_text import context_for
from ..graphs.registry import context_type, graph_named
from ..models.background import run_in_background
from ..models.metering import Meter, current_meter
from ..nodes.prepare import open_resources
from ..presenters.blocks import Words
from ..presenters.words import counted
from ..render.sanitize import one_line
from ..render.screen import console, print_json
from ..render.terminal import show_blocks
from ..resources.fitting import fitted
from ..resources.resources import shared_resources
from ..state.calibration import AnswerCalibration, identity_in_calls, is_calibration, settings_of
from ..state.context import BaseContext
from ..state.escalate import RUNGS, EscalateContext
from ..state.mixins import AnsweringContext, CorpusContext
from ..state.wrong_settings import sentence_of
from ..uncertainty.risk_control import MOST_RUNGS
from .ask_many import ask_unfinished, open_store, progress, show_failures

AnyCalibrator = Calibrator[Any, Any]

Q = TypeVar("Q", bound=GoldQuestion)

RIGHT = "f1:0.5"
"""The rule for right answers."""

CASCADE = "escalate"
"""The graph whose calibration is found from an evaluation of its rungs."""


def run_calibration(
    technique: str,
    calibrator: type[AnyCalibrator],
    *,
    options: Mapping[str, str | None],
    own: Mapping[str, Any],
    questions: str,
    out: Path | None,
    assignments: Sequence[str] | None,
    right: str | None,
    limit: int | None,
    system: str | None,
    at_once: int,
    quiet: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Calibrate a technique and show the result. options: settings of the context; own: the calibration's options.

    right: the rule for right answers; None: that of the calibration that is checked, else `RIGHT`.
    """
    if right is None:
        right = AnswerCalibration.read(own["check"], technique).right if own.get("check") else RIGHT
    rule = answer_rule(right)  # one that is unknown is told before anything is asked
    try:
        given = calibrator.options(**{name: value for name, value in own.items() if value is not None})
    except ValidationError as fault:
        raise UserFault(sentence_of(fault, calibrator.options.model_fields)) from fault
    target = (out or Path(f"{technique}.calibration.json")).expanduser()
    check_target(target)
    made_with = {"dubito": __version__, "questions": questions, "limit": limit}
    asking: Asking | None = None
    from_run = (Path(questions) / MANIFEST).is_file()
    if rule.metric in MEASURED and not from_run:
        raise UserFault(not_measured(rule))
    settings = [assignment for assignment in assignments or [] if technique != CASCADE or "rungs=" not in assignment]
    if system is not None and (technique == CASCADE or not from_run):
        raise UserFault(
            "--system names the system of an evaluation to calibrate: leave it out for escalate, and for a file of "
            "questions."
        )
    if from_run and (settings or limit or any(value is not None for value in options.values())):
        raise UserFault(f"The answers in '{questions}' were given with its settings: leave the other settings out.")
    if technique == CASCADE:
        answers = cast("AnswerOptions", given)
        report = _cascade(Path(questions), answers, assignments or [], right=right, made_with=made_with, out=target)
    elif from_run:
        source = finished_answers(Path(questions), calibrator.graph, system)
        ask_all = partial(_as_asked, source, questions)
        request = CalibrationRequest(
            source.questions, right, made_with, target, ask_all, source.corpus, source.measured
        )
        report = calibrator(source.context, given).calibrate(request)
    else:
        given_context = context_for(calibrator.compiled(), options, assignments or [])
        resources = shared_resources()
        # the threshold holds for what auto takes
        context = run_in_background(fitted(given_context, resources))
        calibration = calibrator(context, given)
        gold_questions = distinct(load_dataset(questions).questions[:limit])
        kept = outcomes_beside(target)
        with open_store(kept, repairing=repair, repair_with="the same command and --repair") as store:
            asking = Asking(calibration, gold_questions, store, at_once, quiet=quiet, as_json=as_json)
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                corpus = known_by(context) if isinstance(context, AnsweringContext) else None
                report = calibration.calibrate(
                    CalibrationRequest(gold_questions, right, made_with, target, asking.ask_all, corpus)
                )
    _show(report, technique, target, asking, as_json=as_json)


def _show(report: CalibrationReport, technique: str, target: Path, asking: "Asking | None", *, as_json: bool) -> None:
    failures = [(outcome.question, outcome.error_message) for outcome in asking.failed] if asking else []
    if as_json:
        saved = {} if report.calibration is None else {**report.calibration.model_dump(mode="json"), "out": str(target)}
        figures = {**saved, **report.figures}
        files = {"kept": str(outcomes_beside(target))} if asking else {}
        failed = [{"question": question, "error": error} for question, error in failures]
        print_json({**figures, **files, "failures": failed})
        return
    screen = console()
    show_blocks(screen, report.blocks)
    show_failures(screen, failures)
    if isinstance(report.calibration, AnswerCalibration) and report.calibration.corpus is None:
        _say_that_the_corpus_is_unknown(screen, technique)
    if report.calibration is not None:
        screen.print(Text(f"Written to {one_line(str(target))}", "dim"), soft_wrap=True)


def _say_that_the_corpus_is_unknown(screen: Console, technique: str) -> None:
    if issubclass(context_type(graph_named(technique)), CorpusContext):
        said = "The corpus of these answers is unknown or differs by question, so no run can be compared with it."
        show_blocks(screen, [Words(f"{said} The certificate will not hold.", "warn")])


class FinishedAnswers(NamedTuple):
    """The answers of a system of a finished evaluation.

    corpus: by what its corpus was known when it answered; None if that is unknown, or its questions had several.
    measured: what was measured of the answers afterwards.
    """

    context: BaseContext
    questions: Sequence[GoldQuestion]
    outputs: Outputs
    corpus: str | None
    measured: Measured


def _as_asked(source: FinishedAnswers, folder: str, context: BaseContext) -> Outputs:
    """The answers of an evaluation, if they were given with the settings of this context; else `UserFault`."""
    had, wanted = source.context.model_dump(), context.model_dump()
    if due := [f"--set {name}={value}" for name, value in wanted.items() if value != had[name]]:
        raise UserFault(
            f"The answers in '{folder}' were given with other settings than this calibration needs: evaluate with "
            f"{' '.join(due)}, or give the file of questions."
        )
    return source.outputs


def finished_answers(folder: Path, graph: str, label: str | None) -> FinishedAnswers:
    """Read the answers of a graph from the folder of an evaluation. label: of the system, if several have the graph.

    Raises `UserFault` if no system or several have the graph, and if a question has no outcome yet.
    """
    run = read(folder)
    systems = [system for system in run.systems if system.graph == graph and label in (None, system.label)]
    if len(systems) != 1:
        labels = either([system.label for system in run.systems])
        which = "no system" if not systems else "several systems"
        raise UserFault(f"In '{folder}' {which} answered with {graph}: name one with --system, of {labels}.")
    system = systems[0]
    with Store(run.results) as store:
        outcomes = {one.question: one for one in store.outcomes() if one.system == system.label}
        measurements = [store.measurements(name) for name in (RATINGS, BERTSCORE)]
    waiting = [question for question in run.questions if question.id not in outcomes]
    if waiting:
        raise UserFault(
            f"'{folder}' has no outcome yet for {counted(len(waiting), 'question')}: finish it with dubito eval "
            f"--resume {folder}."
        )
    questions = distinct(run.questions)
    outputs = [outcomes[question.id].output for question in questions]
    taken = next((output.get("chosen") or {} for output in outputs if output is not None), {})
    # several corpora: no name says which
    settings = run.one_context(system) or {**system.context, "corpus": str(folder)}
    values = {**settings, **{name: choice["value"] for name, choice in taken.items()}}
    context = context_type(graph_named(graph)).unchecked(values)
    measured = [
        {name: value for values in measurements for name, value in values.get((system.label, question.id), {}).items()}
        for question in questions
    ]
    return FinishedAnswers(context, questions, outputs, run.known_by.get(system.label), measured)


def _cascade(
    folder: Path,
    given: AnswerOptions,
    assignments: Sequence[str],
    *,
    right: str,
    made_with: Mapping[str, Any],
    out: Path,
) -> CalibrationReport:
    """Calibrate a cascade from an evaluation of its rungs. assignments: the rungs, if they are not all its systems."""
    if not (folder / MANIFEST).is_file():
        raise UserFault(
            f"'{folder}' is no evaluation: evaluate every rung first, as in dubito eval cot vanilla_rag --set "
            "uncertainty=semantic_entropy --dataset ..., and give its folder."
        )
    run = read(folder)
    if not run.about.get("memory", True):
        raise UserFault(
            f"The rungs in '{folder}' have drawn samples of their own, and those of a cascade share equal model calls: "
            "evaluate them without --no-memory."
        )
    graphs = [system.graph for system in run.systems]
    names = [graph for graph in graphs if graph in RUNGS]
    for assignment in assignments:
        names = EscalateContext(rungs=assignment.removeprefix("rungs=")).names
    if len(names) > MOST_RUNGS:
        raise UserFault(
            f"A cascade of {len(names)} rungs is too long to calibrate: choose at most {MOST_RUNGS}, as in --set "
            f"rungs={','.join(names[:MOST_RUNGS])}."
        )
    if missing := next((name for name in names if name not in graphs), None):
        raise UserFault(f"In '{folder}' no system answered with {missing}: evaluate it too, or choose other rungs.")
    if repeated := next((name for name in names if graphs.count(name) > 1), None):
        raise UserFault(
            f"In '{folder}' several systems answered with {repeated}, and a cascade has each graph once: evaluate its "
            "rungs in a run of their own."
        )
    rule, rungs = answer_rule(right), []
    corpora: dict[str, str | None] = {}
    for name in names:
        source = finished_answers(folder, name, None)
        if isinstance(source.context, CorpusContext):
            corpora[source.context.corpus] = corpora.get(source.context.corpus) or source.corpus
        rungs.append(
            rung_answers(name, source.context, judged(source.outputs, source.questions, rule, source.measured))
        )
    if len(rungs) < 2:
        raise UserFault(f"A cascade has two rungs or more: evaluate several of {', '.join(RUNGS)} in '{folder}'.")
    corpus = next(iter(corpora.values()), None)
    if len(corpora) > 1 and (corpus is None or {*corpora.values()} != {corpus}):
        raise UserFault(
            f"The rungs of a cascade answer from one corpus, and those in '{folder}' from {' and '.join(corpora)}: "
            "evaluate them with one."
        )
    hashes = [hash_of(question.question) for question in source.questions]
    if given.check is not None:
        return check_cascade(rungs, given, hashes, right=right, corpus=corpus)
    return calibrate_cascade(rungs, given, hashes, right=right, made_with=made_with, out=out, corpus=corpus)


def known_by(context: BaseContext) -> str | None:
    """By what the corpus of a context is known again (see `Resources.known_by`); None for a graph without a corpus."""
    return run_in_background(shared_resources().known_by(context)) if isinstance(context, CorpusContext) else None


def distinct(questions: Sequence[Q]) -> list[Q]:
    """The questions without repetitions: one on both sides of a split would test what it has chosen."""
    return list({hash_of(question.question): question for question in reversed(questions)}.values())[::-1]


def outcomes_beside(out: Path) -> Path:
    """The file of the outcomes: x.questions.sqlite beside x.json."""
    return out.with_name(f"{out.name.removesuffix('.json')}.questions.sqlite")


def check_target(out: Path) -> None:
    """Refuse to overwrite another file, and a folder that cannot be written, before anything is computed."""
    if out.exists() and not is_calibration(out):
        raise UserFault(f"'{out}' exists and is not a calibration: give another --out.")
    folder = out.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserFault(f"'{out}' cannot be written, because '{folder}' is not a writable folder: give another --out.")


@dataclass
class Asking:
    """Asks the questions of a calibration. failed: the failures among the first questions that were asked."""

    calibrator: AnyCalibrator
    questions: Sequence[GoldQuestion]
    store: Store
    at_once: int
    quiet: bool
    as_json: bool
    failed: list[Outcome] = field(default_factory=list)

    def ask_all(self, context: BaseContext) -> Outputs:
        """The outputs of all questions; `DubitoError` if all failed."""
        graph = self.calibrator.graph
        system = _key(graph, context)
        settings = context.model_dump(mode="json")
        texts = [question.question for question in self.questions]
        tasks = [EvaluationTask(system, text, graph, settings, text) for text in dict.fromkeys(texts)]
        if unfinished(tasks, self.store, retry_failed=True):
            self._ask(tasks)
        outcomes = {outcome.question: outcome for outcome in self.store.outcomes() if outcome.system == system}
        failed = [outcomes[task.question] for task in tasks if outcomes[task.question].error is not None]
        if len(failed) == len(tasks):
            raise DubitoError(
                f"All {counted(len(tasks), 'question')} failed. The first failure: {failed[0].error_message}"
            )
        self.failed = self.failed or failed
        return [outcomes[text].output for text in texts]

    def _ask(self, tasks: Sequence[EvaluationTask]) -> None:
        resources = shared_resources()
        with progress(
            console(),
            tasks,
            self.store,
            retry_failed=True,
            quiet=self.quiet,
            as_json=self.as_json,
            resume="run the same command again to go on.",
        ) as bar:

            async def open_models() -> None:
                current_meter.set(Meter(on_progress=bar.prepare))
                await open_resources(self.calibrator.context, resources)

            run_in_background(open_models())
            asker = Asker(resources, traces=False, graph_of=lambda _, opened: self.calibrator.compiled(opened))
            ask_unfinished(tasks, asker, self.store, bar, at_once=self.at_once, retry_failed=True)


def _key(graph: str, context: BaseContext) -> str:
    """The name under which outcomes are stored: a hash of everything that they depend on, except the question."""
    corpus = known_by(context) or getattr(context, "corpus", None)
    settings = {**settings_of(context), "llm": identity_in_calls(context.llm), "corpus": corpus}
    return hashlib.sha256(json.dumps([graph, settings, __version__], sort_keys=True).encode()).hexdigest()[:32]
