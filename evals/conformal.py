"""A conformal threshold found on one part of the questions and tried on the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..errors import UserFault
from ..uncertainty import conformal_threshold, coverage
from ..uncertainty.conformal import ROUNDING
from .answers import exact_match, f1
from .calibration import Calibration

Right = Callable[[str, Sequence[str]], bool]
"""Of an answer and the gold ones, whether it is right."""


class Half(BaseModel):
    """How the answers of one part of the questions came out: so many right and wrong, so many of them kept."""

    model_config = ConfigDict(frozen=True)

    questions: int
    failed: int
    right: int
    wrong: int
    kept_right: int
    kept_wrong: int


class Conformal(Calibration):
    """A threshold that keeps right answers with probability at least 1 − alpha (`dubito.uncertainty.conformal`).

    An answer is kept iff its score is at least the threshold. n: the right answers it was found from; coverage: the
    share of the held-back right answers that it keeps, null if there are none; calibration, held_back: the counts.
    """

    technique: Literal["sunar"]
    alpha: float
    n: int
    coverage: float | None
    right: str
    calibration: Half
    held_back: Half


class Outcome(NamedTuple):
    """A question's answer: how consistent it was, in [0, 1], and whether it was right."""

    score: float
    right: bool


class Figures(NamedTuple):
    """What `conformal_figures` finds; the fields are those of `Conformal`."""

    threshold: float
    n: int
    coverage: float | None
    calibration: Half
    held_back: Half


def conformal_figures(
    calibration: Sequence[Outcome | None], held_back: Sequence[Outcome | None], alpha: float
) -> Figures:
    """A threshold from the calibration part, and how it does on the held-back part; None is a question that failed.

    Raises `UserFault` if no answer of the calibration part was right.
    """
    right = [one.score for one in calibration if one is not None and one.right]
    if not right:
        raise UserFault(
            f"None of the {len(calibration)} questions to calibrate on was answered right: give more questions, easier "
            "ones, a better model, or another --right."
        )
    threshold = conformal_threshold(right, alpha)
    unseen = [one.score for one in held_back if one is not None and one.right]
    return Figures(
        threshold=threshold,
        n=len(right),
        coverage=coverage(unseen, threshold) if unseen else None,
        calibration=_half(calibration, threshold),
        held_back=_half(held_back, threshold),
    )


def fewest_right(alpha: float) -> int:
    """How many right answers it takes before any may be left out: the least n with alpha (n + 1) ≥ 1."""
    return math.ceil(1 / alpha - ROUNDING) - 1


def _half(outcomes: Sequence[Outcome | None], threshold: float) -> Half:
    ended = [one for one in outcomes if one is not None]
    kept = [one for one in ended if one.score >= threshold]
    right, kept_right = (sum(one.right for one in some) for some in (ended, kept))
    return Half(
        questions=len(outcomes),
        failed=len(outcomes) - len(ended),
        right=right,
        wrong=len(ended) - right,
        kept_right=kept_right,
        kept_wrong=len(kept) - kept_right,
    )


def split(count: int, holdout: float, seed: int) -> tuple[list[int], list[int]]:
    """Positions 0 to count − 1, drawn at random into those to calibrate on and round(count · holdout) held back."""
    drawn: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    held = round(count * holdout)
    return sorted(drawn[held:]), sorted(drawn[:held])


def rule_of(name: str) -> Right:
    """When an answer is right: "exact" (SQuAD's exact match) or "f1:T" (its F1 is at least T, 0 < T ≤ 1).

    An empty answer never is. Raises `UserFault` for another name.
    """
    kind, _, least = name.partition(":")
    if name == "exact":
        return lambda answer, golds: bool(answer.strip()) and exact_match(answer, golds) == 1
    try:
        bound = float(least) if kind == "f1" else 0.0
    except ValueError:
        bound = 0.0
    if not 0 < bound <= 1:
        raise UserFault(
            f"There is no rule '{name}' for right answers: use exact, or f1:T with T above 0 and at most 1."
        )
    return lambda answer, golds: bool(answer.strip()) and f1(answer, golds) >= bound
