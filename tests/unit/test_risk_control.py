"""Certified thresholds: numbers worked out by hand or by scipy, and the promise by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import risk_control
from dubito.uncertainty.risk_control import (
    Plan,
    binomial_p,
    certified_cascade,
    certified_threshold,
    conformal_risk_threshold,
    fewest_certified,
    learning_part,
    least_certified_risk,
    looks_alike,
    questions_needed,
    risk_interval,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def drawn(rng: np.random.Generator, n: int, right: float = 0.5, shift: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    wrong = rng.random(n) >= right
    return rng.normal(size=n) + shift * wrong, wrong


# formulas


def test_the_p_value_is_a_binomial_tail() -> None:
    assert binomial_p(0, 22, 0.1) == pytest.approx(0.9**22, rel=1e-12)
    assert binomial_p(1, 3, 0.5) == pytest.approx(4 / 8)
    assert binomial_p([0, 3, 0], [0, 3, 2], 0.25).tolist() == pytest.approx([1, 1, 0.5625])


def tail(errors: int, answered: int, alpha: Fraction) -> Fraction:
    """P(Bin(answered, alpha) ≤ errors) without rounding."""
    return sum(
        (math.comb(answered, k) * alpha**k * (1 - alpha) ** (answered - k) for k in range(errors + 1)), Fraction(0)
    )


@pytest.mark.parametrize("alpha", [Fraction(1, 100), Fraction(1, 5), Fraction(7, 10)])
def test_the_p_value_is_exact(alpha: Fraction) -> None:
    errors, answered = [0, 1, 7, 20, 30, 99, 350], [50, 1, 60, 400, 99, 100, 500]
    expected = [float(tail(k, n, alpha)) for k, n in zip(errors, answered, strict=True)]
    assert binomial_p(errors, answered, float(alpha)) == pytest.approx(expected, rel=1e-10)


def test_the_interval_is_clopper_pearson() -> None:
    assert list(risk_interval(0, 10, 0.9)) == pytest.approx([0, 1 - 0.05**0.1])
    assert list(risk_interval(10, 10, 0.9)) == pytest.approx([0.05**0.1, 1])
    for errors, n in ((1, 7), (30, 100), (199, 300)):
        low, high = risk_interval(errors, n, 0.9)
        assert float(tail(errors, n, Fraction(high))) == pytest.approx(0.05)
        assert 1 - float(tail(errors - 1, n, Fraction(low))) == pytest.approx(0.05)


def test_the_conformal_threshold_counts_one_error_more() -> None:
    u = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    wrong = [0, 0, 1, 0, 1, 0, 0, 0, 1]
    # (errors + 1) / 10 ≤ α
    assert conformal_risk_threshold(u, wrong, 0.1) == 2
    assert conformal_risk_threshold(u, wrong, 0.2) == 4
    assert conformal_risk_threshold(u, wrong, 0.3) == 8
    assert conformal_risk_threshold(u, wrong, 0.4) == 9
    assert conformal_risk_threshold(u, wrong, 0.09) is None
    assert conformal_risk_threshold([1, 1, math.nan], [0, 1, 1], 0.5) == 1
    assert conformal_risk_threshold([1, 1, 1], [0, 1, 1], 0.5) is None


# certified thresholds


def test_all_right_is_certified_from_the_number_of_questions() -> None:
    found = certified_threshold(np.arange(100), np.zeros(100, bool), alpha=0.1, confidence=0.9, seed=0)
    assert found is not None
    assert found.errors == 0
    assert found.n == 80
    assert found.p_value == pytest.approx(0.9**found.answered)
    assert certified_threshold(np.arange(100), np.ones(100, bool), alpha=0.1, confidence=0.9, seed=0) is None
    # 0.99^80 > 0.1
    with pytest.raises(UserFault, match="give at least 287 questions to calibrate on"):
        certified_threshold(np.arange(100), np.zeros(100, bool), alpha=0.01, confidence=0.9, seed=0)


def test_the_fewest_questions_that_are_named_suffice_and_one_less_does_not() -> None:
    for alpha, confidence in ((0.1, 0.9), (0.2, 0.9), (0.05, 0.95)):
        fewest = fewest_certified(alpha, confidence)
        certify = partial(certified_threshold, alpha=alpha, confidence=confidence, seed=0)
        assert certify(np.zeros(fewest), np.zeros(fewest, bool)) is not None
        with pytest.raises(UserFault, match=f"give at least {fewest} questions"):
            certify(np.zeros(fewest - 1), np.zeros(fewest - 1, bool))


def test_equal_uncertainties_are_answered_together() -> None:
    u = np.repeat([0.0, 1.0, 2.0], 100)
    wrong = np.concatenate([np.arange(100) < 5, np.arange(100) < 30, np.arange(100) < 90])
    found = certified_threshold(u, wrong, alpha=0.3, confidence=0.9, seed=1)
    assert found is not None
    assert found.threshold == 1.0
    assert found.p_value == pytest.approx(float(binomial_p(found.errors, found.answered, 0.3)))
    assert certified_threshold(np.zeros(300), wrong, alpha=0.3, confidence=0.9, seed=1) is None
    assert certified_threshold(np.zeros(300), wrong, alpha=0.5, confidence=0.9, seed=1) is not None


def test_the_tests_stop_at_the_first_that_is_not_rejected() -> None:
    """Right, then wrong more often than not, then right: with all three levels the risk is below α again."""
    u = np.repeat([0.0, 1.0, 2.0], [60, 100, 100])
    wrong = (u == 1.0) & (np.arange(260) < 120)
    # with this seed the learning part lets the sequence begin at the first level, and the third has p = 0.004
    found = certified_threshold(u, wrong, alpha=0.3, confidence=0.9, seed=0)
    assert found is not None
    assert found.threshold == 0.0


def test_no_uncertainty_is_never_answered() -> None:
    u = np.concatenate([np.arange(60.0), [math.nan] * 30, [math.inf] * 10])
    found = certified_threshold(u, np.arange(100) >= 60, alpha=0.2, confidence=0.9, seed=0)
    assert found is not None
    assert found.errors == 0
    assert found.threshold < 60
    assert certified_threshold([math.nan] * 100, np.zeros(100), alpha=0.2, confidence=0.9, seed=0) is None


def test_the_least_risk_that_can_be_certified() -> None:
    rng = np.random.default_rng(5)
    u, wrong = drawn(rng, 200)
    least = least_certified_risk(u, wrong, confidence=0.9, seed=3)
    assert least is not None
    assert certified_threshold(u, wrong, alpha=least, confidence=0.9, seed=3) is not None
    assert certified_threshold(u, wrong, alpha=least - 0.01, confidence=0.9, seed=3) is None
    assert least_certified_risk(u, np.ones(200), confidence=0.9, seed=3) is None


def test_the_least_risk_that_can_be_certified_is_above_the_one_that_cannot() -> None:
    for world in range(60):
        u, wrong = drawn(np.random.default_rng([5, world]), 200)
        for alpha in (0.3, 0.35):
            if certified_threshold(u, wrong, alpha=alpha, confidence=0.9, seed=3) is None:
                least = least_certified_risk(u, wrong, above=alpha, confidence=0.9, seed=3)
                assert least is None or least > alpha


def test_a_cascade_gives_every_question_to_the_first_sure_rung() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=600)
    # rung 1 knows kind 0, rung 2 knows kinds 0 and 1, nobody knows kind 2
    u = np.stack([kind > 0, kind > 1], axis=1) + rng.random((600, 2)) / 10
    wrong = np.stack([kind > 0, kind > 1], axis=1)
    costs = np.tile([1.0, 10.0], (600, 1))
    found = certified_cascade(u, wrong, costs, alpha=0.1, confidence=0.9, seed=0)
    assert found is not None
    first, second = found.thresholds
    assert 0 < first < 1.1
    assert 0 < second < 1.1
    assert 0.6 < found.answered / found.n < 0.74
    assert found.p_value == pytest.approx(float(binomial_p(found.errors, found.answered, 0.1)))
    # every question costs 1, and those that rung 1 passes on 10 more
    assert found.mean_cost < 11


def test_a_useless_rung_is_switched_off_and_not_paid() -> None:
    rng = np.random.default_rng(1)
    good, wrong = drawn(rng, 500, right=0.7, shift=2.5)
    u = np.stack([rng.normal(size=500), good], axis=1)
    found = certified_cascade(
        u,
        np.stack([np.ones(500, bool), wrong], axis=1),
        np.tile([7.0, 1.0], (500, 1)),
        alpha=0.2,
        confidence=0.9,
        seed=0,
    )
    assert found is not None
    assert found.thresholds[0] == -math.inf
    assert found.mean_cost == pytest.approx(1)


# the promise


def test_shuffled_labels_are_not_certified() -> None:
    rng = np.random.default_rng(2)
    certified = 0
    for world in range(300):
        u, wrong = drawn(rng, 150)
        certified += certified_threshold(u, rng.permutation(wrong), alpha=0.3, confidence=0.9, seed=world) is not None
    assert risk_interval(certified, 300, 0.99).low <= 0.1


def test_the_risk_is_kept_as_often_as_promised() -> None:
    """The risk crosses α at t = 0.6: a threshold a little above is the hardest to refuse."""
    rng = np.random.default_rng(3)
    violated = certified = 0
    for world in range(300):
        u = rng.random(300)
        # risk of u ≤ t: 0.1 up to t = 0.5, then rising through 0.2 at t = 0.6
        wrong = rng.random(300) < np.where(u < 0.5, 0.1, 0.7)
        found = certified_threshold(u, wrong, alpha=0.2, confidence=0.9, seed=world)
        if found is not None:
            certified += 1
            t = found.threshold
            violated += (0.1 * min(t, 0.5) + 0.7 * max(t - 0.5, 0)) / t > 0.2
    assert certified > 100
    assert violated > 3  # the budget is used: the test could fail
    assert risk_interval(violated, 300, 0.99).low <= 0.1


def test_a_cascade_keeps_the_risk_as_often_as_promised() -> None:
    """Both rungs give no signal and are wrong as often as allowed: any certificate is false."""
    rng = np.random.default_rng(4)
    violated = 0
    for world in range(300):
        u, wrong = rng.normal(size=(150, 2)), rng.random((150, 2)) < 0.2000001
        violated += certified_cascade(u, wrong, np.ones((150, 2)), alpha=0.2, confidence=0.9, seed=world) is not None
    assert violated > 3
    assert risk_interval(violated, 300, 0.99).low <= 0.1


def test_the_share_beyond_the_first_rung_is_kept_as_often_as_promised() -> None:
    """No answer is wrong, and the first rung leaves a little more than allowed: any certificate is false."""
    rng = np.random.default_rng(5)
    violated = 0
    for world in range(600):
        first = np.where(rng.random(150) < 0.3999999, 0.0, math.nan)
        u, right = np.stack([first, np.zeros(150)], axis=1), np.zeros((150, 2), bool)
        found = certified_cascade(u, right, np.ones((150, 2)), alpha=0.2, confidence=0.9, seed=world, beyond=0.6)
        violated += found is not None
    assert violated > 3
    assert risk_interval(violated, 600, 0.99).low <= 0.1


def test_the_mean_cost_is_kept_as_often_as_promised() -> None:
    """The second rung costs 0 to 20 of a question; the true mean is that of 20,000 others."""
    kept = promised = 0
    for world in range(200):
        rng = np.random.default_rng([11, world])
        u, wrong = (
            np.stack(column, axis=1)
            for column in zip(drawn(rng, 20_300, 0.6, 1.5), drawn(rng, 20_300, 0.8, 1.5), strict=True)
        )
        costs = np.stack([np.ones(20_300), 20 * rng.random(20_300)], axis=1)
        part = u[:300], wrong[:300], costs[:300]
        found = certified_cascade(*part, alpha=0.25, confidence=0.9, seed=world, mean_cost=6.0)
        if found is not None:
            assert found.most_cost is not None
            first, second = found.thresholds
            later = np.where(u[300:, 0] > first, costs[300:, 1], 0)
            paid = costs[300:, 0] * (first > -np.inf) + later * (second > -np.inf)
            promised += 1
            kept += bool(np.minimum(paid, found.most_cost).mean() <= 6.0)
            assert found.mean_cost < 6.0
            assert found.most_cost <= 21
    assert promised > 150
    assert promised - kept <= 20


def test_the_path_begins_where_both_promises_are_clear() -> None:
    """Where the first rung may leave 0.6, the risk alone is clearest where it leaves about that: a coin's toss."""
    certified = 0
    for world in range(100):
        rng = np.random.default_rng(world)
        rungs = [drawn(rng, 300, 0.6, 1.5), drawn(rng, 300, 0.75, 1.5)]
        u, wrong = (np.stack(column, axis=1) for column in zip(*rungs, strict=True))
        certified += (
            certified_cascade(u, wrong, np.ones((300, 2)), alpha=0.2, confidence=0.9, seed=world, beyond=0.6)
            is not None
        )
    assert certified > 62


def test_of_a_cost_no_more_is_counted_than_the_most_in_the_learning_part() -> None:
    """All answers are right; they cost 1 or 4, and one that only tests costs a million."""
    u, costs = np.random.default_rng(3).random((200, 1)), np.where(np.arange(200)[:, None] % 2, 1.0, 4.0)
    costs[learning_part(200, 0)[1][0]] = 1e6
    certified = partial(certified_cascade, u, np.zeros((200, 1)), costs, alpha=0.2, confidence=0.9, seed=0)
    assert certified(mean_cost=2.4) is None
    found = certified(mean_cost=3.5)
    assert found is not None
    assert found.most_cost == 7, "twice the limit, since what was seen is less"
    assert found.mean_cost > 5000


@pytest.mark.parametrize(("mean", "p"), [(0.25, (16 / 27) ** 0.5), (0.5, 1.0), (0.0, 0.25)])
def test_the_p_value_of_a_mean_cost_is_hoeffdings(mean: float, p: float) -> None:
    """n = 2 and a limit of half of the most: ((1/2 / x)^x (1/2 / (1 − x))^(1 − x))^2 at the mean x."""
    calibration = risk_control._Calibration(np.arange(3.0)[:, None], np.zeros((3, 1)), np.full((3, 1), 4.0), 0)
    calibration.n, calibration.most = 2, np.array([4.0])
    found = calibration._mean_cost_p(np.array([4 * mean]), np.array([[0.0]]), 2.0)
    assert found.tolist() == pytest.approx([p])
    # of a mean that is allowed nothing follows, though no question cost more
    assert calibration._mean_cost_p(np.array([4.0]), np.array([[0.0]]), 4.0) == 1


def test_the_first_rung_answers_more_where_it_may_leave_less() -> None:
    """The first rung is right where it is sure; the second one always is, so that alone it would answer everything."""
    rng = np.random.default_rng(6)
    u = np.stack([rng.random(1000), np.zeros(1000)], axis=1)
    wrong = np.stack([rng.random(1000) < 0.5 * u[:, 0], np.zeros(1000, bool)], axis=1)
    costs = np.tile([10.0, 1.0], (1000, 1))
    certify = partial(certified_cascade, u, wrong, costs, alpha=0.2, confidence=0.9, seed=0)
    free, bound = certify(), certify(beyond=0.5)
    assert free is not None
    assert bound is not None
    assert free.beyond > 0.5 * free.n
    assert bound.beyond == sum(u[drawn, 0] > bound.thresholds[0] for drawn in learning_part(1000, 0)[1])
    # of the population 1 − t go beyond the first rung
    assert 1 - bound.thresholds[0] <= 0.5
    assert 0.5 * bound.thresholds[0] ** 2 / 2 <= 0.2
    assert certify(beyond=0.001) is None, "then the first rung would answer everything, with a risk of 0.25"


def test_a_signal_whose_surest_answers_are_wrong_is_certified_too() -> None:
    rng = np.random.default_rng(7)
    certified = 0
    for world in range(30):
        u = rng.random(600)
        # risk of u ≤ t: 0.8 up to t = 0.05, falling to 0.1 at t = 0.6
        wrong = rng.random(600) < np.select([u < 0.05, u < 0.6], [0.8, 0.03], 0.9)
        certified += certified_threshold(u, wrong, alpha=0.3, confidence=0.9, seed=world) is not None
    assert certified > 25


# planner and drift


def planned(rungs: Sequence[tuple[float, float]], failed: float = 0.0, unknown: float = 0.0, **more: Any) -> Plan:
    """The plan from 2,000 answers of each rung, (right, shift): u is N(0, 1), higher by the shift where it is wrong.

    failed, unknown: the shares of questions that fail, and of those without an uncertainty.
    """
    rng = np.random.default_rng(7)
    u, wrong = (np.stack(column, axis=1) for column in zip(*(drawn(rng, 2000, *rung) for rung in rungs), strict=True))
    kind = rng.random((2000, 1))
    failures = np.broadcast_to(kind < failed, u.shape)
    u = np.where(failures, u.min(), np.where(kind >= 1 - unknown, np.inf, u))
    return questions_needed(u, wrong | failures, np.ones_like(u), failures, confidence=0.9, seed=0, **more)


def test_the_planner_says_when_no_number_suffices() -> None:
    plan = planned([(0.5, 1.19)], alpha=0.2, coverage=0.5)  # an AUROC of 0.80
    assert plan.questions is None
    assert plan.oracle_risk > 0.2
    # P(u ≤ t) where P(wrong | u ≤ t) = 0.2, for the normal distributions
    assert plan.oracle_coverage == pytest.approx(0.33, abs=0.05)


def test_the_planner_counts_failed_questions_as_given_and_wrong_and_unknown_ones_as_withheld() -> None:
    """9 of 10 known answers are right; a quarter of the questions, or two fifths."""
    needed = partial(planned, [(0.9, 1.8)], alpha=0.2, coverage=0.3)
    whole = needed()
    assert whole.questions is not None
    # even if every right answer and no wrong one is given beside the failed: 0.25 / (0.25 + 0.75 · 0.9) = 0.27
    failing = needed(failed=0.25)
    assert (failing.questions, failing.oracle_coverage) == (None, 0)
    assert failing.oracle_risk > 0.25
    unknown = needed(unknown=0.4)
    assert unknown.oracle_coverage == pytest.approx(0.6, abs=0.03)
    assert unknown.questions is not None
    assert unknown.questions >= whole.questions


def test_more_coverage_needs_more_questions() -> None:
    few, many = (planned([(0.7, 1.47)], alpha=0.3, coverage=coverage).questions for coverage in (0.5, 0.85))
    assert few is not None
    assert many is not None
    assert few < many


def test_as_many_questions_as_the_planner_says_certify_a_cascade() -> None:
    """A second rung reaches a coverage that the first alone cannot; calibrations of new questions mostly reach it."""
    rungs = [(0.5, 1.19), (0.7, 1.19)]
    assert planned(rungs[:1], alpha=0.3, coverage=0.6).oracle_risk > 0.3
    plan = planned(rungs, alpha=0.3, coverage=0.6)
    assert plan.questions is not None
    reached = 0
    for world in range(40):
        rng = np.random.default_rng([8, world])
        u, wrong = (
            np.stack(column, axis=1)
            for column in zip(*(drawn(rng, plan.questions + 2000, *rung) for rung in rungs), strict=True)
        )
        n = plan.questions
        found = certified_cascade(u[:n], wrong[:n], np.ones((n, 2)), alpha=0.3, confidence=0.9, seed=world)
        given = found is not None and (u[n:] <= np.array(found.thresholds)).any(axis=1).mean()
        reached += bool(given >= 0.6)
    assert reached >= 25  # 4 of 5 are expected; of 40 with 0.8, fewer than 25 come with p < 0.01


def test_drift_is_seen_where_there_is_some() -> None:
    rng = np.random.default_rng(6)
    old = rng.normal(size=300)
    same = looks_alike(old, rng.normal(size=100), seed=0)
    assert same.p_value > 0.05
    less_sure = looks_alike(old, rng.normal(size=100) + 0.7, seed=0)
    assert less_sure.p_value < 0.01
    assert less_sure.less_sure > 0.6
    assert looks_alike([1, 1, 1], [1, 1], seed=0) == (1.0, 0.5)
    assert looks_alike([1, 2], [math.nan, 3], seed=0).less_sure == 1.0


def test_the_drift_statistic_is_anderson_and_darlings() -> None:
    """All permutations of small samples, with the statistic written out (Scholz and Stephens, eq. 7)."""
    old, new = [0.1, 0.4, 0.4, 0.9, 1.3], [0.4, 1.5, 1.6]
    pooled = old + new
    total = len(pooled)

    def statistic(chosen: tuple[int, ...]) -> float:
        samples = [[pooled[i] for i in range(total) if (i in chosen) == inside] for inside in (True, False)]
        result = 0.0
        for sample in samples:
            for value in set(pooled):
                ties = pooled.count(value)
                below = sum(other < value for other in pooled) + ties / 2
                mine = sum(other < value for other in sample) + sample.count(value) / 2
                gap = (total * mine - len(sample) * below) ** 2
                result += ties / total * gap / (below * (total - below) - total * ties / 4) / len(sample)
        return result

    everything = np.array([statistic(chosen) for chosen in combinations(range(total), 3)])
    exact = np.mean(everything >= statistic((5, 6, 7)) - 1e-9)
    assert looks_alike(old, new, seed=0, permutations=9999).p_value == pytest.approx(exact, abs=0.015)


# bad input


@pytest.mark.parametrize("share", [0, 1, -0.1, math.nan])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    u, wrong = np.arange(100.0), np.zeros(100)
    for call in (
        lambda: certified_threshold(u, wrong, alpha=share, confidence=0.9, seed=0),
        lambda: certified_threshold(u, wrong, alpha=0.1, confidence=share, seed=0),
        lambda: least_certified_risk(u, wrong, confidence=share, seed=0),
        lambda: conformal_risk_threshold(u, wrong, share),
        lambda: binomial_p(0, 1, share),
        lambda: risk_interval(0, 1, share),
        lambda: planned([(0.5, 1.0)], alpha=share, coverage=0.5),
        lambda: planned([(0.5, 1.0)], alpha=0.1, coverage=share),
    ):
        with pytest.raises(UserFault, match="give a number between 0 and 1"):
            call()


@pytest.mark.parametrize(
    ("u", "wrong", "says"),
    [
        ([1, 2], [0], "give one of each for a question"),
        ([[[1, 2]]], [[[0, 1]]], r"shape \(1, 1, 2\)"),
        ([1, 2], [0, math.nan], "not true or false"),
        ([1, 2], [0, 2], "not true or false"),
        ([1, -math.inf], [0, 1], "minus infinity"),
        ([], [], "no calibration questions"),
    ],
)
def test_bad_questions_are_refused(u: list[float], wrong: list[float], says: str) -> None:
    for call in (
        lambda: certified_threshold(u, wrong, alpha=0.1, confidence=0.9, seed=0),
        lambda: least_certified_risk(u, wrong, confidence=0.9, seed=0),
        lambda: conformal_risk_threshold(u, wrong, 0.1),
    ):
        with pytest.raises(UserFault, match=says):
            call()


def test_bad_rungs_and_counts_are_refused() -> None:
    two = np.ones((50, 2))
    with pytest.raises(UserFault, match="1 to 4 rungs"):
        certified_cascade(np.ones((50, 5)), np.ones((50, 5)), np.ones((50, 5)), alpha=0.1, confidence=0.9, seed=0)
    with pytest.raises(UserFault, match=r"\[questions, rungs\]"):
        certified_cascade(two, two, two[:, :1], alpha=0.1, confidence=0.9, seed=0)
    with pytest.raises(UserFault, match="cost is below 0"):
        certified_cascade(two, two, -two, alpha=0.1, confidence=0.9, seed=0)
    for call in (
        lambda: risk_interval(3, 2, 0.9),
        lambda: binomial_p(2, 1, 0.1),
    ):
        with pytest.raises(UserFault, match="count errors among the answers given"):
            call()
