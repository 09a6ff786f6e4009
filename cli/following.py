"""Which steps a run is at, from its events: for the terminal and for the page alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..state.context import BaseContext
from ..traces.run import Event, ModelCall, NodeEnd, NodeStart, Progress, State
from .steps import Step, Task

Namespace = tuple[str, ...]


class Following:
    """`open` holds the steps under way, by the subgraph runs they are in and their node."""

    def __init__(self, settings: BaseContext) -> None:
        """settings: the run's."""
        self._settings = settings
        self.open: dict[tuple[Namespace, str], Step] = {}
        self._states: dict[Namespace, Mapping[str, Any]] = {}
        self._runs: Counter[tuple[Namespace, str]] = Counter()
        self._numbers: dict[str, int] = {}

    def on(self, event: Event | None) -> Step | None:
        """The step that an event began, changed or, where it no longer runs, ended."""
        if isinstance(event, State):
            self._states[event.namespace] = event.values
        elif isinstance(event, NodeStart):
            return self._begin(event)
        elif isinstance(event, NodeEnd):
            return self._end(event)
        elif isinstance(event, ModelCall | Progress):
            return self._count(event)
        return None

    def _begin(self, event: NodeStart) -> Step:
        key = (event.namespace, event.node)
        self._runs[key] += 1
        self._numbers[event.task] = self._runs[key]
        if key not in self.open:
            path = tuple(self._named(run) for run in event.namespace)
            state = self._states.get(event.namespace, {})
            self.open[key] = Step(event.node, path, event.at, state, self._settings)
        self.open[key].tasks[event.task] = Task(event)
        return self.open[key]

    def _named(self, run: str) -> str:
        """A subgraph's run 'node:task' as it is to be called: by its node, and from the second run on its number."""
        node, _, task = run.partition(":")
        number = self._numbers.get(task, 1)
        return node if number == 1 else f"{node} {number}"

    def _end(self, event: NodeEnd) -> Step | None:
        key = (event.namespace, event.node)
        step = self.open.get(key)
        if step is None or event.task not in step.tasks:  # an end without a start: LangGraph had it in a cache
            return None
        step.tasks[event.task].end = event
        if not step.running:
            del self.open[key]
        return step

    def _count(self, event: ModelCall | Progress) -> Step | None:
        step = self.open.get((event.namespace, event.node))
        if step is not None and isinstance(event, ModelCall):
            step.calls.append(event)
        elif step is not None and isinstance(event, Progress):
            step.progress = event
        return step
