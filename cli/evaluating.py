"""The work of `dubito eval`: read the datasets, make the run's folder, ask the questions, measure, report."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from ..config import config
from ..errors import DubitoError, ModelUnavailable, UserFault, either, extra_command
from ..evals import run_folder
from ..evals.datasets import load_dataset
from ..evals.llm_judge import LlmJudgeContext
from ..evals.measuring import (
    judge_contexts,
    measure_bertscore,
    measure_ratings,
    measure_seper,
    measure_steps,
    seper_contexts,
)
from ..evals.on_ray import workers
from ..evals.reports.write import write_reports
from ..evals.run_folder import EvaluationRun, EvaluationTask, System, spread
from ..evals.runner import Ask, Asker, resources_with_memory, unfinished
from ..evals.store import OUTCOMES, Store
from ..graphs.context_from_text import context_for
from ..graphs.registry import context_type, graph_named, takes_a_plain_question
from ..models.background import run_in_background
from ..models.bert_score import BertScorer
from ..models.metering import Meter, current_meter
from ..nodes.prepare import open_resources
from ..presenters.words import counted
from ..render.sanitize import shortened
from ..render.screen import console
from ..resources.call_cache import CallMemory
from ..resources.fitting import fitted
from ..resources.opening import check_corpus
from ..resources.resources import Resources
from ..retrieval.index_files import is_index
from ..state.calibration import AnswerCalibration
from ..state.context import as_typed
from ..state.mixins import CorpusContext
from ..state.seper import SePerContext
from .ask_many import Bar, ask_unfinished, open_store, progress, show_failures
from .reporting import show_written

if TYPE_CHECKING:
    from ..graphs.registry import Graph

DESCRIPTION = "run.yaml"
"""The file of a run that repeats it."""

METRICS = ("seper", "seper-steps", "llm-judge", "bertscore")
"""Metrics that are measured after the questions. Settings may follow a colon: SePer's, or `OWN_SETTINGS`."""

OWN_SETTINGS = {"llm-judge": ("llm", "evaluation"), "bertscore": ("model", "layer")}
"""The settings of the metrics that have not those of SePer."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `dubito eval` that may differ when a run is resumed."""

    at_once: int
    ray: str | None
    workers: int
    replicas: Sequence[str]
    retry_failed: bool
    quiet: bool
    repair: bool
    as_json: bool


def evaluate_anew(
    folder: Path,
    specs: Sequence[str] | Mapping[str, Any],
    datasets: Sequence[str],
    *,
    corpus: str,
    corpus_is_typed: bool,
    settings: Mapping[str, str | None],
    assignments: Sequence[str],
    calibrations: Sequence[str],
    limit: int | None,
    seed: int,
    on_bad_record: Literal["refuse", "skip"],
    kept: Mapping[str, Any],
    options: RunOptions,
) -> None:
    """Make a run and ask its questions.

    specs, settings, assignments, calibrations: see `systems_of`; kept: further options that a resumed run needs.
    """
    _check_packages()
    if not specs or not datasets:
        missing = "system" if not specs else "--dataset, such as --dataset hotpotqa:dev.json"
        raise UserFault(f"Name at least one {missing}.")
    _check_metrics(kept["metrics"])
    if "seper-steps" in map(_kind, kept["metrics"]) and not kept["traces"]:
        raise UserFault("seper-steps reads the traces: leave --no-traces out.")
    made = corpus if corpus in {run_folder.POOLED, run_folder.OWN} else None
    settings = settings if made else {**settings, "corpus": corpus}
    systems = systems_of(specs, settings, assignments, calibrations, corpus_is_typed=corpus_is_typed)
    if made is None:
        for path in {str(system.context["corpus"]) for system in systems if "corpus" in system.context}:
            check_corpus(path)
    if options.replicas:
        tasks = [EvaluationTask(system.label, "", system.graph, system.context, "") for system in systems]
        spread(tasks, options.replicas)
    loaded = [load_dataset(spec, on_bad_record=on_bad_record) for spec in datasets]
    run = run_folder.begin(folder, systems, loaded, corpus=made, limit=limit, seed=seed, more=kept)
    _describe(
        run, {"dataset": list(datasets), "corpus": corpus, "limit": limit, "on_bad_record": on_bad_record}, options
    )
    _carry_out(run, options)


def resume(folder: Path, metrics: Sequence[str], options: RunOptions, *, as_many_at_once: bool) -> None:
    """Ask the questions of a run that have no outcome yet, and measure what is not measured yet.

    metrics: measured beside the run's own; as_many_at_once: as before, whatever the options say. Raises `UserFault` for
    a metric that the run has with other settings, and for one of what the run has not kept.
    """
    _check_packages()
    run = run_folder.read(folder)
    added = [metric for metric in dict.fromkeys(metrics) if metric not in run.metrics]
    _check_metrics(added)
    for metric in added:
        if same := next((one for one in run.metrics if _kind(one) == _kind(metric)), None):
            raise UserFault(
                f"'{folder}' has {same} already, and keeps one value of {_kind(metric)} for each answer: measure "
                f"{metric} in a copy of the folder."
            )
        if _kind(metric) == "seper-steps" and not run.about.get("traces", True):
            raise UserFault(f"seper-steps reads the traces, and '{folder}' has none: evaluate again with traces.")
        if _kind(metric) != "bertscore" and (folder / OUTCOMES).exists():
            raise UserFault(
                f"{_kind(metric)} reads the passages, and '{folder}' was kept without them: measure it in the run that "
                "dubito report --keep was given."
            )
    if as_many_at_once:
        options = replace(options, at_once=run.about.get("at_once", options.at_once))
    _carry_out(run, options, added)


def _check_packages() -> None:
    """Refuse at once, not when the report is made, if a package is missing."""
    if not find_spec("scipy") or not find_spec("ir_measures"):
        raise UserFault(f"The report's figures need two packages: {extra_command('eval')}.")


def _describe(run: EvaluationRun, asked: Mapping[str, Any], options: RunOptions) -> None:
    """Write the run as a configuration file that repeats it: each system with all its settings."""
    left_out = {"corpus"} if run.about["corpus"] else set()
    systems = {
        system.label: {"graph": system.graph, **{k: v for k, v in system.context.items() if k not in left_out}}
        for system in run.systems
    }
    more = {
        "metric": list(run.metrics),
        **{name: run.about[name] for name in ("seed", "standard", "traces", "memory")},
        **{name: getattr(options, name) for name in ("at_once", "ray", "workers")},
        "replica": list(options.replicas),
    }
    entries = {"systems": systems, **asked, **more}
    _write_description(run, {"eval": {name: value for name, value in entries.items() if value not in (None, [])}})


def _describe_metrics(run: EvaluationRun) -> None:
    """Write the run's metrics into its description, if it has one."""
    import yaml  # noqa: PLC0415 - slow to import

    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError, LookupError, TypeError):
        described = yaml.safe_load((run.folder / DESCRIPTION).read_text(encoding="utf-8"))
        described["eval"]["metric"] = list(run.metrics)
        _write_description(run, described)


def _write_description(run: EvaluationRun, described: Mapping[str, Any]) -> None:
    import yaml  # noqa: PLC0415 - slow to import

    seper = {name: found.value for name, found in SePerContext.configured().items()} if run.metrics else {}
    text = yaml.safe_dump({**({"seper": seper} if seper else {}), **described}, sort_keys=False, allow_unicode=True)
    (run.folder / DESCRIPTION).write_text(
        f"# dubito eval --config THIS-FILE repeats this run\n{text}", encoding="utf-8"
    )


def systems_of(
    specs: Sequence[str] | Mapping[str, Any],
    options: Mapping[str, str | None],
    assignments: Sequence[str],
    calibrations: Sequence[str] = (),
    *,
    corpus_is_typed: bool = False,
) -> list[System]:
    """The systems that the command line or the configuration file names.

    specs: a list of `GRAPH`, `GRAPH:name=value,...` or `NAME=GRAPH:...`; or, from the file, each system's graph and
    settings by the system's name, which options and assignments override. options: see `context_for`; the corpus has a
    default, so it overrides only if it is typed. assignments: settings for all systems that have them, do not set them
    themselves, and use them. calibrations: files; each is for the systems of its graph, which take its settings where
    nothing else names them. Raises `UserFault` for an unknown graph, a graph that needs more than a question, a setting
    that no system has or uses, and a calibration of another graph.
    """
    typed = {name for name, value in options.items() if value is not None and (name != "corpus" or corpus_is_typed)}
    typed |= {assignment.partition("=")[0] for assignment in assignments}
    if isinstance(specs, Mapping):
        parsed = [_described(name, system, typed) for name, system in specs.items()]
    else:
        parsed = [_parsed(spec) for spec in specs]
    graphs = [graph_named(graph) for _, graph, _ in parsed]
    for graph in graphs:
        if not takes_a_plain_question(graph):
            raise UserFault(f"{graph.name} needs more than a question: leave it out.")
    fields = [set(context_type(graph).model_fields) for graph in graphs]
    shared = [assignment.partition("=")[0] for assignment in assignments]
    # the corpus has a default, which systems that look nothing up do not read
    chosen = [name for name, value in options.items() if value is not None and name != "corpus"]
    given = [*chosen, *shared]
    for name in given:
        if not any(name in names for names in fields):
            raise UserFault(f"No system has the setting '{name}': use {either(sorted(set().union(*fields)))}.")
    files = {AnswerCalibration.read(file, "GRAPH").technique: file for file in calibrations}
    if idle := next((technique for technique in files if technique not in [graph.name for graph in graphs]), None):
        raise UserFault(f"'{files[idle]}' is a calibration of {idle}, and no system has this graph: name it too.")
    contexts = [
        _context(graph, own, {**options, "calibration": files.get(graph.name)}, assignments)
        for (_, _, own), graph in zip(parsed, graphs, strict=True)
    ]
    for name in given:
        causes = [unused.get(name) for (_, unused), names in zip(contexts, fields, strict=True) if name in names]
        if causes and all(causes):
            raise UserFault(f"{name} has no effect in any system: change {causes[0]}, or leave {name} out.")
    return [System(label, name, context) for (label, name, _), (context, _) in zip(parsed, contexts, strict=True)]


def _check_metrics(metrics: Sequence[str]) -> None:
    """Raise `UserFault` for an unknown metric, a wrong setting, and a metric with two sets of settings."""
    for metric in metrics:
        _metric_settings(metric)
        if other := next((one for one in metrics if one != metric and _kind(one) == _kind(metric)), None):
            raise UserFault(
                f"A run keeps one value of {_kind(metric)} for each answer: leave {metric} or {other} out, or measure "
                "one of them in a copy of the folder (--resume COPY --metric ...)."
            )


def _kind(metric: str) -> str:
    """The metric without its settings."""
    return metric.partition(":")[0]


def _metric_settings(metric: str) -> dict[str, Any]:
    """The settings in a metric, of SePer or of the judge; `UserFault` for an unknown metric or a wrong setting."""
    name, kind, own = _parsed(metric)
    if kind not in METRICS:
        raise UserFault(f"There is no metric '{name}': use {either(METRICS)}.")
    if names := OWN_SETTINGS.get(kind):
        given = dict(assignment.partition("=")[::2] for assignment in own)
        if wrong := next((setting for setting in given if setting not in names), None):
            raise UserFault(f"{kind} has no setting '{wrong}': use {either(names)}.")
        if kind == "llm-judge":
            LlmJudgeContext(**given)
        elif not given.get("model") or not given.get("layer", "0").isdecimal():
            raise UserFault(
                "bertscore needs a model and may name a layer: --metric bertscore:model=roberta-large,layer=17."
            )
        return given
    seper_names = [assignment.partition("=")[0] for assignment in own]
    return {key: value for key, value in _context(graph_named("seper"), own, {}, [])[0].items() if key in seper_names}


def _parsed(spec: str) -> tuple[str, str, list[str]]:
    """Label, graph and settings of NAME=GRAPH:name=value,..."""
    head, _, settings = spec.partition(":")
    label, named, graph = head.partition("=")
    # a comma separates settings only before the next name: other commas belong to a value
    own = re.split(r",(?=\w+=)", settings) if settings else []
    return (label if named else spec), (graph if named else head), own


def _described(name: str, system: object, typed: set[str]) -> tuple[str, str, list[str]]:
    """Label, graph and settings of a system in the configuration file, but for the settings that are typed."""
    if not isinstance(system, Mapping) or not isinstance(system.get("graph"), str):
        raise UserFault(
            f"{config().place(name, 'eval.systems')} must be a table with a graph and its settings, such as "
            '{graph = "df_rag", k = 3}.'
        )
    own = {setting: value for setting, value in system.items() if setting != "graph" and setting not in typed}
    return name, system["graph"], [f"{setting}={as_typed(value)}" for setting, value in own.items()]


def _context(
    graph: Graph, own: Sequence[str], options: Mapping[str, str | None], assignments: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The system's context, and the shared settings that have no effect in it, each with its cause."""
    fields = context_type(graph).model_fields
    own_names = {assignment.partition("=")[0] for assignment in own}
    shared = [
        assignment
        for assignment in assignments
        if (name := assignment.partition("=")[0]) in fields and name not in own_names
    ]
    chosen = {name: value for name, value in options.items() if name in fields and name not in own_names}
    # a shared setting that has no effect in this system is left out
    unused = context_for(graph, chosen, [*own, *shared], check=False).unused()
    shared = [assignment for assignment in shared if assignment.partition("=")[0] not in unused]
    chosen = {name: value for name, value in chosen.items() if name not in unused}
    return context_for(graph, chosen, [*own, *shared]).model_dump(mode="json"), unused


def _carry_out(run: EvaluationRun, options: RunOptions, added: Sequence[str] = ()) -> None:
    """Ask the open questions, measure, and write the reports. added: metrics that run.json does not name yet."""
    screen = console()
    with run_folder.exclusive_lock(run.folder), open_store(run.results, repairing=options.repair) as store:
        with contextlib.redirect_stdout(sys.stderr) if options.as_json else contextlib.nullcontext():
            _ask_and_measure(run, store, screen, options, added)
        outcomes = list(store.outcomes())
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        written = write_reports(run, store)
        if not options.as_json:
            texts = {question.id: shortened(question.question, 60) for question in run.questions}
            failures = [(f"{outcome.system}: {texts[outcome.question]}", outcome.error_message) for outcome in failed]
            show_failures(screen, failures)
        if len(failed) == len(outcomes):
            raise DubitoError(
                f"All {counted(len(outcomes), 'question')} failed. The first failure: {failed[0].error_message}"
            )
        show_written(screen, run, written, as_json=options.as_json)


def _ask_and_measure(
    run: EvaluationRun, store: Store, screen: Console, options: RunOptions, added: Sequence[str]
) -> None:
    tasks = run.tasks() if not options.replicas else spread(run.tasks(), options.replicas)
    resources = resources_with_memory(CallMemory(run.calls) if run.about.get("memory", True) else None, run.seed)
    with progress(
        screen,
        tasks,
        store,
        retry_failed=options.retry_failed,
        quiet=options.quiet,
        as_json=options.as_json,
        resume=f"go on with dubito eval --resume {run.folder}",
    ) as bar:
        are_unfinished = bool(unfinished(tasks, store, retry_failed=options.retry_failed))
        for metric in [*(run.metrics if are_unfinished else ()), *added]:
            run_in_background(_open_metric(metric, run, resources))
        if added:
            run = run.with_entries(metrics=[*run.metrics, *added])
            _describe_metrics(run)
        if are_unfinished:
            _know_corpora(run, store, bar, resources, on_workers=options.ray is not None)
            with _asker(run, bar, resources, options) as ask:
                ask_unfinished(tasks, ask, store, bar, at_once=options.at_once, retry_failed=options.retry_failed)
        for metric in run.metrics:
            _measure(metric, run, store, bar, resources, at_once=options.at_once)


async def _open_metric(metric: str, run: EvaluationRun, resources: Resources) -> None:
    """Open what measures a metric; `UserFault` if it cannot be opened, or lacks a capability.

    A server that does not answer now may answer when the questions are done.
    """
    settings, kind = _metric_settings(metric), _kind(metric)
    if kind == "bertscore":
        await _bert_scorer(settings["model"], int(settings.get("layer", 0))).open()
        return
    contexts = judge_contexts(run, settings) if kind == "llm-judge" else seper_contexts(run, settings)
    for context in contexts.values():
        with contextlib.suppress(ModelUnavailable):
            await open_resources(await fitted(context, resources), resources, corpus=False)


@functools.cache
def _bert_scorer(model: str, layer: int) -> BertScorer:
    return BertScorer(model, layer)


def _know_corpora(run: EvaluationRun, store: Store, bar: Bar, resources: Resources, *, on_workers: bool) -> None:
    """Write down which corpora the answers are made from; `UserFault` if one has changed since a system's first answer.

    Of a system that has answered already it is not written down: an earlier version may have begun the run.
    on_workers: the corpora are opened elsewhere; here only index folders are, which takes no encoder.
    """

    async def known_by(system: System) -> str | None:
        settings = run.one_context(system)
        context = context_type(graph_named(system.graph)).unchecked(dict(settings or {}))
        if settings is None or not isinstance(context, CorpusContext):
            return None
        if on_workers and not is_index(Path(context.corpus)):
            return None
        current_meter.set(Meter(on_progress=bar.prepare))
        with contextlib.suppress(DubitoError):  # the first question says it
            return await resources.known_by(context)
        return None

    found = {system.label: run_in_background(known_by(system)) for system in run.systems}
    known = {label: name for label, name in found.items() if name is not None}
    answered = {system for (system, _), is_answered in store.ended().items() if is_answered}
    kept = {label: name for label, name in run.known_by.items() if label in answered}
    if changed := [label for label, name in kept.items() if known.get(label, name) != name]:
        raise UserFault(
            f"The corpus of {either(changed)} is no longer the one that '{run.folder}' was begun with: put that one "
            "back, or evaluate again in another folder."
        )
    now = {label: name for label, name in known.items() if label not in answered}
    if run.known_by != (all_known := {**now, **kept}):
        run.with_entries(known_by=all_known)


@contextlib.contextmanager
def _asker(run: EvaluationRun, bar: Bar, resources: Resources, options: RunOptions) -> Iterator[Ask]:
    """Asks in this process, or on the workers of a cluster."""
    traces, memory = run.about.get("traces", True), run.about.get("memory", True)
    if options.ray is None:
        yield Asker(resources, traces=traces, on_progress=bar.prepare)
        return
    with workers(
        options.ray, options.workers, options.at_once, run=run.name, seed=run.seed, traces=traces, memory=memory
    ) as ask:
        yield ask


def _measure(metric: str, run: EvaluationRun, store: Store, bar: Bar, resources: Resources, *, at_once: int) -> None:
    settings, kind = _metric_settings(metric), _kind(metric)

    def on_progress(done: int, total: int) -> None:
        bar.prepare(metric, done, total)

    if kind == "bertscore":
        scorer = _bert_scorer(settings["model"], int(settings.get("layer", 0)))
        run_in_background(measure_bertscore(run, store, scorer, on_progress))
        return
    if kind == "llm-judge":
        judges = judge_contexts(run, settings)
        unrated = run_in_background(measure_ratings(run, store, judges, resources, on_progress, at_once=at_once))
        if unrated:
            sys.stderr.write(f"The judge gave {counted(unrated, 'answer')} no rating.\n")
        return
    contexts = seper_contexts(run, settings)
    if kind == "seper":
        unmeasured = run_in_background(measure_seper(run, store, contexts, resources, on_progress))
        if unmeasured:
            sys.stderr.write(f"The evidence of {counted(unmeasured, 'answer')} does not fit the model's window.\n")
        return
    run_in_background(measure_steps(run, store, contexts, resources, on_progress, at_once=at_once))
