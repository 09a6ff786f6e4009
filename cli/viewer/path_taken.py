"""The graph as it is wired, with what ran of it: how many times each node, which edges were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...traces.recording import Recording, Step
from .layers import Edge, layout, width_of

START, END = "__start__", "__end__"


@dataclass(frozen=True)
class DrawnNode:
    """A node in the figure; centre and width in pixels; runs: how many times it ran, parallel runs one by one."""

    name: str
    x: float
    y: float
    width: float
    runs: int
    is_end: bool


@dataclass(frozen=True)
class DrawnEdge:
    """An edge in the figure. decided: a decision is taken there; taken: how many times."""

    path: str
    decided: bool
    taken: int


@dataclass(frozen=True)
class Figure:
    """The figure of the graph or of a subgraph, named for its node; sizes in pixels."""

    name: str
    nodes: Sequence[DrawnNode]
    edges: Sequence[DrawnEdge]
    width: float
    height: float


def figures(recording: Recording) -> list[Figure]:
    """The graph, then its subgraphs; empty for a trace that does not hold the wiring."""
    return [_figure(name, edges, recording) for name, edges in recording.wiring.items() if edges]


def _figure(name: str, edges: Sequence[tuple[str, str, bool]], recording: Recording) -> Figure:
    runs = _runs(name, recording)
    times = Counter(step.node for steps, _ in runs for step in steps for _ in step.tasks)
    taken: Counter[Edge] = Counter()
    wired = {(source, target) for source, target, _ in edges}
    for steps, whole in runs:
        taken.update(_taken(steps, wired, whole=whole))
    decided = {(source, target) for source, target, choice in edges if choice}
    drawn = layout([(source, target) for source, target, _ in edges], START)
    nodes = [
        DrawnNode(_name(node), x, y, width_of(node), times[node], node in {START, END})
        for node, (x, y) in drawn.nodes.items()
    ]
    lines = [DrawnEdge(path, edge in decided, taken[edge]) for edge, path in drawn.edges.items()]
    lines.sort(key=lambda line: line.taken > 0)  # what was taken is drawn above the rest
    return Figure(name.replace("|", " / "), nodes, lines, drawn.width, drawn.height)


def _runs(name: str, recording: Recording) -> list[tuple[list[Step], bool]]:
    """Every run of the graph of that name: its steps, and whether it came to its end."""
    runs = [(recording.steps, recording.output is not None)]
    for node in name.split("|") if name else []:
        within = [task for steps, _ in runs for step in steps if step.node == node for task in step.tasks]
        runs = [(task.steps, task.end is not None and task.error is None) for task in within]
    return runs


def _taken(steps: Sequence[Step], wired: set[Edge], *, whole: bool) -> Counter[Edge]:
    """An edge was taken where its target ran in the round after its source."""
    rounds: dict[int, list[str]] = {0: [START]}
    for step in steps:
        rounds.setdefault(step.round, []).append(step.node)
    if whole:
        rounds[max(rounds) + 1] = [END]
    found: Counter[Edge] = Counter()
    for number, nodes in rounds.items():
        pairs = ((one, other) for one in nodes for other in rounds.get(number + 1, ()))
        found.update(pair for pair in pairs if pair in wired)
    return found


def _name(node: str) -> str:
    return {START: "start", END: "end"}.get(node, node)
