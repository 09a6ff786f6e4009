"""SeaKR on the page, and its baselines: U of each step against δ, the snippets that were tried, the two answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...traces.recording import Recording, last_update, named
from ..view_reasoning import ENDINGS
from .blocks import Bar, Bars, Block, Cell, Fold, Row, Table, Words, figure, num
from .facts import names_of


def panel(recording: Recording) -> list[Block]:
    """As far as the run got."""
    ran = [task.update for step in named(recording.steps, "append") for task in step.tasks]
    steps = [one for update in ran for one in update.get("steps", [])]
    if not steps:
        return [Words("The run ended before a step was written.")]
    threshold = last_update(recording.steps, "prepare").get("threshold")
    found = [task.update for step in named(recording.steps, "search") for task in step.tasks]
    called = names_of(chunk for update in found for chunk in update.get("snippets", []))
    ended = last_update(recording.steps, "append").get("ended") or last_update(recording.steps, "query").get("ended")
    measured: list[Block] = [] if threshold is None else [_uncertainty(steps, threshold)]  # the baselines have no δ
    blocks = [*measured, _reasoning(steps, called), *_tried(steps, called)]
    if ended:
        blocks.append(Words(f"It ended because {ENDINGS[ended]}."))
    return [*blocks, *_answers(recording)]


def _uncertainty(steps: Sequence[Mapping[str, Any]], threshold: float) -> Bars:
    bars = []
    for i, one in enumerate(steps, 1):
        if one["draft"] is not None:
            bars.append(_bar(f"step {i}, by itself", one["draft"]["uncertainty"]))
        if one["chunk_id"] is not None:
            bars.append(_bar(f"step {i}, with what was kept", one["uncertainty"]))
    note = "Bars begin below the lowest U, they have no zero. Above δ something is looked up."
    return Bars("Uncertainty U of each step", bars, threshold, f"δ = {threshold:g}", note)


def _bar(label: str, uncertainty: float | None) -> Bar:
    return Bar(label, uncertainty, "not measured" if uncertainty is None else figure(uncertainty))


def _reasoning(steps: Sequence[Mapping[str, Any]], called: Mapping[str, str]) -> Table:
    rows = []
    for i, one in enumerate(steps, 1):
        kept = "" if one["chunk_id"] is None else called[one["chunk_id"]]
        searched = Cell(one["query"]) if one["query"] else Cell("nothing", tone="dim")
        rows.append(Row([Cell(f"{i}", number=True), Cell(one["rationale"]), searched, Cell(kept)]))
    return Table(["step", "what was written", "searched for", "snippet kept"], rows, "The reasoning")


def _tried(steps: Sequence[Mapping[str, Any]], called: Mapping[str, str]) -> list[Block]:
    """A table of each step that tried snippets."""
    return [
        Fold(f"Step {i}: {len(one['attempts'])} snippets tried", [_attempts(one, called)])
        for i, one in enumerate(steps, 1)
        if one["attempts"]
    ]


def _attempts(step: Mapping[str, Any], called: Mapping[str, str]) -> Table:
    """Each snippet, and what it did to the U of the step by itself."""
    before = None if step["draft"] is None else step["draft"]["uncertainty"]
    rows = []
    for one in step["attempts"]:
        kept, u = one["chunk_id"] == step["chunk_id"], one["uncertainty"]
        shown = Cell("not measured", tone="dim") if u is None else num(u)
        change = Cell("") if u is None or before is None else num(u - before, f"{u - before:+.2f}")
        cells = [Cell(called[one["chunk_id"]]), Cell(one["rationale"]), shown, change, Cell("kept" if kept else "")]
        rows.append(Row(cells, marked=kept))
    note = "" if before is None else f"Change: against U of the step by itself, {figure(before)}."
    return Table(["snippet", "what the model writes with it", "U", "change", ""], rows, note=note)


def _answers(recording: Recording) -> list[Block]:
    """Both strategies' answers, and which one stands."""
    steps = [step for step in recording.steps if step.node in {"conclude", "reason_over_knowledge"}]
    found = [one for step in steps for task in step.tasks for one in task.update.get("conclusions", [])]
    stands = (recording.output or {}).get("strategy")
    rows = []
    for one in found:
        shown = Cell("not measured", tone="dim") if one["uncertainty"] is None else num(one["uncertainty"])
        name = {"rationales": "the sentences", "knowledge": "the snippets kept"}[one["strategy"]]
        is_it = one["strategy"] == stands
        cells = [Cell(name), Cell(one["answer"] or "(no answer)"), shown, Cell("stands" if is_it else "")]
        rows.append(Row(cells, marked=is_it))
    return [Table(["from", "answer", "U", ""], rows, "The answers")] if found else []
