"""The reports of a run, written into its folder or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import UserFault
from ..answers import Standard
from ..bench import Bench
from ..store import Store
from . import markdown, page
from .drawing import NEEDS_MATPLOTLIB, can_draw, drawn, save
from .material import material_of
from .plots import plots_of
from .summary import Summary, summary_of

HTML, MARKDOWN, PLOTS = "report.html", "report.md", "plots"


@dataclass(frozen=True)
class Written:
    """What was written. plots: how many; remark: why there are none, empty where that needs no reason."""

    summary: Summary
    html: Path
    html_bytes: int
    md: Path
    plots: int
    remark: str


def write_reports(
    bench: Bench,
    store: Store,
    *,
    html: Path | None = None,
    md: Path | None = None,
    metric: str = "f1",
    standard: Standard = "squad",
) -> Written:
    """Write the report as a page and as Markdown, with its plots in a folder beside the latter. It blocks.

    html, md: where to, else into the run's folder; metric: what the systems are tested against one another in.
    Raises `UserFault` for a run without outcomes, for places that cannot be written or hold something else, and where
    scipy or ir-measures is missing.
    """
    html, md = html or bench.folder / HTML, md or bench.folder / MARKDOWN
    _check(html, page.BEGINNING, "--html")
    _check(md, markdown.BEGINNING, "--md")
    summary = summary_of(bench, store, metric, standard)
    if not summary.scores:
        raise UserFault(
            f"No question of '{bench.folder}' has an outcome yet: go on with it by dubito eval --resume "
            f"'{bench.folder}'."
        )
    material = material_of(bench, store)
    plots = plots_of(summary, material.measured)
    remark = NEEDS_MATPLOTLIB if plots and not can_draw() else ""
    figures = [] if remark else [drawn(plot) for plot in plots]
    size = _write(html, page.page_of(summary, figures, material.steps, remark), "--html")
    save(figures, md.parent / PLOTS)
    _write(md, markdown.markdown_of(summary, [one.plot for one in figures], remark).encode(), "--md")
    return Written(summary, html, size, md, len(figures), remark)


def _check(path: Path, beginning: str, option: str) -> None:
    """Refuse a file of somebody else."""
    try:
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as there:
                if there.read(len(beginning)).lower() != beginning.encode():
                    raise UserFault(f"'{path}' exists and is not a report: give {option} another name.")
    except OSError as fault:
        raise _unwritable(path, option, fault) from fault


def _write(path: Path, content: bytes, option: str) -> int:
    try:
        return path.write_bytes(content)
    except OSError as fault:
        raise _unwritable(path, option, fault) from fault


def _unwritable(path: Path, option: str, fault: OSError) -> UserFault:
    return UserFault(f"The report cannot be written to '{path}' ({fault.strerror}): give {option} another path.")
