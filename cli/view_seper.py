"""How the steps of SePer look on the terminal: what is said with the chunks and without, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..models.answer_text import normalised
from ..state.seper import WITH, WITHOUT, Belief, Response, Sampled, SePerContext, Side
from .screen import clean, counted
from .steps import Renderer, Shown, Step, one_line, rows

MOST_WORDINGS = 8
"""Wordings shown of what is said; the others are counted."""

WIDTH = 20
"""Cells of a bar."""

SIDES: Mapping[Side, str] = {WITH: "with the chunks", WITHOUT: "without"}


def is_seper(step: Step) -> bool:
    """Does the step belong to SePer?"""
    return isinstance(step.settings, SePerContext)


def sample(step: Step) -> Shown:
    """What was said on each side, the wordings that weigh most first."""
    found: dict[str, list[Sampled]] = {}
    for end in step.ends:
        found |= end.update["samples"]
    words = [f"{counted(len(found[side]), 'response')} {name}" for side, name in SIDES.items() if side in found]
    return Shown(", ".join(words), None if step.running else _said(found))


def _said(found: Mapping[str, Sequence[Sampled]]) -> Table:
    weighed: dict[str, dict[str, float]] = {}
    wordings: dict[str, str] = {}
    for side, responses in found.items():
        for one in responses:
            form = normalised(one["text"])
            wordings.setdefault(form, one["text"])
            weights = weighed.setdefault(form, {})
            weights[side] = weights.get(side, 0.0) + one["weight"]
    shown = [side for side in SIDES if side in found]
    table = rows(*(SIDES[side] for side in shown), "response")
    order = sorted(weighed, key=lambda form: -max(weighed[form].values()))
    for form in order[:MOST_WORDINGS]:
        shares = [Text(f"{weighed[form][side]:.2f}" if side in weighed[form] else "") for side in shown]
        words = wordings[form]
        table.add_row(*shares, one_line(words) if words else Text("(no answer)", "dim"))
    if len(order) > MOST_WORDINGS:
        table.add_row(*([""] * len(shown)), Text(f"and {len(order) - MOST_WORDINGS} more", "dim"))
    return table


def entail(step: Step) -> Shown:
    """Nothing: `measure` says what came of it."""
    return Shown(passing=True)


def measure(step: Step) -> Shown:
    """SePer of both sides as bars, and which response counts how far."""
    return Shown() if step.running else Shown(verdict(step.update), bars(step.update))


RENDERERS: Mapping[str, Renderer] = {"sample": sample, "entail": entail, "measure": measure}


def verdict(figures: Mapping[str, Any]) -> str:
    """'ΔSePer +0.40: the belief in the right answer goes from 0.30 to 0.70'."""
    before, after = figures["seper_without"], figures["seper"]
    return f"ΔSePer {figures['delta']:+.2f}: the belief in the right answer goes from {before:.2f} to {after:.2f}"


def bars(figures: Mapping[str, Any]) -> RenderableType:
    """The two beliefs, each with the response that brings in most of it."""
    table = rows("", "", "SePer", "most of it from")
    for name, key in (("with the chunks", "with_context"), ("without", "without_context")):
        belief: Belief = figures[key]
        table.add_row(Text(name), bar(belief["seper"]), Text(f"{belief['seper']:.3f}"), _source(belief))
    return table


def bar(value: float, width: int = WIDTH) -> Text:
    """A number from 0 to 1."""
    filled = round(width * value)
    return Text.assemble(("█" * filled, "green"), ("░" * (width - filled), "dim"))


def counts(response: Response, belief: Belief) -> float:
    """How far a response counts as right, 0 to 1: for the right answer it entails most, or its cluster's match."""
    if response["cluster"] is not None:
        return float(any(belief["clusters"][response["cluster"]]["matches"]))
    return max([one or 0.0 for one in (*response["entails"], *response["entailed"])], default=0.0)


def _source(belief: Belief) -> Text:
    """The response that brings in most."""
    best = max(belief["responses"], key=lambda one: one["weight"] * counts(one, belief))
    if not best["weight"] * counts(best, belief):
        return Text("", "dim")
    return one_line(clean(best["text"]))
