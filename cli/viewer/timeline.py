"""When each step ran: rows below one another, what ran at once side by side in lanes, all in per cent of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...traces.recording import Call, Recording, Step, Task
from ..screen import duration
from .facts import times

HIGHEST_LANE, LOWEST_LANE, ROW = 14, 3, 84
"""Pixels: of a lane at most and at least, and of the lanes of a row together while they are not at their lowest."""

OPEN_UP_TO = 40
"""Steps of a run whose subgraphs are shown open."""

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Seconds from one mark to the next; the first that gives no more than six marks is used."""

ROOM = 0.95
"""How far to the right a mark may stand."""


@dataclass(frozen=True)
class Span:
    """A bar: where it begins and how wide it is in per cent, from where down in pixels; a call stands within a run."""

    left: float
    width: float
    top: int
    is_call: bool
    tip: str


@dataclass(frozen=True)
class Lane:
    """A row of the timeline: a step, its bars, their height and the row's in pixels, the rows of its subgraph."""

    number: int
    name: str
    said: str
    spans: Sequence[Span]
    lane: int
    height: int
    rows: Sequence[Lane]


@dataclass(frozen=True)
class Timeline:
    """Rows, and marks with their place in per cent; unfolded: whether subgraphs are shown open."""

    rows: Sequence[Lane]
    marks: Sequence[tuple[float, str]]
    unfolded: bool


def timeline(recording: Recording) -> Timeline:
    """Of a whole run."""
    total = max(recording.seconds, 1e-3)
    count = sum(1 for _ in recording.walk())
    rows = [_row(step, recording.start, total) for step in recording.steps]
    return Timeline(rows, _marks(total), count <= OPEN_UP_TO)


def lanes(tasks: Sequence[Task], until: float) -> list[int]:
    """The lane of each run: the first that is free when it begins."""
    busy: list[float] = []
    found = []
    for task in tasks:
        free = next((i for i, end in enumerate(busy) if end <= task.start), len(busy))
        if free == len(busy):
            busy.append(0.0)
        busy[free] = until if task.end is None else task.end
        found.append(free)
    return found


def _row(step: Step, start: float, total: float) -> Lane:
    taken = lanes(step.tasks, step.until)
    lane = max(LOWEST_LANE, min(HIGHEST_LANE, ROW // (max(taken) + 1)))
    spans: list[Span] = []
    for task, place in zip(step.tasks, taken, strict=True):
        end = step.until if task.end is None else task.end
        tip = f"{step.node}, {duration(end - task.start)}{'' if task.end is not None else ', not finished'}"
        spans.append(Span(*_place(task.start - start, end - start, total), place * lane, is_call=False, tip=tip))
        for one in task.calls:
            place_of = _place(one.start - start, one.end - start, total)
            spans.append(Span(*place_of, place * lane, is_call=True, tip=_call(one)))
    rows = [_row(one, start, total) for one in step.steps]
    said = f"{times(step)} {duration(step.seconds)}".strip()
    return Lane(step.number, step.node, said, spans, lane, (max(taken) + 1) * lane, rows)


def _place(begun: float, end: float, total: float) -> tuple[float, float]:
    """Left and width in per cent."""
    left = min(max(begun / total * 100, 0.0), 100.0)
    return left, min(max((end - begun) / total * 100, 0.0), 100.0 - left)


def _call(call: Call) -> str:
    tokens = f"{call.prompt_tokens:,} tokens read, {call.completion_tokens:,} written"
    return f"model call ({call.verb}), {duration(call.seconds)}, {tokens}"


def _marks(total: float) -> list[tuple[float, str]]:
    """None where there would be no room for its words."""
    apart = next((tick for tick in TICKS if total / tick <= 6), total / 6)
    count = int(total * ROOM / apart)
    return [
        (i * apart / total * 100, duration(i * apart) if apart >= 0.1 else f"{i * apart:.2f} s")
        for i in range(count + 1)
    ]
