"""What reaches the terminal, and in which form."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any

from ..traces.writer import jsonable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"  # window titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str, *, lines: bool = False) -> str:
    """Text of others, fit for a terminal: no control sequences, control characters or turned writing directions.

    Without `lines` it comes out as one line.
    """
    text = _SEQUENCE.sub("", text)
    if not lines:
        text = " ".join(text.split())
    return "".join(c for c in text if (c == "\n" and lines) or c == "\t" or _harmless(c)).expandtabs(4)


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cs"} and character not in _TURNS


def shorten(text: str, length: int) -> str:
    """One clean line of at most `length` characters."""
    line = clean(text)
    return line if len(line) <= length else line[: length - 3].rstrip() + "..."


def console() -> Console:
    """The terminal, or a pipe: colours only where a person looks and NO_COLOR is not set."""
    from rich.console import Console  # noqa: PLC0415 - rich loads when something is drawn

    # FORCE_COLOR does not reach a pipe: what reads it wants text
    terminal = None if sys.stdout.isatty() else False
    return Console(force_terminal=terminal, markup=False, highlight=False, emoji=False)


def show(console: Console, what: RenderableType) -> None:
    """Print; in a pipe without the spaces that fill lines up."""
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
    console.file.flush()


def print_json(value: Any) -> None:  # noqa: ANN401
    """Exactly one JSON object on one line of standard output, in ASCII."""
    sys.stdout.write(json.dumps(jsonable(value), default=str) + "\n")
    sys.stdout.flush()


def counted(count: int, thing: str) -> str:
    """'1 chunk', '2 chunks'."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def duration(seconds: float) -> str:
    """'0.3 s', '2 min 5 s'."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"


def megabytes(size: int) -> str:
    """'1.5 MB'."""
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def help_lines(heading: str, *lines: str) -> str:
    """Lines below a command's help that keep their breaks."""
    return "\n".join(["\b", f"{heading}:", *(f"  {line}" for line in lines)])
