"""A run followed on the terminal: what is under way moves, what is done stays; in a pipe, what is done alone."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live

from ..traces.run import Event, ModelCall, NodeEnd, NodeStart, Progress, Run, State
from ..traces.writer import Trace
from .answer import answer_panel, answer_text, grounds_and_cost, settings_line
from .screen import show
from .steps import Step, Task
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
        self._open: dict[tuple[tuple[str, ...], str], Step] = {}
        self._states: dict[tuple[str, ...], Mapping[str, Any]] = {}
        self._runs: Counter[tuple[tuple[str, ...], str]] = Counter()
        self._numbers: dict[str, int] = {}
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
        self._open.clear()
        if self._live is not None:
            self._live.stop()

    def on(self, event: Event | None) -> None:
        """Show what happened."""
        if isinstance(event, State):
            self._states[event.namespace] = event.values
        elif isinstance(event, NodeStart):
            self._begin(event)
        elif isinstance(event, NodeEnd):
            self._end(event)
        elif isinstance(event, ModelCall | Progress):
            self._count(event)
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

    def _begin(self, event: NodeStart) -> None:
        key = (event.namespace, event.node)
        self._runs[key] += 1
        self._numbers[event.task] = self._runs[key]
        if key not in self._open:
            path = tuple(self._named(run) for run in event.namespace)
            state = self._states.get(event.namespace, {})
            self._open[key] = Step(event.node, path, event.at, state, self._run.context)
        self._open[key].tasks[event.task] = Task(event)

    def _named(self, run: str) -> str:
        """A subgraph's run 'node:task' as it is to be called: by its node, and from the second run on its number."""
        node, _, task = run.partition(":")
        number = self._numbers.get(task, 1)
        return node if number == 1 else f"{node} {number}"

    def _end(self, event: NodeEnd) -> None:
        key = (event.namespace, event.node)
        step = self._open.get(key)
        if step is None or event.task not in step.tasks:  # an end without a start: LangGraph had it in a cache
            return
        step.tasks[event.task].end = event
        if not step.running:
            del self._open[key]
            if (shown := block(step)) is not None:
                show(self._console, shown)

    def _count(self, event: ModelCall | Progress) -> None:
        step = self._open.get((event.namespace, event.node))
        if step is not None and isinstance(event, ModelCall):
            step.calls.append(event)
        elif step is not None and isinstance(event, Progress):
            step.progress = event

    def _under_way(self) -> RenderableType:
        now = time.monotonic()
        return Group(*(block(step, now) or "" for step in self._open.values()))
