"""What `dubito eval` does: read the datasets, make the run's folder, ask everything, measure, report."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from ..errors import DubitoError, UserFault, either
from ..evals import bench
from ..evals.answers import Standard
from ..evals.bench import Bench, System, Task
from ..evals.datasets import load_dataset
from ..evals.measuring import measure_seper, measure_steps, seper_contexts
from ..evals.on_ray import workers
from ..evals.replicas import spread
from ..evals.reports.write import write_reports
from ..evals.runner import Asker, run_all
from ..evals.store import Outcome, Store
from ..graphs.registry import graph_named
from ..models.background import run_in_background
from ..models.remembered import CallMemory
from ..models.resources import check_corpus
from .ask_many import MOST_FAILURES_SHOWN, Bar
from .context import context_for
from .reporting import as_object, show_summary, show_written
from .screen import clean, console, counted, print_json, shorten

if TYPE_CHECKING:
    from ..graphs.registry import Graph

METRICS = ("seper", "seper-steps")
"""What can be measured beside the answers, with settings of `seper` behind a colon."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for on the command line; see the options of `dubito eval`."""

    systems: Sequence[str]
    datasets: Sequence[str]
    corpus: str
    options: Mapping[str, str | None]
    assignments: Sequence[str]
    metrics: Sequence[str]
    limit: int | None
    seed: int
    out: Path
    traces: bool
    memory: bool
    standard: Standard
    on_bad_record: Literal["refuse", "skip"]
    command: str


@dataclass(frozen=True)
class How:
    """How the questions are asked, which a run that is gone on with may change."""

    at_once: int
    ray: str | None
    workers: int
    replicas: Sequence[str]
    retry_failed: bool
    as_json: bool


def evaluate_anew(job: Job, how: How) -> None:
    """Make the run and ask everything."""
    _check_extra()
    if not job.systems or not job.datasets:
        missing = "system, such as df_rag" if not job.systems else "--dataset, such as --dataset hotpotqa:dev.json"
        raise UserFault(f"Name at least one {missing}.")
    for metric in job.metrics:
        _settings_of(metric)
    if "seper-steps" in [metric.partition(":")[0] for metric in job.metrics] and not job.traces:
        raise UserFault("seper-steps reads the traces: leave --no-traces out.")
    places = {bench.POOLED, bench.OWN}
    corpus = job.corpus if job.corpus in places else None
    options = job.options if corpus else {**job.options, "corpus": job.corpus}
    systems = systems_of(job.systems, options, job.assignments)
    if corpus is None:
        for place in {str(system.context["corpus"]) for system in systems if "corpus" in system.context}:
            check_corpus(place)
    if how.replicas:
        spread([Task(one.label, "", one.graph, one.context, "") for one in systems], how.replicas)
    datasets = [load_dataset(spec, on_error=job.on_bad_record) for spec in job.datasets]
    more = {
        "command": job.command,
        "metrics": job.metrics,
        "traces": job.traces,
        "memory": job.memory,
        "standard": job.standard,
    }
    begun = bench.begin(job.out, systems, datasets, corpus=corpus, limit=job.limit, seed=job.seed, more=more)
    _carry_out(begun, how)


def go_on(folder: Path, how: How) -> None:
    """Ask what has no outcome yet."""
    _check_extra()
    _carry_out(bench.read(folder), how)


def _check_extra() -> None:
    """Refuse before anything is asked what would fail when the report is made."""
    if not find_spec("scipy") or not find_spec("ir_measures"):
        raise UserFault("The report's figures need two libraries: pip install 'dubito[eval]'.")


def systems_of(specs: Sequence[str], options: Mapping[str, str | None], assignments: Sequence[str]) -> list[System]:
    """The systems that are named, with the settings that all share.

    specs: `GRAPH`, `GRAPH:name=value,...` or `NAME=GRAPH:...`; options: as `context_for` takes them; assignments: go to
    the systems that have the setting and were not given it. Raises `UserFault` for a graph without an answer, an
    unknown graph, and settings that no system has.
    """
    named = [_parted(spec) for spec in specs]
    graphs = [graph_named(graph) for _, graph, _ in named]
    for graph in graphs:
        if set(graph.get_input_jsonschema()["required"]) - {"question"}:
            raise UserFault(f"{graph.name} needs more than a question and answers none: leave it out.")
    shared = [assignment.partition("=")[0] for assignment in assignments]
    fields = [set(_fields(graph)) for graph in graphs]
    for name in shared:
        if not any(name in has for has in fields):
            raise UserFault(f"No system has the setting '{name}': it could be {either(sorted(set().union(*fields)))}.")
    return [
        System(label, name, _context(graph, own, options, assignments))
        for (label, name, own), graph in zip(named, graphs, strict=True)
    ]


def _settings_of(metric: str) -> dict[str, Any]:
    """The settings of SePer that a metric names; `UserFault` for an unknown metric and for settings it has not."""
    name, graph, own = _parted(metric)
    if graph not in METRICS:
        raise UserFault(f"There is no metric '{name}': use {either(METRICS)}.")
    given = [one.partition("=")[0] for one in own]
    return {key: value for key, value in _context(graph_named("seper"), own, {}, []).items() if key in given}


def _parted(spec: str) -> tuple[str, str, list[str]]:
    """Label, graph and settings."""
    head, _, settings = spec.partition(":")
    label, named, graph = head.partition("=")
    # a comma within a value stays: only one before the next name parts
    own = re.split(r",(?=\w+=)", settings) if settings else []
    return (label if named else spec), (graph if named else head), own


def _context(
    graph: Graph, own: Sequence[str], options: Mapping[str, str | None], assignments: Sequence[str]
) -> dict[str, Any]:
    fields = _fields(graph)
    given = {one.partition("=")[0] for one in own}
    shared = [one for one in assignments if (name := one.partition("=")[0]) in fields and name not in given]
    chosen = {name: value for name, value in options.items() if name in fields and name not in given}
    context = context_for(graph, chosen, [*own, *shared])
    return context.model_dump(mode="json", exclude=None if context.looks_up else {"corpus"})


def _fields(graph: Graph) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = graph.builder.context_schema.model_fields  # type: ignore[union-attr]
    return fields


def _carry_out(run: Bench, how: How) -> None:
    screen = console()
    with bench.alone(run.folder), Store(run.results, new=True) as store:
        with contextlib.redirect_stdout(sys.stderr) if how.as_json else contextlib.nullcontext():
            _ask_and_measure(run, store, screen, how)
        outcomes = list(store.outcomes())
        failed = [one for one in outcomes if one.error is not None]
        written = write_reports(run, store, standard=run.about.get("standard", "squad"))
        if not how.as_json:
            _show_failures(screen, run, failed)
        if len(failed) == len(outcomes):
            raise DubitoError(
                f"None of {counted(len(outcomes), 'question')} was answered, the first one so: "
                f"{failed[0].error_message}"
            )
        if how.as_json:
            print_json(as_object(run, written))
            return
        show_summary(screen, written.summary)
        show_written(screen, written)


@dataclass(frozen=True)
class _Work:
    """A run under way, and who watches it; here: what asks in this process, and measures."""

    run: Bench
    store: Store
    how: How
    bar: Bar
    here: Asker


def _ask_and_measure(run: Bench, store: Store, screen: Console, how: How) -> None:
    tasks = run.tasks() if not how.replicas else spread(run.tasks(), how.replicas)
    before = _done(tasks, store, retry_failed=how.retry_failed)
    if before and not how.as_json:
        screen.print(f"{before} of {counted(len(tasks), 'question')} were done before.")
    memory = CallMemory(run.calls) if run.about["memory"] else None
    with Bar(screen, before, len(tasks), moves=screen.is_interactive and not how.as_json) as bar:
        here = Asker(memory, run.seed, traces=bool(run.about["traces"]), on_progress=bar.prepare)
        work = _Work(run, store, how, bar, here)
        try:
            if before < len(tasks):
                _ask_all(work, tasks)
            for metric in run.about["metrics"]:
                _measure(work, metric)
        except KeyboardInterrupt:
            done = _done(tasks, store, retry_failed=False)
            sys.stderr.write(
                f"{done} of {counted(len(tasks), 'question')} are done and kept: go on with dubito eval --resume "
                f"{run.folder}\n"
            )
            raise


def _ask_all(work: _Work, tasks: Sequence[Task]) -> None:
    how, run = work.how, work.run

    def on_end(outcome: Outcome) -> None:
        work.bar.end(failed=outcome.error is not None, usage=(outcome.output or {}).get("usage"))

    elsewhere = how.ray and workers(
        how.ray,
        how.workers,
        how.at_once,
        run=run.name,
        seed=run.seed,
        traces=bool(run.about["traces"]),
        memory=bool(run.about["memory"]),
    )
    with elsewhere or contextlib.nullcontext((work.here, ())) as (ask, _):
        work.bar.begin()
        run_in_background(
            run_all(tasks, ask, work.store, at_once=how.at_once, retry_failed=how.retry_failed, on_end=on_end)
        )


def _measure(work: _Work, metric: str) -> None:
    contexts, resources = seper_contexts(work.run, _settings_of(metric)), work.here.resources

    def on_progress(done: int, total: int) -> None:
        work.bar.prepare(metric, done, total)

    if metric.partition(":")[0] == "seper":
        unmeasured = run_in_background(measure_seper(work.run, work.store, contexts, resources, on_progress))
        if unmeasured:
            sys.stderr.write(f"The evidence of {counted(unmeasured, 'answer')} does not fit the model's window.\n")
        return
    run_in_background(measure_steps(work.run, work.store, contexts, resources, on_progress, at_once=work.how.at_once))


def _done(tasks: Sequence[Task], store: Store, *, retry_failed: bool) -> int:
    ended = store.ended()
    outcomes = [ended.get((task.system, task.question)) for task in tasks]
    return sum(outcome is not None and (outcome or not retry_failed) for outcome in outcomes)


def _show_failures(screen: Console, run: Bench, failed: Sequence[Outcome]) -> None:
    texts = {asked.id: asked.question for asked in run.questions}
    for one in failed[:MOST_FAILURES_SHOWN]:
        what = f"Failed: {one.system}: {shorten(texts[one.question], 60)}: {clean(one.error_message)}"
        screen.print(Text(what, "yellow"))
    if len(failed) > MOST_FAILURES_SHOWN:
        screen.print(Text(f"and {counted(len(failed) - MOST_FAILURES_SHOWN, 'more question')} failed", "yellow"))
