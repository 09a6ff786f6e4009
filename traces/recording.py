"""A trace file read back: the run's steps, each with its parallel runs, their model calls and the subgraphs' steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import UserFault
from .writer import VERSION

Wiring = Mapping[str, Sequence[tuple[str, str, bool]]]
"""The edges of the graph, under "", and of its subgraphs: source, target, and whether a decision is taken there."""


@dataclass(frozen=True)
class Call:
    """One finished model call; start and end in seconds since the epoch."""

    verb: str
    model: str
    request: Mapping[str, Any]
    reply: Mapping[str, Any]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    end: float

    @property
    def start(self) -> float:
        """When it began."""
        return self.end - self.seconds


@dataclass
class Task:
    """One run of a node. end: None where the trace ends before; steps: of the subgraph that the node is."""

    id: str
    start: float
    input: Mapping[str, Any]
    end: float | None = None
    update: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass
class Step:
    """A node's parallel runs of one round.

    number: from 1, in the order of the starts; round: steps of one graph that have the same number ran side by side;
    until: when the last of them ended, or the trace.
    """

    number: int
    node: str
    round: int
    tasks: list[Task] = field(default_factory=list)
    until: float = 0.0

    @property
    def start(self) -> float:
        """When the first run began."""
        return self.tasks[0].start

    @property
    def seconds(self) -> float:
        """From the start of the first run to the end of the last."""
        return max(self.until - self.start, 0.0)

    @property
    def unfinished(self) -> bool:
        """Was a run of it not over when the trace ended?"""
        return any(task.end is None for task in self.tasks)

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """What its runs failed of."""
        return [task.error for task in self.tasks if task.error is not None]

    @property
    def calls(self) -> list[Call]:
        """Its own model calls."""
        return [call for task in self.tasks for call in task.calls]

    @property
    def steps(self) -> list[Step]:
        """Those of the subgraphs that its runs are."""
        return [step for task in self.tasks for step in task.steps]

    @property
    def all_calls(self) -> list[Call]:
        """Its model calls and those of the steps within it."""
        return [*self.calls, *(call for step in self.steps for call in step.all_calls)]


@dataclass
class Recording:
    """A trace. steps: of the graph itself; output: None where the run did not come to its end.

    cut: the file ends in the middle of a line; ended: the last line is there.
    """

    path: Path
    graph: str
    question: str
    dubito: str
    context: Mapping[str, Any]
    wiring: Wiring
    start: float
    until: float
    steps: list[Step] = field(default_factory=list)
    output: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    ended: bool = False
    cut: bool = False

    @property
    def seconds(self) -> float:
        """From the first line to the last."""
        return max(self.until - self.start, 0.0)

    def walk(self) -> Iterator[tuple[tuple[str, ...], Step]]:
        """Every step, those of a subgraph behind it, with the names of the subgraphs it is in, outermost first."""
        yield from _within((), self.steps)

    @property
    def calls(self) -> list[Call]:
        """Every model call."""
        return [call for step in self.steps for call in step.all_calls]


def named(steps: Sequence[Step], node: str) -> list[Step]:
    """Those of a node."""
    return [step for step in steps if step.node == node]


def last_update(steps: Sequence[Step], node: str) -> Mapping[str, Any]:
    """What a node changed last; empty where it did not run to its end."""
    ended = [task.update for step in named(steps, node) for task in step.tasks if task.end is not None]
    return ended[-1] if ended else {}


def read(path: Path) -> Recording:
    """The run that a trace file holds, as far as it is there.

    Raises `UserFault` for what is no file, no trace, or a trace in a newer form.
    """
    try:
        with path.open("rb") as file:
            return assembled(path, file)
    except FileNotFoundError as fault:
        raise UserFault(
            f"There is no trace '{path}': record one with dubito ask \"...\" --trace {path.name}."
        ) from fault
    except OSError as fault:
        raise UserFault(f"The trace '{path}' cannot be read ({fault.strerror}): give another path.") from fault


def assembled(path: Path, lines: Iterable[bytes]) -> Recording:
    """The run that the lines of a trace hold, as far as they are there; path: what it is called in messages."""
    numbered = enumerate(lines, 1)
    reader = _Reader(_header(path, next(numbered, (1, b""))[1]))
    for number, line in numbered:
        if not line.endswith(b"\n") and not _whole(line):
            reader.recording.cut = True
            break
        try:
            reader.take(json.loads(line))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as fault:
            raise UserFault(
                f"Line {number} of '{path}' is not one of a trace: was the file edited? Record the run anew."
            ) from fault
    return reader.finish()


def _header(path: Path, first: bytes) -> Recording:
    none = f"'{path}' is not a trace: give a file that dubito ask --trace wrote."
    if not first:
        raise UserFault(f"'{path}' is empty: give a file that dubito ask --trace wrote.")
    try:
        line = json.loads(first)
        if line["type"] != "run":
            raise UserFault(none)
        if int(line["version"]) > VERSION:
            raise UserFault(
                f"'{path}' is a trace in form {int(line['version'])}, and this dubito reads up to form {VERSION}: "
                "update dubito."
            )
        at = _time(line)
        wiring = {str(name): [_edge(one) for one in edges] for name, edges in line.get("wiring", {}).items()}
        texts = (str(line["graph"]), str(line["question"]), str(line["dubito"]))
        return Recording(path, *texts, dict(line["context"]), wiring, start=at, until=at)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as fault:
        if isinstance(fault, UserFault):  # which is a ValueError too
            raise
        raise UserFault(none) from fault


class _Reader:
    """Puts the lines together."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._tasks: dict[str, Task] = {}
        self._under_way: dict[tuple[str, ...], dict[str, Step]] = {}
        self._rounds: dict[tuple[str, ...], int] = {}
        self._steps = 0

    def take(self, line: Mapping[str, Any]) -> None:
        """The next line; one of a kind that is not known is passed over."""
        kind = line["type"]
        self.recording.until = max(self.recording.until, _time(line))
        if kind == "node_start":
            self._start(line)
        elif kind == "llm_call":
            self._call(line)
        elif kind == "node_end":
            self._end(line)
        elif kind == "end":
            self.recording.ended = True
            self.recording.output = _object(line["output"]) if "output" in line else None
            self.recording.error = _object(line["error"]) if "error" in line else None

    def finish(self) -> Recording:
        """What was read; what is still under way lasts to the trace's end."""
        for steps in self._under_way.values():
            for step in steps.values():
                step.until = self.recording.until
        return self.recording

    def _start(self, line: Mapping[str, Any]) -> None:
        where, node = tuple(str(one) for one in line["namespace"]), str(line["node"])
        under_way = self._under_way.setdefault(where, {})
        if not under_way:
            self._rounds[where] = self._rounds.get(where, 0) + 1
        if node not in under_way:
            self._steps += 1
            under_way[node] = Step(self._steps, node, self._rounds[where])
            self._siblings(where).append(under_way[node])
        # a node may be given another thing than a state: what a Send holds
        task = Task(str(line["task"]), _time(line), line["input"] if isinstance(line["input"], dict) else {})
        under_way[node].tasks.append(task)
        self._tasks[task.id] = task

    def _siblings(self, where: tuple[str, ...]) -> list[Step]:
        if not where:
            return self.recording.steps
        return self._tasks[where[-1].partition(":")[2]].steps

    def _call(self, line: Mapping[str, Any]) -> None:
        task = self._tasks.get(line["task"])
        if task is None:
            return
        tokens = int(line["prompt_tokens"]), int(line["completion_tokens"])
        asked, said = _object(line["request"]), _object(line["reply"])
        call = Call(str(line["verb"]), str(line["model"]), asked, said, *tokens, float(line["seconds"]), _time(line))
        task.calls.append(call)

    def _end(self, line: Mapping[str, Any]) -> None:
        task = self._tasks.get(line["task"])
        if task is None:  # LangGraph had it in a cache
            return
        task.end = _time(line)
        task.update = _object(line["update"])
        task.error = None if line["error"] is None else _object(line["error"])
        under_way = self._under_way[tuple(str(one) for one in line["namespace"])]
        step = under_way[str(line["node"])]
        step.until = task.end
        if not step.unfinished:
            del under_way[step.node]


def _within(path: tuple[str, ...], steps: Sequence[Step]) -> Iterator[tuple[tuple[str, ...], Step]]:
    for step in steps:
        yield path, step
        yield from _within((*path, step.node), step.steps)


def _time(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _edge(edge: Sequence[Any]) -> tuple[str, str, bool]:
    source, target, conditional = edge
    return str(source), str(target), bool(conditional)


def _whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
