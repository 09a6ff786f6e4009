"""A run in numbers: for each dataset the systems' means, how they differ, what failed, the cost, their own doubt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ...errors import UserFault, either
from ..answers import Standard
from ..bench import Asked, Bench, System
from ..reliability import (
    Part,
    auroc,
    certain_and_uncertain,
    confidences_from,
    expected_calibration_error,
    risk_coverage,
)
from ..scores import MAIN, RETRIEVAL, SEPER, Scored, Scores, Stage, paired, scores_of, values_of
from ..signals import SIGNALS
from ..statistics import Interval, bootstrap_interval, holm, paired_permutation
from ..store import Store
from .oracle import Oracle, oracles_of

METRICS = (*MAIN, "cover_em", *RETRIEVAL, *SEPER)
"""Those of which a row tells the mean."""

LEAST_FOR_ECE = 20
"""Answers below which a calibration error over ten bins says nothing."""


@dataclass(frozen=True)
class Figure:
    """A metric's mean over n answered questions, and the ends of its 95% bootstrap interval."""

    n: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A system's figures. left: questions without an outcome yet; metrics: those that some question has."""

    label: str
    graph: str
    answered: int
    failed: int
    left: int
    metrics: Mapping[str, Figure]


@dataclass(frozen=True)
class Pair:
    """Two systems on the n questions that both answered: the mean of first − second, p after Holm's correction over
    all pairs of the dataset; None where they have no question in common."""

    first: str
    second: str
    n: int
    mean: float | None
    p: float | None


@dataclass(frozen=True)
class Failure:
    """A reason that some of a system's questions failed for.

    calls, tokens: what they had cost until then, all together, as far as it is known; tokens read and written.
    """

    system: str
    kind: str
    message: str
    questions: int
    calls: int
    tokens: int


@dataclass(frozen=True)
class Spent:
    """What a system cost, as means over its n answered questions; remembered: the share of calls that were answered
    from memory, and whose former seconds a question lacks."""

    system: str
    n: int
    calls: float
    prompt_tokens: float
    completion_tokens: float
    seconds: float
    remembered: float
    remembered_seconds: float
    stages: Mapping[str, Stage]


@dataclass(frozen=True)
class Doubt:
    """How well a system's own uncertainty tells right from wrong, over the n answers that have one.

    auroc_em, auroc: of wrong by EM and by F1 < `RIGHT`, None if all are right or all wrong; aurc: with risk 1 − F1, and
    mean_risk, what a doubt that says nothing would reach; ece: of confidences fitted to other answers, None where there
    are fewer than `LEAST_FOR_ECE`; certain, uncertain: F1 up to the threshold and above, None where there is none.
    """

    system: str
    signal: str
    n: int
    unmeasured: int
    auroc_em: float | None
    auroc: float | None
    aurc: float
    mean_risk: float
    ece: float | None
    threshold: float | None
    certain: Part | None
    uncertain: Part | None


@dataclass(frozen=True)
class Section:
    """A dataset. of: how many questions it has, None where the run does not say."""

    dataset: str
    questions: Sequence[Asked]
    of: int | None
    left_out: Sequence[str]
    rows: Sequence[Row]
    oracles: Sequence[Row]
    pairs: Sequence[Pair]
    failures: Sequence[Failure]
    spent: Sequence[Spent]
    doubts: Sequence[Doubt]
    chosen: Sequence[Oracle]

    def metrics(self, wanted: Sequence[str]) -> list[str]:
        """Those of the wanted that some system has."""
        return [name for name in wanted if any(name in row.metrics for row in [*self.rows, *self.oracles])]

    def best(self, metric: str) -> float | None:
        """The highest mean of a system, as it is shown: what looks the same is equally good."""
        means = [round(row.metrics[metric].mean, 3) for row in self.rows if metric in row.metrics]
        return max(means, default=None)

    def is_best(self, row: Row, metric: str) -> bool:
        """Is it the highest, or one of them, where more is better and they are not all the same?"""
        means = {round(one.metrics[metric].mean, 3) for one in self.rows if metric in one.metrics}
        tells = len(means) > 1 and metric != "seper_without"
        return tells and row in self.rows and round(row.metrics[metric].mean, 3) == self.best(metric)


@dataclass(frozen=True)
class Summary:
    """A run's report in numbers. metric: the main one, in which the systems are tested against one another."""

    bench: Bench
    scores: Mapping[tuple[str, str], Scored]
    metric: str
    standard: Standard
    sections: Sequence[Section]

    @property
    def answered(self) -> int:
        """Questions answered, over all systems."""
        return sum(not one.failed for one in self.scores.values())

    @property
    def failed(self) -> int:
        """Questions that failed, over all systems."""
        return len(self.scores) - self.answered

    @property
    def left(self) -> int:
        """Questions without an outcome yet, over all systems."""
        return len(self.bench.systems) * len(self.bench.questions) - len(self.scores)


def summary_of(bench: Bench, store: Store, metric: str = "f1", standard: Standard = "squad") -> Summary:
    """The run so far; metric: one of `METRICS`.

    Raises `UserFault` for a metric that no answer of the run has, and where scipy or ir-measures is missing.
    """
    scores = scores_of(bench, store, standard)
    known = [name for name in METRICS if values_of(scores.values(), name)]
    if metric not in (known or METRICS):
        raise UserFault(f"No answer of '{bench.folder}' has the metric '{metric}': use {either(known or METRICS)}.")
    datasets = {one["name"]: one for one in bench.about.get("datasets") or []}
    by_dataset: dict[str, list[Asked]] = {}
    for asked in bench.questions:
        by_dataset.setdefault(asked.dataset, []).append(asked)
    sections = [
        _section(questions, datasets.get(name, {}), bench, scores, metric) for name, questions in by_dataset.items()
    ]
    return Summary(bench, scores, metric, standard, sections)


def of_system(scores: Scores, system: str, questions: Iterable[Asked]) -> list[Scored]:
    """A system's outcomes, in the order of the questions."""
    return [scores[system, one.id] for one in questions if (system, one.id) in scores]


def _section(
    questions: Sequence[Asked], about: Mapping[str, Any], bench: Bench, scores: Scores, metric: str
) -> Section:
    found = {system.label: of_system(scores, system.label, questions) for system in bench.systems}
    chosen = oracles_of(bench.systems, scores, [one.id for one in questions])
    levels = {one.label: "vanilla_rag" for one in chosen}
    return Section(
        questions[0].dataset,
        questions,
        about.get("of"),
        about.get("left_out") or [],
        [_row(one.label, one.graph, found[one.label], len(questions), bench.seed) for one in bench.systems],
        [_row(one.label, levels[one.label], one.scored, len(questions), bench.seed) for one in chosen],
        _pairs(found, metric, bench.seed),
        [failure for outcomes in found.values() for failure in _failures(outcomes)],
        [spent for label, outcomes in found.items() if (spent := spent_of(label, outcomes)) is not None],
        [doubt for one in bench.systems if (doubt := _doubt(one, found[one.label], bench.seed)) is not None],
        chosen,
    )


def _row(label: str, graph: str, outcomes: Sequence[Scored], questions: int, seed: int) -> Row:
    failed = sum(one.failed for one in outcomes)
    figures = {}
    for metric in METRICS:
        if values := values_of(outcomes, metric):
            figures[metric] = figure_of(values, seed)
    return Row(label, graph, len(outcomes) - failed, failed, questions - len(outcomes), figures)


def figure_of(values: Sequence[float], seed: int) -> Figure:
    """Their mean and its interval; values: at least one."""
    interval: Interval = bootstrap_interval(values, seed)
    return Figure(len(values), *interval)


def _pairs(found: Mapping[str, Sequence[Scored]], metric: str, seed: int) -> list[Pair]:
    untested = []
    for first, second in combinations(found, 2):
        ours, theirs = paired(found[first], found[second], metric)
        tested = paired_permutation(ours, theirs, seed) if ours else None
        untested.append((first, second, len(ours), tested))
    corrected = iter(holm([tested.p for *_, tested in untested if tested is not None]))
    return [
        Pair(first, second, n, None if tested is None else tested.mean, None if tested is None else next(corrected))
        for first, second, n, tested in untested
    ]


def _failures(outcomes: Iterable[Scored]) -> list[Failure]:
    reasons: dict[tuple[str, str, str], list[Scored]] = {}
    for one in outcomes:
        if one.failed:
            reasons.setdefault((one.system, *one.error), []).append(one)
    found = []
    for reason, failed in sorted(reasons.items(), key=lambda item: -len(item[1])):
        costs = [one.cost for one in failed if one.cost is not None]
        tokens = sum(cost.prompt_tokens + cost.completion_tokens for cost in costs)
        found.append(Failure(*reason, len(failed), sum(cost.calls for cost in costs), tokens))
    return found


def spent_of(label: str, outcomes: Iterable[Scored]) -> Spent | None:
    """The mean cost of the answered ones; None if there are none."""
    costs = [one.cost for one in outcomes if one.cost is not None and not one.failed]
    if not costs:
        return None
    n, calls = len(costs), sum(one.calls for one in costs)
    nodes = dict.fromkeys(node for one in costs for node in one.stages)
    return Spent(
        label,
        n,
        calls / n,
        sum(one.prompt_tokens for one in costs) / n,
        sum(one.completion_tokens for one in costs) / n,
        sum(one.seconds for one in costs) / n,
        sum(one.remembered for one in costs) / calls if calls else 0.0,
        sum(one.remembered_seconds for one in costs) / n,
        {node: _stage([one.stages[node] for one in costs if node in one.stages], n) for node in nodes},
    )


def _stage(stages: Sequence[Stage], n: int) -> Stage:
    """The mean over n questions, some of which did not have it."""
    return Stage(
        sum(one.calls for one in stages) / n,
        sum(one.prompt_tokens for one in stages) / n,
        sum(one.completion_tokens for one in stages) / n,
        sum(one.seconds for one in stages) / n,
    )


def _doubt(system: System, outcomes: Sequence[Scored], seed: int) -> Doubt | None:
    answered = [one for one in outcomes if not one.failed]
    known = [one for one in answered if one.doubt is not None]
    if not known:
        return None
    values = [one.doubt for one in known if one.doubt is not None]
    f1 = [one.metrics["f1"] for one in known]
    right = [one.right for one in known]
    thresholds = {one.threshold for one in known}
    threshold = thresholds.pop() if len(thresholds) == 1 else None
    split = None if threshold is None else certain_and_uncertain(values, f1, threshold)
    enough = len(known) >= LEAST_FOR_ECE
    return Doubt(
        system.label,
        SIGNALS[system.graph].name,
        len(known),
        len(answered) - len(known),
        auroc(values, [not one.metrics["exact_match"] for one in known]),
        auroc(values, [not one for one in right]),
        risk_coverage(values, [1 - one for one in f1]).aurc,
        1 - sum(f1) / len(f1),
        expected_calibration_error(confidences_from(values, right, seed), right) if enough else None,
        threshold,
        split[0] if split else None,
        split[1] if split else None,
    )
