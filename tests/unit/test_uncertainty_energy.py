"""The energy of logits against values worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import energy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

logits = st.tuples(st.integers(1, 4), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-30, 30))
)
temperatures = st.floats(0.5, 5)


@pytest.mark.parametrize(
    ("rows", "temperature", "expected"),
    [
        ([[0, 0, 0, 0]], 1, -math.log(4)),
        ([[math.log(2), math.log(3)]], 1, -math.log(5)),
        ([[math.log(2), math.log(3)], [0, math.log(4)]], 1, -math.log(5)),  # both tokens −log 5
        ([[0, 0], [7, 7]], 1, -math.log(2) - 3.5),  # the mean of −log 2 and −7 − log 2
        ([[2 * math.log(2), 2 * math.log(3)]], 2, -2 * math.log(5)),
        ([[3.0]], 0.1, -3.0),
        ([[math.log(0.25), math.log(0.75)]], 1, 0.0),  # log-probabilities
        ([[1.0, -math.inf]], 1, -1.0),
    ],
)
def test_energy_by_hand(rows, temperature: float, expected: float) -> None:
    assert energy(rows, temperature) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_temperature_is_one_unless_given() -> None:
    assert energy([[0.0, 1.0]]) == energy([[0.0, 1.0]], 1.0) == pytest.approx(-math.log(1 + math.e), rel=1e-12)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    assert energy([[1e4, 1e4]]) == pytest.approx(-1e4 - math.log(2), rel=1e-15)
    assert energy([[-1e4, -1e4]]) == pytest.approx(1e4 - math.log(2), rel=1e-15)
    assert energy([[5.0, 4.0]], 1e-300) == -5.0
    assert type(energy(np.array([[5.0, 4.0]], dtype=np.float32))) is float


@given(logits, temperatures)
def test_energy_by_the_definition(rows: np.ndarray, temperature: float) -> None:
    tokens = [-temperature * math.log(sum(math.exp(logit / temperature) for logit in row)) for row in rows.tolist()]
    assert energy(rows, temperature) == pytest.approx(sum(tokens) / len(tokens), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1.0, 2.0], r"shape \(2,\)"),
        (np.zeros((0, 5)), r"shape \(0, 5\)"),
        (np.zeros((5, 0)), r"shape \(5, 0\)"),
        ([[1.0, 2.0], [math.nan, 1.0]], "highest logit of a token is nan"),
        ([[math.inf, 1.0]], "is inf"),
        ([[-math.inf, -math.inf]], "is -inf"),
    ],
)
def test_logits_that_are_refused(rows, message: str) -> None:
    with pytest.raises(UserFault, match=message):
        energy(rows)


@pytest.mark.parametrize("temperature", [0, -1, math.nan, math.inf])
def test_a_temperature_that_is_not_above_0_is_refused(temperature: float) -> None:
    with pytest.raises(UserFault, match="give a number above 0"):
        energy([[1.0]], temperature)
