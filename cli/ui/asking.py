"""One question put to a graph, as what the page is told of it while it runs and when it is done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...traces.recording import Recording, assembled
from ...traces.run import MODES, Event, NodeStart, Reader, Run
from ...traces.writer import first_line, last_line, line_of
from ..answer import reliance, way
from ..exits import explain
from ..following import Following, Namespace
from ..screen import counted, duration
from ..steps import Step
from ..view import words_of
from ..viewer.facts import answer_of, cost_words, evidence_of, warnings_of
from ..viewer.panels import blocks
from .filled import render
from .markup import markup

if TYPE_CHECKING:
    from ...graphs.registry import Graph
    from ...state.context import BaseContext

QUIET_S = 15.0
"""Seconds of silence after which the page hears that the run is still under way."""


@dataclass(frozen=True)
class Message:
    """What the page is told: the run's name, a step as it is now, the run's end, or nothing but a sign of life."""

    kind: Literal["begun", "step", "done", "fault", "alive"]
    data: Mapping[str, Any]


@dataclass
class Placed:
    """A step and its place on the page.

    number: from 1, in the order of the starts; within: the number of the step whose subgraph it is in, 0 for none;
    round: steps within the same one that have the same number ran side by side.
    """

    number: int
    within: int
    round: int
    step: Step


class Places:
    """The steps of a run as they come, each with its place."""

    def __init__(self, settings: BaseContext) -> None:
        """settings: the run's."""
        self._following = Following(settings)
        self._placed: dict[int, Placed] = {}
        self._by_task: dict[str, Placed] = {}
        self._rounds: dict[Namespace, int] = {}

    def on(self, event: Event | None) -> Placed | None:
        """The step that an event changed."""
        busy = event is not None and any(where == event.namespace for where, _ in self._following.open)
        step = self._following.on(event)
        if event is None or step is None:
            return None
        if id(step) not in self._placed:
            if not busy:
                self._rounds[event.namespace] = self._rounds.get(event.namespace, 0) + 1
            outer = self._by_task.get(event.namespace[-1].partition(":")[2]) if event.namespace else None
            place = Placed(len(self._placed) + 1, outer.number if outer else 0, self._rounds[event.namespace], step)
            self._placed[id(step)] = place
        found = self._placed[id(step)]
        if isinstance(event, NodeStart):
            self._by_task[event.task] = found
        return found


class Asked:
    """One question."""

    def __init__(self, name: str, graph: Graph, question: str, context: BaseContext, more: Mapping[str, Any]) -> None:
        """name: what the run is called on the page; more: what the graph takes beside the question."""
        self.name = name
        self._lines: list[bytes] = []
        self._run = Run(graph, question, context, more)

    @property
    def trace(self) -> bytes:
        """As far as it got."""
        return b"".join(self._lines)

    async def messages(self) -> AsyncGenerator[Message]:
        """Run the graph; whoever stops listening ends it."""
        parts: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        running = asyncio.create_task(self._stream(parts))
        try:
            async for message in self._told(parts):
                yield message
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _stream(self, parts: asyncio.Queue[tuple[float, Any]]) -> None:
        run = self._run
        given = {"question": run.question, **run.more}
        try:
            async for part in run.graph.astream(
                given, context=run.context, stream_mode=MODES, subgraphs=True, version="v2"
            ):
                parts.put_nowait((time.monotonic(), part))
            parts.put_nowait((time.monotonic(), None))
        except Exception as fault:  # told to the page, whatever it is
            parts.put_nowait((time.monotonic(), fault))

    async def _told(self, parts: asyncio.Queue[tuple[float, Any]]) -> AsyncIterator[Message]:
        run, begun = self._run, time.monotonic()
        reader, places = Reader(run.graph), Places(run.context)
        self._lines.append(await asyncio.to_thread(first_line, run.graph, run.question, run.context))
        yield Message("begun", {"name": self.name})
        while True:
            changed: dict[int, Placed] = {}
            for at, part in await _waiting(parts):
                run.seconds = at - begun
                if part is None or isinstance(part, Exception):
                    self._lines.append(last_line(run.seconds, reader.output, part))
                    for placed in changed.values():
                        yield _step(placed)
                    yield await asyncio.to_thread(self._end, reader.output, part)
                    return
                event = reader.event(part, at)
                if (line := line_of(event)) is not None:
                    self._lines.append(line)
                if (placed_now := places.on(event)) is not None:
                    changed[placed_now.number] = placed_now
            for placed in changed.values():
                yield _step(placed)
            if not changed:
                yield Message("alive", {})

    def _end(self, output: dict[str, Any], fault: Exception | None) -> Message:
        recording, self._run.output = assembled(Path(self.name), self._lines), output
        if fault is not None:
            sentence = explain(fault)[2]
            return Message("fault", {"html": render("fault.jinja", name=self.name, sentence=sentence)})
        return Message("done", {"html": self._answer(recording)})

    def _answer(self, recording: Recording) -> str:
        run = self._run
        return render(
            "done.jinja",
            name=self.name,
            graph=run.graph.name,
            answer=answer_of(recording),
            said=[markup(one) for one in [*reliance(run), *way(run.output)]],
            warnings=warnings_of(recording),
            evidence=evidence_of(recording),
            blocks=blocks(recording),
            cost=cost_words(recording),
        )


async def _waiting(parts: asyncio.Queue[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """What has come, at least one; nothing after a while of silence."""
    found = []
    with contextlib.suppress(TimeoutError):
        found.append(await asyncio.wait_for(parts.get(), QUIET_S))
    while not parts.empty():
        found.append(parts.get_nowait())
    return found


def _step(placed: Placed) -> Message:
    step = placed.step
    shown = words_of(step)
    state = "running" if step.running else "failed" if step.failed else "passing" if shown.passing else "done"
    html = render(
        "step.jinja",
        node=step.node,
        state=state,
        words=shown.words,
        facts=_facts(step),
        errors=[str(end.error) for end in step.ends if end.error is not None],
        below="" if shown.below is None else markup(shown.below),
    )
    place = {"number": placed.number, "within": placed.within, "round": placed.round}
    return Message("step", {**place, "node": step.node, "state": state, "html": html})


def _facts(step: Step) -> list[str]:
    """What a step has cost so far; how long it runs is the page's own clock until it is done."""
    facts = []
    if (runs := len(step.tasks)) > 1:
        facts.append(f"{len(step.ends)} of {runs} done" if step.running else f"{runs} in parallel")
    if step.calls:
        read = sum(call.call["prompt_tokens"] for call in step.calls)
        written = sum(call.call["completion_tokens"] for call in step.calls)
        facts += [counted(len(step.calls), "model call"), f"{read:,} tokens read, {written:,} written"]
    if not step.running:
        facts.append(duration(max(end.at for end in step.ends) - step.begun))
    return facts
