"""Two runs of the same systems on the same questions: what became better, what worse, and how the runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import UserFault
from .answers import Standard
from .bench import Asked, Bench
from .reports.summary import Figure, Spent, figure_of, spent_of
from .reports.words import plain
from .scores import MAIN, RETRIEVAL, SEPER, Scored, Scores, paired, scores_of
from .statistics import holm, paired_permutation
from .store import Store

UNTOLD = frozenset({"id", "begun", "command", "datasets"})
"""What is of course different about two runs, or is told in another way."""


@dataclass(frozen=True)
class Change:
    """A metric over the n questions where both runs have it. first, second: its means; difference: second − first with
    its interval; p: of a paired permutation test, after Holm's correction over the systems."""

    metric: str
    n: int
    first: float
    second: float
    difference: Figure
    p: float


@dataclass(frozen=True)
class Compared:
    """A system that both runs have.

    answered: questions that both answered, which all else is of; failed: of the common questions, in each run;
    to_wrong, to_right: the questions whose answer became wrong or right; spent: the cost in each run; settings: those
    that differ, None where a run does not have one.
    """

    label: str
    answered: int
    failed: tuple[int, int]
    changes: Sequence[Change]
    to_wrong: Sequence[Asked]
    to_right: Sequence[Asked]
    spent: tuple[Spent, Spent] | None
    settings: Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Comparison:
    """about: what differs between the runs themselves; questions: how many both have, and how many one has alone;
    alone: the systems that one has alone."""

    first: Bench
    second: Bench
    about: Mapping[str, tuple[str | None, str | None]]
    questions: tuple[int, int, int]
    alone: tuple[Sequence[str], Sequence[str]]
    systems: Sequence[Compared]


def comparison_of(first: tuple[Bench, Store], second: tuple[Bench, Store], standard: Standard = "squad") -> Comparison:
    """Compare what both have: systems by label, questions by their text and gold answers.

    Raises `UserFault` if they have no system or no question in common, and where scipy or ir-measures is missing.
    """
    (one, _), (other, _) = first, second
    both = _common(one, other)
    labels = [system.label for system in one.systems if system.label in {other.label for other in other.systems}]
    if not labels or not both:
        what = "system" if not labels else "question"
        raise UserFault(
            f"'{one.folder}' and '{other.folder}' have no {what} in common, so there is nothing to compare."
        )
    scores = scores_of(*first, standard), scores_of(*second, standard)
    compared = [_compared(label, one, other, both, scores) for label in labels]
    return Comparison(
        one,
        other,
        _differing(_about(one), _about(other)),
        (len(both), len(one.questions) - len(both), len(other.questions) - len(both)),
        (_alone(one, other), _alone(other, one)),
        _corrected(compared),
    )


def _common(first: Bench, second: Bench) -> list[tuple[Asked, Asked]]:
    there = {(asked.question, asked.answers): asked for asked in reversed(second.questions)}
    both = [(asked, there.get((asked.question, asked.answers))) for asked in first.questions]
    return [(asked, match) for asked, match in both if match is not None]


def _compared(
    label: str, first: Bench, second: Bench, both: Sequence[tuple[Asked, Asked]], scores: tuple[Scores, Scores]
) -> Compared:
    pairs = [(asked, scores[0].get((label, asked.id)), scores[1].get((label, match.id))) for asked, match in both]
    # the second run's ids may be others: from here on a question has the first one's
    ours, theirs = [], []
    for asked, before, after in pairs:
        if before is not None and after is not None and not before.failed and not after.failed:
            ours.append(before)
            theirs.append(replace(after, question=asked.id))
    asked_by_id = {asked.id: asked for asked, _ in both}
    moved = [(asked_by_id[a.question], a.right, b.right) for a, b in zip(ours, theirs, strict=True)]
    spent = spent_of(label, ours), spent_of(label, theirs)
    return Compared(
        label,
        len(ours),
        (_failed(before for _, before, _ in pairs), _failed(after for *_, after in pairs)),
        [
            change
            for name in (*MAIN, *RETRIEVAL, *SEPER)
            if (change := _change(name, ours, theirs, first.seed)) is not None
        ],
        [asked for asked, was, is_now in moved if was and not is_now],
        [asked for asked, was, is_now in moved if is_now and not was],
        None if spent[0] is None or spent[1] is None else (spent[0], spent[1]),
        _differing(_settings(first, label), _settings(second, label)),
    )


def _change(metric: str, first: Sequence[Scored], second: Sequence[Scored], seed: int) -> Change | None:
    """Without the correction yet."""
    before, after = paired(first, second, metric)
    if not before:
        return None
    difference = figure_of([b - a for a, b in zip(before, after, strict=True)], seed)
    p = paired_permutation(after, before, seed).p
    return Change(metric, len(before), sum(before) / len(before), sum(after) / len(after), difference, p)


def _corrected(systems: Sequence[Compared]) -> list[Compared]:
    adjusted: dict[tuple[str, str], float] = {}
    for metric in dict.fromkeys(change.metric for one in systems for change in one.changes):
        tested = [(one.label, change.p) for one in systems for change in one.changes if change.metric == metric]
        for (label, _), p in zip(tested, holm([p for _, p in tested]), strict=True):
            adjusted[label, metric] = p
    return [
        replace(one, changes=[replace(change, p=adjusted[one.label, change.metric]) for change in one.changes])
        for one in systems
    ]


def _failed(outcomes: Iterable[Scored | None]) -> int:
    return sum(one is not None and one.failed for one in outcomes)


def _alone(one: Bench, other: Bench) -> list[str]:
    there = {system.label for system in other.systems}
    return [system.label for system in one.systems if system.label not in there]


def _about(bench: Bench) -> dict[str, str]:
    told = {name: value for name, value in bench.about.items() if name not in UNTOLD}
    return {name: plain(value) for name, value in told.items()}


def _settings(bench: Bench, label: str) -> dict[str, str]:
    system = next(one for one in bench.systems if one.label == label)
    return {"graph": system.graph, **{name: plain(value) for name, value in system.context.items()}}


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return {name: (first.get(name), second.get(name)) for name in names}
