"""What `dubito report` does: read the run, write its reports, show the main figures."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UserFault, either
from ..evals import bench
from ..evals.answers import Standard
from ..evals.bench import Bench
from ..evals.reports.about import left_out, notes, state
from ..evals.reports.markdown import interval
from ..evals.reports.summary import Pair, Row, Section, Summary
from ..evals.reports.words import amount, called, chance, number, share, signed
from ..evals.reports.write import PLOTS, Written, write_reports
from ..evals.store import Store
from ..traces.writer import jsonable
from .screen import clean, console, counted, megabytes, print_json, show

SHOWN = ("f1", "exact_match", "accuracy", "recall@5", "delta_seper")
"""The metrics that have a column on the terminal, beside the one that is asked for."""

MOST_PAIRS = 8
"""Differences beyond chance that are listed; the others are counted."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line; see the options of `dubito report`."""

    html: Path | None
    md: Path | None
    metric: str
    standard: Standard


def show_report(run: Path, wanted: Wanted, *, as_json: bool) -> None:
    """Write the reports and show the main figures."""
    found = bench.read(run)
    screen = console()
    with Store(found.results) as store, contextlib.ExitStack() as stack:
        if as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        elif screen.is_interactive:
            stack.enter_context(screen.status("counting ..."))
        written = write_reports(
            found,
            store,
            html=None if wanted.html is None else wanted.html.expanduser(),
            md=None if wanted.md is None else wanted.md.expanduser(),
            metric=wanted.metric,
            standard=wanted.standard,
        )
    if as_json:
        print_json(as_object(found, written))
        return
    show_summary(screen, written.summary)
    show_written(screen, written)


def show_summary(screen: Console, summary: Summary) -> None:
    """For each dataset the scores, which differences are beyond chance, and the cost."""
    for section in summary.sections:
        of = f" of {section.of:,}" if section.of is not None else ""
        asked = f"{len(section.questions):,}{of} question{'' if len(section.questions) == 1 and not of else 's'}"
        screen.print(Text.assemble((clean(section.dataset), "bold"), f"  {asked}"))
        show(screen, _scores(section, summary.metric))
        screen.print(Text(_tested(section, summary.metric), "dim"))
        if section.spent:
            screen.print()
            show(screen, _costs(section))
            screen.print(Text("The cost of a question; remembered calls took no time.", "dim"))
        screen.print()
    screen.print(f"{state(summary)}.")
    for note in [*notes(summary), *left_out(summary)]:
        screen.print(Text(clean(note), "dim"))


def show_written(screen: Console, written: Written) -> None:
    """Where the reports are."""
    plots = f", {counted(written.plots, 'plot')} in {written.md.parent / PLOTS}" if written.plots else ""
    said = f"Wrote {written.html} ({megabytes(written.html_bytes)}), {written.md}{plots}."
    screen.print(clean(said), soft_wrap=True)
    if written.remark:
        screen.print(Text(written.remark, "yellow"))


def as_object(run: Bench, written: Written) -> dict[str, Any]:
    """The report as JSON."""
    summary = written.summary
    about = {"run": str(run.folder), "metric": summary.metric, "standard": summary.standard}
    counts = {"answered": summary.answered, "failed": summary.failed, "left": summary.left}
    files = {"html": str(written.html), "md": str(written.md), "plots": written.plots, "remark": written.remark}
    datasets = [
        {
            "dataset": section.dataset,
            "questions": len(section.questions),
            "of": section.of,
            "systems": [asdict(row) for row in section.rows],
            "oracles": [asdict(row) for row in section.oracles],
            "differences": [asdict(pair) for pair in section.pairs],
            "failures": [asdict(failure) for failure in section.failures],
            "cost": [asdict(spent) for spent in section.spent],
            "uncertainty": [_as_named(asdict(doubt)) for doubt in section.doubts],
        }
        for section in summary.sections
    ]
    found: dict[str, Any] = jsonable({**about, **counts, "datasets": datasets, **files})
    return found


def save_trace(run: Path, system: str, question: str, path: Path, *, as_json: bool) -> None:
    """Write a question's trace, for `dubito trace`; question: its id, with or without the name of its dataset."""
    found = bench.read(run)
    labels = [one.label for one in found.systems]
    if system not in labels:
        raise UserFault(f"The run has no system '{system}': use {either(labels)}.")
    matching = [one.id for one in found.questions if question in {one.id, one.id.removeprefix(f"{one.dataset}/")}]
    if len(matching) != 1:
        what = "no question" if not matching else "several questions"
        raise UserFault(f"The run has {what} '{question}': give an id as the report's page has it.")
    with Store(found.results) as store:
        trace = store.trace(system, matching[0])
    if trace is None:
        raise UserFault(
            f"There is no trace of '{question}' under {system}: it has no outcome yet, or the run was made with "
            "--no-traces."
        )
    path = path.expanduser()
    try:
        if path.is_file() and not path.read_bytes().startswith(b'{"type": "run"') and path.stat().st_size:
            raise UserFault(f"'{path}' exists and is not a trace: give another name.")
        path.write_bytes(trace)
    except OSError as fault:
        raise UserFault(f"The trace cannot be written to '{path}' ({fault.strerror}): give another path.") from fault
    if as_json:
        print_json({"trace": str(path), "bytes": len(trace)})
        return
    console().print(clean(f"Wrote {path} ({megabytes(len(trace))}): show it with dubito trace {path}"), soft_wrap=True)


def _scores(section: Section, metric: str) -> Table:
    shown = section.metrics([metric, *(name for name in SHOWN if name != metric)])
    unasked = any(row.left for row in section.rows)
    table = _rows(*map(called, shown), "failed", *(["left"] if unasked else []))
    for row in [*section.rows, *section.oracles]:
        table.add_row(
            Text(clean(row.label), "dim" if row in section.oracles else ""),
            *(_mean(section, row, name, metric) for name in shown),
            f"{row.failed}",
            *([f"{row.left}"] if unasked else []),
        )
    return table


def _costs(section: Section) -> Table:
    table = _rows("calls", "tokens", "seconds", "remembered")
    for one in section.spent:
        figures = (one.calls, one.prompt_tokens + one.completion_tokens, one.seconds)
        table.add_row(Text(clean(one.system)), *map(amount, figures), share(one.remembered))
    return table


def _rows(*numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("system", overflow="fold", min_width=12)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _mean(section: Section, row: Row, name: str, metric: str) -> Text:
    figure = row.metrics.get(name)
    if figure is None:
        return Text("-")
    text = Text(number(figure.mean), "bold" if section.is_best(row, name) else "")
    return text.append(f" {interval(figure)}", "dim") if name == metric else text


def _tested(section: Section, metric: str) -> str:
    if not section.pairs:
        return "One system: nothing to compare it with."
    beyond = sorted((one for one in section.pairs if one.p is not None and one.p < 0.05), key=lambda one: one.p or 0.0)
    corrected = f"paired permutation test, {counted(len(section.pairs), 'pair')}, Holm"
    if not beyond:
        return f"No two systems differ in {called(metric)} beyond chance ({corrected})."
    said = "; ".join(_difference(one) for one in beyond[:MOST_PAIRS])
    more = f"; and {len(beyond) - MOST_PAIRS} more" if len(beyond) > MOST_PAIRS else ""
    return f"Beyond chance in {called(metric)} ({corrected}): {said}{more}."


def _difference(pair: Pair) -> str:
    mean = pair.mean or 0.0
    better, worse = (pair.first, pair.second) if mean > 0 else (pair.second, pair.first)
    return clean(f"{better} over {worse} by {signed(abs(mean))}, p {chance(pair.p or 0.0)}")


def _as_named(doubt: dict[str, Any]) -> dict[str, Any]:
    """The parts as JSON objects, which a named tuple would not be."""
    names: Sequence[str] = ("above", "up_to", "questions", "score")
    split = {name: dict(zip(names, doubt[name], strict=True)) for name in ("certain", "uncertain") if doubt[name]}
    return {**doubt, **split}
