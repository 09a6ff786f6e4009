"""The work of `dubito calibrate`: ask the questions, let the technique find its threshold, show the result."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.text import Text

from .. import __version__
from ..errors import DubitoError, UserFault
from ..evals.answers import answer_rule
from ..evals.calibration import CalibrationRequest, Calibrator, Outputs
from ..evals.datasets import load_dataset
from ..evals.questions import GoldQuestion
from ..evals.run_folder import EvaluationTask
from ..evals.runner import Asker, unfinished
from ..evals.store import Outcome, Store
from ..graphs.context_from_text import context_for
from ..models.background import run_in_background
from ..models.metering import Meter, current_meter
from ..nodes.prepare import open_resources
from ..presenters.words import counted
from ..render.sanitize import one_line
from ..render.screen import console, print_json
from ..render.terminal import show_blocks
from ..resources.fitting import fitted
from ..resources.resources import shared_resources
from ..state.calibration import identity, is_calibration, settings_of
from ..state.context import BaseContext
from ..state.wrong_settings import sentence_of
from .ask_many import ask_unfinished, open_store, progress, show_failures

AnyCalibrator = Calibrator[Any, Any]


def run_calibration(
    technique: str,
    calibrator: type[AnyCalibrator],
    *,
    options: Mapping[str, str | None],
    own: Mapping[str, Any],
    questions: str,
    out: Path | None,
    assignments: Sequence[str] | None,
    right: str,
    limit: int | None,
    at_once: int,
    quiet: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Calibrate a technique and show the result. options: settings of the context; own: the calibration's options."""
    is_right = answer_rule(right)
    try:
        given = calibrator.options(**{name: value for name, value in own.items() if value is not None})
    except ValidationError as fault:
        raise UserFault(sentence_of(fault, calibrator.options.model_fields)) from fault
    given_context = context_for(calibrator.compiled(), options, assignments or [])
    context = run_in_background(fitted(given_context, shared_resources()))  # the threshold holds for what auto takes
    calibration = calibrator(context, given)
    gold_questions = load_dataset(questions).questions[:limit]
    target = (out or Path(f"{technique}.calibration.json")).expanduser()
    check_target(target)
    with open_store(outcomes_beside(target), repairing=repair, repair_with="the same command and --repair") as store:
        asking = Asking(calibration, gold_questions, store, at_once, quiet=quiet, as_json=as_json)
        request = CalibrationRequest(
            gold_questions,
            right,
            is_right,
            {"dubito": __version__, "questions": questions, "limit": limit},
            target,
            asking.ask_all,
        )
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            report = calibration.calibrate(request)
    failures = [(outcome.question, outcome.error_message) for outcome in asking.failed]
    if as_json:
        figures = {**report.calibration.model_dump(mode="json"), **report.figures}
        files = {"out": str(target), "kept": str(outcomes_beside(target))}
        failed = [{"question": question, "error": error} for question, error in failures]
        print_json({**figures, **files, "failures": failed})
        return
    screen = console()
    show_blocks(screen, report.blocks)
    show_failures(screen, failures)
    screen.print(Text(f"Written to {one_line(str(target))}", "dim"), soft_wrap=True)


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
    settings = {**settings_of(context), "llm": identity(context.llm), "corpus": getattr(context, "corpus", None)}
    return hashlib.sha256(json.dumps([graph, settings], sort_keys=True).encode()).hexdigest()[:32]
