"""The figure of the graph with the path taken: how often each node ran and each edge was taken."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..traces.recording import Recording
from ..traces.steps import Step
from .arcs import Edge, GraphLayout, layout

START, END = "__start__", "__end__"


@dataclass(frozen=True)
class Figure:
    """The figure of the graph or of a subgraph, named for its node.

    decided: the conditional edges; runs: how often each node ran, parallel runs included; taken: how often each edge
    was taken.
    """

    name: str
    layout: GraphLayout
    decided: set[Edge]
    runs: Counter[str]
    taken: Counter[Edge]


def figures(recording: Recording) -> list[Figure]:
    """The figures of the graph and of the subgraphs that ran; empty for a trace without the wiring."""
    wiring = recording.wiring.items()
    return [_figure(name, edges, recording) for name, edges in wiring if edges and _runs(name, recording)]


def _figure(name: str, edges: Sequence[tuple[str, str, bool]], recording: Recording) -> Figure:
    runs = _runs(name, recording)
    times = Counter(step.node for steps, _ in runs for step in steps for _ in step.runs)
    wired = [(source, target) for source, target, _ in edges]
    taken: Counter[Edge] = Counter()
    for steps, whole in runs:
        taken.update(_taken(steps, set(wired), whole=whole))
    decided = {(source, target) for source, target, choice in edges if choice}
    return Figure(name.replace("|", " / "), layout(wired, START), decided, times, taken)


def _runs(name: str, recording: Recording) -> list[tuple[list[Step], bool]]:
    """The runs of the (sub)graph: the steps of each, and whether it ended."""
    runs = [(recording.steps, recording.output is not None)]
    for node in name.split("|") if name else []:
        within = [task for steps, _ in runs for step in steps if step.node == node for task in step.runs]
        runs = [(task.steps, task.end is not None and task.error is None) for task in within]
    return runs


def _taken(steps: Sequence[Step], wired: set[Edge], *, whole: bool) -> Counter[Edge]:
    """How often each edge was taken: its target ran in the round after its source. whole: did the run end?"""
    rounds: dict[int, list[str]] = {0: [START]}
    for step in steps:
        rounds.setdefault(step.round, []).append(step.node)
    if whole:
        rounds[max(rounds) + 1] = [END]
    return Counter(
        (source, target)
        for number, sources in rounds.items()
        for source in sources
        for target in rounds.get(number + 1, ())
        if (source, target) in wired
    )
