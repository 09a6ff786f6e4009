"""How far long work is: a bar with speed and time left on a terminal, a line every half minute in a pipe."""

import sys
import threading
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..presenters.words import duration
from ..render.sanitize import one_line

EVERY_S = 30.0
"""Seconds between two lines."""


class ProgressBar:
    """The work under way; a context manager that draws the bar and removes it, or writes lines to standard error."""

    def __init__(self, screen: Console, work: str = "", *, quiet: bool, as_json: bool = False) -> None:
        """quiet: show nothing; as_json: draw no bar, and write lines, which are on standard error and harm no JSON."""
        visible = screen.is_interactive and not quiet and not as_json
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[so_far]}"))
        self._progress = Progress(*columns, console=screen, transient=True, disable=not visible, expand=True)
        self._task = self._progress.add_task(work, total=None, so_far="")
        self._begun = time.monotonic()
        self._writes = not visible and not quiet
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        """Draw the bar, or begin to write lines."""
        self._progress.start()
        if self._writes:
            threading.Thread(target=self._write_lines, name="dubito-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar, or write no more lines."""
        self._ended.set()
        self._progress.stop()

    def _write_lines(self) -> None:
        """Runs in a thread, because a line is due even while no question ends."""
        while not self._ended.wait(EVERY_S):
            task = self._progress.tasks[0]
            remaining = f"{task.remaining:,.0f} remaining" if task.remaining else ""
            so_far = ", ".join(text for text in (task.fields["so_far"], remaining) if text)
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {task.description}{': ' if so_far else ''}{so_far}\n")
            sys.stderr.flush()

    def begin(self, work: str) -> None:
        """Name the work that begins now, and start the clock."""
        self._begun = time.monotonic()
        self._progress.update(self._task, description=one_line(work))

    def show(self, work: str, done: int, total: int, so_far: str) -> None:
        """Show how far the work is."""
        self._progress.update(self._task, description=one_line(work), completed=done, total=total, so_far=so_far)

    def pace(self, done: int, left: int) -> str:
        """'3.1 a second, 0.3 s left', '12.0 a minute, 1 min 5 s left'. done: since the work began."""
        each = done / max(time.monotonic() - self._begun, 1e-9)
        rate = f"{each:,.1f} a second" if each >= 1 else f"{each * 60:.1f} a minute"
        return f"{rate}, {duration(left / each)} left"
