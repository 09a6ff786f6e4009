"""A conformal threshold, found on one part of the questions and tried on the other part."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..errors import UserFault
from ..uncertainty import conformal_threshold, coverage
from ..uncertainty.conformal import ROUNDING


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


class ConformalResult(NamedTuple):
    """The result of `conformal_figures`.

    n: right answers that the threshold was found from; coverage: the share of held-back right answers that it keeps,
    None if there are none.
    """

    threshold: float
    n: int
    coverage: float | None
    calibration: PartCounts
    held_back: PartCounts


def conformal_figures(
    calibration: Sequence[ScoredAnswer | None], held_back: Sequence[ScoredAnswer | None], alpha: float
) -> ConformalResult:
    """Find a threshold on the calibration part and try it on the held-back part. None is a failed question.

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
    return ConformalResult(
        threshold=threshold,
        n=len(right),
        coverage=coverage(unseen, threshold) if unseen else None,
        calibration=_counts(calibration, threshold),
        held_back=_counts(held_back, threshold),
    )


def fewest_right(alpha: float) -> int:
    """The number of right answers from which a threshold may leave any out: the least n with alpha (n + 1) ≥ 1."""
    return math.ceil(1 / alpha - ROUNDING) - 1


def split(count: int, holdout: float, seed: int) -> tuple[list[int], list[int]]:
    """Draw positions 0 to count − 1 at random into a calibration part and round(count · holdout) held-back ones."""
    drawn: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    held = round(count * holdout)
    return sorted(drawn[held:]), sorted(drawn[:held])


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
