"""A run as steps, assembled from its events: the same for a run under way and for one read back from a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..state import messages
from .events import AnswerPiece, Event, ModelCall, NodeEnd, NodeStart, Progress

if TYPE_CHECKING:
    from langgraph.channels.base import BaseChannel

    from ..graphs.registry import Graph
    from ..state.context import BaseContext

Namespace = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Call(messages.Call):
    """One finished model call of a run; end: the time of its event, see `Event`."""

    end: float

    @property
    def start(self) -> float:
        """When the call began."""
        return self.end - self.seconds


@dataclass
class NodeRun:
    """One run of a node.

    input: what it read; update: what it changed, empty until it ends; end: null while it runs; error: its type and
    message; answered: when the first token of the answer came, if the node wrote one; steps: those of the subgraph, if
    the node is one.
    """

    id: str
    start: float
    input: Mapping[str, Any]
    end: float | None = None
    update: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, str] | None = None
    answered: float | None = None
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass
class Step:
    """A node's parallel runs of one round.

    number: from 1, in the order of the starts; graph: the name of the graph that has the node; path: the subgraph runs
    around it, outermost first; within: the number of the step whose subgraph it is in, 0 for none; round: steps of one
    subgraph run with the same round ran side by side; state: the graph's state before the step, empty if the graph is
    not known; settings: the run's, null if the graph is not known; until: when its last run ended, or the last event.
    """

    number: int
    graph: str
    node: str
    path: tuple[str, ...]
    within: int
    round: int
    state: Mapping[str, Any]
    settings: BaseContext | None
    runs: list[NodeRun] = field(default_factory=list)
    until: float = 0.0
    progress: Progress | None = None

    @property
    def start(self) -> float:
        """When the first run began."""
        return self.runs[0].start

    @property
    def seconds(self) -> float:
        """From the start of the first run to the end of the last."""
        return max(self.until - self.start, 0.0)

    @property
    def running(self) -> bool:
        """Is a run under way? In a recorded step: was it, when the trace ended?"""
        return any(run.end is None for run in self.runs)

    @property
    def ended(self) -> list[NodeRun]:
        """The runs that ended, in the order of their starts."""
        return [run for run in self.runs if run.end is not None]

    @property
    def errors(self) -> list[Mapping[str, str]]:
        """The errors of the runs that failed."""
        return [run.error for run in self.runs if run.error is not None]

    @property
    def input(self) -> Mapping[str, Any]:
        """What the first run read."""
        return self.runs[0].input

    @property
    def update(self) -> Mapping[str, Any]:
        """What the first run that ended changed; empty while none has."""
        return next((run.update for run in self.ended), {})

    @property
    def calls(self) -> list[Call]:
        """The node's own model calls."""
        return [call for run in self.runs for call in run.calls]

    @property
    def steps(self) -> list[Step]:
        """The steps of the subgraphs that its runs are."""
        return [step for run in self.runs for step in run.steps]

    @property
    def all_calls(self) -> list[Call]:
        """Its model calls and those of the steps within it."""
        return [*self.calls, *(call for step in self.steps for call in step.all_calls)]


def named(steps: Sequence[Step], node: str) -> list[Step]:
    """The steps of one node."""
    return [step for step in steps if step.node == node]


def updates(steps: Sequence[Step], node: str) -> list[Mapping[str, Any]]:
    """What the runs of a node changed, in order; runs that did not end are left out."""
    return [run.update for step in named(steps, node) for run in step.ended]


def last_update(steps: Sequence[Step], node: str) -> Mapping[str, Any]:
    """What a node changed last; empty if none of its runs ended."""
    return next(reversed(updates(steps, node)), {})


def walk(steps: Sequence[Step], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Step]]:
    """Every step with the nodes of the subgraphs around it, outermost first; a subgraph's steps follow its own."""
    for step in steps:
        yield path, step
        yield from walk(step.steps, (*path, step.node))


class Steps:
    """Assembles steps from events. `steps`: those of the graph itself; `under_way`: those that still run."""

    def __init__(self, name: str, graph: Graph | None = None, settings: BaseContext | None = None) -> None:
        """name: of the graph; graph, settings: null if they are not known, the steps then have no state."""
        self.steps: list[Step] = []
        self._settings = settings
        self._graph_runs: dict[Namespace, _GraphRun] = {(): _GraphRun(name, graph, self.steps)}
        self._node_runs: dict[str, tuple[Step, NodeRun, int]] = {}
        self._times: Counter[tuple[Namespace, str]] = Counter()
        self._count = 0

    @property
    def under_way(self) -> list[Step]:
        """The steps that run now, in the order of their starts."""
        running = [step for graph_run in self._graph_runs.values() for step in graph_run.under_way.values()]
        return sorted(running, key=lambda step: step.number)

    def on(self, event: Event | None) -> Step | None:
        """Take an event in; the step that it began, changed or ended."""
        if isinstance(event, NodeStart):
            return self._begin(event)
        if isinstance(event, NodeEnd | ModelCall | AnswerPiece):
            if event.task not in self._node_runs:  # an end without a start: LangGraph took it from a cache
                return None
            step, run, _ = self._node_runs[event.task]
            if isinstance(event, NodeEnd):
                self._end(event, step, run)
            elif isinstance(event, ModelCall):
                run.calls.append(_call(event))
            elif run.answered is None:
                run.answered = event.at
            return step
        if isinstance(event, Progress) and (graph_run := self._graph_runs.get(event.namespace)):
            under_way = graph_run.under_way.get(event.node)
            if under_way is not None:
                under_way.progress = event
            return under_way
        return None

    def finish(self, at: float) -> None:
        """The events end `at`: steps still under way last until then."""
        for step in self.under_way:
            step.until = at

    def _begin(self, event: NodeStart) -> Step:
        graph_run = self._graph_run(event.namespace)
        # a Send may hand a node something other than a state
        run = NodeRun(event.task, event.at, event.input if isinstance(event.input, dict) else {})
        state = graph_run.begin(run)
        if event.left_out:
            run.input = {**run.input, **{key: state[key] for key in event.left_out if key in state}}
        step = graph_run.under_way.get(event.node)
        if step is None:
            self._count += 1
            place = (graph_run.name, event.node, graph_run.path, graph_run.within, graph_run.round)
            step = graph_run.under_way[event.node] = Step(self._count, *place, state, self._settings)
            graph_run.steps.append(step)
        step.runs.append(run)
        self._times[event.namespace, event.node] += 1
        self._node_runs[run.id] = step, run, self._times[event.namespace, event.node]
        return step

    def _graph_run(self, namespace: Namespace) -> _GraphRun:
        if namespace not in self._graph_runs:
            outer = self._graph_run(namespace[:-1])
            node, _, task = namespace[-1].partition(":")
            step, run, nth = self._node_runs[task]
            subgraph = outer.subgraph(node)
            name = subgraph.name if subgraph is not None else node
            # a subgraph run is named for its node, and from the second run on by its number too
            path = (*outer.path, node if nth == 1 else f"{node} {nth}")
            self._graph_runs[namespace] = _GraphRun(name, subgraph, run.steps, path, step.number)
        return self._graph_runs[namespace]

    def _end(self, event: NodeEnd, step: Step, run: NodeRun) -> None:
        run.end = step.until = event.at
        run.update = event.update
        run.error = None if event.error is None else error_record(event.error)
        if not step.running:
            self._graph_run(event.namespace).end(step)


def _call(event: ModelCall) -> Call:
    call, count = event.call, (int(event.call["prompt_tokens"]), int(event.call["completion_tokens"]))
    said = (dict(call["request"]), dict(call["reply"]))
    reused = bool(call.get("reused"))  # earlier versions did not say it
    return Call(str(call["verb"]), str(call["model"]), *said, *count, float(call["seconds"]), reused, end=event.at)


class _GraphRun:
    """One run of a graph or subgraph: its steps so far, and its state as the graph's own channels hold it."""

    def __init__(
        self, name: str, graph: Graph | None, steps: list[Step], path: tuple[str, ...] = (), within: int = 0
    ) -> None:
        """path, within: of its steps, see `Step`."""
        from langgraph.channels.base import BaseChannel  # noqa: PLC0415 - keeps `--help` quick

        self.name, self.steps, self.path, self.within = name, steps, path, within
        self.under_way: dict[str, Step] = {}
        self.round = 0
        self._graph = graph
        self._ended: list[Step] = []
        self._state: Mapping[str, Any] = {}
        self._channels: dict[str, BaseChannel[Any, Any, Any]] = {}
        if graph is not None:
            self._channels = {
                name: channel.copy()
                for name in graph.stream_channels_list
                # a recorded update has less in `usage` than the state
                if isinstance(channel := graph.channels[name], BaseChannel) and name != "usage"
            }

    def subgraph(self, node: str) -> Graph | None:
        if self._graph is None:
            return None
        return cast("Graph | None", dict(self._graph.get_subgraphs()).get(node))

    def begin(self, run: NodeRun) -> Mapping[str, Any]:
        """A node run begins: the state before its round."""
        if not self.under_way:
            self.round += 1
            # LangGraph applies all updates of a round at its end, by the nodes' names; the first node's input is the
            # state at the start
            by_name = sorted(self._ended, key=lambda step: step.node)
            self._apply([ended.update for step in by_name for ended in step.runs] if self.round > 1 else [run.input])
            self._ended = []
        return self._state

    def end(self, step: Step) -> None:
        self.under_way.pop(step.node, None)
        self._ended.append(step)

    def _apply(self, updates: Sequence[Mapping[str, Any]]) -> None:
        try:
            for name, channel in self._channels.items():
                channel.update([update[name] for update in updates if name in update])
        except Exception:
            self._channels = {}
        self._state = {name: channel.get() for name, channel in self._channels.items() if channel.is_available()}


def error_record(error: BaseException | Mapping[str, str] | str) -> Mapping[str, str]:
    """An error as a trace keeps it: its type and its message."""
    if isinstance(error, KeyboardInterrupt):
        return {"type": "Interrupted", "message": "Interrupted."}
    if isinstance(error, BaseException):
        return {"type": type(error).__name__, "message": str(error)}
    return error if isinstance(error, Mapping) else {"type": "error", "message": error}
