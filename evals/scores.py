"""The scores of a run's outcomes: for each system and question the metrics, the uncertainty, and the cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..state.records import Uncertainty
from .answers import MEASURED, Standard, answer_rule, answer_scores, is_right
from .ranking import retrieval_scores
from .run_folder import EvaluationRun, RunQuestion
from .store import Outcome, Store

RIGHT = 0.5
"""An answer with at least this F1 counts as right."""

MAIN = ("exact_match", "f1", "precision", "recall", "accuracy", "rouge_l", "bertscore")
RETRIEVAL = ("recall@1", "recall@5", "recall@10", "ndcg@10", "mrr")
PLAN = ("plan_length",)
CITED = ("cited", "marks_exist", "marks_supported")
SEPER = ("seper", "seper_without", "delta_seper")
JUDGED = ("contribution", "correctness", "correctness_without", "delta_correctness")

_MEASURED_OF_GIVEN = ("bertscore", *JUDGED)
"""Metrics that were measured of the answer that was given, and are unknown of one that was withheld."""

NAMES = {
    "exact_match": "EM",
    "f1": "F1",
    "cover_em": "cover EM",
    "rouge_l": "ROUGE-L",
    "bleu": "BLEU",
    "bertscore": "BERTScore",
    "ndcg@10": "nDCG@10",
    "mrr": "MRR",
    "plan_length": "steps",
    "marks_exist": "marks that exist",
    "marks_supported": "marks supported",
    "seper": "SePer",
    "seper_without": "SePer without",
    "delta_seper": "ΔSePer",
    "contribution": "contribution of the evidence",
    "correctness": "correctness",
    "correctness_without": "correctness without",
    "delta_correctness": "Δcorrectness",
}
"""The names of metrics for people. Other metrics keep their own name."""


@dataclass(frozen=True)
class NodeCost:
    """The cost of a node in one question, or its mean over several. Seconds of parallel runs add up."""

    calls: float
    prompt_tokens: float
    completion_tokens: float
    seconds: float


@dataclass(frozen=True)
class Cost(NodeCost):
    """The cost of a question.

    calls, prompt_tokens, completion_tokens: cached calls included; seconds: as measured; remembered: calls that were
    served from the cache; remembered_seconds: how long those calls took when they were made; stages: by node.
    """

    remembered: int
    remembered_seconds: float
    stages: Mapping[str, NodeCost]


@dataclass(frozen=True)
class ScoredOutcome:
    """An outcome with its scores.

    answer: None after a failure, which has no metrics and a cost only if it is known; metrics: those that are defined
    and were measured; error: type and message of a failure; withheld: the scores of the answer that was withheld,
    empty if none was; certified_right: whether the answer is right by the rule of its certificate, None without one
    and if what the rule reads was not measured.
    """

    system: str
    question: str
    answer: str | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    error: tuple[str, str] = ("", "")
    output: Mapping[str, Any] = field(default_factory=dict)
    withheld: Mapping[str, float] = field(default_factory=dict)
    certified_right: bool | None = None

    @property
    def failed(self) -> bool:
        """Did the question fail?"""
        return self.answer is None

    @property
    def right(self) -> bool:
        """Is the F1 of the answer at least `RIGHT`?"""
        return self.metrics.get("f1", 0.0) >= RIGHT

    @property
    def if_given(self) -> "ScoredOutcome":
        """The outcome as if a withheld answer had been given: its uncertainty is that of this answer."""
        if not self.withheld:
            return self
        known = {name: value for name, value in self.metrics.items() if name not in _MEASURED_OF_GIVEN}
        return replace(self, metrics={**known, **self.withheld})

    @property
    def signal(self) -> Uncertainty | None:
        """The technique's own uncertainty; None if it measures none."""
        uncertainty: Uncertainty | None = self.output.get("uncertainty")
        return uncertainty

    @property
    def uncertainty(self) -> float | None:
        """The value of that uncertainty, larger is less sure; None if it is unknown."""
        return None if self.signal is None else self.signal["value"]

    @property
    def threshold(self) -> float | None:
        """The technique calls answers with a larger uncertainty uncertain; None if it has no threshold."""
        return None if self.signal is None else self.signal["threshold"]


Scores = Mapping[tuple[str, str], ScoredOutcome]
"""By system and question; without the questions that have no outcome yet."""


def scores_of(run: EvaluationRun, store: Store, standard: Standard = "squad") -> dict[tuple[str, str], ScoredOutcome]:
    """Score all outcomes of the run's systems and questions.

    Raises `UserFault` if questions have gold documents and ir-measures is not installed.
    """
    systems = {system.label for system in run.systems}
    questions = {question.id: question for question in run.questions}
    measured = store.measurements("seper")
    further = [store.measurements(name) for name in ("llm_judge", "bertscore")]
    return {
        (outcome.system, outcome.question): _scored(
            outcome,
            questions[outcome.question],
            standard,
            measured.get((outcome.system, outcome.question), {}),
            [values.get((outcome.system, outcome.question), {}) for values in further],
        )
        for outcome in store.outcomes()
        if outcome.system in systems and outcome.question in questions
    }


def values_of(outcomes: Iterable[ScoredOutcome], metric: str) -> list[float]:
    """The values of a metric, without the outcomes that do not have it."""
    return [outcome.metrics[metric] for outcome in outcomes if metric in outcome.metrics]


def paired(
    first: Iterable[ScoredOutcome], second: Iterable[ScoredOutcome], metric: str
) -> tuple[list[float], list[float]]:
    """Both systems' values of a metric on the questions where both have it, in the order of the first."""
    other = {outcome.question: outcome.metrics[metric] for outcome in second if metric in outcome.metrics}
    both = [outcome for outcome in first if metric in outcome.metrics and outcome.question in other]
    return [outcome.metrics[metric] for outcome in both], [other[outcome.question] for outcome in both]


def documents_of(output: Mapping[str, Any]) -> list[str]:
    """The ids of the evidence's documents, in its order."""
    return [str(chunk["doc_id"]) for chunk in chunks_of(output) if "doc_id" in chunk]


def chunks_of(output: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The evidence's chunks."""
    return [chunk for chunk in output.get("evidence") or [] if isinstance(chunk, dict)]


def _scored(
    outcome: Outcome,
    question: RunQuestion,
    standard: Standard,
    seper: Mapping[str, float | None],
    further: Sequence[Mapping[str, float]],
) -> ScoredOutcome:
    if outcome.output is None:
        error = outcome.error or {}
        cost = _cost(outcome, error["spent"]) if "spent" in error else None
        reason = str(error.get("type", "")), outcome.error_message
        return ScoredOutcome(outcome.system, outcome.question, None, cost=cost, error=reason)
    answer = str(outcome.output.get("answer") or "")
    metrics = answer_scores(answer, question, standard)
    if question.gold_documents:
        metrics |= retrieval_scores(documents_of(outcome.output), question.gold_documents)
    if isinstance(plan := outcome.output.get("plan"), list):
        metrics["plan_length"] = float(len(plan))
    metrics |= _cited(outcome.output)
    for name, key in zip(SEPER, ("seper", "seper_without", "delta"), strict=True):
        if (value := seper.get(key)) is not None:
            metrics[name] = float(value)
    for values in further:
        metrics |= {name: float(value) for name, value in values.items() if name in NAMES}
    cost = _cost(outcome, outcome.output.get("usage") or {})
    withheld = str(outcome.output.get("withheld_answer") or "")
    named = (outcome.output.get("certificate") or {}).get("right")
    rule = None if named is None else answer_rule(named)
    if rule is not None and rule.metric in MEASURED and rule.metric not in metrics:
        rule = None
    return ScoredOutcome(
        outcome.system,
        outcome.question,
        answer,
        metrics,
        cost,
        output=outcome.output,
        withheld=answer_scores(withheld, question, standard) if withheld else {},
        certified_right=None if rule is None else is_right(answer, question, rule, metrics),
    )


def _cited(output: Mapping[str, Any]) -> dict[str, float]:
    """Does the answer cite a passage, and the shares of its marks that exist and, of those checked, are supported."""
    if not output.get("cited_answer"):
        return {}
    marks = output["citations"]
    checked = [one["verdict"] == "supported" for one in marks if one["verdict"] in ("supported", "unsupported")]
    exist = [bool(one["exists"]) for one in marks]
    shares = {"marks_exist": exist, "marks_supported": checked}
    found = {name: sum(values) / len(values) for name, values in shares.items() if values}
    return {"cited": float(any(exist)), **found}


def _cost(outcome: Outcome, usage: Mapping[str, Any]) -> Cost:
    stages = {
        str(name): NodeCost(node["calls"], node["prompt_tokens"], node["completion_tokens"], node["seconds"])
        for name, node in (usage.get("nodes") or {}).items()
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
