"""`dubito compare`: two runs of `dubito eval` side by side."""

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, OtherStandard, RunFolder

EXAMPLES = (
    "dubito compare before.run after.run",
    "dubito compare before.run after.run --standard longbench",
    "dubito compare before.run after.run --json",
)


def compare(
    first: RunFolder,
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run, with systems of the same names.")],
    *,
    standard: OtherStandard = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: the systems that both have, on the questions that both answered.

    For each system: the change of every metric, with its interval and p; the questions whose answer became wrong or
    right; the cost; and the settings that differ.
    """
    from .comparing import show_comparison  # noqa: PLC0415 - heavy imports

    show_comparison(first.expanduser(), second.expanduser(), standard, as_json=as_json)
