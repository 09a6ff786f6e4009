"""The eigen score against the Gram matrix's eigenvalues and closed forms, and its invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import eigen_score
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

ALPHA = 1e-3

rows = st.tuples(st.integers(2, 6), st.integers(1, 8)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-10, 10, width=32))
)


def by_eigenvalues(states: np.ndarray, alpha: float) -> float:
    """The formula as it is written: J as a matrix, the Gram matrix, the eigenvalues of it regularised."""
    k, d = states.shape
    centring = np.eye(d) - np.ones((d, d)) / d
    gram = states @ centring @ states.T
    return float(np.log(np.linalg.eigvalsh(gram + alpha * np.eye(k))).sum() / k)


@pytest.mark.parametrize(("k", "d"), [(2, 5), (5, 5), (20, 64), (7, 3), (2, 1)])
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 4.0])
def test_it_is_the_mean_logarithm_of_the_gram_matrixs_eigenvalues(k: int, d: int, alpha: float) -> None:
    states = np.random.default_rng([k, d]).normal(2, 3, size=(k, d))
    assert eigen_score(states, alpha) == pytest.approx(by_eigenvalues(states, alpha), abs=1e-9)


def test_alpha_is_a_thousandth_unless_given() -> None:
    states = np.random.default_rng(1).normal(size=(4, 6))
    assert eigen_score(states) == eigen_score(states, 0.001) == pytest.approx(by_eigenvalues(states, 0.001), abs=1e-9)


@pytest.mark.parametrize("size", [1e-3, 1, 1e3, 1e6])
@pytest.mark.parametrize("k", [2, 6])
def test_equal_rows(k: int, size: float) -> None:
    # (1, 2, 3, 6) has mean 3, and (−2, −1, 0, 3) the square 14; one eigenvalue k s, the others 0
    squared = 14 * size**2
    by_hand = ((k - 1) * math.log(ALPHA) + math.log(k * squared + ALPHA)) / k
    assert eigen_score([[size, 2 * size, 3 * size, 6 * size]] * k) == pytest.approx(by_hand, abs=1e-9)


def test_equal_rows_by_their_numbers() -> None:
    # s = 0.5: (log 0.001 + log(2 · 0.5 + 0.001)) / 2 = (−6.907755 + 0.0009995) / 2
    assert eigen_score([[0.5, -0.5], [0.5, -0.5]]) == pytest.approx(-3.4533779, abs=1e-7)


@pytest.mark.parametrize("alpha", [1e-3, 1e-12, 2.0])
def test_rows_of_equal_numbers_leave_alpha_alone(alpha: float) -> None:
    assert eigen_score([[5.0] * 3, [-7.0] * 3, [0.0] * 3], alpha) == pytest.approx(math.log(alpha), rel=1e-12)
    assert eigen_score([[5.0], [7.0]], alpha) >= math.log(alpha) - 1e-12


def test_orthonormal_rows() -> None:
    # each of mean 0, of length 1 and at right angles to the others: every eigenvalue 1
    half = 0.5
    states = [[half, half, -half, -half], [half, -half, half, -half], [half, -half, -half, half]]
    assert eigen_score(states, 0.25) == pytest.approx(math.log(1.25), rel=1e-12)
    assert eigen_score(np.array(states) * 3, 0.25) == pytest.approx(math.log(9.25), rel=1e-12)


def test_one_outlier() -> None:
    # two rows (1, −1, 0, 0) of square 2, one (0, 0, 2, −2) of square 8: eigenvalues 4, 8, 0
    states = [[1, -1, 0, 0], [0, 0, 2, -2], [1, -1, 0, 0]]
    by_hand = (math.log(4 + ALPHA) + math.log(8 + ALPHA) + math.log(ALPHA)) / 3
    assert eigen_score(states) == pytest.approx(by_hand, rel=1e-12)
    assert eigen_score(states) > eigen_score([[1, -1, 0, 0]] * 3)


@settings(deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(states: np.ndarray, random) -> None:
    order = random.sample(range(len(states)), len(states))
    assert eigen_score(states[order]) == pytest.approx(eigen_score(states), abs=1e-6)


@settings(deadline=None)
@given(rows, st.floats(-10, 10, width=32))
def test_a_constant_added_to_a_row_does_not_matter(states: np.ndarray, constant: float) -> None:
    moved = states.copy()
    moved[0] += constant
    assert eigen_score(moved) == pytest.approx(eigen_score(states), abs=1e-6)


@settings(deadline=None)
@given(rows, st.integers(0, 2**32 - 1))
def test_turning_around_the_diagonal_does_not_matter(states: np.ndarray, seed: int) -> None:
    d = states.shape[1]
    # an orthonormal basis whose first vector is (1, ..., 1) / √d; the others are turned among themselves
    basis, _ = np.linalg.qr(np.column_stack([np.ones(d), np.random.default_rng(seed).normal(size=(d, d - 1))]))
    other, _ = np.linalg.qr(np.column_stack([np.ones(d), np.random.default_rng(seed + 1).normal(size=(d, d - 1))]))
    turn = basis @ other.T
    assert turn @ np.ones(d) == pytest.approx(np.ones(d))
    assert eigen_score(states @ turn) == pytest.approx(eigen_score(states), abs=1e-6)


@settings(deadline=None)
@given(rows)
def test_it_is_never_below_the_logarithm_of_alpha(states: np.ndarray) -> None:
    score = eigen_score(states)
    assert type(score) is float
    assert score >= math.log(ALPHA) - 1e-12


@settings(deadline=None)
@given(rows, st.floats(1.1, 5))
def test_wider_rows_are_more_uncertain(states: np.ndarray, times: float) -> None:
    assert eigen_score(states * times) >= eigen_score(states) - 1e-9


@pytest.mark.parametrize("noise", [0, *(10.0**-i for i in range(8))])
def test_states_kept_in_float32_give_the_same_score_to_five_digits(noise: float) -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        common = draw.uniform(-50, 50, size=576)
        states = common * (1 + noise * draw.uniform(-1, 1, size=(20, 576)))
        assert np.abs(states).max() <= 100
        kept = states.astype(np.float32)
        assert abs(eigen_score(kept) - eigen_score(states)) < 1e-5
        assert eigen_score(kept) == eigen_score(kept.astype(np.float64))  # nothing is computed in float32


def test_the_argument_is_not_changed() -> None:
    states = np.array([[1.0, 2.0], [3.0, 5.0]])
    eigen_score(states)
    assert states.tolist() == [[1.0, 2.0], [3.0, 5.0]]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([[1.0, 2.0]], "at least two continuations"),
        (np.zeros((0, 4)), r"shape \(0, 4\)"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        ([1.0, 2.0], r"shape \(2,\)"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        ([[1.0, 2.0], [1.0]], "rows of equal length"),
        ([["a", "b"], ["c", "d"]], "not an array of numbers"),
        ([[1.0, math.nan], [1.0, 2.0]], "not finite"),
        ([[1.0, 2.0], [-math.inf, 2.0]], "not finite"),
        ([[1.0, 2.0], [1e308, -1e308]], "not finite"),
    ],
)
def test_states_that_are_refused(states, message: str) -> None:
    with pytest.raises(UserFault, match=message):
        eigen_score(states)


@pytest.mark.parametrize("alpha", [0, -1e-3, math.nan, math.inf])
def test_an_alpha_that_regularises_nothing_is_refused(alpha: float) -> None:
    with pytest.raises(UserFault, match="give a number above 0"):
        eigen_score([[1.0, 2.0], [3.0, 5.0]], alpha)
