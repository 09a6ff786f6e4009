"""The timeline: one row per step, parallel runs in lanes below one another, times in per cent of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..presenters.words import duration
from ..traces.recording import Recording
from ..traces.steps import Call, NodeRun, Step
from .facts import cost_of_call, times

HIGHEST_LANE, LOWEST_LANE, ROW = 14, 3, 84
"""Pixels: the highest lane, the lowest lane, and a row whose lanes are not at their lowest."""

OPEN_UP_TO = 40
"""Subgraphs are shown open in runs of up to this many steps."""

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Seconds between marks; the first value that gives at most six marks is used."""

FIRST_WIDTH = 0.3
"""Per cent: the width of the mark of the answer's first token."""

ROOM = 0.95
"""The share of the width in which marks may stand."""


@dataclass(frozen=True)
class Span:
    """A bar, left and width in per cent, top in pixels; kind: a run, a model call of it, the answer's first token."""

    left: float
    width: float
    top: int
    kind: Literal["run", "call", "first"]
    tip: str


@dataclass(frozen=True)
class Lane:
    """A row: a step with its bars, and the rows of its subgraph. lane, height: of a bar and of the row, in pixels."""

    number: int
    name: str
    figures: str
    spans: Sequence[Span]
    lane: int
    height: int
    rows: Sequence[Lane]


@dataclass(frozen=True)
class Timeline:
    """Rows, and marks with their place in per cent. unfolded: subgraphs are shown open."""

    rows: Sequence[Lane]
    marks: Sequence[tuple[float, str]]
    unfolded: bool


def timeline(recording: Recording) -> Timeline:
    """The timeline of a run."""
    total = max(recording.seconds, 1e-3)
    count = sum(1 for _ in recording.walk())
    rows = [_row(step, recording.start, total) for step in recording.steps]
    return Timeline(rows, _marks(total), count <= OPEN_UP_TO)


def lanes(runs: Sequence[NodeRun], until: float) -> list[int]:
    """The lane of each run: the first lane that is free when the run begins."""
    busy: list[float] = []
    taken = []
    for run in runs:
        free = next((i for i, end in enumerate(busy) if end <= run.start), len(busy))
        if free == len(busy):
            busy.append(0.0)
        busy[free] = until if run.end is None else run.end
        taken.append(free)
    return taken


def _row(step: Step, start: float, total: float) -> Lane:
    taken = lanes(step.runs, step.until)
    lane = max(LOWEST_LANE, min(HIGHEST_LANE, ROW // (max(taken) + 1)))
    spans: list[Span] = []
    for run, place in zip(step.runs, taken, strict=True):
        end = step.until if run.end is None else run.end
        tip = f"{step.node}, {duration(end - run.start)}{'' if run.end is not None else ', not finished'}"
        spans.append(Span(*_place(run.start - start, end - start, total), place * lane, "run", tip))
        for call in run.calls:
            place_of = _place(call.start - start, call.end - start, total)
            spans.append(Span(*place_of, place * lane, "call", _call(call)))
        if run.answered is not None:
            tip = f"first token of the answer, {duration(run.answered - start)} after the start"
            spans.append(Span(_place(run.answered - start, 0.0, total)[0], FIRST_WIDTH, place * lane, "first", tip))
    rows = [_row(inner, start, total) for inner in step.steps]
    figures = f"{times(step)} {duration(step.seconds)}".strip()
    return Lane(step.number, step.node, figures, spans, lane, (max(taken) + 1) * lane, rows)


def _place(begun: float, end: float, total: float) -> tuple[float, float]:
    """Left and width in per cent."""
    left = min(max(begun / total * 100, 0.0), 100.0)
    return left, min(max((end - begun) / total * 100, 0.0), 100.0 - left)


def _call(call: Call) -> str:
    return f"model call ({call.verb}), {cost_of_call(call)}"


def _marks(total: float) -> list[tuple[float, str]]:
    """Marks with enough room for their words."""
    apart = next((tick for tick in TICKS if total / tick <= 6), total / 6)
    count = int(total * ROOM / apart)
    return [
        (i * apart / total * 100, duration(i * apart) if apart >= 0.1 else f"{i * apart:.2f} s")
        for i in range(count + 1)
    ]
