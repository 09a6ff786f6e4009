"""Perplexity, of one answer and of several, and length-normalised entropy against hand-worked values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import length_normalised_entropy, multi_perplexity, perplexity
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

token_log_probs = st.lists(st.floats(-50, 0), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.5, 0.125], 4.0),  # the geometric mean of 2 and 8
        ([0.1], 10.0),
        ([0.25] * 7, 4.0),  # as likely as one of four
        ([1.0, 1.0], 1.0),
    ],
)
def test_perplexity_by_hand(probabilities, expected):
    assert perplexity(np.log(probabilities)) == pytest.approx(expected, rel=1e-12)


def test_a_token_of_no_probability_makes_the_perplexity_infinite():
    assert perplexity([-0.5, -math.inf]) == math.inf
    assert perplexity([-1e4]) == math.inf  # more than a float holds
    assert length_normalised_entropy([[-0.5], [-math.inf]]) == math.inf


def test_the_mean_perplexity_by_hand():
    # 4, 10 and 1; of all their tokens together it would be another number
    assert multi_perplexity([np.log([0.5, 0.125]), np.log([0.1]), [0.0]]) == pytest.approx(5.0, rel=1e-12)
    assert multi_perplexity([[0.0], [-0.0, 0.0]]) == 1.0
    assert multi_perplexity([[-709.7]] * 4) == pytest.approx(perplexity([-709.7]), rel=1e-12)  # their sum overflows
    assert multi_perplexity([[-0.5], [-math.inf]]) == math.inf
    assert type(multi_perplexity([[-0.5]])) is float


@given(st.lists(token_log_probs, min_size=1, max_size=5))
def test_the_mean_perplexity_by_the_definition(answers):
    found = [math.exp(-sum(answer) / len(answer)) for answer in answers]
    assert multi_perplexity(answers) == pytest.approx(sum(found) / len(found), rel=1e-9)


def test_length_normalised_entropy_by_hand():
    # means of −log₂ p: (1 + 2)/2 = 1.5 and 3; their mean 2.25, where the mean over all tokens would be 2
    answers = [np.log([0.5, 0.25]), np.log([0.125])]
    assert length_normalised_entropy(answers) == pytest.approx(2.25 * math.log(2), rel=1e-12)


def test_certainty_is_zero_and_not_minus_zero():
    entropy = length_normalised_entropy([[0.0, 0.0], [-0.0], [5e-7]])
    assert type(entropy) is float
    assert str(entropy) == "0.0"
    assert perplexity([5e-7]) == 1.0  # rounding above 0 is 0


@given(st.lists(token_log_probs, min_size=1, max_size=5))
def test_length_normalised_entropy_by_the_definition(answers):
    means = [sum(answer) / len(answer) for answer in answers]
    assert length_normalised_entropy(answers) == pytest.approx(-sum(means) / len(means), rel=1e-9, abs=1e-12)


REFUSED = [
    ([], "has no tokens"),
    ([-0.1, math.nan], "NaN"),
    ([-0.1, 2e-6], "log-probability 2e-06: give natural logarithms"),
    ([-0.1, 0.9], "at most 0"),
    ([[-0.1]], r"shape \(1, 1\)"),
]


@pytest.mark.parametrize(("log_probs", "message"), REFUSED)
def test_log_probs_that_are_refused(log_probs, message):
    with pytest.raises(UserFault, match=message):
        perplexity(log_probs)
    for of_several in (length_normalised_entropy, multi_perplexity):
        with pytest.raises(UserFault, match=f"Answer 1.*{message}"):
            of_several([[-0.1], log_probs])


@pytest.mark.parametrize("of_several", [length_normalised_entropy, multi_perplexity])
def test_samples_that_are_refused(of_several):
    with pytest.raises(UserFault, match="sample at least one"):
        of_several([])
    with pytest.raises(UserFault, match=r"shape \(\)"):
        of_several([-0.1, -0.2])  # one answer's tokens, not answers
