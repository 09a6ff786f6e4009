"""The conformal threshold of SUNAR's answer consistency, found on one part of the questions and tried on the other.

The graph `consistent_sunar` is SUNAR with one more step:

begin ─> sunar ─> measure_consistency
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from langgraph.graph import END
from pydantic import BaseModel, ConfigDict, Field

from ..errors import UserFault
from ..graphs import sunar
from ..graphs.wiring import Machine
from ..nodes.consistency import measure_consistency
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import counted
from ..resources.opening import check_corpus
from ..resources.resources import Resources
from ..state.calibration import Calibration, identity, settings_of
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState
from ..uncertainty import conformal_threshold, coverage
from ..uncertainty.conformal import ROUNDING
from .calibration import CalibrationReport, CalibrationRequest, Calibrator

if TYPE_CHECKING:
    from ..graphs.registry import Graph

T = TypeVar("T")

GRAPH = "consistent_sunar"


class ConsistentContext(SunarContext):
    """Settings of SUNAR. The final answer is sampled and judged with every penalty."""

    always_used: ClassVar[frozenset[str]] = frozenset({"judge", "samples", "temperature"})


class ConsistentState(SunarState, total=False):
    """SUNAR's state, the samples of its final answer, and the share of them that means the same as it."""

    consistency: float
    resampled: list[str]


class ConsistentOutput(SunarOutput):
    """SUNAR's output, the samples of its final answer, and the consistency of that answer, in [0, 1]."""

    consistency: float
    resampled: list[str]


def build(
    resources: Resources | None = None,
) -> Machine[ConsistentState, ConsistentContext, Question, ConsistentOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(ConsistentState, ConsistentContext, Question, ConsistentOutput, resources)
    graph.add_prepare(name="begin")
    graph.add_node("sunar", sunar.build(resources).compile(name="sunar"))
    graph.add_steps(measure_consistency)
    graph.add_path("begin", "sunar", "measure_consistency", END)
    return graph


class PartCounts(BaseModel):
    """The answers of one part of the questions: right and wrong ones, and how many of each are kept."""

    model_config = ConfigDict(frozen=True)

    questions: int
    failed: int
    right: int
    wrong: int
    kept_right: int
    kept_wrong: int


class ScoredAnswer(NamedTuple):
    """An answer's score, in [0, 1], and whether the answer is right."""

    score: float
    right: bool


class SunarCalibration(Calibration):
    """A threshold that keeps right answers with probability at least 1 − alpha (`dubito.uncertainty.conformal`).

    An answer is kept iff its consistency is at least the threshold. n: right answers that it was found from; coverage:
    the share of held-back right answers that it keeps, null if there are none; calibration, held_back: the counts.
    """

    technique: Literal["sunar"]
    alpha: float
    n: int
    coverage: float | None
    right: str
    calibration: PartCounts
    held_back: PartCounts


class SunarOptions(BaseModel):
    """The options of the calibration."""

    alpha: float = Field(
        default=0.1, title="SHARE", description="The share of right answers that may be lost, in (0, 1)."
    )
    holdout: float = Field(
        default=0.5, ge=0.0, le=0.95, title="SHARE", description="The share of questions to try the threshold on."
    )
    seed: int = Field(default=0, ge=0, title="N", description="The seed for drawing these questions.")


class SunarCalibrator(Calibrator[ConsistentContext, SunarOptions]):
    """Find how consistent an answer of SUNAR must be, to keep right answers with probability 1 - alpha.

    SUNAR answers each question, and its final answer is sampled again. The answer's consistency is the share of samples
    that mean the same. Outcomes are kept: run the same command again to go on.
    """

    graph = GRAPH
    options = SunarOptions
    examples = (
        "dubito calibrate sunar questions.jsonl --corpus notes.index --alpha 0.1",
        "dubito calibrate sunar hotpotqa:dev.json --set budget=32 --set samples=5 --limit 100",
        'dubito calibrate sunar questions.jsonl --llm "vllm:http://127.0.0.1:8000/v1#my-model" --at-once 8 --json',
    )

    def __init__(self, context: ConsistentContext, given: SunarOptions) -> None:
        """Refuse an alpha outside (0, 1) and a corpus that does not exist."""
        super().__init__(context, given)
        conformal_threshold([], given.alpha)
        check_corpus(context.corpus)

    @classmethod
    def compiled(cls, resources: Resources | None = None) -> Graph:
        """SUNAR with its answer's consistency."""
        return build(resources).compile(name=GRAPH)

    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Find the threshold of the consistency on one part of the questions, and try it on the other part."""
        answers = [
            None if judged is None else ScoredAnswer(judged[0]["consistency"], judged[1])
            for judged in request.judged(self.context)
        ]
        given = self.given
        calibration, held_back = split(answers, given.holdout, given.seed)
        found = SunarCalibration(
            technique="sunar",
            model=identity(self.context.llm),
            settings=settings_of(self.context),
            alpha=given.alpha,
            right=request.right,
            made_with={**request.made_with, "corpus": self.context.corpus, **given.model_dump(exclude={"alpha"})},
            **conformal_figures(calibration, held_back, given.alpha),
        )
        found.save(request.out)
        return CalibrationReport(found, _blocks(found))


calibrator = SunarCalibrator


def conformal_figures(
    calibration: Sequence[ScoredAnswer | None], held_back: Sequence[ScoredAnswer | None], alpha: float
) -> dict[str, Any]:
    """Find a threshold on the calibration part and try it on the held-back part. None is a failed question.

    Returns the figures of `SunarCalibration`: threshold, n, coverage, calibration, held_back.
    Raises `UserFault` if no answer of the calibration part is right.
    """
    right = [answer.score for answer in calibration if answer is not None and answer.right]
    if not right:
        raise UserFault(
            f"None of the {len(calibration)} questions to calibrate on was answered right: give more or easier "
            "questions, a better model, or a more tolerant rule for right answers."
        )
    threshold = conformal_threshold(right, alpha)
    unseen = [answer.score for answer in held_back if answer is not None and answer.right]
    return {
        "threshold": threshold,
        "n": len(right),
        "coverage": coverage(unseen, threshold) if unseen else None,
        "calibration": _counts(calibration, threshold),
        "held_back": _counts(held_back, threshold),
    }


def fewest_right(alpha: float) -> int:
    """The number of right answers from which a threshold may leave any out: the least n with alpha (n + 1) ≥ 1."""
    return math.ceil(1 / alpha - ROUNDING) - 1


def split(answers: Sequence[T], holdout: float, seed: int) -> tuple[list[T], list[T]]:
    """Draw n answers at random into a calibration part and round(n · holdout) held-back ones."""
    drawn = [answers[i] for i in np.random.default_rng(seed).permutation(len(answers))]
    held = round(len(answers) * holdout)
    return drawn[held:], drawn[:held]


def _counts(answers: Sequence[ScoredAnswer | None], threshold: float) -> PartCounts:
    known = [answer for answer in answers if answer is not None]
    kept = [answer for answer in known if answer.score >= threshold]
    right, kept_right = (sum(answer.right for answer in part) for part in (known, kept))
    return PartCounts(
        questions=len(answers),
        failed=len(answers) - len(known),
        right=right,
        wrong=len(known) - right,
        kept_right=kept_right,
        kept_wrong=len(kept) - kept_right,
    )


def _blocks(found: SunarCalibration) -> list[Block]:
    columns = ["", "questions", "right", "kept", "wrong", "kept", "failed"]
    rows = [_row("calibration", found.calibration), _row("held back", found.held_back)]
    kept = (
        "No right answer was held back, so the share of other right answers that it keeps is unknown."
        if found.coverage is None
        else f"Of the right answers held back it keeps {found.coverage:.1%}; at least {1 - found.alpha:.1%} is "
        "promised, on average over such samples."
    )
    blocks: list[Block] = [
        Words(f"Keep an answer whose consistency is at least {found.threshold}.", "strong"),
        Table(columns, rows),
        Words(kept),
    ]
    if found.n < (needed := fewest_right(found.alpha)):
        warning = (
            f"Warning: {counted(found.n, 'right answer')} to calibrate on, and an alpha of {found.alpha:g} needs "
            f"{needed}: the threshold is 0 and keeps every answer."
        )
        blocks.append(Words(warning, "warn"))
    return blocks


def _row(name: str, counts: PartCounts) -> Row:
    numbers = [counts.questions, counts.right, counts.kept_right, counts.wrong, counts.kept_wrong, counts.failed]
    return Row([Cell(name), *map(num, numbers)])


graph = build().compile(name=GRAPH)
