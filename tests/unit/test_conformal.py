"""Conformal thresholds: order statistics worked out by hand, the guarantee by simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import conformal_threshold, coverage
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

TENTHS = [0.7, 0.1, 0.9, 0.3, 0.5, 0.2, 1.0, 0.6, 0.8, 0.4]  # 0.1, 0.2, ..., 1.0


alphas = st.floats(0, 1, exclude_min=True, exclude_max=True)


@pytest.mark.parametrize(
    ("n", "alpha", "rank"),
    [
        # floor(alpha (n + 1)), worked out by hand
        *((n, 0.1, 0) for n in range(9)), (9, 0.1, 1), (10, 0.1, 1), (18, 0.1, 1), (19, 0.1, 2),
        (1, 0.2, 0), (2, 0.2, 0), (3, 0.2, 0), (4, 0.2, 1), (5, 0.2, 1), (6, 0.2, 1), (7, 0.2, 1), (8, 0.2, 1),
        (9, 0.2, 2), (10, 0.2, 2),
        (0, 0.5, 0), (1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (4, 0.5, 2), (5, 0.5, 3), (6, 0.5, 3), (7, 0.5, 4),
        (8, 0.5, 4), (9, 0.5, 5), (10, 0.5, 5),
        # products that floating point leaves below the whole number
        (99, 0.29, 29), (2, 1 / 3, 1), (9, 0.7, 7),
        (3, 0.999, 3), (3, 1 - 1e-15, 3),
    ],
)  # fmt: skip
def test_the_threshold_is_the_kth_smallest_score(n: int, alpha: float, rank: int) -> None:
    drawn = np.random.default_rng(n).permutation(n) / 128 + 1 / 128
    assert conformal_threshold(drawn, alpha) == rank / 128  # rank 0 means threshold 0, which keeps all


def test_equal_scores_are_kept_together() -> None:
    # the second smallest of nine, equal to the smallest
    assert conformal_threshold([0.5, 0.2, 0.5, 0.2, 0.2, 1, 1, 0.5, 1], 0.2) == 0.2
    assert coverage([0.5, 0.2, 0.5, 0.2, 0.2, 1, 1, 0.5, 1], 0.2) == 1.0
    assert conformal_threshold([1.0] * 20, 0.5) == 1.0
    assert conformal_threshold([0.0, 0.0, 0.0, 1.0], 0.5) == 0.0


def test_coverage_includes_the_threshold_itself() -> None:
    assert coverage(TENTHS, 0.3) == 0.8
    assert coverage(TENTHS, 0.31) == 0.7
    assert coverage(TENTHS, 0.0) == 1.0
    assert coverage([0.2], 0.3) == 0.0
    assert type(coverage(TENTHS, 0.3)) is type(conformal_threshold(TENTHS, 0.3)) is float


@pytest.mark.parametrize("n", [5, 39, 100])
@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5])
def test_right_answers_are_kept_as_often_as_promised(n: int, alpha: float) -> None:
    repetitions = 2000
    draw = np.random.default_rng([n, int(alpha * 10)])
    consistent = draw.beta(2, 1, size=(repetitions, n + 1))
    kept = [coverage(row[:1], conformal_threshold(row[1:], alpha)) for row in consistent]
    error = 3 * math.sqrt(alpha * (1 - alpha) / repetitions)
    promised = 1 - Fraction(str(alpha))
    assert np.mean(kept) >= promised - error
    assert np.mean(kept) <= promised + Fraction(1, n + 1) + error


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), alphas)
def test_fewer_than_the_rank_of_the_calibration_answers_are_lost(right: list[float], alpha: float) -> None:
    threshold = conformal_threshold(right, alpha)
    lost = round((1 - coverage(right, threshold)) * len(right))
    rank = math.floor(Fraction(alpha) * (len(right) + 1) + Fraction(1, 10**9))
    assert lost <= max(min(rank, len(right)) - 1, 0)
    assert threshold in {0.0, *right}


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(UserFault, match=r"give an alpha between 0 and 1"):
        conformal_threshold(TENTHS, alpha)


@pytest.mark.parametrize("wrong", [math.nan, 1.01, -0.01, math.inf])
def test_a_score_out_of_range_is_refused(wrong: float) -> None:
    for check in (conformal_threshold, coverage):
        with pytest.raises(UserFault, match=r"NaN or outside \[0, 1\]"):
            check([0.5, wrong], 0.5)


def test_scores_in_another_shape_are_refused() -> None:
    with pytest.raises(UserFault, match=r"shape \(1, 2\)"):
        conformal_threshold([[0.1, 0.2]], 0.1)
    with pytest.raises(UserFault, match="no right answer"):
        coverage([], 0.1)
