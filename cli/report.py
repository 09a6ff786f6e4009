"""`dubito report`: what a run of `dubito eval` says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito report my.run",
    "dubito report my.run --metric accuracy --standard longbench",
    "dubito report my.run --html result.html --md result.md",
    "dubito report my.run --json",
    "dubito report my.run --trace df_rag q17 q17.jsonl",
)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of dubito eval.")],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the page.  [default: RUN/report.html]")
    ] = None,
    md: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to write Markdown, its plots beside it in plots/.  [default: RUN/report.md]"
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="What the systems are tested against one another in.")
    ] = "f1",
    standard: Annotated[
        Literal["squad", "longbench"], typer.Option(help="How F1 counts what normalising leaves empty.")
    ] = "squad",
    trace: Annotated[
        tuple[str, str, Path] | None,
        typer.Option(
            metavar="SYSTEM QUESTION FILE", help="Only write the trace of a question, by its id, for dubito trace."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Show what a run says, and write it as a page and as Markdown with plots.

    For each dataset: the systems' means with intervals, tests of their differences, failures, cost, and how well each
    one's own uncertainty tells right from wrong. The page has every question, with answers, evidence and steps.
    """
    from .reporting import Wanted, save_trace, show_report  # noqa: PLC0415 - what is heavy loads when it is needed

    run = run.expanduser()
    if trace is not None:
        save_trace(run, *trace, as_json=as_json)
        return
    show_report(run, Wanted(html, md, metric, standard), as_json=as_json)
