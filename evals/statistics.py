"""How sure a mean over questions is, and whether two systems differ; the same numbers under the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

RESAMPLES = 9999
"""How many samples are drawn; with the observed one the least p-value is 1/10,000."""

_NUMBERS_AT_ONCE = 1_000_000


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """The mean of first − second, and the probability of one at least that far from 0 if the two were alike."""

    mean: float
    p: float


def bootstrap_interval(values: ArrayLike, seed: int, level: float = 0.95, resamples: int = RESAMPLES) -> Interval:
    """The mean of [n] values, n ≥ 1, and its bootstrap confidence interval (BCa, Efron 1987).

    One value, or values that are all the same, tell nothing of how they vary: the interval then is the mean alone.
    Raises `UserFault` for no values, for some that are not finite, for a level outside of (0, 1), and without scipy.
    """
    if not 0 < level < 1:
        raise UserFault(f"The level of an interval is {level}: it lies between 0 and 1, such as 0.95.")
    sample = _sample(values)
    mean = float(sample.mean())
    scale = float(np.abs(sample).max())
    # as far apart as rounding puts equal ones
    if np.ptp(sample) <= 1e-12 * scale:
        return Interval(mean, mean, mean)
    found = _stats().bootstrap(
        (sample / scale,),  # cubes of very small numbers would be 0
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        batch=_batch(sample),
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    low, high = found.confidence_interval
    return Interval(mean, float(low) * scale, float(high) * scale)


def paired_permutation(first: ArrayLike, second: ArrayLike, seed: int, resamples: int = RESAMPLES) -> Difference:
    """Two systems' scores on the same questions, [n] each: do they differ by more than chance (Fisher 1935)?

    If the systems are alike, each question's two scores could as well be swapped. The p-value is two-sided: exact, over
    all swaps, where `resamples` are enough for those questions on which the scores differ, else estimated from as many
    random ones, the observed one counted in. 1 if fewer than two questions differ.
    Raises `UserFault` for different lengths, no questions, scores that are not finite, and without scipy.
    """
    a, b = _sample(first), _sample(second)
    if a.shape != b.shape:
        raise UserFault(f"One system has {len(a)} scores and the other {len(b)}: compare them on the same questions.")
    differences = a - b
    mean = float(differences.mean())
    swappable = differences[differences != 0]  # what is alike is the same either way round
    if len(swappable) < 2:
        return Difference(mean, 1.0)
    found = _stats().permutation_test(
        (swappable / np.abs(swappable).max(),),
        _distance,
        permutation_type="samples",
        alternative="greater",
        n_resamples=resamples,
        batch=_batch(swappable),
        rng=np.random.default_rng(seed),
    )
    return Difference(mean, float(found.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests, adjusted so that any one below α is a false alarm with probability at most α.

    Step-down (Holm 1979), in the order they came in; in [0, 1].
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise UserFault("A p-value lies between 0 and 1.")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise UserFault("Statistics are of a list of finite numbers, at least one: leave out what could not be scored.")
    return sample


def _distance(differences: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    # sums that differ only in how they were rounded have to come out equal: both count as at least as far
    return np.asarray(np.round(np.abs(np.sum(differences, axis=axis)), 9))


def _batch(sample: NDArray[np.float64]) -> int:
    # all resamples at once would take gigabytes for ten thousand questions
    return max(1, _NUMBERS_AT_ONCE // len(sample))


def _stats() -> Any:  # noqa: ANN401 - scipy comes without types
    try:
        from scipy import stats  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserFault('Intervals and tests need a package: pip install "dubito[eval]".') from error
    return stats
