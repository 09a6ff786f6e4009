"""A step of a run as the terminal knows it, what is to be said of it, and the forms that renderers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..state.context import BaseContext
from ..traces.run import ModelCall, NodeEnd, NodeStart, Progress
from .screen import clean


@dataclass
class Task:
    """One run of a node."""

    start: NodeStart
    end: NodeEnd | None = None


@dataclass
class Step:
    """A node's parallel runs of one round, as far as they are.

    path: the subgraphs it is in, outermost first, as they are to be named; state: the graph's state before it;
    settings: the run's.
    """

    node: str
    path: tuple[str, ...]
    begun: float
    state: Mapping[str, Any]
    settings: BaseContext
    tasks: dict[str, Task] = field(default_factory=dict)
    calls: list[ModelCall] = field(default_factory=list)
    progress: Progress | None = None

    @property
    def running(self) -> bool:
        """Is a run of it under way?"""
        return any(task.end is None for task in self.tasks.values())

    @property
    def ends(self) -> list[NodeEnd]:
        """What ended, in the order of the starts."""
        return [task.end for task in self.tasks.values() if task.end is not None]

    @property
    def failed(self) -> bool:
        """Did a run of it end with an error?"""
        return any(end.error is not None for end in self.ends)

    @property
    def input(self) -> Mapping[str, Any]:
        """What the first run read."""
        read: Mapping[str, Any] = next(iter(self.tasks.values())).start.input
        return read

    @property
    def update(self) -> Mapping[str, Any]:
        """What the first run changed; empty while it runs."""
        return next(iter(self.ends)).update if self.ends else {}


@dataclass(frozen=True)
class Shown:
    """What a renderer has to say of a step: some words beside its name, and what stands below.

    passing: once it is done, there is nothing to be said of it, not even its name.
    """

    words: str = ""
    below: RenderableType | None = None
    passing: bool = False


Renderer = Callable[[Step], Shown]


def one_line(text: str, style: str = "") -> Text:
    """Text of others in one line, cut where the room ends."""
    return Text(clean(text), style, no_wrap=True, overflow="ellipsis")


def rows(*columns: str) -> Table:
    """A table with these headings in a dim line, or with none where there are none."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(Text(column))
    return table


def number(value: float) -> str:
    """A score: whole numbers as they are, others with two digits."""
    return f"{value:g}" if float(value).is_integer() else f"{value:.2f}"
