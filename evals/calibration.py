"""How well a threshold tells answers apart, and the file that keeps one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault
from ..state.calibration import Calibration, identity, is_calibration, settings_of
from .reliability import checked_truths, ranked_apart

__all__ = ["Calibration", "Separation", "best_threshold", "identity", "is_calibration", "settings_of"]


class Separation(NamedTuple):
    """How well a threshold tells two classes apart; see `best_threshold`."""

    threshold: float
    accuracy: float
    auroc: float


def best_threshold(scores: ArrayLike, wrong: ArrayLike) -> Separation:
    """The threshold δ that best tells wrong answers, whose uncertainty is to be above it, from right ones.

    It is the δ of SeaKR (section 3.1), which retrieves iff the uncertainty exceeds it: the decision is right for a
    wrong answer above δ and for a right one at or below it. The accuracy, the share of right decisions, is highest; the
    candidates lie halfway between neighbouring distinct scores, and half a gap outside the lowest and the highest, and
    of equally good ones it is the middle one, the upper of two.
    scores: [n], the uncertainty of n answers given without retrieval, in any order; wrong: [n] bool.
    Returns δ, its accuracy in [0, 1], on these very answers and so too good for others, and the AUROC in [0, 1]: the
    probability that a wrong answer is more uncertain than a right one, equal ones counting a half; 0.5 is chance.
    Raises `UserFault`, a ValueError, for scores that are not finite, arrays that do not fit, and if all answers are
    right or all are wrong.
    """
    values, is_wrong = _checked(scores, wrong)
    cuts = _cuts(np.unique(values))
    hits = [int(((values > cut) == is_wrong).sum()) for cut in cuts]
    best = [cut for cut, count in zip(cuts, hits, strict=True) if count == max(hits)]
    return Separation(best[len(best) // 2], max(hits) / len(values), ranked_apart(values, is_wrong))


def _checked(scores: ArrayLike, wrong: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, is_wrong = checked_truths(scores, wrong, "what was wrong")
    if is_wrong.all() or not is_wrong.any():
        which = "wrong" if is_wrong.any() else "right"
        raise UserFault(f"All {len(values)} answers are {which}, so nothing tells them apart: give other questions.")
    return values, is_wrong


def _cuts(distinct: NDArray[np.float64]) -> list[float]:
    """A threshold below all of the ascending scores, one between each two neighbours, one above all."""
    gaps = np.diff(distinct) if len(distinct) > 1 else np.ones(1)
    below = min(distinct[0] - gaps[0] / 2, np.nextafter(distinct[0], -np.inf))
    middles = distinct[:-1] + np.diff(distinct) / 2
    # between neighbours of the last digit there is no number: the lower one parts them too
    between = np.where(middles < distinct[1:], middles, distinct[:-1])
    return [float(cut) for cut in (below, *between, distinct[-1] + gaps[-1] / 2)]
