"""The work of `dubito compare`: read two runs and show how each system changed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..evals import run_folder
from ..evals.answers import Standard
from ..evals.comparison import Comparison, Differing, SystemComparison, comparison_of
from ..evals.reports.summary import MeanCost
from ..evals.reports.tables import numbers
from ..evals.reports.words import amount, called, chance, number, signed
from ..evals.run_folder import RunQuestion
from ..evals.store import Store
from ..presenters.blocks import Cell, Row, Table
from ..presenters.words import counted
from ..render.sanitize import one_line, shortened
from ..render.screen import console, print_json
from ..render.terminal import show_blocks

MOST_QUESTIONS = 10
"""Changed questions that are listed. The others are counted."""

LONGEST_SETTING = 50
LONGEST_QUESTION = 46


def show_comparison(first: Path, second: Path, standard: Standard | None, *, as_json: bool) -> None:
    """Compare the runs in two folders. standard: see `comparison_of`."""
    before, after = run_folder.read(first), run_folder.read(second)
    with Store(before.results) as ours, Store(after.results) as theirs:
        comparison = comparison_of((before, ours), (after, theirs), standard)
    if as_json:
        print_json(as_object(comparison))
    else:
        show_runs(console(), comparison)


def show_runs(screen: Console, comparison: Comparison) -> None:
    """Show the runs, their differences, and each system."""
    for mark, run in (("A", comparison.first), ("B", comparison.second)):
        screen.print(Text.assemble((f"{mark}  ", "bold"), one_line(str(run.folder))), soft_wrap=True)
    both, *alone = comparison.questions
    screen.print(f"{counted(both, 'question')} in both, {alone[0]:,} only in A, {alone[1]:,} only in B.")
    for mark, labels in zip("AB", comparison.alone, strict=True):
        if labels:
            screen.print(Text(f"Only {mark} has {one_line(', '.join(labels))}.", "dim"))
    if comparison.about:
        screen.print()
        show_blocks(screen, [_settings(comparison.about)])
    for system in comparison.systems:
        screen.print()
        _show_system(screen, system)
    screen.print()
    note = (
        "Over the questions that both runs answered. B - A has its 95% bootstrap interval; p is of a paired "
        "permutation test, corrected over the systems by Holm. Right: an F1 of at least 0.5."
    )
    screen.print(Text(note, "dim"))


def as_object(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON."""
    both, first, second = comparison.questions
    systems = [
        {
            **asdict(system),
            "to_wrong": [{"id": question.id, "question": question.question} for question in system.to_wrong],
            "to_right": [{"id": question.id, "question": question.question} for question in system.to_right],
        }
        for system in comparison.systems
    ]
    return {
        "first": str(comparison.first.folder),
        "second": str(comparison.second.folder),
        "questions": {"both": both, "first_alone": first, "second_alone": second},
        "alone": {"first": comparison.alone[0], "second": comparison.alone[1]},
        "about": comparison.about,
        "systems": systems,
    }


def _show_system(screen: Console, system: SystemComparison) -> None:
    failed = f", {system.failed[0]} failed in A, {system.failed[1]} in B" if any(system.failed) else ""
    answered = f"  {counted(system.answered, 'question')} answered in both{failed}"
    screen.print(Text.assemble((one_line(system.label), "bold"), answered))
    if system.settings:
        show_blocks(screen, [_settings(system.settings)])
    if system.changes:
        show_blocks(screen, [_changes(system)])
    if system.spent is not None:
        show_blocks(screen, [_cost(*system.spent)])
    _show_questions(screen, "From right to wrong", system.to_wrong)
    _show_questions(screen, "From wrong to right", system.to_right)


def _show_questions(screen: Console, title: str, questions: Sequence[RunQuestion]) -> None:
    if not questions:
        return
    screen.print(Text(f"{title}: {counted(len(questions), 'question')}"))
    for question in questions[:MOST_QUESTIONS]:
        own_id = one_line(question.id.removeprefix(f"{question.dataset}/"))
        screen.print(Text(f"  {shortened(question.question, LONGEST_QUESTION):{LONGEST_QUESTION}}  {own_id}", "dim"))
    if len(questions) > MOST_QUESTIONS:
        screen.print(Text(f"  and {len(questions) - MOST_QUESTIONS} more", "dim"))


def _settings(different: Differing) -> Table:
    rows = [
        Row([Cell(name), *(Cell("-" if value is None else shortened(value, LONGEST_SETTING)) for value in values)])
        for name, values in different.items()
    ]
    return Table(["setting", "A", "B"], rows)


def _changes(system: SystemComparison) -> Table:
    rows = []
    for change in system.changes:
        difference = change.difference
        interval = f"{signed(difference.low, 2)} to {signed(difference.high, 2)}"
        means = number(change.first), number(change.second), signed(difference.mean)
        figures = [f"{change.n}", *means, interval, chance(change.p)]
        rows.append(Row([Cell(called(change.metric)), *numbers(*figures)], marked=change.p < 0.05))
    return Table(["metric", "n", "A", "B", "B - A", "interval", "p"], rows)


def _cost(before: MeanCost, after: MeanCost) -> Table:
    rows = []
    for name in ("calls", "prompt_tokens", "completion_tokens", "seconds"):
        first, second = getattr(before, name), getattr(after, name)
        sign = "+" if second > first else "−" if second < first else ""
        figures = amount(first), amount(second), sign + amount(abs(second - first))
        rows.append(Row([Cell(name.replace("_", " ")), *numbers(*figures)]))
    if before.remembered or after.remembered:
        cached = f"{before.remembered:.0%}", f"{after.remembered:.0%}", ""
        rows.append(Row([Cell("cached calls"), *numbers(*cached)]))
    return Table(["cost of a question", "A", "B", "B - A"], rows)
