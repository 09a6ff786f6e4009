"""`dubito trace`: a recorded run, read afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from .screen import console, help_lines, megabytes, show

EXAMPLES = help_lines(
    "Examples",
    'dubito ask "..." --graph dense_rag --trace run.jsonl',
    "dubito trace run.jsonl",
    "dubito trace run.jsonl --html run.html",
    "dubito trace before.jsonl after.jsonl",
)


def trace(
    recorded: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="A trace; or two of the same question, to compare them.")
    ],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace as one page, to open in a browser.")
    ] = None,
) -> None:
    """Show a recorded run, or compare two.

    A run that `dubito ask --trace` wrote down is shown as its steps, what each cost, and the answer. With --html it
    becomes a page with every prompt and reply, the graph with the path taken, and what matters for its technique; the
    page needs no network.
    """
    from ..traces.recording import read  # noqa: PLC0415 - what is heavy loads when it is needed

    if len(recorded) > 2:
        raise UserFault(f"dubito trace shows one trace or compares two, and got {len(recorded)}.")
    if html is not None and len(recorded) == 2:
        raise UserFault("--html makes the page of one trace: give one.")
    if html is not None:
        from .viewer.page import write  # noqa: PLC0415

        typer.echo(f"Wrote {html} ({megabytes(write(read(recorded[0]), html))}).")
        return
    from .viewer.compare import comparison  # noqa: PLC0415
    from .viewer.terminal import tree  # noqa: PLC0415

    found = [read(path) for path in recorded]
    show(console(), comparison(*found) if len(found) == 2 else tree(found[0]))
