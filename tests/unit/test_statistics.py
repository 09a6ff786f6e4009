"""Intervals against an independent resampling, p-values against every swap there is."""

from __future__ import annotations

import math
import re
import sys
import warnings
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from dubito.errors import UserFault, extra_command
from dubito.evals.statistics import Figure, bootstrap_interval, holm, paired_permutation
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

# bootstrap


def bca(sample: np.ndarray, seed: int, level: float, resamples: int = 40_000) -> tuple[float, float]:
    """Efron's BCa interval of a mean, from the book."""
    draw = np.random.default_rng(seed)
    means = np.sort(sample[draw.integers(0, len(sample), (resamples, len(sample)))].mean(axis=1))
    below = (np.searchsorted(means, sample.mean(), "left") + np.searchsorted(means, sample.mean(), "right")) / 2
    bias = NormalDist().inv_cdf(below / resamples)
    left_out = np.array([np.delete(sample, i).mean() for i in range(len(sample))])
    away = left_out.mean() - left_out
    acceleration = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        z = bias + NormalDist().inv_cdf(share)
        place = NormalDist().cdf(bias + z / (1 - acceleration * z))
        ends.append(float(np.quantile(means, place)))
    return ends[0], ends[1]


def test_the_interval_is_that_of_an_independent_resampling() -> None:
    level = 0.8
    sample = np.random.default_rng(4).lognormal(0, 1.2, 25)  # skewed: plain percentiles lie elsewhere
    found = bootstrap_interval(sample, seed=0, level=level, resamples=40_000)
    low, high = bca(sample, seed=9, level=level)
    width = high - low
    assert found.mean == pytest.approx(sample.mean())
    assert found.low == pytest.approx(low, abs=0.05 * width)
    assert found.high == pytest.approx(high, abs=0.05 * width)
    assert found.n == 25
    assert {type(one) for one in (found.mean, found.low, found.high)} == {float}


def test_the_same_seed_is_the_same_interval() -> None:
    sample = np.random.default_rng(0).random(40)
    assert bootstrap_interval(sample, seed=3) == bootstrap_interval(list(sample), seed=3)
    assert bootstrap_interval(sample, seed=3) != bootstrap_interval(sample, seed=4)


@pytest.mark.parametrize("values", [[0.7], [0.7] * 5, [0.0, 0.0], [0.3, 0.1 + 0.2, 0.3], [True, True]])
def test_what_does_not_vary_has_no_width(values: list[float]) -> None:
    mean = float(np.mean(values))
    assert bootstrap_interval(values, seed=0) == Figure(len(values), mean, mean, mean)


@pytest.mark.parametrize("factor", [1e-200, 1e200, -1.0])
def test_the_scale_does_not_matter(factor: float) -> None:
    values = np.random.default_rng(2).random(30)
    plain, scaled = (bootstrap_interval([one * f for one in values], seed=0) for f in (1.0, factor))
    ends = sorted([plain.low * factor, plain.high * factor])
    assert [scaled.low, scaled.high] == pytest.approx(ends, rel=0.02, abs=0.02 * abs(factor))


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.0, 1.0, 0.5, 1 / 3]), min_size=1, max_size=12), st.integers(0, 99))
def test_an_interval_is_never_nan_and_holds_the_mean(values: list[float], seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bootstrap_interval(values, seed, resamples=199)
    assert min(values) - 1e-12 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= max(values) + 1e-12


# permutation


def every_swap(first: list[float], second: list[float]) -> float:
    """The two-sided p-value: the share of all swaps whose difference is at least as far from 0."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    observed = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(one >= observed - 1e-9 for one in sums) / len(sums)


SCORES = st.sampled_from([0.0, 0.5, 1.0, 2 / 3, 0.1])


@settings(max_examples=150)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=9))
def test_the_p_value_is_that_of_every_swap(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = paired_permutation(first, second, seed=0)
    assert found == pytest.approx(every_swap(first, second))
    assert type(found) is float


def test_p_values_by_hand() -> None:
    assert paired_permutation([1, 1, 1, 1], [0, 0, 0, 0], seed=0) == 2 / 16
    assert paired_permutation([0, 1], [1, 0], seed=0) == 1
    assert paired_permutation([1], [0], seed=0) == 1
    assert paired_permutation([0.5, 0.5], [0.5, 0.5], seed=0) == 1


def test_rounding_breaks_no_ties() -> None:
    # -0.2 -0.5 +0.1 -0.1 +0.7 adds up to 0, or to a rounding error
    first, second = [0.9, 0.7, 0.4, 0.1, 0.2, 0.7], [0.9, 0.9, 0.9, 0.0, 0.3, 0.0]
    assert paired_permutation(first, second, seed=0) == every_swap(first, second)


def test_questions_that_both_answer_alike_do_not_change_p() -> None:
    first, second = [1.0] * 8, [0.0] * 8
    found = paired_permutation(first + [0.3] * 500, second + [0.3] * 500, seed=0)
    assert found == 2 / 2**8


def test_many_questions_are_estimated_alike_under_one_seed() -> None:
    draw = np.random.default_rng(8)
    first = draw.random(40)
    second = first + draw.normal(0.03, 0.1, 40)
    found = paired_permutation(first, second, seed=1)
    assert found == paired_permutation(first, second, seed=1)
    assert found != paired_permutation(first, second, seed=2)
    signs = np.random.default_rng(77).choice([-1.0, 1.0], (100_000, 40))
    expected = (np.abs(signs @ (first - second)) >= abs((first - second).sum()) - 1e-12).mean()
    assert found == pytest.approx(expected, abs=0.02)


def test_an_estimated_p_value_is_never_0() -> None:
    assert paired_permutation([1.0] * 40, [0.0] * 40, seed=0, resamples=99) == pytest.approx(1 / 100)


# Holm


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.5, 0.9, 0.6]) == [1.0, 1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


# what is refused


@pytest.mark.parametrize("values", [[], [math.nan, 1.0], [[1.0, 2.0]], [math.inf]])
def test_samples_that_are_refused(values: list[float]) -> None:
    with pytest.raises(UserFault, match="finite numbers, at least one"):
        bootstrap_interval(values, seed=0)
    with pytest.raises(UserFault, match="finite numbers, at least one"):
        paired_permutation(values, values, seed=0)


def test_pairs_have_to_be_pairs() -> None:
    with pytest.raises(UserFault, match="One system has 2 scores and the other 3"):
        paired_permutation([1, 2], [1, 2, 3], seed=0)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_levels_that_are_refused(level: float) -> None:
    with pytest.raises(UserFault, match="between 0 and 1"):
        bootstrap_interval([0.0, 1.0], seed=0, level=level)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_p_values_that_are_refused(p: float) -> None:
    with pytest.raises(UserFault, match="between 0 and 1"):
        holm([0.5, p])


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UserFault, match=re.escape(extra_command("eval"))):
        bootstrap_interval([0.0, 1.0], seed=0)
    with pytest.raises(UserFault, match=re.escape(extra_command("eval"))):
        paired_permutation([0.0, 1.0], [1.0, 0.5], seed=0)
