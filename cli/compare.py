"""`dubito compare`: two runs of `dubito eval` side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito compare before.run after.run",
    "dubito compare before.run after.run --standard longbench",
    "dubito compare before.run after.run --json",
)


def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of dubito eval.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another one, with systems of the same names.")],
    *,
    standard: Annotated[
        Literal["squad", "longbench"], typer.Option(help="How F1 counts what normalising leaves empty.")
    ] = "squad",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Compare two runs: the systems that both have, on the questions that both answered.

    For each system: how much every metric changed, with its interval and p; the questions whose answer became wrong or
    right; what it cost; and the settings that differ between the runs.
    """
    from .comparing import show_comparison  # noqa: PLC0415 - what is heavy loads when it is needed

    show_comparison(first.expanduser(), second.expanduser(), standard, as_json=as_json)
