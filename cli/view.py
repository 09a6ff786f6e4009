"""How a step of a graph looks on the terminal: a renderer by graph and node name, a plain one for other nodes."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import (
    view_dense,
    view_dense_rag,
    view_df_rag,
    view_neighbourhood,
    view_reasoning,
    view_seper,
    view_shared,
    view_sunar,
)
from .screen import clean, counted, duration
from .steps import Renderer, Shown, Step

INDENT = 12
"""Columns in front of what stands below a step's name."""

SHORTEST_SHOWN = 0.05
"""Seconds; a step that took less has no time beside its name."""

RENDERERS: Mapping[str, Renderer] = {
    **view_shared.RENDERERS,
    **view_df_rag.RENDERERS,
    **view_dense.RENDERERS,
    **view_dense_rag.RENDERERS,
}
"""By node name; SePer, SUNAR's graphs and those that reason have nodes of the same names and tables of their own."""

STRANGE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What code raises over a graph, settings or a state that it was not made for; a `UserFault` is a ValueError too."""

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def block(step: Step, now: float | None = None) -> RenderableType | None:
    """A step as it is to be shown; `now` is the time if it still runs. None for one that is done and of no interest."""
    shown = words_of(step)
    if shown.passing and now is None:
        return None
    heading = _heading(step, shown.words, now)
    return heading if shown.below is None else Group(heading, Padding(shown.below, (0, 0, 0, INDENT)))


def words_of(step: Step) -> Shown:
    """What its renderer has to say of a step, or the plain one where it cannot."""
    try:
        return (changes if step.failed else _renderer(step))(step)
    except STRANGE:
        return changes(step)


def _renderer(step: Step) -> Renderer:
    if view_neighbourhood.is_look_up(step) and step.node in view_neighbourhood.RENDERERS:
        return view_neighbourhood.RENDERERS[step.node]
    if view_sunar.is_sunar(step) and step.node in view_sunar.RENDERERS:
        return view_sunar.RENDERERS[step.node]
    if view_reasoning.is_reasoning(step) and step.node in view_reasoning.RENDERERS:
        return view_reasoning.RENDERERS[step.node]
    if view_seper.is_seper(step) and step.node in view_seper.RENDERERS:
        return view_seper.RENDERERS[step.node]
    return RENDERERS.get(step.node, changes)


def _heading(step: Step, words: str, now: float | None) -> RenderableType:
    name = clean(" / ".join([*step.path, step.node]))
    until = max((end.at for end in step.ends), default=step.begun) if now is None else now
    facts = [duration(until - step.begun)] if until - step.begun >= SHORTEST_SHOWN else []
    if step.calls:
        facts.append(counted(len(step.calls), "model call"))
    if len(step.tasks) > 1 and now is not None:
        facts.insert(0, f"{len(step.ends)} of {len(step.tasks)} done")
    said = Text() if now is None else Text(_SPINNER[int(now * 10) % len(_SPINNER)] + " ", "cyan")
    parts = [(words, "default"), ("failed" if step.failed else "", "bold red"), (", ".join(facts), "dim")]
    said.append_text(Text("  ").join([Text(part, style) for part, style in parts if part]))
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(min_width=INDENT - 2, no_wrap=True)
    line.add_row(Text(name, "bold"), said)
    return line


def changes(step: Step) -> Shown:
    """Any node: the keys of the state that it changed."""
    keys = dict.fromkeys(key for end in step.ends for key in end.update if key != "usage")
    return Shown("changed " + clean(", ".join(keys)) if keys else "")
