"""A progress bar with speed and time left; it draws nothing in a pipe."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..presenters.words import duration
from ..render.sanitize import one_line


class ProgressBar:
    """The work under way; a context manager that draws the bar and removes it."""

    def __init__(self, screen: Console, work: str = "", *, visible: bool) -> None:
        """visible: is it drawn?"""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[so_far]}"))
        self._progress = Progress(*columns, console=screen, transient=True, disable=not visible, expand=True)
        self._task = self._progress.add_task(work, total=None, so_far="")
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        """Draw the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

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
