"""Ask questions, several at a time, and store each outcome as soon as it is known."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..concurrency import worker_pool
from ..errors import DubitoError, ModelFault, ModelUnavailable
from ..graphs.registry import context_type, graph_named
from ..resources.call_cache import CallMemory, RememberingChat, counting
from ..resources.resources import Resources
from ..traces.events import MODES, EventReader, ModelCall, Progress
from ..traces.writer import first_line, jsonable, last_line, line_of
from .run_folder import EvaluationTask
from .store import Outcome, Store

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..models.interfaces import ChatModel

Ask = Callable[[EvaluationTask], Awaitable[Outcome]]

TOKENS = ("prompt_tokens", "completion_tokens")

MOST_FAILURES = 5
"""The run stops after this many consecutive failures, plus the number of questions in flight."""


def resources_with_memory(memory: CallMemory | None, seed: int, **given: Any) -> Resources:  # noqa: ANN401
    """Resources whose chat models look up each call in a cache first.

    memory: None to make every call; given: live objects for `Resources`.
    """

    def around(model: ChatModel) -> ChatModel:
        return model if memory is None else RememberingChat(model, memory, seed)

    return Resources(**given, around=around)


class Asker:
    """Asks a graph a question and makes an outcome of the run, whether it succeeds or fails."""

    def __init__(
        self,
        resources: Resources,
        *,
        traces: bool,
        on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
        graph_of: Callable[[str, Resources], Graph] = graph_named,
    ) -> None:
        """traces: keep each question's trace; on_progress: called during long preparations, such as indexing.

        graph_of: compiles the graph of a name over the resources.
        """
        self.resources = resources
        self._traces = traces
        self._on_progress = on_progress
        self._graph_of = graph_of
        self._graphs: dict[str, Graph] = {}

    async def __call__(self, task: EvaluationTask) -> Outcome:
        """The outcome of a question; a fault becomes the outcome's `error`."""
        graph = self._graph(task.graph)
        context = context_type(graph).unchecked(task.context)
        reader, lines, fault = EventReader(graph), [first_line(graph, task.text, context)], None
        spent: Counter[str] = Counter(calls=0, prompt_tokens=0, completion_tokens=0)
        begun = time.monotonic()
        with counting() as remembered:
            try:
                async for part in graph.astream(
                    {"question": task.text}, context=context, stream_mode=MODES, subgraphs=True, version="v2"
                ):
                    event = reader.event(cast("dict[str, Any]", part), time.monotonic())
                    if isinstance(event, Progress):
                        self._on_progress(event.what, event.done, event.total)
                    if isinstance(event, ModelCall):
                        spent.update(calls=1, **{name: event.call[name] for name in TOKENS})
                    if self._traces and (line := line_of(event)) is not None:
                        lines.append(line)
            except Exception as caught:  # a fault of dubito itself fails this question, and not the others
                fault = caught
        seconds = time.monotonic() - begun
        lines.append(last_line(seconds, reader.output, fault))
        return Outcome(
            system=task.system,
            question=task.question,
            output=jsonable(reader.output) if fault is None else None,
            error=None if fault is None else {**error_of(fault), "spent": dict(spent)},
            seconds=seconds,
            remembered=remembered.calls,
            remembered_seconds=remembered.seconds,
            trace=b"".join(lines) if self._traces else b"",
        )

    def _graph(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = self._graph_of(name, self.resources)
        return self._graphs[name]


def error_of(fault: Exception) -> dict[str, Any]:
    """Why a question failed, in the form of `Outcome.error`."""
    message = str(fault) if isinstance(fault, DubitoError) else f"Unexpected {type(fault).__name__}: {fault}"
    unavailable = isinstance(fault, ModelFault | ModelUnavailable)
    return {"type": type(fault).__name__, "message": message, "unavailable": unavailable}


def unfinished(tasks: Sequence[EvaluationTask], store: Store, *, retry_failed: bool) -> list[EvaluationTask]:
    """The tasks without an outcome; with `retry_failed` also the tasks that failed."""
    ended = store.ended()
    outcomes = [(task, ended.get((task.system, task.question))) for task in tasks]
    return [task for task, answered in outcomes if answered is None or (retry_failed and not answered)]


async def run_all(
    tasks: Sequence[EvaluationTask],
    ask: Ask,
    store: Store,
    *,
    at_once: int,
    retry_failed: bool,
    on_end: Callable[[Outcome], None],
) -> None:
    """Ask every task that is unfinished, and store its outcome.

    at_once: tasks in flight, which are all that a killed run loses; retry_failed: ask failed tasks again; on_end: is
    called with each outcome. A failure is an outcome like an answer. Two streaks of failures say nothing about their
    questions: the model is unavailable, or a system fails from its first question on. Their outcomes are removed, so
    that a later run asks again, and `DubitoError` ends this run.
    """
    waiting = await asyncio.to_thread(unfinished, tasks, store, retry_failed=retry_failed)
    ended = await asyncio.to_thread(store.ended)
    streaks = _Streaks({system for (system, _), answered in ended.items() if answered}, MOST_FAILURES + at_once)
    storing, stopped = asyncio.Lock(), False

    async def ask_and_store(task: EvaluationTask) -> None:
        nonlocal stopped
        outcome = await ask(task)
        async with storing:  # one at a time, so that no outcome of a streak is stored after the streak was removed
            if stopped:
                return
            await asyncio.to_thread(store.add, outcome)
            on_end(outcome)
            streak = streaks.with_this(outcome)
            if not streak:
                return
            stopped = True
            await asyncio.to_thread(store.forget, [(failed.system, failed.question) for failed in streak])
            raise DubitoError(
                f"{len(streak)} questions in a row failed. The last failure, of {outcome.system}: "
                f"{outcome.error_message} Remove the cause and resume the run, which asks these questions again."
            )

    await worker_pool(waiting, ask_and_store, at_once)


class _Streaks:
    """Consecutive failures whose cause is the set-up and not the questions."""

    def __init__(self, answering: set[str], most: int) -> None:
        """answering: systems that have answered a question; most: the length at which a streak ends the run."""
        self._answering = answering
        self._most = most
        self._unavailable: list[Outcome] = []
        self._never: dict[str, list[Outcome]] = {}

    def with_this(self, outcome: Outcome) -> list[Outcome]:
        """Add an outcome; returns the streak that is now too long, empty if there is none."""
        if outcome.error is None:
            self._unavailable.clear()
            self._answering.add(outcome.system)
            return []
        never: list[Outcome] = []
        if outcome.error["unavailable"]:
            self._unavailable.append(outcome)
        if outcome.system not in self._answering:
            never = self._never.setdefault(outcome.system, [])
            never.append(outcome)
        return next((list(streak) for streak in (self._unavailable, never) if len(streak) >= self._most), [])
