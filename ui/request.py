"""A question that was asked on the page: its run, and the events that the page gets of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import sentence_of
from ..presenters.blocks import Cited
from ..presenters.presenter import answer_block, figures_of, outcome_of, presenter_of, summary_of, why
from ..presenters.words import counted, duration
from ..render.facts import cost_of, cost_words, evidence_of, warnings_of
from ..render.html import environment
from ..traces.events import ANSWER_MODES, AnswerPiece, EventReader
from ..traces.recording import Recording, assembled
from ..traces.steps import Step, Steps
from ..traces.writer import first_line, last_line, line_of

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

QUIET_S = 15.0
"""Seconds without an event after which the page gets an `alive` event."""


def render(template: str, **values: object) -> str:
    """Fill a template of the page with values; all text is escaped."""
    return environment(("dubito.ui", "pages")).get_template(template).render(**values)


@dataclass(frozen=True)
class PageEvent:
    """An event for the page.

    The run's name, question and technique; a step as it is now; the answer so far; the end (stopped: only of a run that
    is shown again); a sign of life.
    """

    kind: Literal["begun", "step", "answer", "done", "fault", "stopped", "alive"]
    data: Mapping[str, Any]


class Request:
    """A question and its run, which begins at once; cancel `task` to stop it."""

    def __init__(self, name: str, graph: Graph, question: str, context: BaseContext, given: Mapping[str, Any]) -> None:
        """name: of the run on the page; given: the graph's input."""
        self.name = name
        self._graph, self._question, self._context, self._given = graph, question, context, given
        self._lines: list[bytes] = []
        self._parts: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        self._fault: Exception | asyncio.CancelledError | None = None
        self._began = time.monotonic()
        self.task = asyncio.create_task(self._stream())

    @property
    def trace(self) -> bytes:
        """The trace so far."""
        return b"".join(self._lines)

    async def _stream(self) -> None:
        """Put the parts of the graph's stream into the queue; at the end None."""
        try:
            async for part in self._graph.astream(
                self._given, context=self._context, stream_mode=ANSWER_MODES, subgraphs=True, version="v2"
            ):
                self._parts.put_nowait((time.monotonic(), part))
        except asyncio.CancelledError as cancelled:
            self._fault = cancelled
            raise
        except Exception as fault:
            self._fault = fault
        finally:
            self._parts.put_nowait((time.monotonic(), None))

    async def events(self) -> AsyncGenerator[PageEvent]:
        """The events of the run until its end; a run that was stopped ends without a last event."""
        graph = self._graph
        reader, steps = EventReader(graph), Steps(graph.name, graph, self._context)
        self._lines.append(await asyncio.to_thread(first_line, graph, self._question, self._context))
        yield _begun(self.name, graph.name, self._question)
        has_ended, answer, seconds = False, "", 0.0
        while not has_ended:
            changed: dict[int, Step] = {}
            before = answer
            for at, part in await self._waiting_parts():
                seconds = at - self._began
                if has_ended := part is None:
                    break
                event = reader.event(part, at)
                if (line := line_of(event)) is not None:
                    self._lines.append(line)
                if isinstance(event, AnswerPiece):
                    answer = event.text if event.begins else answer + event.text
                if (step := steps.on(event)) is not None and not isinstance(event, AnswerPiece):
                    changed[step.number] = step
            for step in changed.values():
                yield _step_event(step)
            if answer != before:
                yield PageEvent("answer", {"html": render("answer.jinja", answer=Cited([(answer, None)]))})
            elif not has_ended and not changed:
                yield PageEvent("alive", {})
        if not isinstance(self._fault, asyncio.CancelledError):
            self._lines.append(last_line(seconds, reader.output, self._fault))
            if self._fault is not None:
                yield _fault_event(self.name, sentence_of(self._fault))
            else:
                yield await asyncio.to_thread(lambda: _done_event(self.name, assembled(Path(self.name), self._lines)))

    async def _waiting_parts(self) -> list[tuple[float, Any]]:
        """All parts in the queue; waits for the first at most `QUIET_S`."""
        parts = []
        with contextlib.suppress(TimeoutError):
            parts.append(await asyncio.wait_for(self._parts.get(), QUIET_S))
        while not self._parts.empty():
            parts.append(self._parts.get_nowait())
        return parts


def shown_again(name: str, recording: Recording) -> Iterator[PageEvent]:
    """The events of a run that ended, from its trace: each step as it was last."""
    yield _begun(name, recording.graph, recording.question)
    for _, step in recording.walk():
        yield _step_event(step)
    if recording.error is not None:
        yield _fault_event(name, str(recording.error.get("message", "")))
    elif recording.ended:
        yield _done_event(name, recording)
    else:
        yield PageEvent("stopped", {})


def _begun(name: str, graph: str, question: str) -> PageEvent:
    return PageEvent("begun", {"name": name, "question": question, "technique": presenter_of(graph).name})


def _fault_event(name: str, sentence: str) -> PageEvent:
    return PageEvent("fault", {"html": render("fault.jinja", name=name, sentence=sentence)})


def _done_event(name: str, recording: Recording) -> PageEvent:
    html = render(
        "done.jinja",
        name=name,
        technique=presenter_of(recording.graph).name,
        answer=answer_block(recording.output or {}),
        passages=f"passage-{name}-",
        why=why(recording),
        outcome=outcome_of(recording.graph, recording.output or {}, recording.settings),
        warnings=warnings_of(recording),
        evidence=evidence_of(recording),
        blocks=figures_of(recording),
        cost=cost_words(recording),
    )
    return PageEvent("done", {"html": html})


def _step_event(step: Step) -> PageEvent:
    summary = summary_of(step)
    state = "running" if step.running else "failed" if step.errors else "passing" if summary.hidden else "done"
    html = render(
        "step.jinja",
        node=step.node,
        state=state,
        words=summary.words,
        facts=_facts(step),
        errors=[error["message"] for error in step.errors],
        blocks=summary.blocks,
    )
    place = {"number": step.number, "within": step.within, "round": step.round}
    return PageEvent("step", {**place, "node": step.node, "state": state, "html": html})


def _facts(step: Step) -> list[str]:
    """The cost of a step so far; while the step runs, the page itself counts the seconds."""
    facts = []
    if (runs := len(step.runs)) > 1:
        facts.append(f"{len(step.ended)} of {runs} done" if step.running else f"{runs} in parallel")
    if (cost := cost_of(step.calls)).calls:
        facts += [counted(cost.calls, "model call"), cost.tokens]
    if not step.running:
        facts.append(duration(step.seconds))
    return facts
