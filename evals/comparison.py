"""Two runs of the same systems on the same questions: which answers changed, and how the runs differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from ..errors import UserFault
from .answers import Standard
from .reports.summary import METRICS, MeanCost, mean_cost, with_taken
from .reports.words import plain
from .run_folder import EvaluationRun, RunQuestion
from .scores import ScoredOutcome, Scores, paired, scores_of
from .statistics import Figure, bootstrap_interval, holm, paired_permutation
from .store import Store

NOT_COMPARED = frozenset({"id", "begun", "command", "datasets", "known_by", "at_once"})
"""Entries of run.json that differ in any two runs, or that the comparison shows in another way."""

CONTENT = "content of the corpus"
"""The name of what a corpus is known again by, beside the settings."""

Differing = Mapping[str, tuple[str | None, str | None]]
"""Settings that differ, with their values in both runs; None if a run does not have the setting."""


@dataclass(frozen=True)
class MetricChange:
    """A metric over the n questions where both runs have it.

    first, second: its means; difference: second − first; p: of a paired permutation test, after Holm's correction over
    the systems.
    """

    metric: str
    n: int
    first: float
    second: float
    difference: Figure
    p: float


@dataclass(frozen=True)
class SystemComparison:
    """A system that both runs have.

    answered: questions that both runs answered; changes, to_wrong, to_right and spent are over these. failed: failures
    on the common questions in each run; to_wrong, to_right: questions whose answer became wrong or right; spent: the
    cost in each run.
    """

    label: str
    answered: int
    failed: tuple[int, int]
    changes: Sequence[MetricChange]
    to_wrong: Sequence[RunQuestion]
    to_right: Sequence[RunQuestion]
    spent: tuple[MeanCost, MeanCost] | None
    settings: Differing


@dataclass(frozen=True)
class Comparison:
    """about: the differences between the runs; questions: common, only in the first, only in the second run; alone:
    the systems that only the first run and only the second run has."""

    first: EvaluationRun
    second: EvaluationRun
    about: Differing
    questions: tuple[int, int, int]
    alone: tuple[Sequence[str], Sequence[str]]
    systems: Sequence[SystemComparison]


def comparison_of(
    first: tuple[EvaluationRun, Store], second: tuple[EvaluationRun, Store], standard: Standard | None = None
) -> Comparison:
    """Compare two runs. Systems are matched by label, questions one to one by their text and gold answers.

    standard: by default that of both runs. Raises `UserFault` if they have not the same and none is given, if they have
    no system or no question in common, and if scipy or ir-measures is missing.
    """
    (before, _), (after, _) = first, second
    common = _common(before, after)
    later = {system.label for system in after.systems}
    labels = [system.label for system in before.systems if system.label in later]
    if not labels or not common:
        what = "system" if not labels else "question"
        raise UserFault(f"'{before.folder}' and '{after.folder}' have no {what} in common, so they cannot be compared.")
    if standard is None and before.standard != after.standard:
        raise UserFault(
            f"'{before.folder}' has the standard {before.standard}, and '{after.folder}' has {after.standard}: name "
            f"one for both, such as --standard {before.standard}."
        )
    standard = standard or before.standard
    scores = scores_of(*first, standard), scores_of(*second, standard)
    before, after = with_taken(before, scores[0]), with_taken(after, scores[1])
    return Comparison(
        before,
        after,
        _differing(_about(before), _about(after)),
        (len(common), len(before.questions) - len(common), len(after.questions) - len(common)),
        (_alone(before, after), _alone(after, before)),
        _corrected([_compared(label, before, after, common, scores) for label in labels]),
    )


def _common(first: EvaluationRun, second: EvaluationRun) -> list[tuple[RunQuestion, RunQuestion]]:
    """Each question of the first run with one of the second run, which no other question has.

    A question that a run asks several times is matched by its id, else by its dataset, else in order.
    """
    later: dict[tuple[str, Sequence[str]], list[RunQuestion]] = {}
    for question in second.questions:
        later.setdefault((question.question, question.answers), []).append(question)
    matches: dict[str, RunQuestion] = {}
    for key in (attrgetter("id"), attrgetter("dataset"), lambda _: None):
        for question in first.questions:
            left = later.get((question.question, question.answers), [])
            match = next((other for other in left if key(other) == key(question)), None)
            if match is not None and question.id not in matches:
                left.remove(match)
                matches[question.id] = match
    return [(question, matches[question.id]) for question in first.questions if question.id in matches]


def _compared(
    label: str,
    first: EvaluationRun,
    second: EvaluationRun,
    common: Sequence[tuple[RunQuestion, RunQuestion]],
    scores: tuple[Scores, Scores],
) -> SystemComparison:
    pairs = [
        (question, scores[0].get((label, question.id)), scores[1].get((label, match.id))) for question, match in common
    ]
    # the runs may have different ids: from here on, a question has its id of the first run
    answered = [
        (question, before, replace(after, question=question.id))
        for question, before, after in pairs
        if before is not None and after is not None and not before.failed and not after.failed
    ]
    befores, afters = [before for _, before, _ in answered], [after for *_, after in answered]
    costs = mean_cost(label, befores), mean_cost(label, afters)
    return SystemComparison(
        label,
        len(answered),
        (_failed(before for _, before, _ in pairs), _failed(after for *_, after in pairs)),
        [change for metric in METRICS if (change := _change(metric, befores, afters, first.seed)) is not None],
        [question for question, before, after in answered if before.right and not after.right],
        [question for question, before, after in answered if after.right and not before.right],
        None if costs[0] is None or costs[1] is None else (costs[0], costs[1]),
        _differing(_settings(first, label, second), _settings(second, label, first)),
    )


def _change(
    metric: str, first: Sequence[ScoredOutcome], second: Sequence[ScoredOutcome], seed: int
) -> MetricChange | None:
    """The change of a metric, with p before the correction."""
    before, after = paired(first, second, metric)
    if not before:
        return None
    difference = bootstrap_interval([b - a for a, b in zip(before, after, strict=True)], seed)
    p = paired_permutation(after, before, seed)
    return MetricChange(metric, len(before), sum(before) / len(before), sum(after) / len(after), difference, p)


def _corrected(systems: Sequence[SystemComparison]) -> list[SystemComparison]:
    corrected: dict[tuple[str, str], float] = {}
    for metric in dict.fromkeys(change.metric for system in systems for change in system.changes):
        tests = [(system.label, change.p) for system in systems for change in system.changes if change.metric == metric]
        for (label, _), p in zip(tests, holm([p for _, p in tests]), strict=True):
            corrected[label, metric] = p
    return [
        replace(
            system,
            changes=[replace(change, p=corrected[system.label, change.metric]) for change in system.changes],
        )
        for system in systems
    ]


def _failed(outcomes: Iterable[ScoredOutcome | None]) -> int:
    return sum(outcome is not None and outcome.failed for outcome in outcomes)


def _alone(run: EvaluationRun, other: EvaluationRun) -> list[str]:
    labels = {system.label for system in other.systems}
    return [system.label for system in run.systems if system.label not in labels]


def _about(run: EvaluationRun) -> dict[str, str]:
    return {name: plain(value) for name, value in run.about.items() if name not in NOT_COMPARED}


def _settings(run: EvaluationRun, label: str, other: EvaluationRun) -> dict[str, str]:
    """The settings of a system, and by what its corpus is known again, if the other run knows that too."""
    system = next(system for system in run.systems if system.label == label)
    known = {CONTENT: run.known_by[label]} if label in run.known_by and label in other.known_by else {}
    return {"graph": system.graph, **{name: plain(value) for name, value in system.context.items()}, **known}


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> Differing:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return {name: (first.get(name), second.get(name)) for name in names}
