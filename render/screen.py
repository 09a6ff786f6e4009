"""Standard output: as a terminal or a pipe, for text and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from ..traces.writer import jsonable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console() -> Console:
    """Standard output; with colours on a terminal only, and only if NO_COLOR is not set."""
    from rich.console import Console  # noqa: PLC0415 - rich loads when something is drawn

    # a program that reads a pipe gets plain text, even if FORCE_COLOR is set
    terminal = None if sys.stdout.isatty() else False
    return Console(force_terminal=terminal, markup=False, highlight=False, emoji=False)


def show(console: Console, content: RenderableType) -> None:
    """Print; in a pipe without trailing spaces."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
    console.file.flush()


@contextmanager
def working(doing: str, *, as_json: bool) -> Iterator[None]:
    """Show on a terminal what is being done. Before JSON, what libraries print goes to standard error instead."""
    screen = console()
    if as_json:
        with redirect_stdout(sys.stderr):
            yield
    elif screen.is_interactive:
        with screen.status(doing):
            yield
    else:
        yield


def print_json(value: Any) -> None:  # noqa: ANN401
    """Print one JSON object on one line, in ASCII."""
    sys.stdout.write(json.dumps(jsonable(value), default=str) + "\n")
    sys.stdout.flush()


def help_lines(heading: str, *lines: str) -> str:
    """Lines below a command's help, with their line breaks kept."""
    return "\n".join(["\b", f"{heading}:", *(f"  {line}" for line in lines)])
