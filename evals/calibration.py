"""Thresholds found from questions with gold answers: what a `Calibrator` is, and how it is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel

from ..errors import UserFault
from ..graphs.registry import graph_named
from ..presenters.blocks import Block
from ..resources.resources import Resources
from ..state.calibration import CalibrationFile
from ..state.context import BaseContext
from .answers import MEASURED, AnswerRule, answer_rule, is_right
from .questions import GoldQuestion
from .reliability import checked_truths, rank_auroc

if TYPE_CHECKING:
    from ..graphs.registry import Graph

C = TypeVar("C", bound=BaseContext)
O = TypeVar("O", bound=BaseModel)  # noqa: E741 - the options

Outputs = Sequence[Mapping[str, Any] | None]
"""The output of each question, None if it failed."""

Judged = tuple[Mapping[str, Any], bool] | None
"""An output, and whether its answer is right; None if the question failed."""

Measured = Sequence[Mapping[str, float]]
"""What was measured of each question's answer after the run; see `answers.MEASURED`."""

AskAll = Callable[[BaseContext], Outputs]
"""Asks the technique's graph all questions with a context; outputs of an earlier run are not asked again."""


@dataclass(frozen=True)
class CalibrationRequest:
    """The questions of a calibration.

    right: the rule for right answers; made_with: the facts of the calibration file that hold for every technique; out:
    the file; corpus: the hash of the corpus's chunks, if it is known; measured: see `judged`.
    """

    questions: Sequence[GoldQuestion]
    right: str
    made_with: Mapping[str, Any]
    out: Path
    ask_all: AskAll
    corpus: str | None = None
    measured: Measured | None = None

    def judged(self, context: BaseContext) -> list[Judged]:
        """The output of each question, and whether its answer is right; None if the question failed."""
        return judged(self.ask_all(context), self.questions, answer_rule(self.right), self.measured)


def judged(
    outputs: Outputs, questions: Sequence[GoldQuestion], rule: AnswerRule, measured: Measured | None = None
) -> list[Judged]:
    """Each output with whether its answer is right; None if the question failed. An unanswerable one has no answer.

    measured: what was measured of each answer after the run. Raises `UserFault` if the rule needs it and nothing was.
    """
    of_each = measured or [{}] * len(questions)
    if rule.metric in MEASURED and not any(rule.metric in values for values in of_each):
        raise UserFault(not_measured(rule))
    return [
        None if output is None else (output, is_right(output["answer"], question, rule, values))
        for output, question, values in zip(outputs, questions, of_each, strict=True)
    ]


def not_measured(rule: AnswerRule) -> str:
    """What to do about a rule whose metric was not measured."""
    return (
        f"{rule.metric} is measured of finished answers: give an evaluation, and measure it there first with "
        f"dubito eval --resume RUN --metric {MEASURED[rule.metric]}."
    )


@dataclass(frozen=True)
class CalibrationReport:
    """A calibration for people (blocks) and as JSON (figures: entries beside those of the file).

    calibration: what was saved; None if nothing was.
    """

    calibration: CalibrationFile | None
    blocks: Sequence[Block]
    figures: Mapping[str, Any] = field(default_factory=dict)


class Calibrator(ABC, Generic[C, O]):
    """How the threshold of a technique is found. The docstring of a subclass is its help on the command line.

    graph: the name of the graph that is asked; options: the calibration's own options; examples: commands.
    """

    graph: ClassVar[str]
    examples: ClassVar[Sequence[str]]
    options: ClassVar[type[BaseModel]]

    def __init__(self, context: C, given: O) -> None:
        """Subclasses raise `UserFault` for a context or options that cannot be used."""
        self.context = context
        self.given = given

    @classmethod
    def compiled(cls, resources: Resources | None = None) -> Graph:
        """The graph that `calibrate` asks."""
        return graph_named(cls.graph, resources)

    @abstractmethod
    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Ask the questions, find the threshold, and save the file."""


class Separation(NamedTuple):
    """How well a threshold separates two classes; see `best_threshold`."""

    threshold: float
    accuracy: float
    auroc: float


def best_threshold(scores: ArrayLike, wrong: ArrayLike) -> Separation:
    """The threshold δ that best separates wrong answers (uncertainty above δ) from right ones (at most δ).

    SeaKR (section 3.1) retrieves iff the uncertainty exceeds δ. The candidates lie halfway between neighbouring
    distinct scores, and half a gap outside the lowest and the highest. δ has the highest accuracy, which is the share
    of right decisions; of equally good candidates it is the middle one, the upper of two.
    scores: [n], the uncertainty of n answers without retrieval; wrong: [n] bool.
    Returns δ; its accuracy in [0, 1], which is too optimistic because it is measured on the same answers; and the AUROC
    in [0, 1], the probability that a wrong answer is more uncertain than a right one (equal ones count a half, 0.5 is
    chance). Raises `UserFault`, a ValueError, for scores that are not finite, arrays of different shapes, and if all
    answers are right or all are wrong.
    """
    values, is_wrong = checked_truths(scores, wrong, "what was wrong")
    if is_wrong.all() or not is_wrong.any():
        which = "wrong" if is_wrong.any() else "right"
        raise UserFault(f"All {len(values)} answers are {which}, so no threshold separates them: give other questions.")
    cuts = _cuts(np.unique(values))
    hits = [int(((values > cut) == is_wrong).sum()) for cut in cuts]
    best = [cut for cut, count in zip(cuts, hits, strict=True) if count == max(hits)]
    return Separation(best[len(best) // 2], max(hits) / len(values), rank_auroc(values, is_wrong))


def _cuts(distinct: NDArray[np.float64]) -> list[float]:
    """A threshold below all ascending scores, one between each two neighbours, one above all."""
    gaps = np.diff(distinct) if len(distinct) > 1 else np.ones(1)
    below = min(distinct[0] - gaps[0] / 2, np.nextafter(distinct[0], -np.inf))
    middles = distinct[:-1] + np.diff(distinct) / 2
    # no number lies between neighbours that differ in the last digit: the lower one separates them too
    between = np.where(middles < distinct[1:], middles, distinct[:-1])
    return [float(cut) for cut in (below, *between, distinct[-1] + gaps[-1] / 2)]
