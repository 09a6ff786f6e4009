"""What `dubito compare` does: read two runs and show what became of each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evals import bench
from ..evals.answers import Standard
from ..evals.bench import Asked
from ..evals.comparison import Compared, Comparison, comparison_of
from ..evals.reports.words import amount, called, chance, number, share, signed
from ..evals.store import Store
from ..traces.writer import jsonable
from .screen import clean, console, counted, print_json, shorten, show

MOST_QUESTIONS = 10
"""Questions that changed and are listed; the others are counted."""

LONGEST_SETTING = 50
LONGEST_QUESTION = 46

SHOWN = ("exact_match", "f1", "accuracy", "rouge_l", "recall@5", "ndcg@10", "mrr", "seper", "delta_seper")
"""The metrics that have a line on the terminal."""


def show_comparison(first: Path, second: Path, standard: Standard, *, as_json: bool) -> None:
    """Compare the runs in two folders."""
    one, other = bench.read(first), bench.read(second)
    with Store(one.results) as ours, Store(other.results) as theirs:
        found = comparison_of((one, ours), (other, theirs), standard)
    if as_json:
        print_json(as_object(found))
    else:
        show_found(console(), found)


def show_found(screen: Console, found: Comparison) -> None:
    """The runs, what differs between them, and each system."""
    for mark, run in (("A", found.first), ("B", found.second)):
        screen.print(Text.assemble((f"{mark}  ", "bold"), clean(str(run.folder))), soft_wrap=True)
    both, *alone = found.questions
    screen.print(f"{counted(both, 'question')} in both, {alone[0]:,} in A alone, {alone[1]:,} in B alone.")
    for mark, labels in zip("AB", found.alone, strict=True):
        if labels:
            screen.print(Text(f"Only {mark} has {clean(', '.join(labels))}.", "dim"))
    if found.about:
        screen.print()
        show(screen, _settings(found.about))
    for one in found.systems:
        screen.print()
        _show_system(screen, one)
    screen.print()
    said = (
        "Over the questions that both runs answered; B - A with its 95% bootstrap interval; p of a paired permutation "
    )
    screen.print(Text(f"{said}test, corrected over the systems by Holm. Right: an F1 of at least 0.5.", "dim"))


def as_object(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON."""
    both, first, second = found.questions
    systems = [
        {
            **asdict(one),
            "to_wrong": [_question(asked) for asked in one.to_wrong],
            "to_right": [_question(asked) for asked in one.to_right],
        }
        for one in found.systems
    ]
    told: dict[str, Any] = jsonable(
        {
            "first": str(found.first.folder),
            "second": str(found.second.folder),
            "questions": {"both": both, "first_alone": first, "second_alone": second},
            "alone": {"first": list(found.alone[0]), "second": list(found.alone[1])},
            "about": found.about,
            "systems": systems,
        }
    )
    return told


def _question(asked: Asked) -> dict[str, str]:
    return {"id": asked.id, "question": asked.question}


def _show_system(screen: Console, one: Compared) -> None:
    failed = f", {one.failed[0]} failed in A, {one.failed[1]} in B" if any(one.failed) else ""
    screen.print(
        Text.assemble((clean(one.label), "bold"), f"  {counted(one.answered, 'question')} answered in both{failed}")
    )
    if one.settings:
        show(screen, _settings(one.settings))
    if one.changes:
        show(screen, _changes(one))
    if one.spent is not None:
        show(screen, _cost(one))
    for what, some in (("From right to wrong", one.to_wrong), ("From wrong to right", one.to_right)):
        if some:
            screen.print(Text(f"{what}: {counted(len(some), 'question')}"))
            for asked in some[:MOST_QUESTIONS]:
                own = clean(asked.id.removeprefix(f"{asked.dataset}/"))
                screen.print(Text(f"  {shorten(asked.question, LONGEST_QUESTION):{LONGEST_QUESTION}}  {own}", "dim"))
            if len(some) > MOST_QUESTIONS:
                screen.print(Text(f"  and {len(some) - MOST_QUESTIONS} more", "dim"))


def _settings(different: Mapping[str, tuple[str | None, str | None]]) -> Table:
    table = _rows("setting", ["A", "B"], justify="left")
    for name, values in different.items():
        table.add_row(clean(name), *("-" if value is None else shorten(value, LONGEST_SETTING) for value in values))
    return table


def _changes(one: Compared) -> Table:
    table = _rows("metric", ["n", "A", "B", "B - A", "interval", "p"])
    for change in [change for change in one.changes if change.metric in SHOWN]:
        found = change.difference
        interval = f"{signed(found.low, 2)} to {signed(found.high, 2)}"
        style = "bold" if change.p < 0.05 else ""
        row = [number(change.first), number(change.second), signed(found.mean), interval, chance(change.p)]
        table.add_row(called(change.metric), f"{change.n}", *row, style=style)
    return table


def _cost(one: Compared) -> Table:
    assert one.spent is not None  # noqa: S101 - the caller looked
    a, b = one.spent
    table = _rows("cost of a question", ["A", "B", "B - A"])
    counts = (
        ("calls", a.calls, b.calls),
        ("prompt tokens", a.prompt_tokens, b.prompt_tokens),
        ("completion tokens", a.completion_tokens, b.completion_tokens),
        ("seconds", a.seconds, b.seconds),
    )
    for name, first, second in counts:
        more = "+" if second > first else "−" if second < first else ""
        table.add_row(name, amount(first), amount(second), more + amount(abs(second - first)))
    if a.remembered or b.remembered:
        table.add_row("calls remembered", share(a.remembered), share(b.remembered), "")
    return table


def _rows(first: str, others: Sequence[str], justify: Any = "right") -> Table:  # noqa: ANN401 - rich's own literal
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify=justify, no_wrap=True)
    return table
