"""A run in numbers: for each dataset the systems' means and differences, failures, costs, and uncertainty."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, combinations
from typing import NamedTuple

from ...errors import UserFault, either
from ...state.calibration import AnswerCalibration
from ...uncertainty.risk_control import risk_interval
from ..answer_calibration import hash_of
from ..answers import Standard
from ..reliability import (
    UncertaintyBin,
    auroc,
    auroc_interval,
    by_uncertainty,
    chance_calibration_error,
    confidences_from,
    expected_calibration_error,
    risk_coverage,
)
from ..run_folder import EvaluationRun, RunQuestion, System
from ..scores import (
    CITED,
    JUDGED,
    MAIN,
    PLAN,
    RETRIEVAL,
    SEPER,
    NodeCost,
    ScoredOutcome,
    Scores,
    paired,
    scores_of,
    values_of,
)
from ..statistics import Figure, bootstrap_interval, holm, paired_permutation
from ..store import Store
from .oracle import GapClosed, Oracle, gaps_closed, oracles_of

METRICS = (*MAIN, "cover_em", "bleu", *RETRIEVAL, *PLAN, *CITED, *SEPER, *JUDGED)
"""The metrics with a mean in the report."""

GIVEN_LEVEL = 0.9
"""Level of the interval of the risk of the answers given."""

TOGETHER = "all datasets"
"""The name of the section over the questions of all datasets."""

LEAST_FOR_ECE = 20
"""With fewer answers, the calibration error over ten bins is not reported."""


@dataclass(frozen=True)
class SystemFigures:
    """A system on a dataset. left: questions without an outcome yet; metrics: those that some question has."""

    label: str
    graph: str
    answered: int
    failed: int
    left: int
    metrics: Mapping[str, Figure]


@dataclass(frozen=True)
class Pair:
    """Two systems on the n questions that both answered.

    difference: of first − second; p: after Holm's correction over the pairs of the section; both None if n is 0.
    """

    first: str
    second: str
    n: int
    difference: Figure | None
    p: float | None


@dataclass(frozen=True)
class Failure:
    """A reason for which some questions of a system failed.

    calls, tokens: the known cost of these questions together; prompt and completion tokens are added.
    """

    system: str
    kind: str
    message: str
    questions: int
    calls: int
    tokens: int


@dataclass(frozen=True)
class MeanCost(NodeCost):
    """The mean cost of a system's n answered questions.

    remembered: the share of calls that were served from the cache; remembered_seconds: how long those calls took when
    they were made, which `seconds` does not include.
    """

    system: str
    n: int
    remembered: float
    remembered_seconds: float
    stages: Mapping[str, NodeCost]


@dataclass(frozen=True)
class UncertaintyQuality:
    """How well an uncertainty of a system separates right from wrong, over the n answers that have it.

    signal: its own, or one that its settings measured beside it, which has no threshold. A withheld answer is scored as
    if it had been given. unmeasured: answers whose uncertainty is unknown; auroc_em, auroc: wrong is EM 0, and F1 <
    `RIGHT`, None if all answers are right or all wrong; auroc_interval: the 95 % interval of `auroc`; aurc: the risk is
    1 − F1; mean_risk: the AURC of an uninformative (constant) uncertainty; ece: of confidences fitted to other answers,
    None below `LEAST_FOR_ECE` answers; chance_ece: between which ends it would be by chance alone, were these
    confidences exact; certain, uncertain: F1 up to the threshold and above it, None if the system has no single
    threshold.
    """

    system: str
    signal: str
    n: int
    unmeasured: int
    auroc_em: float | None
    auroc: float | None
    auroc_interval: tuple[float, float] | None
    aurc: float
    mean_risk: float
    ece: float | None
    chance_ece: tuple[float, float] | None
    threshold: float | None
    certain: UncertaintyBin | None
    uncertain: UncertaintyBin | None


@dataclass(frozen=True)
class GivenAnswers:
    """What a system with a calibration gave: of n answers those that it did not withhold, and how many are wrong.

    Only answers whose certificate holds count; uncertified: the number of the others. right: the rule for right answers
    of the certificate; "" where it is unknown or reads what was not measured, and F1 < `RIGHT` is wrong. interval: the
    exact `GIVEN_LEVEL` interval of the share of the given answers that is wrong, None if none is given. promise: of the
    certificate, "" if none holds. calibrated_on: of the n questions, those that the calibration was made from: they say
    nothing new.
    """

    system: str
    n: int
    given: int
    wrong: int
    interval: tuple[float, float] | None
    promise: str
    right: str
    uncertified: int
    calibrated_on: int


class Reference(NamedTuple):
    """The system whose uncertainty splits the questions of all systems in two.

    uncertainties: by question, for those that it answered, None where unknown; thresholds: rising. It may be a system
    of another run over the same questions.
    """

    system: str
    signal: str
    uncertainties: Mapping[str, float | None]
    thresholds: Sequence[float]


@dataclass(frozen=True)
class Parted:
    """A system's mean of a metric on the questions that the reference is certain of, and on the others.

    certain: its uncertainty is at most the threshold; an unknown one is uncertain. None: no such question is answered.
    """

    system: str
    threshold: float
    certain: Figure | None
    uncertain: Figure | None


@dataclass(frozen=True)
class Section:
    """A dataset. of: its number of questions before any were drawn, None if unknown; left_out: its broken records."""

    dataset: str
    questions: Sequence[RunQuestion]
    systems: Sequence[SystemFigures]
    oracles: Sequence[SystemFigures]
    pairs: Sequence[Pair]
    failures: Sequence[Failure]
    costs: Sequence[MeanCost]
    uncertainties: Sequence[UncertaintyQuality]
    given: Sequence[GivenAnswers]
    chosen: Sequence[Oracle]
    gaps: Sequence[GapClosed]
    of: int | None = None
    left_out: Sequence[str] = ()
    parts: Sequence[Parted] = ()

    @property
    def tested(self) -> Sequence[Pair]:
        """The pairs of systems that answered a question in common."""
        return [pair for pair in self.pairs if pair.p is not None]

    def metrics(self, names: Sequence[str]) -> list[str]:
        """The metrics among `names` that some system has."""
        return [name for name in names if any(name in row.metrics for row in [*self.systems, *self.oracles])]

    def is_best(self, system: SystemFigures, metric: str) -> bool:
        """Does the system have the highest mean, as shown, of a metric in which the systems differ?"""
        means = {round(row.metrics[metric].mean, 3) for row in self.systems if metric in row.metrics}
        more_is_better = metric not in {"seper_without", *PLAN}
        differ = len(means) > 1 and more_is_better
        return differ and system in self.systems and round(system.metrics[metric].mean, 3) == max(means)


@dataclass(frozen=True)
class Summary:
    """The report of a run in numbers.

    metric: the metric in which the systems are compared; sections: one a dataset; together: the questions of all
    datasets at once, None if there is one dataset; against: the system that the others are compared with, None if each
    is compared with each; reference: see there.
    """

    run: EvaluationRun
    scores: Mapping[tuple[str, str], ScoredOutcome]
    metric: str
    standard: Standard
    sections: Sequence[Section]
    together: Section | None = None
    reference: Reference | None = None
    against: str | None = None

    @property
    def shown(self) -> Sequence[Section]:
        """The sections of a report, in their order."""
        return [*self.sections, *([self.together] if self.together else [])]

    @property
    def answered(self) -> int:
        """Answered questions, over all systems."""
        return sum(not outcome.failed for outcome in self.scores.values())

    @property
    def failed(self) -> int:
        """Failed questions, over all systems."""
        return len(self.scores) - self.answered

    @property
    def left(self) -> int:
        """Questions without an outcome yet, over all systems."""
        return len(self.run.systems) * len(self.run.questions) - len(self.scores)


def summary_of(
    run: EvaluationRun,
    store: Store,
    metric: str = "f1",
    standard: Standard = "squad",
    reference: Reference | None = None,
    *,
    against: str | None = None,
) -> Summary:
    """The summary of all outcomes so far.

    metric: one of `METRICS`; reference: to part the questions by; against: compare the other systems with this one,
    which is fewer tests than each with each.
    Raises `UserFault` for a metric that no answer of the run has, for a system that the run does not have, for a
    reference that answered none of its questions, and if scipy or ir-measures is missing.
    """
    scores = scores_of(run, store, standard)
    known = [name for name in METRICS if values_of(scores.values(), name)]
    if metric not in (known or METRICS):
        raise UserFault(f"No answer of '{run.folder}' has the metric '{metric}': use {either(known or METRICS)}.")
    labels = [system.label for system in run.systems]
    if against is not None and against not in labels:
        raise UserFault(f"'{run.folder}' has no system '{against}': use {either(labels)}.")
    if reference is not None and not reference.uncertainties.keys() & {question.id for question in run.questions}:
        raise UserFault(
            f"{reference.system} answered no question of '{run.folder}': --split-run needs a run of the same datasets, "
            "whose questions have the same ids."
        )
    compared = [(label, against) for label in labels if label != against] if against else list(combinations(labels, 2))
    datasets = {dataset["name"]: dataset for dataset in run.about.get("datasets") or []}
    by_dataset: dict[str, list[RunQuestion]] = {}
    for question in run.questions:
        by_dataset.setdefault(question.dataset, []).append(question)

    def section_of(name: str, questions: Sequence[RunQuestion]) -> Section:
        by_system = {system.label: of_system(scores, system.label, questions) for system in run.systems}
        oracles = oracles_of(run.systems, scores, [question.id for question in questions])
        about = datasets.get(name, {})
        return Section(
            name,
            questions,
            [_figures(one.label, one.graph, by_system[one.label], questions, run.seed) for one in run.systems],
            [_figures(one.label, one.graph, one.scored, questions, run.seed) for one in oracles],
            _pairs(compared, by_system, metric, run.seed),
            [failure for outcomes in by_system.values() for failure in _failures(outcomes)],
            list(filter(None, (mean_cost(*one) for one in by_system.items()))),
            [quality for one in by_system.values() for quality in _uncertainty_qualities(one, run.seed)],
            list(filter(None, (_given(one, by_system[one.label], questions) for one in run.systems))),
            oracles,
            [gap for oracle in oracles for gap in gaps_closed(oracle, run.systems, scores)],
            about.get("of"),
            about.get("left_out") or [],
            [] if reference is None else _parted(by_system, metric, reference, run.seed),
        )

    sections = [section_of(name, questions) for name, questions in by_dataset.items()]
    together = section_of(TOGETHER, run.questions) if len(sections) > 1 else None
    return Summary(with_taken(run, scores), scores, metric, standard, sections, together, reference, against)


def reference_of(run: EvaluationRun, store: Store, system: str, thresholds: Sequence[float] = ()) -> Reference:
    """A system of a run as the reference. thresholds: the system's own, if none are given.

    Raises `UserFault` for a system that the run does not have, for one without uncertainty, and without a threshold.
    """
    labels = [known.label for known in run.systems]
    if system not in labels:
        raise UserFault(f"'{run.folder}' has no system '{system}': use {either(labels)}.")
    outputs = {one.question: one.output for one in store.outcomes() if one.system == system and one.output is not None}
    measured = [uncertainty for output in outputs.values() if (uncertainty := output.get("uncertainty"))]
    if not measured:
        raise UserFault(f"{system} measured no uncertainty in '{run.folder}': part the questions by another system.")
    own = {uncertainty["threshold"] for uncertainty in measured} - {None}
    chosen = sorted(set(thresholds)) or sorted(own)
    if not chosen or not all(math.isfinite(threshold) for threshold in chosen):
        raise UserFault(f"{system} has no threshold of its own: give some with --split-at, such as --split-at 0.2,0.5.")
    values = {question: (output.get("uncertainty") or {}).get("value") for question, output in outputs.items()}
    return Reference(system, measured[0]["signal"], values, chosen)


def with_taken(run: EvaluationRun, scores: Scores) -> EvaluationRun:
    """The run with what was taken for each setting that was `auto`; several values if it changed on the way."""
    taken: dict[str, dict[str, list[str]]] = {}
    for outcome in scores.values():
        for name, choice in (outcome.output.get("chosen") or {}).items():
            values = taken.setdefault(outcome.system, {}).setdefault(name, [])
            if choice["value"] not in values:
                values.append(choice["value"])
    systems = [
        replace(system, context={**system.context, **{k: ", ".join(v) for k, v in taken.get(system.label, {}).items()}})
        for system in run.systems
    ]
    return replace(run, systems=tuple(systems))


def of_system(scores: Scores, system: str, questions: Iterable[RunQuestion]) -> list[ScoredOutcome]:
    """A system's outcomes, in the order of the questions."""
    return [scores[system, question.id] for question in questions if (system, question.id) in scores]


def _parted(
    by_system: Mapping[str, Sequence[ScoredOutcome]], metric: str, reference: Reference, seed: int
) -> list[Parted]:
    """Each system at each threshold of the reference."""
    found = []
    for label, outcomes in by_system.items():
        scored = [
            (reference.uncertainties[outcome.question], outcome.metrics[metric])
            for outcome in outcomes
            if outcome.question in reference.uncertainties and metric in outcome.metrics
        ]
        for threshold in reference.thresholds:
            certain = [score for value, score in scored if value is not None and value <= threshold]
            uncertain = [score for value, score in scored if value is None or value > threshold]
            first, second = (bootstrap_interval(part, seed) if part else None for part in (certain, uncertain))
            found.append(Parted(label, threshold, first, second))
    return found


def _figures(
    label: str, graph: str, outcomes: Sequence[ScoredOutcome], questions: Sequence[RunQuestion], seed: int
) -> SystemFigures:
    failed = sum(outcome.failed for outcome in outcomes)
    values = {metric: values_of(outcomes, metric) for metric in METRICS}
    figures = {metric: bootstrap_interval(some, seed) for metric, some in values.items() if some}
    return SystemFigures(label, graph, len(outcomes) - failed, failed, len(questions) - len(outcomes), figures)


def _pairs(
    compared: Sequence[tuple[str, str]], by_system: Mapping[str, Sequence[ScoredOutcome]], metric: str, seed: int
) -> list[Pair]:
    pairs = []
    for first, second in compared:
        values, others = paired(by_system[first], by_system[second], metric)
        if values:
            difference = bootstrap_interval([one - other for one, other in zip(values, others, strict=True)], seed)
            pairs.append(Pair(first, second, len(values), difference, paired_permutation(values, others, seed)))
        else:
            pairs.append(Pair(first, second, 0, None, None))
    corrected = iter(holm([pair.p for pair in pairs if pair.p is not None]))
    return [pair if pair.p is None else replace(pair, p=next(corrected)) for pair in pairs]


def _failures(outcomes: Iterable[ScoredOutcome]) -> list[Failure]:
    by_reason: dict[tuple[str, str, str], list[ScoredOutcome]] = {}
    for outcome in outcomes:
        if outcome.failed:
            by_reason.setdefault((outcome.system, *outcome.error), []).append(outcome)
    failures = []
    for reason, failed in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        costs = [outcome.cost for outcome in failed if outcome.cost is not None]
        tokens = sum(cost.prompt_tokens + cost.completion_tokens for cost in costs)
        calls = sum(cost.calls for cost in costs)
        failures.append(Failure(*reason, len(failed), int(calls), int(tokens)))
    return failures


def mean_cost(label: str, outcomes: Iterable[ScoredOutcome]) -> MeanCost | None:
    """The mean cost of the answered questions; None if there are none."""
    costs = [outcome.cost for outcome in outcomes if outcome.cost is not None and not outcome.failed]
    if not costs:
        return None
    n, calls = len(costs), sum(cost.calls for cost in costs)
    nodes = dict.fromkeys(node for cost in costs for node in cost.stages)
    return MeanCost(
        **_means(costs, n),
        system=label,
        n=n,
        remembered=sum(cost.remembered for cost in costs) / calls if calls else 0.0,
        remembered_seconds=sum(cost.remembered_seconds for cost in costs) / n,
        stages={
            node: NodeCost(**_means([cost.stages[node] for cost in costs if node in cost.stages], n)) for node in nodes
        },
    )


def _means(costs: Sequence[NodeCost], n: int) -> dict[str, float]:
    """The means over n questions; a question in which the node did not run counts as 0."""
    return {field.name: sum(getattr(cost, field.name) for cost in costs) / n for field in fields(NodeCost)}


def _given(system: System, outcomes: Sequence[ScoredOutcome], questions: Iterable[RunQuestion]) -> GivenAnswers | None:
    promised = [outcome for outcome in outcomes if outcome.output.get("certificate")]
    if not promised:
        return None
    certified = [outcome for outcome in promised if outcome.output["certificate"]["holds"]]
    given = [outcome for outcome in certified if not outcome.output["abstained"]]
    # older outcomes do not say by which rule an answer is right
    by_rule = all(outcome.certified_right is not None for outcome in given)
    right = [bool(outcome.certified_right) if by_rule else outcome.right for outcome in given]
    wrong = right.count(False)
    interval = risk_interval(wrong, len(given), GIVEN_LEVEL) if given else None
    certificate = certified[0].output["certificate"] if certified else {}
    promise, rule = str(certificate.get("sentence", "")), str(certificate.get("right", "")) if by_rule else ""
    uncertified = len(promised) - len(certified)
    known = _calibrated_on(system)
    old = {question.id for question in questions if known and hash_of(question.question) in known}
    repeated = sum(outcome.question in old for outcome in certified)
    return GivenAnswers(system.label, len(certified), len(given), wrong, interval, promise, rule, uncertified, repeated)


def _calibrated_on(system: System) -> frozenset[str]:
    """The hashes of the questions that a system's calibration was made from; none if its file is gone."""
    try:
        return frozenset(AnswerCalibration.read(system.context.get("calibration", ""), system.graph).hashes)
    except UserFault:
        return frozenset()


def _uncertainty_qualities(outcomes: Sequence[ScoredOutcome], seed: int) -> Iterator[UncertaintyQuality]:
    """Of the system's own uncertainty, then of the further signals that its settings measured beside it."""
    # scored as empty, each withheld answer would be wrong, and any uncertainty would seem to tell right from wrong
    answered = [outcome.if_given for outcome in outcomes if not outcome.failed]
    own = dict.fromkeys(outcome.signal["signal"] for outcome in answered if outcome.signal is not None)
    thresholds = {outcome.threshold for outcome in answered if outcome.uncertainty is not None}
    threshold = thresholds.pop() if len(thresholds) == 1 else None
    measured = [outcome.output.get("signals") or {} for outcome in answered]
    further = [name for name in dict.fromkeys(chain.from_iterable(measured)) if name not in own]
    values = [(", ".join(own), threshold, [outcome.uncertainty for outcome in answered])]
    values += [(name, None, [signals.get(name) for signals in measured]) for name in further]
    for signal, above, column in values:
        known = [(outcome, value) for outcome, value in zip(answered, column, strict=True) if value is not None]
        if known:
            yield _uncertainty_quality(signal, known, len(answered) - len(known), above, seed)


def _uncertainty_quality(
    signal: str,
    known: Sequence[tuple[ScoredOutcome, float]],
    unmeasured: int,
    threshold: float | None,
    seed: int,
) -> UncertaintyQuality:
    values = [value for _, value in known]
    f1 = [outcome.metrics["f1"] for outcome, _ in known]
    right = [outcome.right for outcome, _ in known]
    certain, uncertain = (None, None) if threshold is None else by_uncertainty(values, f1, [threshold])
    area = auroc(values, [not is_right for is_right in right])
    confidences = confidences_from(values, right, seed) if len(known) >= LEAST_FOR_ECE else None
    return UncertaintyQuality(
        known[0][0].system,
        signal,
        len(known),
        unmeasured,
        auroc(values, [not outcome.metrics["exact_match"] for outcome, _ in known]),
        area,
        None if area is None else auroc_interval(area, sum(right), len(right) - sum(right)),
        risk_coverage(values, [1 - score for score in f1]).aurc,
        1 - sum(f1) / len(f1),
        None if confidences is None else expected_calibration_error(confidences, right),
        None if confidences is None else chance_calibration_error(confidences, seed),
        threshold,
        certain,
        uncertain,
    )
