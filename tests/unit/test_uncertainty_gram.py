"""The eigen score against the Gram matrix's eigenvalues and closed forms, and its invariances."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.tests.record_eigen_scores import SCORES, cases
from dubito.uncertainty import eigen_score
from hypothesis import given
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


def test_it_is_the_score_of_the_authors_formula() -> None:
    """The numbers that SeaKR's published code computes in float64 (`tests/record_eigen_scores.py`)."""
    recorded = json.loads(SCORES.read_text(encoding="utf-8"))
    assert [eigen_score(states, alpha) for states, alpha in cases()] == pytest.approx(recorded, abs=1e-7)


@pytest.mark.parametrize("size", [1e-3, 1, 1e3, 1e6])
@pytest.mark.parametrize("k", [2, 6])
def test_equal_rows(k: int, size: float) -> None:
    # (1, 2, 3, 6) has mean 3, and (−2, −1, 0, 3) the square 14; one eigenvalue k s, the others 0
    squared = 14 * size**2
    by_hand = ((k - 1) * math.log(ALPHA) + math.log(k * squared + ALPHA)) / k
    assert eigen_score([[size, 2 * size, 3 * size, 6 * size]] * k) == pytest.approx(by_hand, abs=1e-9)


@pytest.mark.parametrize("alpha", [1e-3, 1e-12, 2.0])
def test_rows_of_equal_numbers_leave_alpha_alone(alpha: float) -> None:
    assert eigen_score([[5.0] * 3, [-7.0] * 3, [0.0] * 3], alpha) == pytest.approx(math.log(alpha), rel=1e-12)
    assert eigen_score([[5.0], [7.0]], alpha) >= math.log(alpha) - 1e-12


@given(rows)
def test_it_is_never_below_the_logarithm_of_alpha(states: np.ndarray) -> None:
    score = eigen_score(states)
    assert type(score) is float
    assert score >= math.log(ALPHA) - 1e-12


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
