"""Split conformal calibration: how uncertain may an answer be to be kept, and how unusual is an uncertainty?

An answer with uncertainty u (larger is less sure) is kept iff u ≤ t; otherwise it is withheld. The threshold t comes
from n calibration questions that were answered right. Assume that these and a future question that is answered right
are exchangeable: the same kind of question, the same corpus, models and settings, and the questions were not used to
choose any of those. Then

    P(the right answer is kept) ≥ 1 − α

for every n and every distribution of u. If no two values are equal, the probability is also ≤ 1 − α + 1 / (n + 1). It
is a probability over the calibration set and the question together: for one calibration set the share may be lower.
Nothing is promised about wrong answers: measure how many of them are kept.

Sources: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World (2005); Angelopoulos and Bates, A Gentle
Introduction to Conformal Prediction (2021), section 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserFault

ROUNDING = 1e-9
"""α (n + 1) counts as a whole number if floating point leaves it this little below."""


def conformal_threshold(uncertainties_of_right: ArrayLike, alpha: float) -> float:
    """The greatest uncertainty of an answer that is kept; keeps a right answer with probability at least 1 − α.

    It is the k-th largest of the n values, k = ⌊α (n + 1)⌋: a future value is above it only if it is among the k
    largest of n + 1 exchangeable values, which has probability at most k / (n + 1).
    uncertainties_of_right: [n], of right calibration answers, in any order, may be empty; ∞ for an unknown uncertainty.
    alpha: the share of right answers that may be lost, 0 < α < 1.
    Returns ∞ with fewer than `fewest_right` answers, because k is 0 then: every answer is kept.
    Raises `UserFault`, a ValueError, for NaN and for an α outside its range.
    """
    if not 0 < alpha < 1:
        raise UserFault(f"The share of right answers that may be lost is {alpha:g}: give a share between 0 and 1.")
    values = np.asarray(uncertainties_of_right, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise UserFault("The uncertainties of right answers must be numbers, one for each answer, as [n].")
    # next to α = 1, rounding could give rank n + 1
    rank = min(math.floor(alpha * (len(values) + 1) + ROUNDING), len(values))
    return float(np.sort(values)[len(values) - rank]) if rank else math.inf


def fewest_right(alpha: float) -> int:
    """The number of right answers from which a threshold may leave any out: the least n with alpha (n + 1) ≥ 1."""
    return math.ceil(1 / alpha - ROUNDING) - 1


def conformal_p_value(score: float, calibration_scores: ArrayLike) -> float:
    """How unusually large a score is among n calibration scores: p = (1 + #{i: s_i ≥ score}) / (n + 1).

    Under the null hypothesis, that the score and the n calibration scores are exchangeable, P(p ≤ a) ≤ a for every a in
    [0, 1] and every n. If no two scores are equal, p is uniform on 1/(n+1), 2/(n+1), ..., 1. It is a probability over
    calibration scores and score together.
    calibration_scores: [n], in any order, n ≥ 1. Returns p in [1 / (n + 1), 1]: 1 if no calibration score is smaller.
    Raises `UserFault`, a ValueError, for no calibration scores and for NaN.
    Source: Vovk, Gammerman and Shafer (2005), section 2.2.
    """
    values = np.asarray(calibration_scores, dtype=np.float64)
    if values.ndim != 1 or not values.size or np.isnan(values).any() or math.isnan(score):
        raise UserFault("A p-value needs calibration scores, as [n] numbers, and a score that is a number.")
    return (1 + int((values >= score).sum())) / (len(values) + 1)
