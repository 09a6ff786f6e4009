"""Questions put to systems, so many at a time; each outcome is on disk before its place is given to another one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import DubitoError, ModelFault, ModelUnavailable
from ..graphs.registry import graph_named
from ..models.remembered import CallMemory, RememberingChat, counting
from ..models.resources import Resources
from ..traces.run import MODES, ModelCall, Progress, Reader
from ..traces.writer import first_line, jsonable, last_line, line_of
from .bench import Task
from .in_turn import in_turn
from .store import Outcome, Store

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..models.interfaces import ChatModel
    from ..state.context import BaseContext

Ask = Callable[[Task], Awaitable[Outcome]]

TOKENS = ("prompt_tokens", "completion_tokens")

MOST_FAILURES = 5
"""Questions that may fail in a row for want of a model, beyond those that were under way with the first of them."""


class Asker:
    """Puts questions to graphs over models that remember what they were asked."""

    def __init__(
        self,
        memory: CallMemory | None,
        seed: int,
        *,
        traces: bool,
        on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
        **given: Any,  # noqa: ANN401
    ) -> None:
        """memory: None to ask every time; traces: keep each question's trace; on_progress: hears of long preparations;
        given: live objects for `Resources`."""

        def around(model: ChatModel) -> ChatModel:
            return model if memory is None else RememberingChat(model, memory, seed)

        self.resources = Resources(**given, around=around)
        self._traces = traces
        self._on_progress = on_progress
        self._graphs: dict[str, Graph] = {}

    async def __call__(self, task: Task) -> Outcome:
        """The outcome of a question, whatever becomes of it."""
        graph = self._graph(task.graph)
        context = cast("type[BaseContext]", graph.builder.context_schema).model_validate(task.context)
        reader, lines, fault = Reader(graph), [first_line(graph, task.text, context)], None
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
            except Exception as caught:  # a fault of ours costs this question and not the others
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
            self._graphs[name] = graph_named(name, self.resources)
        return self._graphs[name]


def error_of(fault: Exception) -> dict[str, Any]:
    """Why a question failed, as `Outcome.error` has it."""
    message = str(fault) if isinstance(fault, DubitoError) else f"Unexpected {type(fault).__name__}: {fault}"
    unavailable = isinstance(fault, ModelFault | ModelUnavailable)
    return {"type": type(fault).__name__, "message": message, "unavailable": unavailable}


async def run_all(
    tasks: Sequence[Task],
    ask: Ask,
    store: Store,
    *,
    at_once: int,
    retry_failed: bool,
    on_end: Callable[[Outcome], None],
) -> None:
    """Put every task that has no outcome yet, and keep what comes out.

    at_once: how many are under way at a time, which is all that a killed run loses; retry_failed: those that failed
    earlier too; on_end: hears of each that ends.
    A question that fails is kept with its reason. If for a while every question fails for want of a model, or all the
    first ones of a system whatever the reason, that is no outcome of those questions: they are forgotten again, and
    `DubitoError` says so.
    """
    ended = await asyncio.to_thread(store.ended)
    waiting = [
        task
        for task in tasks
        if (answered := ended.get((task.system, task.question))) is None or (retry_failed and not answered)
    ]
    streaks = _Streaks({system for (system, _), answered in ended.items() if answered}, MOST_FAILURES + at_once)
    keeping, over = asyncio.Lock(), False

    async def put(task: Task) -> None:
        nonlocal over
        outcome = await ask(task)
        async with keeping:  # one after the other, so that none is kept behind a streak that was forgotten
            if over:
                return
            await asyncio.to_thread(store.add, outcome)
            on_end(outcome)
            hopeless = streaks.with_this(outcome)
            if not hopeless:
                return
            over = True
            await asyncio.to_thread(store.forget, [(one.system, one.question) for one in hopeless])
            raise DubitoError(
                f"{len(hopeless)} questions in a row failed, the last one, of {outcome.system}, so: "
                f"{outcome.error_message} They will be asked again: mend that, and go on with dubito eval --resume."
            )

    await in_turn(waiting, put, at_once)


class _Streaks:
    """Failures in a row that say something of the set-up and nothing of their questions."""

    def __init__(self, answering: set[str], most: int) -> None:
        """answering: systems that have answered a question; most: as many in a row are too many."""
        self._answering = answering
        self._most = most
        self._unavailable: list[Outcome] = []
        self._never: dict[str, list[Outcome]] = {}

    def with_this(self, outcome: Outcome) -> list[Outcome]:
        """The streak that this outcome makes too long: without a model, or of a system that has never answered."""
        if outcome.error is None:
            self._unavailable.clear()
            self._answering.add(outcome.system)
            return []
        if outcome.error["unavailable"]:
            self._unavailable.append(outcome)
        if outcome.system not in self._answering:
            self._never.setdefault(outcome.system, []).append(outcome)
        never = self._never.get(outcome.system, []) if outcome.system not in self._answering else []
        return next((list(row) for row in (self._unavailable, never) if len(row) >= self._most), [])
