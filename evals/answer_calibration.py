"""How uncertain an answer of any graph may be to be given, so that few of the answers given are wrong."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ..errors import UserFault, either
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import counted, figure
from ..resources.opening import check_corpus
from ..state.calibration import AnswerCalibration, Combination, identity, settings_of
from ..state.mixins import AnsweringContext, CorpusContext
from ..uncertainty.conformal import conformal_threshold, fewest_right
from ..uncertainty.risk_control import (
    MOST_QUESTIONS,
    Plan,
    certified_threshold,
    conformal_risk_threshold,
    fewest_certified,
    fewest_leaving,
    learning_part,
    least_certified_risk,
    logistic_regression,
    looks_alike,
    questions_needed,
    risk_interval,
)
from .calibration import CalibrationReport, CalibrationRequest, Calibrator, Judged
from .reliability import auroc

T = TypeVar("T")

LEVEL = 0.9
"""Level of the intervals around a risk."""

COMBINED = "probability of an error"
"""The name of the uncertainty that is combined from several signals."""

MOSTLY_KNOWN = 0.9
"""A signal is combined with others if it is known for this share of the answers."""

LEAST_SPREAD = 1e-9
"""A signal with a smaller standard deviation is constant."""

LEAST_P = 0.05
"""New questions with a smaller p-value differ from those of the calibration."""

ALL_CALIBRATED_ON = "All of these questions were calibrated on, so they check nothing: ask others."


class JudgedAnswer(NamedTuple):
    """The uncertainty of an answer, ∞ if it is unknown or there is no answer; whether it is right; did the run fail?"""

    uncertainty: float
    right: bool
    failed: bool = False


class AnswerOptions(BaseModel):
    """The options of the calibration."""

    risk: float | None = Field(
        default=None, title="SHARE", description="The share of the answers given that may be wrong, in (0, 1)."
    )
    keep: float | None = Field(
        default=None,
        title="SHARE",
        description="In place of --risk: the share of right answers to give, on average, in (0, 1).",
    )
    average: float | None = Field(
        default=None,
        title="SHARE",
        description="In place of --risk: the share of all questions that may be answered wrong, on average, in (0, 1).",
    )
    check: Path | None = Field(
        default=None,
        title="FILE",
        description="Write no file: say whether these questions still look like those of this calibration.",
    )
    plan: float | None = Field(
        default=None,
        title="SHARE",
        description="Write no file: say how many questions it takes to certify --risk for this share of answers.",
    )
    beyond: float | None = Field(
        default=None,
        title="SHARE",
        description="With --risk, of escalate: also the share of all questions that the first rung may leave to the "
        "others, in (0, 1).",
    )
    tokens: float | None = Field(
        default=None,
        title="N",
        description="With --risk, of escalate: also the most tokens that a question may cost on average, read and "
        "written.",
    )
    confidence: float = Field(
        default=0.9, title="SHARE", description="The confidence with which --risk is promised, in (0, 1)."
    )
    holdout: float = Field(
        default=0.25, ge=0.0, le=0.95, title="SHARE", description="The share of questions to try the threshold on."
    )
    seed: int = Field(default=0, ge=0, title="N", description="The seed for drawing these questions.")


class Part(NamedTuple):
    """Some of the questions, and what a threshold does with them. errors: answers given that are wrong."""

    questions: int
    right: int
    answered: int
    errors: int

    def risk_interval(self) -> tuple[float, float] | None:
        """The exact interval of the share of the answers given that is wrong; None if none is given."""
        return risk_interval(self.errors, self.answered, LEVEL) if self.answered else None


class AnswerCalibrator(Calibrator[AnsweringContext, AnswerOptions]):
    """Find how uncertain an answer may be to be given.

    The graph answers each question, and its uncertainty is measured as the settings say. With --risk, at most this
    share of the answers given is wrong, with --confidence. With --keep, this share of the right answers is given. FILE
    may be the folder of a finished evaluation, too: its answers are read. Outcomes are kept: run the same command again
    to go on.
    """

    options = AnswerOptions

    def __init__(self, context: AnsweringContext, given: AnswerOptions) -> None:
        """Refuse a share outside (0, 1), a calibration of a calibration, and a corpus that does not exist."""
        super().__init__(context, given)
        if not isinstance(context, AnsweringContext):
            raise UserFault(f"{self.graph} measures chunks and gives no answers to calibrate: name another graph.")
        shares = {name: getattr(given, name) for name in ("risk", "keep", "average", "plan")}
        for name in ("beyond", "tokens"):
            if getattr(given, name) is not None:
                raise UserFault(f"--{name} is for the rungs of a cascade, and {self.graph} is none: leave it out.")
        for name, share in {**shares, "confidence": given.confidence}.items():
            if share is not None and not 0 < share < 1:
                raise UserFault(f"--{name} is {share:g}: give a number between 0 and 1, such as 0.1.")
        guarantees = sum(shares[name] is not None for name in ("risk", "keep", "average"))
        if given.plan is not None and given.risk is None:
            raise UserFault("--plan needs the risk to certify: give --risk, such as --risk 0.1.")
        if guarantees and given.check is not None:
            raise UserFault("--check tests a calibration by its own guarantee: leave --risk, --keep and --average out.")
        if guarantees != 1 and given.check is None:
            raise UserFault(
                "Name one guarantee: --risk 0.1 for few wrong answers, --keep 0.9 for the right ones, or --average 0.1 "
                "for few wrong answers among all questions."
            )
        if context.uncertainty == "own" and not context.measures_itself:
            raise UserFault(
                f"{self.graph} measures no uncertainty of its own: set uncertainty=semantic_entropy, which works for "
                "every graph."
            )
        if context.calibration:
            raise UserFault("A calibration is made from all answers: leave the setting calibration out.")
        if isinstance(context, CorpusContext):
            check_corpus(context.corpus)

    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Find the threshold on one part of the questions, try it on the other part, and save the file."""
        given = self.given
        old = None if given.check is None else self._checkable(given.check, request)
        judged = request.judged(self.context)
        hashes = [hash_of(question.question) for question in request.questions]
        if old is not None:
            return self._checked(old, answers_of(judged, old.combination), hashes)
        judged_used, _ = split(judged, given.holdout, given.seed)
        combines = self.context.uncertainty == "combined"
        combination = learned_combination(judged_used, given.seed) if combines else None
        answers = answers_of(judged, combination)
        used, held_back = split(answers, given.holdout, given.seed)
        unlearned = self._unlearned(used)
        if given.plan is not None:
            return self._planned([*unlearned, *held_back], given.plan)
        hashes_used, _ = split(hashes, given.holdout, given.seed)
        threshold = self._threshold(used)
        tried, held = part_of(used, threshold), part_of(held_back, threshold)
        found = AnswerCalibration(
            technique=self.graph,
            model=identity(self.context.llm),
            settings=settings_of(self.context),
            threshold=threshold,
            guarantee=self._guarantee,
            signal=COMBINED if combination else signal_of(judged),
            combination=combination,
            alpha=self._alpha,
            confidence=given.confidence if given.risk is not None else None,
            right=request.right,
            n=tried.questions,
            answered=tried.answered,
            errors=tried.errors,
            failed=sum(answer.failed for answer in answers),
            uncertainties=[value if math.isfinite(value) else None for value in map(measured, unlearned)],
            hashes=hashes_used,
            corpus=request.corpus,
            context=context_with(self.context, request.corpus),
            made_with={
                **request.made_with,
                "holdout": given.holdout,
                "seed": given.seed,
            },
        )
        found.save(request.out)
        separation = _separation([*unlearned, *held_back])
        figures = {"auroc": separation, "held_back": held._asdict(), "held_back_risk": held.risk_interval()}
        return CalibrationReport(found, _blocks(found, tried, held, separation), figures)

    def _unlearned(self, answers: Sequence[JudgedAnswer]) -> list[JudgedAnswer]:
        """The answers from which no weights were learned."""
        if self.context.uncertainty != "combined":
            return [*answers]
        return [answers[place] for place in learning_part(len(answers), self.given.seed)[1]]

    def _checkable(self, file: Path, request: CalibrationRequest) -> AnswerCalibration:
        """The calibration in a file; `UserFault` if it is for another corpus or another rule for right answers."""
        old = AnswerCalibration.load(file, self.graph, self.context)
        check_comparable(old, file, request.right, request.corpus)
        return old

    def _checked(
        self, old: AnswerCalibration, answers: Sequence[JudgedAnswer], hashes: Sequence[str]
    ) -> CalibrationReport:
        """Do new answers look like those of the calibration, and how many of those it gives are wrong?

        Questions that were calibrated on say nothing and are left out.
        """
        before = [math.inf if value is None else value for value in old.uncertainties]
        known = set(old.hashes)
        new = [answer for answer, hashed in zip(answers, hashes, strict=True) if hashed not in known]
        if not new:
            raise UserFault(ALL_CALIBRATED_ON)
        drift = looks_alike(before, [*map(measured, new)], self.given.seed)
        now = part_of(new, old.threshold)
        verdict, figures = verdict_of(old, now, alike=drift.p_value > LEAST_P)
        comparison = (
            f"The probability that a new answer is less sure than an old one is {drift.less_sure:.2f}, and 0.5 is the "
            f"same (p = {drift.p_value:.3g})."
        )
        repeated = len(answers) - len(new)
        blocks = [*verdict, Words(comparison), *left_out(repeated), *risk_of(now, "to these questions")]
        figures |= {"calibrated_on": repeated, **drift._asdict(), **now._asdict(), "risk": now.risk_interval()}
        return CalibrationReport(None, blocks, figures)

    def _planned(self, answers: Sequence[JudgedAnswer], coverage: float) -> CalibrationReport:
        """How many questions certify the risk for a share of answers, at the accuracy and AUROC of these answers?"""
        given, separation = self.given, _separation(answers)
        known = [answer.right for answer in answers if math.isfinite(measured(answer))]
        failed = sum(answer.failed for answer in answers) / len(answers)
        unknown = 1 - failed - len(known) / len(answers)
        if separation is None or given.risk is None:
            raise UserFault("All answers are right, or all are wrong, so nothing can be planned: give other questions.")
        if coverage >= 1 - unknown:
            raise UserFault(
                f"Only {1 - unknown:.0%} of the questions have an answer of known uncertainty: give a smaller --plan."
            )
        right = sum(known) / len(known)
        columns = np.array([[answer.uncertainty, not answer.right, answer.failed] for answer in answers]).T[:, :, None]
        u, wrong, failures = columns
        plan = questions_needed(
            u,
            wrong,
            np.zeros_like(u),
            failures,
            alpha=given.risk,
            coverage=coverage,
            confidence=given.confidence,
            seed=given.seed,
        )
        blocks, figures = planned(plan, given)
        seen = f"{right:.0%} of {counted(len(known), 'answer')} are right, and the AUROC is {separation:.2f}."
        about = {"right": right, "failed": failed, "unknown": unknown, "auroc": separation}
        return CalibrationReport(None, [*blocks, Words(seen, "dim")], {**about, **figures})

    @property
    def _guarantee(self) -> Literal["risk", "kept", "average"]:
        if self.given.risk is not None:
            return "risk"
        return "kept" if self.given.keep is not None else "average"

    @property
    def _alpha(self) -> float:
        given = self.given
        return given.risk or given.average or round(1 - (given.keep or 0), 12)

    def _threshold(self, answers: Sequence[JudgedAnswer]) -> float:
        right = sum(answer.right for answer in answers)
        if not right:
            raise UserFault(
                f"None of the {len(answers)} questions to calibrate on was answered right: give more or easier "
                "questions, a better model, or a more tolerant rule for right answers."
            )
        if self.given.risk is None:  # certification itself leaves out what was learned from
            answers = self._unlearned(answers)
            right = sum(answer.right for answer in answers)
        values = np.array([answer.uncertainty for answer in answers])
        wrong = np.array([not answer.right for answer in answers])
        if not np.isfinite(values).any():
            raise UserFault(
                f"{self.graph} measured no uncertainty for these questions: set uncertainty=semantic_entropy, which "
                "works for every graph."
            )
        if self.given.average is not None:
            on_average = conformal_risk_threshold(values, wrong, self.given.average)
            if on_average is None:
                raise UserFault(
                    f"No threshold keeps the share of questions answered wrong at {self.given.average:g} with "
                    f"{counted(len(values), 'question')}: give more questions, or a larger --average."
                )
            return on_average
        if self.given.risk is None:
            threshold = conformal_threshold(values[~wrong], self._alpha)
            if not math.isfinite(threshold):
                raise UserFault(
                    f"{counted(right, 'right answer')} to calibrate on: to leave out {self._alpha:g} of them takes "
                    f"{fewest_right(self._alpha)} of known uncertainty. Give more questions, or a lower --keep."
                )
            return threshold
        fewest = fewest_certified(self.given.risk, self.given.confidence)
        if len(values) < fewest:
            questions = fewest_leaving(fewest, self.given.holdout)
            raise UserFault(
                f"{counted(len(values), 'question')} to calibrate on cannot certify a risk of {self.given.risk:g} with "
                f"confidence {self.given.confidence:g} even if all are answered right: give at least {questions:,} "
                f"questions in all{held_back(questions, self.given)}, or a larger --risk."
            )
        certified = certified_threshold(
            values, wrong, alpha=self.given.risk, confidence=self.given.confidence, seed=self.given.seed
        )
        if certified is None:
            raise UserFault(nothing_certified(values, wrong, self.given, [self.context]))
        return certified.threshold


def planned(plan: Plan, given: AnswerOptions) -> tuple[list[Block], dict[str, Any]]:
    """How many questions, with those held back, certify the risk for the coverage `given.plan`."""
    questions = None if plan.questions is None else fewest_leaving(plan.questions, given.holdout)
    if questions is not None:
        needed = f"It takes about {questions:,} questions{held_back(questions, given)}, in 4 of 5 calibrations"
    elif plan.oracle_risk < (given.risk or 0):
        most = fewest_leaving(MOST_QUESTIONS, given.holdout)
        needed = f"It takes more than about {most:,} questions{held_back(most, given)}"
    else:
        needed = "No number of questions is enough"
    sentence = f"{needed}, to certify a risk of {given.risk:g} where {given.plan:.0%} of the questions are answered."
    best = (
        f"With the best thresholds {plan.oracle_risk:.0%} of these answers are wrong, and a risk of {given.risk:g} "
        f"leaves {plan.oracle_coverage:.0%} of the questions answered."
    )
    return [Words(sentence, "strong"), Words(best)], {**plan._asdict(), "questions": questions}


def held_back(questions: int, given: AnswerOptions) -> str:
    """How many of these questions would be held back, as words to put behind their number."""
    held = round(questions * given.holdout)
    return f", {held:,} of them held back (--holdout {given.holdout:g})" if held else ""


def check_comparable(old: AnswerCalibration, file: Path, right: str, corpus: str | None) -> None:
    """Raise `UserFault` if answers from this corpus, judged by this rule, do not check the calibration of this file."""
    if None not in (old.corpus, corpus) and old.corpus != corpus:
        raise UserFault(
            f"The calibration '{file}' was made with another corpus, so these answers do not check it: use the corpus "
            "it was made with, or calibrate again."
        )
    if old.right != right:
        raise UserFault(
            f"The calibration '{file}' counts answers as right by {old.right}, not {right}: leave --right out."
        )


def verdict_of(old: AnswerCalibration, now: Part, *, alike: bool) -> tuple[list[Block], dict[str, Any]]:
    """Does the calibration still hold? now: what it does with new questions; alike: do their uncertainties look alike?

    A risk that was promised is exceeded if even the lower end of its interval is above it.
    """
    risk = now.risk_interval()
    too_many = old.guarantee == "risk" and risk is not None and risk[0] > old.alpha
    again = f"calibrate {old.technique} again with new questions."
    if too_many:
        said = f"More of the answers given are wrong than the {old.alpha:g} that the calibration allows: {again}"
    elif not alike:
        said = f"These questions differ from those of the calibration, which no longer holds: {again}"
    else:
        said = "These questions look like those of the calibration."
    return [Words(said, "strong" if alike and not too_many else "warn")], {"alike": alike, "too_many_errors": too_many}


def left_out(repeated: int) -> list[Block]:
    """How many questions check nothing, if any."""
    if not repeated:
        return []
    return [Words(f"{counted(repeated, 'question')} of these were calibrated on, and are left out.", "warn")]


def nothing_certified(
    values: NDArray[np.float64], wrong: NDArray[np.bool_], given: AnswerOptions, contexts: Sequence[AnsweringContext]
) -> str:
    """Why no threshold could be certified, and what to do. values, wrong: [n], or [n, rungs] of a cascade."""
    least = least_certified_risk(values, wrong, above=given.risk or 0.0, confidence=given.confidence, seed=given.seed)
    best = "no risk can be certified with these answers" if least is None else f"the least risk is about {least:g}"
    share = wrong.mean(axis=0).min()
    half = 1 - (1 - given.confidence) / 2
    remedies = ["more questions", "a larger --risk"]
    if any(context.uncertainty not in ("semantic_entropy", "combined") for context in contexts):
        remedies.append("another uncertainty (--set uncertainty=semantic_entropy)")
    return (
        f"No threshold can be certified for a risk of {given.risk:g} with confidence {given.confidence:g}: of "
        f"{counted(len(values), 'question')} {share:.0%} are answered wrong, and {best}. Give {either(remedies)}. "
        "--plan SHARE says how many questions it takes. Ask new questions for it. Each further try with the same ones, "
        "also among others, is another test: to keep this confidence over several tries, all of them need --confidence "
        f"1 - {1 - given.confidence:.3g} / tries, such as {half:.4g} for two."
    )


def answer_of(judged: Judged, combination: Combination | None = None) -> JudgedAnswer:
    """An answer in the terms of a calibration."""
    if judged is None:
        return JudgedAnswer(math.inf, right=False, failed=True)
    output, right = judged
    value = (output.get("uncertainty") or {}).get("value")
    if combination is not None:
        value = combination.value(output.get("signals") or {})
    if value is None or not str(output["answer"]).strip():
        return JudgedAnswer(math.inf, right)
    return JudgedAnswer(float(value), right)


def learned_combination(judged: Sequence[Judged], seed: int) -> Combination:
    """Weights for all signals of these answers, learned from the part of the questions that may be learned from.

    Logistic regression on the standardised signals, with half the squared weights as the penalty. Raises `UserFault`
    if that part has no right or no wrong answers.
    """
    places, _ = learning_part(len(judged), seed)
    learned = [one for place in places if (one := judged[place]) is not None and one[0].get("signals")]
    names = list(dict.fromkeys(name for output, _ in learned for name in output["signals"]))
    rows = np.array([[output["signals"].get(name) for name in names] for output, _ in learned], dtype=np.float64)
    rows = rows.reshape(len(learned), len(names))
    known = np.isfinite(rows)
    # one that often cannot be measured would leave many questions without an answer
    kept = [column for column in range(len(names)) if known[:, column].mean() >= MOSTLY_KNOWN]
    complete = known[:, kept].all(axis=1)
    wrong = np.array([not right for _, right in learned], dtype=bool)[complete]
    signals = rows[complete][:, kept]
    if not kept or wrong.all() or not wrong.any():
        raise UserFault(
            f"The {counted(len(learned), 'answer')} to learn the weights of the signals from need both right and "
            "wrong ones: give more questions, or name one uncertainty (--set uncertainty=semantic_entropy)."
        )
    mean, spread = signals.mean(axis=0), signals.std(axis=0)
    spread[spread < LEAST_SPREAD] = math.inf  # a signal that is always the same tells nothing
    features = np.column_stack([np.ones(len(wrong)), (signals - mean) / spread])
    intercept, *weights = logistic_regression(features, wrong, [1e-6] + [1.0] * len(kept)).tolist()
    scaled = np.array(weights) / spread
    return Combination(
        intercept=intercept - float(scaled @ mean),
        weights=dict(zip([names[column] for column in kept], scaled.tolist(), strict=True)),
    )


def answers_of(judged: Sequence[Judged], combination: Combination | None) -> list[JudgedAnswer]:
    """All answers in these terms, a failed question as a wrong answer that any threshold gives."""
    return with_failures([answer_of(one, combination) for one in judged])


def context_with(context: AnsweringContext, corpus: str | None) -> dict[str, Any]:
    """All settings as JSON. corpus: the hash of its chunks; without one, the name of the corpus says nothing."""
    values = context.model_dump(mode="json")
    return {name: value for name, value in values.items() if name != "corpus" or corpus is not None}


def with_failures(answers: Sequence[JudgedAnswer]) -> list[JudgedAnswer]:
    """Each failed question as a wrong answer that any threshold gives: it has the least uncertainty of all."""
    least = min((answer.uncertainty for answer in answers), default=math.inf)
    return [answer._replace(uncertainty=least) if answer.failed else answer for answer in answers]


def hash_of(question: str) -> str:
    """A hash by which a question is known again, whatever its case and white space."""
    return hashlib.sha256(" ".join(question.casefold().split()).encode()).hexdigest()[:16]


def signal_of(judged: Sequence[Judged]) -> str:
    """The name of the uncertainty; settings that are equal give one."""
    named = (one[0].get("uncertainty") for one in judged if one is not None)
    return next((str(uncertainty["signal"]) for uncertainty in named if uncertainty), "")


def calibrator_for(graph: str) -> type[AnswerCalibrator]:
    """The calibrator of a graph's answers."""

    class GraphCalibrator(AnswerCalibrator):
        __doc__ = AnswerCalibrator.__doc__
        examples: ClassVar[Sequence[str]] = (
            f"dubito calibrate {graph} questions.jsonl --corpus notes.index --risk 0.2",
            f"dubito calibrate {graph} questions.jsonl --risk 0.2 --set uncertainty=semantic_entropy",
            f"dubito calibrate {graph} evaluations/mine --risk 0.2 --confidence 0.95",
        )

    GraphCalibrator.graph = graph
    return GraphCalibrator


def split(answers: Sequence[T], holdout: float, seed: int) -> tuple[list[T], list[T]]:
    """Draw n answers at random into a calibration part and round(n · holdout) held-back ones."""
    drawn = [answers[i] for i in np.random.default_rng(seed).permutation(len(answers))]
    held = round(len(answers) * holdout)
    return drawn[held:], drawn[:held]


def part_of(answers: Sequence[JudgedAnswer], threshold: float) -> Part:
    """What the threshold does with these answers; a failed question counts as a wrong answer that it gives."""
    given = [answer for answer in answers if answer.failed or answer.uncertainty <= threshold]
    right = sum(answer.right for answer in answers)
    return Part(len(answers), right, len(given), sum(not answer.right for answer in given))


def _blocks(found: AnswerCalibration, used: Part, held: Part, separation: float | None) -> list[Block]:
    columns = ["", "questions", "right", "given", "of these wrong"]
    rows = [Row([Cell(name), *map(num, part)]) for name, part in (("calibration", used), ("held back", held))]
    blocks: list[Block] = [
        Words(f"Give an answer whose {found.signal} is at most {figure(found.threshold)}.", "strong"),
        Words(found.promise()),
        Table(columns, rows),
    ]
    blocks += risk_of(held, "among the questions held back")
    if separation is not None:
        blocks.append(Words(f"The AUROC of this uncertainty is {separation:.2f}, and 0.5 is chance."))
    if found.combination is not None:
        weights = ", ".join(f"{figure(weight)} for the {name}" for name, weight in found.combination.weights.items())
        blocks.append(Words(f"It is combined from several signals with the weights {weights}."))
    if found.failed:
        failed = counted(found.failed, "question")
        blocks.append(Words(f"Warning: {failed} failed; each counts as a wrong answer that is given.", "warn"))
    return blocks


def risk_of(part: Part, where: str) -> list[Block]:
    """The share of the answers given that is wrong."""
    interval = part.risk_interval()
    if interval is None:
        return [Words(f"No answer is given {where}.")]
    low, high = interval
    sentence = (
        f"Of the {counted(part.answered, 'answer')} given {where} {part.errors / part.answered:.0%} are wrong; the "
        f"{LEVEL:.0%} interval of this share is {low:.0%} to {high:.0%}."
    )
    return [Words(sentence)]


def measured(answer: JudgedAnswer) -> float:
    """The uncertainty that was measured; ∞ where the run failed."""
    return math.inf if answer.failed else answer.uncertainty


def _separation(answers: Sequence[JudgedAnswer]) -> float | None:
    known = [answer for answer in answers if math.isfinite(measured(answer))]
    return auroc([answer.uncertainty for answer in known], [not answer.right for answer in known])
