"""Conformal thresholds: order statistics worked out by hand, the guarantee by simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty.conformal import conformal_p_value, conformal_threshold, fewest_right

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.mark.parametrize(
    ("n", "alpha", "rank"),
    [
        # floor(alpha (n + 1)), worked out by hand
        (8, 0.1, 0), (9, 0.1, 1), (18, 0.1, 1), (19, 0.1, 2),
        (3, 0.2, 0), (4, 0.2, 1), (8, 0.2, 1), (9, 0.2, 2), (0, 0.5, 0), (1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2),
        # products that floating point leaves below the whole number
        (99, 0.29, 29), (2, 1 / 3, 1), (9, 0.7, 7),
        (3, 0.999, 3), (3, 1 - 1e-15, 3),
    ],
)  # fmt: skip
def test_the_threshold_is_the_kth_largest_value(n: int, alpha: float, rank: int) -> None:
    drawn = np.random.default_rng(n).permutation(n) + 1.0  # 1, 2, ..., n
    assert conformal_threshold(drawn, alpha) == (n + 1 - rank if rank else math.inf)


def test_equal_values_are_kept_together_and_unknown_ones_are_the_largest() -> None:
    # the second largest of nine, equal to the largest
    assert conformal_threshold([5, 8, 5, 8, 8, 1, 1, 5, 1], 0.2) == 8
    assert conformal_threshold([1.0, 2.0, math.inf], 0.5) == 2.0
    assert conformal_threshold([1.0, 2.0, math.inf], 0.25) == math.inf


@pytest.mark.parametrize(("n", "alpha"), [(5, 0.5), (39, 0.1)])
def test_right_answers_are_kept_as_often_as_promised(n: int, alpha: float) -> None:
    repetitions = 2000
    draw = np.random.default_rng([n, int(alpha * 10)])
    uncertain = draw.beta(1, 2, size=(repetitions, n + 1))
    kept = [row[0] <= conformal_threshold(row[1:], alpha) for row in uncertain]
    error = 3 * math.sqrt(alpha * (1 - alpha) / repetitions)
    promised = 1 - Fraction(str(alpha))
    assert promised - error <= np.mean(kept) <= promised + Fraction(1, n + 1) + error


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2, 0.29, 1 / 3, 0.5, 0.7, 0.999])
def test_it_takes_as_many_right_answers_as_leave_one_out(alpha: float) -> None:
    fewest = fewest_right(alpha)
    assert Fraction(alpha) * (fewest + 1) + Fraction(1, 10**9) >= 1
    assert conformal_threshold([0.5] * fewest, alpha) == 0.5
    assert fewest == 0 or conformal_threshold([0.5] * (fewest - 1), alpha) == math.inf


@pytest.mark.parametrize(
    ("values", "alpha", "said"),
    [
        ([0.5], 0.0, "between 0 and 1"),
        ([0.5], 1.0, "between 0 and 1"),
        ([0.5], math.nan, "between 0 and 1"),
        ([0.5, math.nan], 0.1, "must be numbers"),
        ([[0.5]], 0.1, "must be numbers"),
    ],
)
def test_what_is_refused(values: list[float], alpha: float, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        conformal_threshold(values, alpha)


@pytest.mark.parametrize(
    ("score", "scores", "p"),
    [
        # (1 + those that are at least as large) / (n + 1), worked out by hand
        (1, [1, 1, 2, 4], 1.0), (2, [1, 1, 2, 4], 3 / 5), (3, [1, 1, 2, 4], 2 / 5), (5, [4, 2, 1, 1], 1 / 5),
        (0, [7], 1.0), (7, [7], 1.0), (8, [7], 1 / 2),
    ],
)  # fmt: skip
def test_p_values_by_hand(score: float, scores: list[float], p: float) -> None:
    assert conformal_p_value(score, scores) == pytest.approx(p)


@pytest.mark.parametrize("n", [4, 19])
def test_p_values_of_exchangeable_scores_are_uniform(n: int) -> None:
    # exchangeable, not independent: each world has a place and a spread of its own
    worlds = 4000
    draw = np.random.default_rng(n)
    scores = draw.normal(draw.normal(size=(worlds, 1)), draw.gamma(2, size=(worlds, 1)), size=(worlds, n + 1))
    found = [conformal_p_value(row[0], row[1:]) for row in scores]
    counts = np.bincount(np.round(np.array(found) * (n + 1)).astype(int), minlength=n + 2)
    assert counts[0] == 0
    # each of 1/(n+1), ..., 1 equally often: chi-square with n degrees of freedom, far beyond its 99.9 % quantile
    expected = worlds / (n + 1)
    assert ((counts[1:] - expected) ** 2 / expected).sum() < n + 5 * math.sqrt(2 * n)


def test_p_values_of_equal_scores_are_valid() -> None:
    # numbers of semantic sets: small whole numbers with many ties
    worlds, n = 4000, 20
    draw = np.random.default_rng(3)
    scores = 1 + draw.binomial(9, draw.beta(1, 3, size=(worlds, 1)), size=(worlds, n + 1))
    found = np.array([conformal_p_value(row[0], row[1:]) for row in scores])
    for level in (0.05, 0.1, 0.2, 0.5, 0.8):
        error = 3 * math.sqrt(level * (1 - level) / worlds)
        assert (found <= level).mean() <= level + error


def test_a_score_that_is_unusually_large_has_a_small_p_value() -> None:
    draw = np.random.default_rng(5)
    found = [conformal_p_value(1 + draw.binomial(9, 0.6), 1 + draw.binomial(9, 0.1, size=60)) for _ in range(200)]
    assert np.mean(np.array(found) <= 0.05) > 0.8


@pytest.mark.parametrize(("score", "scores"), [(1, []), (1, [math.nan]), (math.nan, [1]), (1, [[1]])])
def test_p_values_that_are_refused(score: float, scores: list[float]) -> None:
    with pytest.raises(UserFault, match="needs calibration scores"):
        conformal_p_value(score, scores)
