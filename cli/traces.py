"""`dubito trace`: show a recorded run, or compare two."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from ..presenters.words import megabytes
from ..render.screen import console, show

EXAMPLES = (
    'dubito ask "..." --trace run.jsonl',
    "dubito trace run.jsonl",
    "dubito trace run.jsonl --html run.html",
    "dubito trace before.jsonl after.jsonl",
)


def trace(
    recorded: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="A trace; or two traces of the same question, to compare them.")
    ],
    *,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trace as a page for a browser.")] = None,
) -> None:
    """Show a recorded run, or compare two.

    The terminal shows the steps of a run that `dubito ask --trace` recorded, their cost, and the answer. With --html
    the trace becomes a page with every prompt and reply, the path taken through the graph, and the figures of
    the technique; the page needs no network.
    """
    from ..traces.recording import read  # noqa: PLC0415 - keeps `--help` quick

    if len(recorded) > 2:
        raise UserFault(f"dubito trace shows one trace or compares two, and got {len(recorded)}.")
    if html is not None and len(recorded) == 2:
        raise UserFault("--html makes a page of a single trace: give only one.")
    if html is not None:
        from ..render.trace_page import write  # noqa: PLC0415

        typer.echo(f"Wrote {html} ({megabytes(write(read(recorded[0]), html))}).")
        return
    from ..render.compare import comparison  # noqa: PLC0415
    from ..render.trace_tree import tree  # noqa: PLC0415

    recordings = [read(path) for path in recorded]
    show(console(), comparison(*recordings) if len(recordings) == 2 else tree(recordings[0]))
