"""Confidence intervals of means and tests of differences; the same seed gives the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault, needs_extra

RESAMPLES = 9999
"""Number of resamples. With the observed sample, the smallest p-value is 1/10,000."""

_NUMBERS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Figure:
    """The mean of n values, and the ends of its confidence interval."""

    n: int
    mean: float
    low: float
    high: float


def bootstrap_interval(values: ArrayLike, seed: int, level: float = 0.95, resamples: int = RESAMPLES) -> Figure:
    """The mean of [n] values, n ≥ 1, and its bootstrap confidence interval (BCa, Efron 1987).

    If all values are equal, or there is only one, both ends are the mean.
    Raises `UserFault` for no values, values that are not finite, a level outside (0, 1), and without scipy.
    """
    if not 0 < level < 1:
        raise UserFault(f"The level of an interval is {level}: give a number between 0 and 1, such as 0.95.")
    sample = _sample(values)
    mean = float(sample.mean())
    scale = float(np.abs(sample).max())
    # rounding can put equal values this far apart
    if np.ptp(sample) <= 1e-12 * scale:
        return Figure(len(sample), mean, mean, mean)
    result = _stats().bootstrap(
        (sample / scale,),  # scaled, because cubes of very small numbers would be 0
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        batch=_batch(sample),
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return Figure(len(sample), mean, float(low) * scale, float(high) * scale)


def paired_permutation(first: ArrayLike, second: ArrayLike, seed: int, resamples: int = RESAMPLES) -> float:
    """Two systems' scores on the same questions, [n] each: do they differ by more than chance (Fisher 1935)?

    Returns the probability of a mean difference at least this far from 0 if both systems were alike: the two scores of
    a question could then be swapped. This p-value is two-sided. It is exact, over all swaps, if there are at most
    `resamples` of them; else it is estimated from that many random swaps and the observed one. It is 1 if the scores
    differ on fewer than two questions.
    Raises `UserFault` for different lengths, no questions, scores that are not finite, and without scipy.
    """
    a, b = _sample(first), _sample(second)
    if a.shape != b.shape:
        raise UserFault(f"One system has {len(a)} scores and the other {len(b)}: compare them on the same questions.")
    differences = a - b
    swappable = differences[differences != 0]  # swapping equal scores changes nothing
    if len(swappable) < 2:
        return 1.0
    result = _stats().permutation_test(
        (swappable / np.abs(swappable).max(),),
        _distance,
        permutation_type="samples",
        alternative="greater",
        n_resamples=resamples,
        batch=_batch(swappable),
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests: the probability of any false alarm at level α is then at most α.

    Step-down (Holm 1979). Returns values in [0, 1], in the order of the input.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise UserFault("A p-value must be between 0 and 1.")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise UserFault("Statistics need finite numbers, at least one: leave out what could not be scored.")
    return sample


def _distance(differences: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    # rounded, so that sums that differ only by rounding are equal and both count as at least as far
    return np.asarray(np.round(np.abs(np.sum(differences, axis=axis)), 9))


def _batch(sample: NDArray[np.float64]) -> int:
    # in batches: all resamples of ten thousand questions would take gigabytes
    return max(1, _NUMBERS_AT_ONCE // len(sample))


def _stats() -> Any:  # noqa: ANN401 - scipy comes without types
    with needs_extra("Intervals and tests need a package", "eval"):
        from scipy import stats  # noqa: PLC0415 - an extra
    return stats
