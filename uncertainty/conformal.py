"""Split conformal calibration of an answer-consistency score: how consistent an answer must be to be kept.

A graph that answers with a consistency score c in [0, 1] keeps an answer iff c ≥ t and says "I do not know" otherwise.
The threshold t comes from n calibration questions whose answers were right. If those and a future question whose answer
is right are exchangeable (drawn alike: the same kind of question, corpus, models and settings, and none of them used to
choose those), then

    P(the right answer is kept) ≥ 1 − α,

for every n and every distribution of the scores; where no two scores are equal it is also ≤ 1 − α + 1 / (n + 1). The
probability is over the calibration set and the question together: with one calibration set the share may be lower. It
says nothing about wrong answers: how many of them are kept is to be measured.

Sources: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World (2005); Angelopoulos and Bates, A Gentle
Introduction to Conformal Prediction (2021), section 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

ROUNDING = 1e-9  # how far rounding may leave α(n + 1) below the whole number that it stands for


def conformal_threshold(scores_of_right: ArrayLike, alpha: float) -> float:
    """The consistency from which on answers are kept, so that right ones are with probability at least 1 − α.

    It is the k-th smallest of the n scores, k = ⌊α (n + 1)⌋: a future score is below it with probability at most
    k / (n + 1), as it is then among the k smallest of n + 1 exchangeable ones.
    scores_of_right: [n] in [0, 1], the consistency of the calibration answers that were right; in any order, may be
    empty. alpha: the share of right answers that may be lost, 0 < α < 1.
    Returns a number in [0, 1]. With fewer than 1/α − 1 scores k is 0: they are too few to leave anything out, and the
    threshold is 0, which keeps every answer.
    Raises `UserFault`, a ValueError, for an α or a score outside its range and for NaN.
    """
    if not 0 < alpha < 1:
        raise UserFault(f"The share of right answers that may be lost is {alpha:g}: give an alpha between 0 and 1.")
    scores = np.sort(_checked(scores_of_right))
    # of an alpha next to 1 the largest score
    rank = min(math.floor(alpha * (len(scores) + 1) + ROUNDING), len(scores))
    return float(scores[rank - 1]) if rank else 0.0


def coverage(scores_of_right: ArrayLike, threshold: float) -> float:
    """The share of right answers that a threshold keeps: those whose consistency is at least as high.

    scores_of_right: [n] in [0, 1], of answers that were right and not used to find the threshold.
    Returns a number in [0, 1]. Raises `UserFault`, a ValueError, for no scores, one outside [0, 1] and NaN.
    """
    scores = _checked(scores_of_right)
    if not scores.size:
        raise UserFault("There is no right answer to count: give the consistency of at least one.")
    return float(np.mean(scores >= threshold))


def _checked(scores: ArrayLike) -> NDArray[np.float64]:
    checked = np.asarray(scores, dtype=np.float64)
    if checked.ndim != 1:
        raise UserFault(f"The consistency scores have shape {checked.shape}: give one for each right answer, as [n].")
    if not ((checked >= 0) & (checked <= 1)).all():  # nor is NaN
        raise UserFault("A consistency score is NaN or outside [0, 1]: give the scores of answers that have one.")
    return checked
