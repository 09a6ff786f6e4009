"""What an uncertainty is worth: pairs counted, orders enumerated, bins and fits by hand."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import astuple
from itertools import permutations
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault, extra_command
from dubito.evals.reliability import (
    UncertaintyBin,
    auroc,
    auroc_interval,
    by_uncertainty,
    chance_calibration_error,
    confidences_from,
    expected_calibration_error,
    risk_coverage,
)
from hypothesis import given, settings
from hypothesis import strategies as st

UNCERTAINTIES = st.sampled_from([-6.5, -1.0, 0.0, 0.25, 3.0])

# AUROC


@given(st.lists(st.tuples(UNCERTAINTIES, st.booleans()), max_size=12))
def test_the_auroc_counts_pairs(pairs: list[tuple[float, bool]]) -> None:
    duels = [(w > r) + (w == r) / 2 for w, wrong in pairs if wrong for r, other in pairs if not other]
    found = auroc([u for u, _ in pairs], [wrong for _, wrong in pairs])
    assert found == (pytest.approx(sum(duels) / len(duels), abs=1e-12) if duels else None)


Z2 = 1.959964**2


@pytest.mark.parametrize(
    ("area", "low", "high"),
    # of one right and one wrong answer: (a − t)² = z² t (1 − t), which is Wilson's interval of a share of one
    [(1.0, 1 / (1 + Z2), 1.0), (0.0, 0.0, Z2 / (1 + Z2)), (0.5, 0.5 - 0.5 * (Z2 / (1 + Z2)) ** 0.5, None)],
)
def test_the_interval_of_an_auroc_by_hand(area: float, low: float, high: float | None) -> None:
    found = auroc_interval(area, 1, 1)
    assert found == pytest.approx((low, 1 - low if high is None else high), abs=1e-6)


@pytest.mark.parametrize(("right", "wrong"), [(0, 3), (3, 0)])
def test_there_is_no_interval_without_right_and_wrong_answers(right: int, wrong: int) -> None:
    with pytest.raises(UserFault, match="at least one of each"):
        auroc_interval(0.5, right, wrong)


@pytest.mark.parametrize(("right", "wrong", "shift"), [(35, 55, 0.5), (10, 20, 1.5), (15, 75, 0.0)])
def test_the_interval_of_an_auroc_holds_the_true_one(right: int, wrong: int, shift: float) -> None:
    random, true = np.random.default_rng(0), NormalDist().cdf(shift / 2**0.5)
    is_wrong = [False] * right + [True] * wrong
    held = 0
    for _ in range(400):
        area = auroc([*random.normal(0, 1, right), *random.normal(shift, 1, wrong)], is_wrong)
        assert area is not None
        low, high = auroc_interval(area, right, wrong)
        held += low <= true <= high
    assert 0.93 <= held / 400 <= 0.99


# calibration error


@pytest.mark.parametrize(
    ("confidences", "right", "error"),
    [
        ([1.0, 1.0], [True, True], 0.0),
        ([1.0, 0.0], [False, True], 1.0),
        ([0.9, 0.9, 0.9, 0.9], [True, True, True, False], 0.15),
        # 0.55 and 0.6 share a bin, (0.5, 0.6]: one of two right, 0.575 meant; 0.95 alone
        ([0.55, 0.6, 0.95], [True, False, True], (2 * 0.075 + 0.05) / 3),
        # 0.3 is the upper edge of its bin and 0.31 in the next: 0.7 and 0.31 off, not (0.3 + 0.31 - 1) / 2
        ([0.3, 0.31], [True, False], (0.7 + 0.31) / 2),
        ([0.0, 0.1], [True, False], 0.9 / 2),  # 0 is in the first bin
    ],
)
def test_calibration_errors_by_hand(confidences: list[float], right: list[bool], error: float) -> None:
    found = expected_calibration_error(confidences, right)
    assert found == pytest.approx(error)
    assert type(found) is float


def test_the_number_of_bins_is_a_setting() -> None:
    confidences, right = [0.2, 0.4], [True, False]
    assert expected_calibration_error(confidences, right, bins=1) == pytest.approx(0.2)
    assert expected_calibration_error(confidences, right, bins=5) == pytest.approx((0.8 + 0.4) / 2)


@pytest.mark.parametrize("confidences", [[1.1], [-0.1], []])
def test_what_is_no_probability_has_no_calibration_error(confidences: list[float]) -> None:
    with pytest.raises(UserFault, match=r"in \[0, 1\]"):
        expected_calibration_error(confidences, [True] * len(confidences))


@pytest.mark.parametrize(
    ("confidences", "level", "low", "high"),
    [
        ([0.5], 0.95, 0.5, 0.5),  # right or wrong, it is as far off
        ([0.0, 1.0, 1.0], 0.95, 0.0, 0.0),  # what is certain happens
        # 0, 1/4 and 1/2 off in 6, 8 and 2 of 16 cases
        ([0.5] * 4, 0.95, 0.0, 0.5),
        ([0.5] * 4, 0.5, 0.0, 0.25),
        ([0.5] * 4, 0.1, 0.25, 0.25),
    ],
)
def test_calibration_errors_by_chance_by_hand(confidences: list[float], level: float, low: float, high: float) -> None:
    assert chance_calibration_error(confidences, seed=0, level=level) == pytest.approx((low, high))


def test_exact_confidences_have_an_error_within_chance() -> None:
    draw = np.random.default_rng(4)
    within = 0
    for seed in range(300):
        confidences = draw.beta(2, 1, size=60)
        low, high = chance_calibration_error(confidences, seed)
        within += low <= expected_calibration_error(confidences, draw.random(60) < confidences) <= high
    assert 0.91 < within / 300 < 0.99
    overconfident = np.sqrt(confidences)
    assert expected_calibration_error(overconfident, [False] * 60) > chance_calibration_error(overconfident, 0)[1]


@pytest.mark.parametrize("confidences", [[1.1], [-0.1], [float("nan")], []])
def test_what_is_no_probability_has_no_error_by_chance(confidences: list[float]) -> None:
    with pytest.raises(UserFault, match=r"in \[0, 1\]"):
        chance_calibration_error(confidences, seed=0)


# confidences


def test_noise_is_not_made_to_look_calibrated_by_its_own_answers() -> None:
    draw = np.random.default_rng(2)
    uncertainties, right = draw.random(60), draw.random(60) < 0.5
    # fitted to themselves, isotonic confidences are right on average in every one of their steps
    assert expected_calibration_error(confidences_from(uncertainties, right, seed=0), right) > 0.05
    assert confidences_from(uncertainties, right, seed=1) != confidences_from(uncertainties, right, seed=0)


def test_each_answer_is_read_off_the_fit_to_the_others() -> None:
    # two folds of one: each gets the other's outcome
    assert confidences_from([0.1, 0.9], [True, False], seed=0) == [0.0, 1.0]
    # of four, each left out in turn. Others 2 3 4: right, wrong, right, pooled to 1 then 1/2 ... read at 1
    found = confidences_from([1.0, 2.0, 3.0, 4.0], [True, True, False, False], seed=0)
    assert found == pytest.approx([1.0, 0.5, 0.5, 0.0])
    assert {type(one) for one in found} == {float}


def test_equal_uncertainties_get_one_confidence() -> None:
    found = confidences_from([1.0] * 10, [True] * 5 + [False] * 5, seed=0, folds=10)
    # nine others: 4 of 9 right for one that is right, 5 of 9 for one that is not
    assert found == pytest.approx([4 / 9] * 5 + [5 / 9] * 5)


def test_the_fit_is_sklearns() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic").IsotonicRegression
    draw = np.random.default_rng(3)
    uncertainties = np.round(draw.normal(size=40), 1)
    right = draw.random(40) < 0.6
    found = confidences_from(uncertainties, right, seed=0, folds=40)
    for i, confidence in enumerate(found):
        others = np.arange(40) != i
        peer = isotonic(increasing=False, out_of_bounds="clip").fit(uncertainties[others], right[others])
        assert confidence == pytest.approx(float(peer.predict(uncertainties[[i]])[0]))


def test_one_answer_has_no_others() -> None:
    with pytest.raises(UserFault, match="at least two"):
        confidences_from([0.5], [True], seed=0)
    with pytest.raises(UserFault, match="two folds"):
        confidences_from([0.5, 0.6], [True, False], seed=0, folds=1)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(UserFault, match=re.escape(extra_command("eval"))):
        confidences_from([0.1, 0.9], [True, False], seed=0)


# risk and coverage


def test_risk_and_coverage_by_hand() -> None:
    found = risk_coverage([0.5, 0.1, 0.9], [0.4, 0.0, 1.0])
    assert found.coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert found.risk == pytest.approx([0, 0.2, 1.4 / 3])
    assert found.aurc == pytest.approx((0 + 0.2 + 1.4 / 3) / 3)
    assert {type(one) for one in (*found.coverage, *found.risk, found.aurc)} == {float}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=6))
def test_the_risk_is_the_expected_one_over_all_orders_of_equals(pairs: list[tuple[int, int]]) -> None:
    curves = []
    for order in permutations(range(len(pairs))):
        uncertainties = [pairs[i][0] for i in order]
        if uncertainties == sorted(uncertainties):
            costs = [pairs[i][1] / 4 for i in order]
            curves.append([sum(costs[: k + 1]) / (k + 1) for k in range(len(costs))])
    expected = [sum(column) / len(curves) for column in zip(*curves, strict=True)]
    found = risk_coverage([u for u, _ in pairs], [cost / 4 for _, cost in pairs])
    assert found.risk == pytest.approx(expected)
    assert found.aurc == pytest.approx(sum(expected) / len(expected))


def test_no_answers_have_no_curve() -> None:
    with pytest.raises(UserFault, match="at least one"):
        risk_coverage([], [])


# certain and uncertain


def test_mean_scores_by_interval() -> None:
    found = by_uncertainty([0.0, 0.1, 0.15, 0.2, 0.2000001, 1.0], [1, 1, 0, 1, 0, 0], [0.1, 0.2, 0.4, 0.5])
    bins = [(None, 0.1, 2, 1.0), (0.1, 0.2, 2, 0.5), (0.2, 0.4, 1, 0.0), (0.4, 0.5, 0, None), (0.5, None, 1, 0.0)]
    assert [astuple(part) for part in found] == bins
    assert by_uncertainty([1.0, 2.0], [0, 1], []) == [UncertaintyBin(None, None, 2, 0.5)]


@pytest.mark.parametrize("cuts", [[0.2, 0.1], [0.1, 0.1], [math.nan]])
def test_cuts_that_are_refused(cuts: list[float]) -> None:
    with pytest.raises(UserFault, match="ascending"):
        by_uncertainty([0.1], [1.0], cuts)


@pytest.mark.parametrize(
    ("uncertainties", "outcomes", "said"),
    [
        ([1.0, 2.0], [True], r"shape \(2,\) and what was wrong \(1,\)"),
        ([[1.0]], [[True]], r"shape \(1, 1\)"),
        ([math.nan, 1.0], [True, False], "not finite"),
        ([None, 1.0], [True, False], "not finite"),
        ([0.1, 1.0], [math.inf, 0], "not finite"),
        ([0.1, 1.0], [0.5, 0], "must be true or false"),
    ],
)
def test_what_is_refused(uncertainties: Any, outcomes: Any, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        auroc(uncertainties, outcomes)
