"""`dubito report`: the report of a run of `dubito eval`."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from .options import AsJson, OtherStandard, RunFolder, refuse_others

EXAMPLES = (
    "dubito report my.run",
    "dubito report my.run --metric accuracy --standard longbench",
    "dubito report my.run --against vanilla_rag",
    "dubito report my.run --html result.html --md result.md",
    "dubito report my.run --json",
    "dubito report my.run --metric exact_match --split-by first --split-at 0.1,0.2,0.5",
    "dubito report my.run --keep published",
    "dubito report my.run --trace my-system q17 q17.jsonl",
)


def report(
    context: typer.Context,
    run: RunFolder,
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Path of the page.  [default: RUN/report.html]")
    ] = None,
    md: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Path of the Markdown; the plots of x.md are in x-plots/.  [default: RUN/report.md, plots/]",
        ),
    ] = None,
    metric: Annotated[str, typer.Option(metavar="NAME", help="The metric in which the systems are compared.")] = "f1",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM", help="Compare the others with this system alone: fewer tests see smaller differences."
        ),
    ] = None,
    standard: OtherStandard = None,
    split_by: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM", help="Also show each system's scores where this system is certain, and where it is not."
        ),
    ] = None,
    split_at: Annotated[
        str | None,
        typer.Option(metavar="U,...", help="With --split-by: up to which uncertainties.  [default: its threshold]"),
    ] = None,
    split_run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --split-by: the run that has SYSTEM.  [default: the run itself]"),
    ] = None,
    trace: Annotated[
        tuple[str, str, Path] | None,
        typer.Option(metavar="SYSTEM QUESTION FILE", help="Only write the trace of a question, for dubito trace."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Only write the run without passages and traces, to give away; it is read like RUN."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the main figures of a run, and write its report as a page and as Markdown with plots.

    For each dataset, and for all together: means with intervals, tests of differences, failures, costs, and how well
    each system's own uncertainty separates right from wrong. The page has every question with its answers, evidence and
    steps.
    """
    from .reporting import save_trace, show_kept, show_report  # noqa: PLC0415 - heavy imports

    run = run.expanduser()
    if trace is not None:
        refuse_others(context, {"run", "trace", "as_json"}, "--trace writes a trace and no report")
        save_trace(run, *trace, as_json=as_json)
        return
    if keep is not None:
        refuse_others(context, {"run", "keep", "as_json"}, "--keep writes the run and no report")
        show_kept(run, keep.expanduser(), as_json=as_json)
        return
    if split_by is None and (split_at or split_run):
        raise UserFault("--split-at and --split-run need the system to part the questions by: give --split-by too.")
    split = (split_by, split_at, split_run.expanduser() if split_run else run)
    show_report(run, html, md, metric, standard=standard, split=split, against=against, as_json=as_json)
