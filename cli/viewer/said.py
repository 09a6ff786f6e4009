"""What the screen said of each step while the run went on, said again from its trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from langgraph.channels.base import BaseChannel
from langgraph.errors import InvalidUpdateError

from ...graphs.registry import graph_named
from ...traces.recording import Recording, Step
from ...traces.run import NodeEnd, NodeStart
from .. import steps as followed
from ..screen import shorten
from ..view import STRANGE, words_of

if TYPE_CHECKING:
    from ...graphs.registry import Graph
    from ...state.context import BaseContext

    Channels = Mapping[str, BaseChannel[Any, Any, Any]]


LONGEST = 120
"""Characters of a step's words."""


def words(recording: Recording) -> dict[int, str]:
    """By `id` of each step, as far as this version knows the graph, the run's settings and what its steps changed."""
    found: dict[int, str] = {}
    with suppress(InvalidUpdateError, *STRANGE):
        graph = graph_named(recording.graph)
        settings = cast("type[BaseContext]", graph.builder.context_schema).model_validate(recording.context)
        found.update(_said(graph, recording.steps, settings, ()))
    return found


def _said(
    graph: Graph, steps: Sequence[Step], settings: BaseContext, path: tuple[str, ...]
) -> Iterable[tuple[int, str]]:
    channels = {
        name: channel.copy()
        for name in graph.stream_channels_list
        if isinstance(channel := graph.channels[name], BaseChannel)
        and name != "usage"  # of which a trace has less than the state
    }
    inner = dict(graph.get_subgraphs())
    _write(channels, [task.input for step in steps[:1] for task in step.tasks[:1]])
    for _, side_by_side in groupby(steps, key=lambda step: step.round):
        ran = list(side_by_side)
        state = {name: channel.get() for name, channel in channels.items() if channel.is_available()}
        for step in ran:
            shown = words_of(_as_followed(step, state, settings, path))
            yield id(step), "" if shown.passing else shorten(shown.words, LONGEST)
            for task in step.tasks:
                if task.steps and step.node in inner:
                    yield from _said(cast("Graph", inner[step.node]), task.steps, settings, (*path, step.node))
        _write(channels, [task.update for step in ran for task in step.tasks])


def _write(channels: Channels, updates: Sequence[Mapping[str, Any]]) -> None:
    """As LangGraph does at the end of a round; what an update of another version holds beyond is passed over."""
    for name, channel in channels.items():
        channel.update([update[name] for update in updates if name in update])


def _as_followed(step: Step, state: Mapping[str, Any], settings: BaseContext, path: tuple[str, ...]) -> followed.Step:
    made = followed.Step(step.node, path, step.start, state, settings)
    for task in step.tasks:
        start = NodeStart(namespace=path, at=task.start, node=step.node, task=task.id, input=task.input)
        made.tasks[task.id] = followed.Task(start)
        if task.end is not None:
            made.tasks[task.id].end = NodeEnd(
                namespace=path,
                at=task.end,
                node=step.node,
                task=task.id,
                seconds=task.end - task.start,
                update=task.update,
                error=None if task.error is None else str(task.error.get("message", "")),
            )
    return made
