"""What a run's outcomes are worth: of each system and question the scores, the system's own doubt, and the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .answers import Standard, answer_scores
from .ranking import retrieval_scores
from .signals import SIGNALS

if TYPE_CHECKING:
    from .bench import Asked, Bench, System
    from .store import Outcome, Store

RIGHT = 0.5
"""The F1 from which an answer counts as right, where right and wrong are told apart."""

MAIN = ("exact_match", "f1", "precision", "recall", "accuracy", "rouge_l")
RETRIEVAL = ("recall@1", "recall@5", "recall@10", "ndcg@10", "mrr")
SEPER = ("seper", "seper_without", "delta_seper")

NAMES = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "accuracy",
    "cover_em": "cover EM",
    "precision": "precision",
    "recall": "recall",
    "rouge_l": "ROUGE-L",
    "ndcg@10": "nDCG@10",
    "mrr": "MRR",
    "seper": "SePer",
    "seper_without": "SePer without",
    "delta_seper": "ΔSePer",
}
"""What metrics are called where people read; those that are missing here are called as they are."""


@dataclass(frozen=True)
class Stage:
    """What a node cost in one question, or a mean over several; seconds of parallel runs add up."""

    calls: float
    prompt_tokens: float
    completion_tokens: float
    seconds: float


@dataclass(frozen=True)
class Cost:
    """What a question cost.

    calls, tokens: as if nothing had been remembered; seconds: as it was; remembered: how many of the calls were
    answered from memory, which once took remembered_seconds; stages: by node.
    """

    calls: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    remembered: int
    remembered_seconds: float
    stages: Mapping[str, Stage]


@dataclass(frozen=True)
class Scored:
    """An outcome and what it is worth.

    answer: None if the question failed, and then there are no metrics, and a cost only where it is known; metrics: by
    name, those only that are defined and were measured; doubt: the system's own uncertainty, higher is less certain,
    None where it tells none, and threshold: above which it calls itself uncertain; error: a failure's type and message.
    """

    system: str
    question: str
    answer: str | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    doubt: float | None = None
    threshold: float | None = None
    cost: Cost | None = None
    error: tuple[str, str] = ("", "")
    output: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Did the question fail?"""
        return self.answer is None

    @property
    def right(self) -> bool:
        """Is the answer right, as far as a threshold on F1 tells?"""
        return self.metrics.get("f1", 0.0) >= RIGHT


Scores = Mapping[tuple[str, str], Scored]
"""By system and question; without those that have no outcome yet."""


def scores_of(bench: Bench, store: Store, standard: Standard = "squad") -> dict[tuple[str, str], Scored]:
    """Everything that has an outcome, scored; what the run does not know (any more) is passed over.

    Raises `UserFault` where questions have gold documents and ir-measures is not installed.
    """
    systems = {system.label: system for system in bench.systems}
    asked = {one.id: one for one in bench.questions}
    beliefs = store.measurements("seper")
    found = {}
    for outcome in store.outcomes():
        if outcome.system in systems and outcome.question in asked:
            key = outcome.system, outcome.question
            one = _scored(outcome, systems[outcome.system], asked[outcome.question], standard)
            found[key] = one if one.failed else replace(one, metrics={**one.metrics, **_belief(beliefs.get(key))})
    return found


def mean_of(scored: Iterable[Scored], metric: str) -> float | None:
    """The mean over those that have the metric; None where none has it."""
    values = values_of(scored, metric)
    return sum(values) / len(values) if values else None


def values_of(scored: Iterable[Scored], metric: str) -> list[float]:
    """The metric of each that has it."""
    return [one.metrics[metric] for one in scored if metric in one.metrics]


def paired(first: Iterable[Scored], second: Iterable[Scored], metric: str) -> tuple[list[float], list[float]]:
    """Both systems' values of a metric for the questions where both have it, in the order of the first."""
    other = {one.question: one.metrics[metric] for one in second if metric in one.metrics}
    both = [one for one in first if metric in one.metrics and one.question in other]
    return [one.metrics[metric] for one in both], [other[one.question] for one in both]


def documents_of(output: Mapping[str, Any]) -> list[str]:
    """The documents of the evidence, in its order."""
    return [str(chunk["doc_id"]) for chunk in chunks_of(output) if "doc_id" in chunk]


def chunks_of(output: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The evidence."""
    return [one for one in output.get("evidence") or [] if isinstance(one, dict)]


def _scored(outcome: Outcome, system: System, asked: Asked, standard: Standard) -> Scored:
    if outcome.output is None:
        error = outcome.error or {}
        cost = _cost(outcome, error["spent"]) if "spent" in error else None
        named = str(error.get("type", "")), outcome.error_message
        return Scored(outcome.system, outcome.question, None, cost=cost, error=named)
    answer = str(outcome.output.get("answer") or "")
    metrics = answer_scores(answer, asked.gold, standard)
    if asked.gold_documents:
        metrics |= retrieval_scores(documents_of(outcome.output), asked.gold_documents)
    signal = SIGNALS.get(system.graph)
    return Scored(
        outcome.system,
        outcome.question,
        answer,
        metrics,
        doubt=signal.doubt(outcome.output) if signal else None,
        threshold=signal.threshold(outcome.output, system.context) if signal else None,
        cost=_cost(outcome, outcome.output.get("usage") or {}),
        output=outcome.output,
    )


def _belief(measured: Mapping[str, Any] | None) -> dict[str, float]:
    if measured is None:
        return {}
    named = {"seper": "seper", "seper_without": "seper_without", "delta": "delta_seper"}
    return {name: float(measured[key]) for key, name in named.items() if measured.get(key) is not None}


def _cost(outcome: Outcome, usage: Mapping[str, Any]) -> Cost:
    stages = {
        str(node): Stage(one["calls"], one["prompt_tokens"], one["completion_tokens"], one["seconds"])
        for node, one in (usage.get("nodes") or {}).items()
    }
    return Cost(
        usage.get("calls", 0),
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        outcome.seconds,
        outcome.remembered,
        outcome.remembered_seconds,
        stages,
    )
