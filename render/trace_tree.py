"""A trace as a tree of its steps on the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..presenters.presenter import citations, why
from ..presenters.words import duration, names_of
from ..traces.recording import Recording
from ..traces.steps import Step
from .answer import MOST_EVIDENCE, answer_text
from .facts import (
    answer_of,
    beside,
    cost_of,
    cost_words,
    evidence_of,
    refuses_unshowable,
    state_of,
    times,
    warnings_of,
    words_of,
)
from .sanitize import one_line
from .terminal import drawn


@refuses_unshowable
def tree(recording: Recording) -> RenderableType:
    """The question, the steps with their cost, the answer, its evidence, and errors."""
    question = Text.assemble((one_line(recording.graph), "bold"), "  ", one_line(recording.question))
    parts: list[RenderableType] = [question, Text(), _table(recording), Text()]
    if state := state_of(recording):
        parts += [Text(one_line(state), "yellow"), Text()]
    if recording.output is not None:
        parts += [answer_text(answer_of(recording)), Text(one_line(why(recording)), "dim")]
        parts += [*drawn(citations(recording.output)), *_evidence(recording)]
    parts += [Text("Warning: " + one_line(warning), "yellow") for warning in warnings_of(recording)]
    return Group(*parts, Text(cost_words(recording), "dim"))


def _table(recording: Recording) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(Text("step"), no_wrap=True)
    for column in ("time", "calls", "tokens\nread", "tokens\nwritten"):
        table.add_column(Text(column), justify="right", no_wrap=True)
    table.add_column(Text(""), overflow="fold")
    _add(table, recording.steps, "")
    return table


def _add(table: Table, steps: Sequence[Step], indent: str) -> None:
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        cost = cost_of(step.all_calls)
        figures = (f"{cost.calls:,}", f"{cost.read:,}", f"{cost.written:,}") if cost.calls else ("", "", "")
        name = Text.assemble((indent + ("└─ " if last else "├─ "), "dim"), (one_line(step.node), "bold"))
        if len(step.runs) > 1:
            name.append(f" {times(step)}")
        remarks = _remarks(step, steps)
        table.add_row(name, Text(duration(step.seconds)), *map(Text, figures), remarks)
        _add(table, step.steps, indent + ("   " if last else "│  "))


def _remarks(step: Step, siblings: Sequence[Step]) -> Text:
    others = ", ".join(beside(step, siblings))
    failed = [f"failed: {one_line(str(error.get('message', '')))}" for error in step.errors[:1]]
    parts = [
        Text(words_of(step)),
        Text(f"(beside {one_line(others)})" if others else "", "dim"),
        *(Text(error, "red") for error in failed),
        Text("not finished" if step.running else "", "yellow"),
    ]
    return Text(" ").join(part for part in parts if part)


def _evidence(recording: Recording) -> list[RenderableType]:
    evidence = evidence_of(recording)
    names = list(names_of(evidence).values())
    lines = [Text(f"{rank:>2}  {one_line(name)}") for rank, name in enumerate(names[:MOST_EVIDENCE], 1)]
    more = len(evidence) - MOST_EVIDENCE
    lines += [Text(f"and {more} more", "dim")] if more > 0 else []
    return [Text(), Text("From:", "dim"), *lines, Text()] if evidence else [Text()]
