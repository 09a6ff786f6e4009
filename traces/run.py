"""A graph run as a series of events, for whoever watches: the screen, the trace, an evaluation."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..graphs.registry import Graph
    from ..state.context import BaseContext

TICK = 0.1
"""Seconds after which a watcher is woken although nothing happened."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened; `namespace` holds the subgraph runs it happened in ('node:task'), outermost first.

    at: seconds of the monotonic clock.
    """

    namespace: tuple[str, ...]
    at: float


@dataclass(frozen=True, kw_only=True)
class NodeStart(Event):
    """A node began; `task` tells it from its parallel runs."""

    node: str
    task: str
    input: Any


@dataclass(frozen=True, kw_only=True)
class NodeEnd(Event):
    """A node ended with an update of the state, or with an error."""

    node: str
    task: str
    seconds: float
    update: Mapping[str, Any]
    error: BaseException | str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCall(Event):
    """A node's model call ended; `call` is a `models.metering.Call` as a dict."""

    node: str
    task: str
    call: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """A node's long preparation got further."""

    node: str
    what: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class State(Event):
    """The state after a round of nodes."""

    values: Mapping[str, Any]


MODES: list[Any] = ["tasks", "custom", "values"]
"""What a graph has to stream, subgraphs included, for its parts to become events."""


class Reader:
    """Turns the parts of a stream of `MODES` into events; `output` is what the graph has put out so far."""

    def __init__(self, graph: Graph) -> None:
        """graph: whose stream it is."""
        self._graph = graph
        self._starts: dict[str, float] = {}
        self.output: dict[str, Any] = {}

    def event(self, part: Mapping[str, Any], at: float) -> Event | None:
        """The event that a part is; at: when it came, in seconds of the monotonic clock."""
        data, where = part["data"], tuple(part["ns"])
        if part["type"] == "values":
            if not where:
                self.output = {name: data[name] for name in self._graph.output_channels if name in data}
            return State(namespace=where, at=at, values=data)
        if part["type"] == "tasks":
            return self._task(data, where, at)
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "llm_call":
            task = str(data["task"]).rpartition(":")[2]
            return ModelCall(namespace=where, at=at, node=data["node"], task=task, call=data["call"])
        if kind == "progress":
            return Progress(
                namespace=where, at=at, node=data["node"], what=data["what"], done=data["done"], total=data["total"]
            )
        return None

    def _task(self, data: Mapping[str, Any], where: tuple[str, ...], at: float) -> Event:
        name, task = str(data["name"]), str(data["id"])
        if "input" in data:
            self._starts[task] = at
            return NodeStart(namespace=where, at=at, node=name, task=task, input=data["input"])
        seconds = at - self._starts.pop(task, at)
        update = data["result"] if isinstance(data["result"], dict) else {"result": data["result"]}
        return NodeEnd(
            namespace=where, at=at, node=name, task=task, seconds=seconds, update=update, error=data["error"]
        )


@dataclass
class Run:
    """One question put to a graph, with what more the graph takes. Iterate over it for its events, None where nothing
    happened for a while; then `output` and `seconds` hold what came out."""

    graph: Graph
    question: str
    context: BaseContext
    more: Mapping[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Event | None]:
        """Run the graph in a thread, so that Ctrl-C reaches the caller at once and not when the nodes are done."""
        begun = time.monotonic()
        reader = Reader(self.graph)
        parts: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._stream, args=(parts,), name="dubito-run", daemon=True).start()
        while True:
            try:
                at, part = parts.get(timeout=TICK)
            except queue.Empty:
                yield None
                continue
            self.seconds = at - begun
            if part is None:
                return
            if isinstance(part, BaseException):
                raise part
            event = reader.event(part, at)
            self.output = reader.output
            if event is not None:
                yield event

    def _stream(self, parts: queue.SimpleQueue[tuple[float, Any]]) -> None:
        try:
            given = {"question": self.question, **self.more}
            for part in self.graph.stream(given, context=self.context, stream_mode=MODES, subgraphs=True, version="v2"):
                parts.put((time.monotonic(), part))
            parts.put((time.monotonic(), None))
        except BaseException as fault:  # raised where the run is waited for
            parts.put((time.monotonic(), fault))
