"""Split conformal calibration of an answer's consistency: how consistent must an answer be to be kept?

A graph gives each answer a consistency c in [0, 1]. The answer is kept iff c ≥ t; otherwise the reply is "I do not
know". The threshold t comes from n calibration questions that were answered right. Assume that these and a future
question that is answered right are exchangeable: the same kind of question, the same corpus, models and settings, and
the questions were not used to choose any of those. Then

    P(the right answer is kept) ≥ 1 − α

for every n and every distribution of c. If no two scores are equal, the probability is also ≤ 1 − α + 1 / (n + 1). It
is a probability over the calibration set and the question together: for one calibration set the share may be lower.
Nothing is promised about wrong answers: measure how many of them are kept.

Sources: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World (2005); Angelopoulos and Bates, A Gentle
Introduction to Conformal Prediction (2021), section 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

ROUNDING = 1e-9
"""α (n + 1) counts as a whole number if floating point leaves it this little below."""


def conformal_threshold(scores_of_right: ArrayLike, alpha: float) -> float:
    """The least consistency of an answer that is kept; keeps a right answer with probability at least 1 − α.

    It is the k-th smallest of the n scores, k = ⌊α (n + 1)⌋: a future score is below it only if it is among the k
    smallest of n + 1 exchangeable scores, which has probability at most k / (n + 1).
    scores_of_right: [n] in [0, 1], the consistency of right calibration answers, in any order, may be empty.
    alpha: the share of right answers that may be lost, 0 < α < 1.
    Returns a number in [0, 1]. With fewer than 1/α − 1 scores k is 0, and so is the threshold: every answer is kept.
    Raises `UserFault`, a ValueError, for NaN and for an α or a score outside its range.
    """
    if not 0 < alpha < 1:
        raise UserFault(f"The share of right answers that may be lost is {alpha:g}: give an alpha between 0 and 1.")
    scores = np.sort(_checked(scores_of_right))
    # next to α = 1, rounding could give rank n + 1
    rank = min(math.floor(alpha * (len(scores) + 1) + ROUNDING), len(scores))
    return float(scores[rank - 1]) if rank else 0.0


def coverage(scores_of_right: ArrayLike, threshold: float) -> float:
    """The share of right answers that are kept: those whose consistency is at least the threshold.

    scores_of_right: [n] in [0, 1], of right answers that were not used to find the threshold.
    Returns a number in [0, 1]. Raises `UserFault`, a ValueError, for NaN, for a score outside [0, 1] and for n = 0.
    """
    scores = _checked(scores_of_right)
    if not scores.size:
        raise UserFault("There is no right answer to count: give the consistency of at least one.")
    return float(np.mean(scores >= threshold))


def _checked(scores: ArrayLike) -> NDArray[np.float64]:
    checked = np.asarray(scores, dtype=np.float64)
    if checked.ndim != 1:
        raise UserFault(f"The consistency scores have shape {checked.shape}: give one for each right answer, as [n].")
    if not ((checked >= 0) & (checked <= 1)).all():  # NaN fails both comparisons
        raise UserFault("A consistency score is NaN or outside [0, 1]: give the scores of answers that have one.")
    return checked
