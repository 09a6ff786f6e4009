"""A trace as a tree of its steps on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...traces.recording import Recording, Step
from ..screen import clean, duration
from .facts import answer_of, beside, cost_of, cost_words, evidence_of, names_of, state_of, times, warnings_of
from .said import words

MOST_EVIDENCE = 10
"""Chunks listed below an answer; the others are counted."""


def tree(recording: Recording) -> RenderableType:
    """The question, the steps with what each cost, the answer, its evidence and what went wrong."""
    asked = Text.assemble((clean(recording.graph), "bold"), "  ", clean(recording.question))
    parts: list[RenderableType] = [asked, Text(), _table(recording), Text()]
    if said := state_of(recording):
        parts += [Text(clean(said), "yellow"), Text()]
    if recording.output is not None:
        parts += [answer_text(recording), *_evidence(recording)]
    parts += [Text("Warning: " + clean(one), "yellow") for one in warnings_of(recording)]
    return Group(*parts, Text(cost_words(recording), "dim"))


def answer_text(recording: Recording) -> Text:
    """The answer, in as many lines as the model gave it."""
    text = clean(answer_of(recording), lines=True)
    return Text(text, "bold") if text else Text("(no answer)", "dim")


def _table(recording: Recording) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(Text("step"), no_wrap=True)
    for column in ("time", "calls", "tokens\nread", "tokens\nwritten"):
        table.add_column(Text(column), justify="right", no_wrap=True)
    table.add_column(Text(""), overflow="fold")
    _add(table, recording.steps, words(recording), "")
    return table


def _add(table: Table, steps: Sequence[Step], said: Mapping[int, str], indent: str) -> None:
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        cost = cost_of(step.all_calls)
        figures = (f"{cost.calls:,}", f"{cost.read:,}", f"{cost.written:,}") if cost.calls else ("", "", "")
        name = Text.assemble((indent + ("└─ " if last else "├─ "), "dim"), (clean(step.node), "bold"))
        if len(step.tasks) > 1:
            name.append(f" {times(step)}")
        remarks = _remarks(step, steps, said.get(id(step), ""))
        table.add_row(name, Text(duration(step.seconds)), *(Text(one) for one in figures), remarks)
        _add(table, step.steps, said, indent + ("   " if last else "│  "))


def _remarks(step: Step, siblings: Sequence[Step], said: str) -> Text:
    others = ", ".join(beside(step, siblings))
    failed = [f"failed: {clean(str(error.get('message', '')))}" for error in step.errors[:1]]
    parts = [
        Text("" if failed else said),
        Text(f"(beside {clean(others)})" if others else "", "dim"),
        *(Text(one, "red") for one in failed),
        Text("not finished" if step.unfinished else "", "yellow"),
    ]
    return Text(" ").join(part for part in parts if part)


def _evidence(recording: Recording) -> list[RenderableType]:
    found = evidence_of(recording)
    names = list(names_of(found).values())
    lines = [Text(f"{rank:>2}  {clean(name)}") for rank, name in enumerate(names[:MOST_EVIDENCE], 1)]
    more = len(found) - MOST_EVIDENCE
    lines += [Text(f"and {more} more", "dim")] if more > 0 else []
    return [Text(), Text("From:", "dim"), *lines, Text()] if found else [Text()]
