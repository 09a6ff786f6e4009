"""The work of `dubito report`: read a run, write its reports, show the main figures."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..errors import UserFault, either
from ..evals import run_folder
from ..evals.answers import Standard
from ..evals.kept_run import keep_run
from ..evals.reports.about import notes, state
from ..evals.reports.summary import Pair, Reference, Section, Summary, reference_of
from ..evals.reports.tables import costs_table, means_table, parted_table
from ..evals.reports.words import called, chance, signed, too_few
from ..evals.reports.write import Written, plots_folder, write_reports
from ..evals.run_folder import EvaluationRun
from ..evals.statistics import Figure
from ..evals.store import Store
from ..presenters.words import counted, megabytes
from ..render.sanitize import one_line
from ..render.screen import console, print_json, working
from ..render.terminal import show_blocks
from ..traces.files import write_file
from ..traces.writer import BEGINNING

SHOWN = ("f1", "exact_match", "accuracy", "recall@5", "delta_seper")
"""The metrics on the terminal, beside the metric that was chosen."""

MOST_PAIRS = 8
"""Significant differences that are listed. The others are counted."""


def show_report(
    folder: Path,
    html: Path | None,
    md: Path | None,
    metric: str,
    *,
    standard: Standard | None,
    split: tuple[str | None, str | None, Path],
    against: str | None,
    as_json: bool,
) -> None:
    """Write the reports and show the main figures.

    html, md, standard, against: see `write_reports`; split: the system to part the questions by, the thresholds, and
    its run.
    """
    run = run_folder.read(folder)
    reference = _reference(*split)
    with Store(run.results) as store, working("computing ...", as_json=as_json):
        html, md = (path and path.expanduser() for path in (html, md))
        written = write_reports(
            run, store, html=html, md=md, metric=metric, standard=standard, reference=reference, against=against
        )
    show_written(console(), run, written, as_json=as_json)


def _reference(system: str | None, thresholds: str | None, folder: Path) -> Reference | None:
    if system is None:
        return None
    try:
        numbers = [float(part) for part in thresholds.split(",")] if thresholds is not None else []
    except ValueError as fault:
        raise UserFault(f"--split-at {thresholds} is no list of numbers: write it like --split-at 0.2,0.5.") from fault
    run = run_folder.read(folder)
    with Store(run.results) as store:
        return reference_of(run, store, system, numbers)


def show_written(screen: Console, run: EvaluationRun, written: Written, *, as_json: bool) -> None:
    """Show the main figures and where the reports are, or print the report as JSON."""
    if as_json:
        print_json(as_object(run, written))
        return
    show_summary(screen, written.summary)
    plots = f", {counted(written.plots, 'plot')} in {plots_folder(written.md)}" if written.plots else ""
    files = f"Wrote {written.html} ({megabytes(written.html_bytes)}), {written.md}{plots}."
    screen.print(one_line(files), soft_wrap=True)
    if written.remark:
        screen.print(Text(written.remark, "yellow"))


def show_summary(screen: Console, summary: Summary) -> None:
    """Show for each dataset, and for all together, the scores, the significant differences, and the cost."""
    for section in summary.shown:
        of = f" of {section.of:,}" if section.of is not None else ""
        asked = f"{len(section.questions):,}{of} question{'' if len(section.questions) == 1 and not of else 's'}"
        screen.print(Text.assemble((one_line(section.dataset), "bold"), f"  {asked}"))
        shown = [summary.metric, *(name for name in SHOWN if name != summary.metric)]
        show_blocks(screen, [means_table(section, section.metrics(shown), intervals=[summary.metric])])
        screen.print(Text(_differences(section, summary), "dim"))
        if section.costs:
            screen.print()
            show_blocks(screen, [costs_table(section.costs)])
        if summary.reference is not None:
            screen.print()
            show_blocks(screen, [parted_table(section, summary.metric, summary.reference)])
        screen.print()
    screen.print(f"{state(summary)}.")
    for note in notes(summary):
        screen.print(Text(one_line(note), "dim"))


def as_object(run: EvaluationRun, written: Written) -> dict[str, Any]:
    """The report as JSON."""
    summary = written.summary
    about = {"run": str(run.folder), "metric": summary.metric, "standard": summary.standard}
    counts = {"answered": summary.answered, "failed": summary.failed, "left": summary.left}
    files = {"html": str(written.html), "md": str(written.md), "plots": written.plots, "remark": written.remark}
    sections = [
        {
            "dataset": section.dataset,
            "questions": len(section.questions),
            "of": section.of,
            "systems": [asdict(figures) for figures in section.systems],
            "oracles": [asdict(figures) for figures in section.oracles],
            "gaps": [{**asdict(gap), "share": gap.share} for gap in section.gaps],
            "differences": [asdict(pair) for pair in section.pairs],
            "failures": [asdict(failure) for failure in section.failures],
            "cost": [asdict(cost) for cost in section.costs],
            "uncertainty": [asdict(quality) for quality in section.uncertainties],
            "given": [asdict(given) for given in section.given],
            "parts": [asdict(part) for part in section.parts],
        }
        for section in summary.shown
    ]
    datasets, together = sections[: len(summary.sections)], sections[len(summary.sections) :]
    return {**about, **counts, "datasets": datasets, "together": together[0] if together else None, **files}


def save_trace(folder: Path, system: str, question: str, path: Path, *, as_json: bool) -> None:
    """Write a question's trace to a file for `dubito trace`. question: its id, with or without the dataset's name."""
    run = run_folder.read(folder)
    labels = [known.label for known in run.systems]
    if system not in labels:
        raise UserFault(f"The run has no system '{system}': use {either(labels)}.")
    matching = [
        asked.id for asked in run.questions if question in {asked.id, asked.id.removeprefix(f"{asked.dataset}/")}
    ]
    if len(matching) != 1:
        what = "no question" if not matching else "several questions"
        raise UserFault(f"The run has {what} '{question}': give an id from the report's page.")
    with Store(run.results) as store:
        trace = store.trace(system, matching[0])
    if trace is None:
        raise UserFault(
            f"There is no trace of '{question}' for {system}: the question has no outcome yet, or the run was made "
            "with --no-traces."
        )
    path = path.expanduser()
    write_file(path, trace, "trace", BEGINNING)
    if as_json:
        print_json({"trace": str(path), "bytes": len(trace)})
        return
    console().print(
        one_line(f"Wrote {path} ({megabytes(len(trace))}): show it with dubito trace {path}"), soft_wrap=True
    )


def show_kept(folder: Path, kept: Path, *, as_json: bool) -> None:
    """Write the run without passages and traces."""
    run = run_folder.read(folder)
    with Store(run.results) as store:
        size = keep_run(run, store, kept)
    if as_json:
        print_json({"kept": str(kept), "bytes": size})
        return
    console().print(one_line(f"Wrote {kept} ({megabytes(size)}): read it with dubito report {kept}"), soft_wrap=True)


def _differences(section: Section, summary: Summary) -> str:
    if not section.pairs:
        return "One system: nothing to compare it with."
    if not section.tested:
        return "No two systems answered the same question: nothing to compare."
    metric = called(summary.metric)
    tested = [(pair.p, pair, pair.difference) for pair in section.pairs if pair.p is not None and pair.difference]
    significant = sorted(((p, pair, found) for p, pair, found in tested if p < 0.05), key=lambda test: test[0])
    test = f"paired permutation test, {counted(len(tested), 'pair')}, Holm"
    if not significant:
        differ = "No two systems differ significantly"
        if summary.against is not None:
            differ = f"No system differs significantly from {one_line(summary.against)}"
        return f"{differ} in {metric} ({test}).{too_few(section.tested)}"
    listed = "; ".join(_difference(pair, found, p) for p, pair, found in significant[:MOST_PAIRS])
    more = f"; and {len(significant) - MOST_PAIRS} more" if len(significant) > MOST_PAIRS else ""
    return f"Significant differences in {metric} ({test}): {listed}{more}."


def _difference(pair: Pair, found: Figure, p: float) -> str:
    sign, better, worse = (1, pair.first, pair.second) if found.mean > 0 else (-1, pair.second, pair.first)
    low, high = sorted((sign * found.low, sign * found.high))
    return one_line(
        f"{better} over {worse} by {signed(abs(found.mean))} ({signed(low)} to {signed(high)}), p {chance(p)}"
    )
