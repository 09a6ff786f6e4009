"""A run followed on the terminal: what is under way moves, what is done stays; in a pipe, what is done alone."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live

from ..traces.run import Event, NodeEnd, Run
from ..traces.writer import Trace
from .answer import answer_panel, answer_text, grounds_and_cost, settings_line
from .following import Following
from .screen import show
from .view import block


def follow(run: Run, trace: Path | None, screen: Console | None) -> None:
    """Run to the end, shown on the screen and written to the trace where they are given."""
    with contextlib.ExitStack() as stack:
        recorder = None if trace is None else stack.enter_context(Trace(trace, run))
        watch = None if screen is None else stack.enter_context(Watch(run, screen))
        for event in run:
            if recorder is not None:
                recorder.on(event)
            if watch is not None:
                watch.on(event)
    if watch is not None:
        watch.finish()


class Watch:
    """Follows one run; a context manager, so that the terminal is left as it was found."""

    def __init__(self, run: Run, console: Console) -> None:
        """Moves only where the console is a terminal that can."""
        self._run, self._console = run, console
        self._following = Following(run.context)
        self._live: Live | None = None
        if console.is_interactive:
            # redrawn by the thread that changes what it shows, so nothing is drawn half changed
            self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._under_way)

    def __enter__(self) -> Self:
        """Begin to draw."""
        show(self._console, settings_line(self._run))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take away what moves."""
        self._following.open.clear()
        if self._live is not None:
            self._live.stop()

    def on(self, event: Event | None) -> None:
        """Show what happened."""
        step = self._following.on(event)
        if isinstance(event, NodeEnd) and step is not None and not step.running and (shown := block(step)) is not None:
            show(self._console, shown)
        if self._live is not None:
            self._live.refresh()

    def finish(self) -> None:
        """Show the answer."""
        if self._console.is_terminal:
            self._console.print(answer_panel(self._run))
        else:
            show(self._console, grounds_and_cost(self._run))
            # last, and in one piece for who reads the pipe
            self._console.print(answer_text(self._run.output), soft_wrap=True)

    def _under_way(self) -> RenderableType:
        now = time.monotonic()
        return Group(*(block(step, now) or "" for step in self._following.open.values()))
