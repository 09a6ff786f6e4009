"""How well an uncertainty tells good answers from bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

Numbers = NDArray[np.float64]

BINS = 10
"""Into how many parts [0, 1] is cut for the calibration error."""

CERTAIN = 0.2
"""The uncertainty up to which DENSE calls an answer certain (section 4.2)."""


class RiskCoverage(NamedTuple):
    """The risk of answering only the least uncertain questions.

    coverage: [n], k/n for k = 1..n; risk: [n], the mean risk of the k least uncertain ones; aurc: the mean of `risk`.
    """

    coverage: list[float]
    risk: list[float]
    aurc: float


class Part(NamedTuple):
    """The questions whose uncertainty is above `above` and at most `up_to`; None has no bound.

    score: the mean of their scores, None if there are none.
    """

    above: float | None
    up_to: float | None
    questions: int
    score: float | None


def auroc(uncertainties: ArrayLike, wrong: ArrayLike) -> float | None:
    """The probability that a wrong answer is more uncertain than a right one, equal ones counting a half.

    uncertainties: [n]; wrong: [n] bool. In [0, 1], 0.5 is chance; None if all are right or all wrong.
    """
    values, is_wrong = checked_truths(uncertainties, wrong, "what was wrong")
    return ranked_apart(values, is_wrong) if is_wrong.any() and not is_wrong.all() else None


def ranked_apart(values: Numbers, is_wrong: NDArray[np.bool_]) -> float:
    """The AUROC where some are wrong and some are not: from the ranks of the wrong ones (Mann and Whitney 1947)."""
    # equal values share the mean of their ranks
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = int(is_wrong.sum())
    above = ranks[is_wrong].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(values) - positive)))


def expected_calibration_error(confidences: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """How far confidences are from how often they are right (Guo et al. 2017, eq. 3), in [0, 1].

    The mean over the answers of |share that is right − mean confidence| of the answer's bin; the bins cut [0, 1] into
    equal widths, each with its upper edge, the first with 0 too.
    confidences: [n], probabilities of being right, in [0, 1]; right: [n] bool. An uncertainty is no probability:
    `confidences_from` turns it into one. Raises `UserFault` for values outside of [0, 1].
    """
    values, is_right = checked_truths(confidences, right, "what was right")
    if not len(values) or values.min() < 0 or values.max() > 1:
        raise UserFault("A calibration error is of confidences in [0, 1], at least one: turn uncertainties into them.")
    # searched for, not computed: 0.3 * 10 rounds past the edge it is to lie on
    places = np.searchsorted(np.arange(1, bins) / bins, values, side="left")
    gaps = np.bincount(places, weights=is_right - values, minlength=bins)
    return float(np.abs(gaps).sum() / len(values))


def confidences_from(uncertainties: ArrayLike, right: ArrayLike, seed: int, folds: int = 5) -> list[float]:
    """For each answer the probability of being right that the *other* answers' uncertainties suggest.

    Isotonic regression (Zadrozny and Elkan 2002): the best fit that never rises with the uncertainty, between two
    uncertainties a straight line. The answers are drawn into folds, and each fold is read off the fit to the others:
    fitted to the very answers, the calibration error would come out near 0 for any uncertainty.
    uncertainties: [n], n ≥ 2, in any unit; right: [n] bool. Raises `UserFault` for one answer or one fold, and
    without scipy.
    """
    values, is_right = checked_truths(uncertainties, right, "what was right")
    if len(values) < 2 or folds < 2:
        raise UserFault("Confidences are fitted to other answers: give at least two answers and two folds.")
    fold = np.random.default_rng(seed).permutation(len(values)) % min(folds, len(values))
    found = np.empty(len(values))
    for held in range(fold.max() + 1):
        mine = fold == held
        found[mine] = _isotonic(values[~mine], is_right[~mine], values[mine])
    return [float(one) for one in found]


def risk_coverage(uncertainties: ArrayLike, risks: ArrayLike) -> RiskCoverage:
    """The risk-coverage curve and the area under it (Geifman and El-Yaniv 2017), lower is better.

    Equally uncertain questions come in a random order: the risk is the expected one over all of those orders, so an
    uncertainty that is always the same has the mean risk everywhere.
    uncertainties: [n], n ≥ 1; risks: [n], what a question costs when it is answered, such as 1 − F1.
    """
    values, costs = checked(uncertainties, risks, "the risks")
    if not len(values):
        raise UserFault("A risk-coverage curve needs at least one answer.")
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=costs) / counts
    answered = np.arange(1, len(values) + 1)
    risk = np.cumsum(np.repeat(means, counts)) / answered
    return RiskCoverage((answered / len(values)).tolist(), risk.tolist(), float(risk.mean()))


def certain_and_uncertain(uncertainties: ArrayLike, scores: ArrayLike, threshold: float = CERTAIN) -> tuple[Part, Part]:
    """The certain questions, uncertainty at most the threshold, and the others (DENSE, Figure 3); arrays of [n]."""
    certain, uncertain = parts(uncertainties, scores, [threshold])
    return certain, uncertain


def parts(uncertainties: ArrayLike, scores: ArrayLike, cuts: Sequence[float]) -> list[Part]:
    """The mean score by uncertainty (DENSE, Figure 2): up to the first of the ascending cuts, ..., above the last."""
    if not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
        raise UserFault(f"The uncertainty is cut at {', '.join(map(str, cuts))}: give ascending numbers.")
    values, graded = checked(uncertainties, scores, "the scores")
    places = np.searchsorted(cuts, values, side="left")
    edges = [None, *map(float, cuts), None]
    some = [graded[places == i] for i in range(len(cuts) + 1)]
    return [
        Part(edges[i], edges[i + 1], len(one), float(one.mean()) if len(one) else None) for i, one in enumerate(some)
    ]


def checked(uncertainties: ArrayLike, outcomes: ArrayLike, what: str) -> tuple[Numbers, Numbers]:
    """Both as [n] of finite numbers; what: the outcomes, in words. Raises `UserFault` for anything else."""
    values, known = np.asarray(uncertainties, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if values.ndim != 1 or values.shape != known.shape:
        raise UserFault(
            f"The uncertainties have shape {values.shape} and {what} {known.shape}: give one of each for each answer."
        )
    if not np.isfinite(values).all() or not np.isfinite(known).all():
        raise UserFault(f"An uncertainty, or {what}, is not finite: leave that answer out.")
    return values, known


def checked_truths(uncertainties: ArrayLike, truths: ArrayLike, what: str) -> tuple[Numbers, NDArray[np.bool_]]:
    """Like `checked`, for outcomes that are truth values."""
    values, known = checked(uncertainties, truths, what)
    if not np.isin(known, [0, 1]).all():
        raise UserFault(f"Of each answer {what} has to be a truth value.")
    return values, known == 1


def _isotonic(known: Numbers, right: NDArray[np.bool_], asked: Numbers) -> Numbers:
    try:
        from scipy.optimize import isotonic_regression  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserFault('Confidences from uncertainties need a package: pip install "dubito[eval]".') from error
    distinct, place, counts = np.unique(known, return_inverse=True, return_counts=True)
    shares = np.bincount(place, weights=right) / counts
    fitted = isotonic_regression(shares, weights=counts, increasing=False).x
    return np.asarray(np.interp(asked, distinct, fitted))
