"""How well an uncertainty separates good answers from bad ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault, needs_extra

Numbers = NDArray[np.float64]

BINS = 10
"""Number of bins of the calibration error."""


class RiskCoverage(NamedTuple):
    """The risk of answering only the least uncertain questions.

    coverage: [n], k/n for k = 1..n; risk: [n], the mean risk of the k least uncertain ones; aurc: the mean of `risk`.
    """

    coverage: list[float]
    risk: list[float]
    aurc: float


@dataclass(frozen=True)
class UncertaintyBin:
    """The questions whose uncertainty is above `above` and at most `up_to`; None is no bound.

    score: the mean of their scores, None if there are no questions.
    """

    above: float | None
    up_to: float | None
    questions: int
    score: float | None


def auroc(uncertainties: ArrayLike, wrong: ArrayLike) -> float | None:
    """The probability that a wrong answer is more uncertain than a right one; equal uncertainties count a half.

    uncertainties: [n]; wrong: [n] bool. In [0, 1], 0.5 is chance; None if all answers are right or all wrong.
    """
    values, is_wrong = checked_truths(uncertainties, wrong, "what was wrong")
    return rank_auroc(values, is_wrong) if is_wrong.any() and not is_wrong.all() else None


def rank_auroc(values: Numbers, is_wrong: NDArray[np.bool_]) -> float:
    """The AUROC by the ranks of the wrong answers (Mann and Whitney 1947); needs wrong and right answers."""
    # equal values share the mean of their ranks
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = int(is_wrong.sum())
    above = ranks[is_wrong].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(values) - positive)))


def auroc_interval(area: float, right: int, wrong: int, level: float = 0.95) -> tuple[float, float]:
    """A confidence interval of an AUROC, also of one that is 0 or 1 (Newcombe 2006, method 5).

    area: in [0, 1]; right, wrong: how many answers it compares, at least one each. The ends are the areas from which
    the found one is just as far as chance allows, by the variance of Hanley and McNeil (1982). Needs scipy.
    Raises `UserFault` without right or wrong answers.
    """
    if min(right, wrong) < 1:
        raise UserFault("An AUROC compares right answers with wrong ones: give at least one of each.")
    return _lower_end(area, right, wrong, level), 1 - _lower_end(1 - area, right, wrong, level)


def _lower_end(area: float, right: int, wrong: int, level: float) -> float:
    with needs_extra("Intervals and tests need a package", "eval"):
        from scipy.optimize import brentq  # noqa: PLC0415 - an extra
    z, others = NormalDist().inv_cdf((1 + level) / 2), (right + wrong) / 2 - 1

    def beyond(end: float) -> float:
        variance = end * (1 - end) * (1 + others * ((1 - end) / (2 - end) + end / (1 + end))) / (right * wrong)
        return area - end - z * math.sqrt(variance)

    # 1 itself is always a root, and never the one that is meant
    return 0.0 if area == 0 else float(brentq(beyond, 0, min(area, 1 - 1e-12)))


def expected_calibration_error(confidences: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """The expected calibration error (Guo et al. 2017, eq. 3), in [0, 1].

    The mean over the answers of |share of right answers − mean confidence| in the answer's bin. The bins cut [0, 1]
    into equal widths; each includes its upper edge, and the first also 0.
    confidences: [n], probabilities of being right; `confidences_from` makes them from uncertainties. right: [n] bool.
    Raises `UserFault` for values outside [0, 1].
    """
    values, is_right = checked_truths(confidences, right, "what was right")
    return float(_calibration_errors(_probabilities(values), is_right, bins))


def chance_calibration_error(
    confidences: ArrayLike, seed: int, level: float = 0.95, bins: int = BINS
) -> tuple[float, float]:
    """The range of the calibration error if each confidence were the exact probability of being right.

    An error within it is no sign of wrong confidences: so few answers are never right in just these shares. Outcomes
    are drawn from the confidences a thousand times (consistency resampling, Bröcker and Smith 2007).
    confidences: [n], n ≥ 1; level: the share of the drawn errors between the two ends.
    Raises `UserFault` for values outside [0, 1].
    """
    values = _probabilities(np.asarray(confidences, dtype=np.float64))
    drawn = np.random.default_rng(seed).random((1000, len(values))) < values
    low, high = np.quantile(_calibration_errors(values, drawn, bins), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _probabilities(values: Numbers) -> Numbers:
    # a NaN is in no range
    if not len(values) or not ((values >= 0) & (values <= 1)).all():
        raise UserFault(
            "A calibration error needs at least one confidence, in [0, 1]: turn uncertainties into confidences."
        )
    return values


def _calibration_errors(confidences: Numbers, right: NDArray[np.bool_], bins: int) -> Numbers:
    """Of confidences [n] with outcomes [..., n]: [...]."""
    # searched, because 0.3 * 10 would round past the edge of its bin
    places = np.searchsorted(np.arange(1, bins) / bins, confidences, side="left")
    gaps = (right - confidences) @ np.eye(bins)[places]
    return np.asarray(np.abs(gaps).sum(axis=-1) / len(confidences))


def confidences_from(uncertainties: ArrayLike, right: ArrayLike, seed: int, folds: int = 5) -> list[float]:
    """For each answer, the probability of being right that is fitted to the other answers' uncertainties.

    Isotonic regression (Zadrozny and Elkan 2002): the best fit that never rises with the uncertainty, interpolated
    linearly. The answers are drawn into folds, and each fold is read off the fit to the other folds. A fit to the same
    answers would have a calibration error near 0 for any uncertainty.
    uncertainties: [n], n ≥ 2, in any unit; right: [n] bool. Raises `UserFault` for fewer than two answers or folds, and
    without scipy.
    """
    values, is_right = checked_truths(uncertainties, right, "what was right")
    if len(values) < 2 or folds < 2:
        raise UserFault("Confidences are fitted to other answers: give at least two answers and two folds.")
    fold = np.random.default_rng(seed).permutation(len(values)) % min(folds, len(values))
    confidences = np.empty(len(values))
    for held_out in range(fold.max() + 1):
        own = fold == held_out
        confidences[own] = _isotonic(values[~own], is_right[~own], values[own])
    return [float(confidence) for confidence in confidences]


def risk_coverage(uncertainties: ArrayLike, risks: ArrayLike) -> RiskCoverage:
    """The risk-coverage curve and the area under it (Geifman and El-Yaniv 2017); lower is better.

    The order of equally uncertain questions is random, and the risk is its expectation over all orders: a constant
    uncertainty has the mean risk everywhere.
    uncertainties: [n], n ≥ 1; risks: [n], the cost of answering a question, such as 1 − F1.
    """
    values, costs = checked(uncertainties, risks, "the risks")
    if not len(values):
        raise UserFault("A risk-coverage curve needs at least one answer.")
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=costs) / counts
    answered = np.arange(1, len(values) + 1)
    risk = np.cumsum(np.repeat(means, counts)) / answered
    return RiskCoverage((answered / len(values)).tolist(), risk.tolist(), float(risk.mean()))


def by_uncertainty(uncertainties: ArrayLike, scores: ArrayLike, cuts: Sequence[float]) -> list[UncertaintyBin]:
    """The mean score in bins of uncertainty (DENSE, Figures 2 and 3).

    uncertainties, scores: [n]; cuts: ascending edges between the bins. A bin includes its upper edge.
    """
    if not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
        raise UserFault(f"The uncertainty is cut at {', '.join(map(str, cuts))}: give ascending numbers.")
    values, graded = checked(uncertainties, scores, "the scores")
    places = np.searchsorted(cuts, values, side="left")
    edges = [None, *map(float, cuts), None]
    bins = [graded[places == i] for i in range(len(cuts) + 1)]
    return [
        UncertaintyBin(edges[i], edges[i + 1], len(members), float(members.mean()) if len(members) else None)
        for i, members in enumerate(bins)
    ]


def checked(uncertainties: ArrayLike, outcomes: ArrayLike, what: str) -> tuple[Numbers, Numbers]:
    """Both as [n] of finite numbers. what: names the outcomes in messages. Raises `UserFault` for anything else."""
    values, known = np.asarray(uncertainties, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or values.shape != known.shape:
        raise UserFault(
            f"The uncertainties have shape {values.shape} and {what} {known.shape}: give one of each for each answer."
        )
    if not np.isfinite(values).all() or not np.isfinite(known).all():
        raise UserFault(f"An uncertainty, or {what}, is not finite: leave that answer out.")
    return values, known


def checked_truths(uncertainties: ArrayLike, truths: ArrayLike, what: str) -> tuple[Numbers, NDArray[np.bool_]]:
    """Like `checked`, for boolean outcomes."""
    values, known = checked(uncertainties, truths, what)
    if not np.isin(known, [0, 1]).all():
        raise UserFault(f"For each answer {what} must be true or false.")
    return values, known == 1


def _isotonic(known: Numbers, right: NDArray[np.bool_], asked: Numbers) -> Numbers:
    with needs_extra("Confidences from uncertainties need a package", "eval"):
        from scipy.optimize import isotonic_regression  # noqa: PLC0415 - an extra
    distinct, place, counts = np.unique(known, return_inverse=True, return_counts=True)
    shares = np.bincount(place, weights=right) / counts
    fitted = isotonic_regression(shares, weights=counts, increasing=False).x
    return np.asarray(np.interp(asked, distinct, fitted))
