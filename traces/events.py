"""A run as a series of events: what LangGraph streams, and what a trace file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graphs.registry import graph_names

if TYPE_CHECKING:
    from ..graphs.registry import Graph


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run.

    namespace: the subgraph runs it happened in, each as 'node:task', outermost first; at: seconds, of the monotonic
    clock for a live run and since the epoch for a recorded one.
    """

    namespace: tuple[str, ...]
    at: float


@dataclass(frozen=True, kw_only=True)
class NodeStart(Event):
    """A node began.

    task: tells it from the node's parallel runs; derivable: the input is the graph's state, which the events before
    this one give; left_out: the keys of that state that `input` lacks, see `writer`.
    """

    node: str
    task: str
    input: Any
    derivable: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeEnd(Event):
    """A node ended with an update of the state, or with an error."""

    node: str
    task: str
    seconds: float
    update: Mapping[str, Any]
    error: BaseException | Mapping[str, str] | str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCall(Event):
    """A model call of a node ended. call: a `models.metering.Call` as a dict."""

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
class AnswerPiece(Event):
    """A piece of the answer came while the model wrote it.

    begins: it is the first piece; if there were pieces before, they are no part of the answer any more.
    """

    node: str
    task: str
    text: str
    begins: bool


MODES: list[Any] = ["tasks", "custom", "values"]
"""The stream modes that events and the output are read from; stream subgraphs too."""

ANSWER_MODES: list[Any] = [*MODES, "messages"]
"""These modes also give the answer while the model writes it."""


class EventReader:
    """Turns the parts of a stream into events; `output` holds the graph's output so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._is_known = graph.name in graph_names()
        self._subgraphs = {name.rpartition("|")[2] for name, _ in graph.get_subgraphs(recurse=True)}
        self._begun: set[tuple[str, ...]] = set()
        self._starts: dict[str, float] = {}
        self._message: str | None = None
        self.output: dict[str, Any] = {}

    def event(self, part: Mapping[str, Any], at: float) -> Event | None:
        """The event of one part of the stream, which came `at`; null for a part that is no event."""
        data, namespace = part["data"], tuple(part["ns"])
        if part["type"] == "values":
            if not namespace:
                self.output = {name: data[name] for name in self._graph.output_channels if name in data}
            return None
        if part["type"] == "messages":
            return None if namespace or data[0].type != "AIMessageChunk" else self._piece(data[0], data[1], at)
        if part["type"] == "tasks":
            return self._task(data, namespace, at)
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "llm_call":
            task = str(data["task"]).rpartition(":")[2]
            return ModelCall(namespace=namespace, at=at, node=data["node"], task=task, call=data["call"])
        if kind == "progress":
            counts = {"what": data["what"], "done": data["done"], "total": data["total"]}
            return Progress(namespace=namespace, at=at, node=data["node"], **counts)
        return None

    def _piece(self, message: Any, metadata: Mapping[str, Any], at: float) -> Event:  # noqa: ANN401 - LangChain's
        begins, self._message = message.id != self._message, message.id
        task = str(metadata["langgraph_checkpoint_ns"]).rpartition(":")[2]
        place: dict[str, Any] = {"namespace": (), "at": at, "node": str(metadata["langgraph_node"]), "task": task}
        return AnswerPiece(**place, text=str(message.text), begins=begins)

    def _task(self, data: Mapping[str, Any], namespace: tuple[str, ...], at: float) -> Event:
        place: dict[str, Any] = {"namespace": namespace, "at": at, "node": str(data["name"]), "task": str(data["id"])}
        if "input" in data:
            self._starts[place["task"]] = at
            was_sent, is_first = "__pregel_push" in data["triggers"], namespace not in self._begun
            self._begun.add(namespace)
            derivable = self._is_known and not (was_sent or is_first or place["node"] in self._subgraphs)
            return NodeStart(**place, input=data["input"], derivable=derivable)
        seconds = at - self._starts.pop(place["task"], at)
        update = data["result"] if isinstance(data["result"], dict) else {"result": data["result"]}
        return NodeEnd(**place, seconds=seconds, update=update, error=data["error"])
