"""Answer only while the error rate among the answers given stays at most α: thresholds with a guarantee.

A graph gives each question an answer and an uncertainty u (larger is less sure). It answers iff u ≤ t. The selective
risk is R(t) = P(wrong | answered). The n calibration questions have answers that are known to be right or wrong. Assume
that they and future questions are drawn independently from the same distribution.

`certified_threshold` and `certified_cascade` promise: with probability at least `confidence` over the calibration
questions, the selective risk at the thresholds returned is at most α. This is Learn then Test with fixed-sequence
testing. A random part of the questions, the learning part, chooses threshold vectors and their order. The rest, the
testing part, tests "R > α" in this order, each with an exact binomial p-value, and stops at the first that is not
rejected. The order does not depend on the testing part; this makes the promise hold for every signal, good or bad.
`conformal_risk_threshold` promises less, for an average.

An uncertainty that is NaN or infinite means "no uncertainty": the question is never answered.

Sources: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test (2021); Laufer-Goldenshluger, Fisch, Barzilay and
Jaakkola, Efficiently Controlling Multiple Risks with Pareto Testing (2023); Geifman and El-Yaniv, Selective
Classification for Deep Neural Networks (2017).
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import count, product
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

LEARNING_SHARE = 0.2
"""The share of the calibration questions that chooses the order. A larger one leaves fewer questions to test on."""

LEVELS = {1: 200, 2: 60, 3: 24, 4: 13}
"""By number of rungs: the most thresholds that are tried for a rung. Every combination of them is looked at."""

MOST_RUNGS = max(LEVELS)
"""The most rungs of a cascade that is calibrated."""

RIDGE = 0.1
"""The penalty on the squared weights of the logistic regression."""

CURVE_RIDGE = 3.0
"""The same for the squares of the normal scores."""

STEP = 0.04
"""The next vector of thresholds answers at most this share of the learning part more."""

RISK_SLACK = 0.005
"""The next vector of thresholds may have this much more risk than the best, if it changes less."""

MOST_QUESTIONS = 10_000
"""The most questions that `questions_needed` tries."""

_CALIBRATIONS = 50
_FEWEST = 10
_NUMBERS_AT_ONCE = 4_000_000


class Certified(NamedTuple):
    """A certified threshold: answer iff u ≤ threshold.

    answered, errors: counts among the n questions of the testing part; p_value: of the hypothesis "risk > α".
    """

    threshold: float
    answered: int
    errors: int
    n: int
    p_value: float


class CertifiedCascade(NamedTuple):
    """Certified thresholds: rung r answers iff u_r ≤ thresholds[r], else the next rung is asked; −inf: it is not run.

    answered, errors: counts among the n questions of the testing part; p_value: of the hypothesis "risk > α".
    mean_cost: the mean over these n questions of the costs of the rungs that were run. beyond: how many of the n
    questions the first rung does not answer. most_cost: the most that is counted of a question's cost in the promise of
    the mean; None without one.
    """

    thresholds: tuple[float, ...]
    answered: int
    errors: int
    n: int
    p_value: float
    mean_cost: float
    beyond: int
    most_cost: float | None


class Interval(NamedTuple):
    """The ends of a confidence interval of a risk, both in [0, 1]."""

    low: float
    high: float


class Plan(NamedTuple):
    """How many labelled questions are needed; see `questions_needed`.

    questions: to calibrate on, without those held back; None if no number suffices, or none up to `MOST_QUESTIONS`.
    oracle_risk: the risk at the wished coverage if the best thresholds were known: at α and above, no number of
    questions suffices; 1 if that coverage cannot be reached. oracle_coverage: the most coverage at risk α.
    """

    questions: int | None
    oracle_risk: float
    oracle_coverage: float


class Drift(NamedTuple):
    """p_value: of the hypothesis that new and old uncertainties come from the same distribution.

    less_sure: the probability that a new uncertainty is above an old one; 0.5 if they are alike.
    """

    p_value: float
    less_sure: float


def binomial_p(errors: ArrayLike, answered: ArrayLike, alpha: float) -> NDArray[np.float64]:
    """The exact p-value of "the risk is above α": P(Bin(answered, α) ≤ errors).

    It is valid given the number answered, for any threshold that was fixed before these questions were seen.
    errors, answered: whole numbers of any shapes that broadcast, 0 ≤ errors ≤ answered; 0 < α < 1.
    Returns numbers in [0, 1] in the shape of the two; 1 for answered = 0.
    """
    _check_share(alpha, "The risk allowed")
    wrong, given = np.broadcast_arrays(np.asarray(errors, dtype=np.int64), np.asarray(answered, dtype=np.int64))
    if ((wrong < 0) | (wrong > given)).any():
        raise UserFault("There are more errors than answers, or fewer than 0: count errors among the answers given.")
    p_values = np.ones(wrong.size)
    log_factorial = _log_factorials(int(given.max(initial=0)))
    terms = np.arange(int(wrong.max(initial=0)) + 1)
    rows = max(1, _NUMBERS_AT_ONCE // len(terms))
    for start in range(0, wrong.size, rows):
        k, n = wrong.ravel()[start : start + rows, None], given.ravel()[start : start + rows, None]
        rest = np.maximum(n - terms, 0)
        log_mass = log_factorial[n] - log_factorial[np.minimum(terms, n)] - log_factorial[rest]
        log_mass = log_mass + terms * math.log(alpha) + rest * math.log1p(-alpha)
        p_values[start : start + rows] = np.where(terms <= k, np.exp(log_mass), 0.0).sum(axis=1)
    return np.where(wrong == given, 1.0, np.minimum(p_values.reshape(wrong.shape), 1.0))


def certified_threshold(
    uncertainties: ArrayLike, wrong: ArrayLike, *, alpha: float, confidence: float, seed: int
) -> Certified | None:
    """The threshold with the most answers whose selective risk is at most α, with probability at least `confidence`.

    uncertainties: [n]; NaN and inf: never answered. wrong: [n] bool. seed: of the split into two parts.
    Returns None if nothing can be certified; `least_certified_risk` then says for which α something could be.
    Raises `UserFault`, a ValueError, for bad input, and if n is so small that even without errors nothing is certified.
    """
    u, errors = _checked_column(uncertainties, wrong)
    found = certified_cascade(
        u[:, None], errors[:, None], np.zeros((len(u), 1)), alpha=alpha, confidence=confidence, seed=seed
    )
    return found and Certified(found.thresholds[0], found.answered, found.errors, found.n, found.p_value)


def certified_cascade(
    uncertainties: ArrayLike,
    wrong: ArrayLike,
    costs: ArrayLike,
    *,
    alpha: float,
    confidence: float,
    seed: int,
    beyond: float | None = None,
    mean_cost: float | None = None,
) -> CertifiedCascade | None:
    """Thresholds for all rungs at once: the selective risk of the whole cascade is at most α, at that confidence.

    A question goes through the rungs in order. Rung r answers iff u_r ≤ t_r; after the last rung nothing is answered.
    The learning part chooses a path of threshold vectors. It starts at the vector whose test is expected to be the
    clearest and goes towards more answers, each time to a vector with little estimated risk; of equals the cheaper.
    uncertainties: [n, rungs], 1 to 4 rungs; NaN and inf: this rung passes the question on. wrong: [n, rungs] bool: is
    the rung's answer wrong? costs: [n, rungs], at least 0, in any unit (tokens, seconds). beyond: a second risk, in
    (0, 1): also promise that the first rung leaves at most this share of all questions to the others. mean_cost: a
    further one, above 0: also promise that the costs of a question are at most this on average. A mean without a bound
    cannot be tested, so no more is counted of a question than its rungs cost at most in the learning part, or twice the
    limit if that is more. The p-value is that of Hoeffding (1963, eq. 2.1), exp(−n kl(mean, limit)). A vector is safe
    if the largest of these p-values says so.
    Returns None if nothing can be certified. Raises `UserFault`, a ValueError, as `certified_threshold` does.
    """
    calibration = _Calibration(uncertainties, wrong, costs, seed)
    _check_size(calibration.n, alpha, confidence)
    if beyond is not None:
        _check_share(beyond, "The share of questions beyond the first rung")
    if mean_cost is not None and not 0 < mean_cost < math.inf:
        raise UserFault(f"The mean cost allowed is {mean_cost:g}: give a number above 0.")
    return calibration.certified(alpha, confidence, beyond, mean_cost)


def learning_part(n: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The places of the n calibration questions that may be learned from, and of those that only test.

    Whatever is learned from the first part alone, such as the weights of several signals, leaves the promise as it is.
    """
    drawn = np.random.default_rng(seed).permutation(n)
    size = round(LEARNING_SHARE * n)
    return drawn[:size], drawn[size:]


def fewest_certified(alpha: float, confidence: float) -> int:
    """The fewest calibration questions from which a risk of α can be certified if there is no error."""
    return fewest_leaving(_fewest_tested(alpha, confidence), LEARNING_SHARE)


def fewest_leaving(rest: int, share: float) -> int:
    """The least n of which `rest` are left when round(n · share) are taken away; 0 ≤ share < 1."""
    return next(n for n in count(rest) if n - round(n * share) >= rest)


def least_certified_risk(
    uncertainties: ArrayLike, wrong: ArrayLike, *, above: float = 0.0, confidence: float, seed: int
) -> float | None:
    """An α in steps of 0.01 at which a threshold or cascade could be certified from these questions.

    above: a risk that cannot be certified. The α is the least above it, as far as a larger α is easier; as each α has
    its own order of thresholds, this is nearly always so.

    The α is for a message ("best risk 0.34"). To choose α by it and then certify voids the promise: use new questions.
    uncertainties, wrong: [n] or [n, rungs]. Returns a number in [0.01, 0.99], or None if there is none.
    """
    u = np.asarray(uncertainties)
    if u.ndim == 1:
        u, errors = _checked_column(uncertainties, wrong)
        u, wrong = u[:, None], errors[:, None]
    calibration = _Calibration(u, wrong, np.zeros(u.shape), seed)
    _check_share(confidence, "The confidence")
    low, high = math.floor(above * 100 + 1e-9), 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if calibration.certified(middle / 100, confidence) else (middle, high)
    return high / 100 if high < 100 else None


def conformal_risk_threshold(uncertainties: ArrayLike, wrong: ArrayLike, alpha: float) -> float | None:
    """The threshold that keeps the share of all questions that are answered wrong at most α, on average.

    It promises E[1(answered and wrong)] ≤ α for the next question, over the calibration set and the question together.
    This is weaker than `certified_threshold` in two ways: the share is of all questions and not of those answered, and
    one calibration set may be unlucky. The ratio of errors to answers does not rise steadily with t, so that this
    method cannot control it. Conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster 2022, theorem 1):
    the largest t with (errors(t) + 1) / (n + 1) ≤ α, where errors(t) counts u ≤ t and wrong.
    uncertainties: [n]; NaN and inf: never answered. wrong: [n] bool.
    Returns a calibration uncertainty, or None if n < 1/α − 1 or the least one already has too many errors.
    Raises `UserFault`, a ValueError, for bad input.
    """
    _check_share(alpha, "The risk allowed")
    u, errors = _checked_column(uncertainties, wrong)
    values = np.unique(u[np.isfinite(u)])
    counts = np.searchsorted(np.sort(u[errors]), values, "right")
    # α (n + 1) may come out a little below a whole number
    good = values[counts + 1 <= alpha * (len(u) + 1) + 1e-9]
    return float(good[-1]) if len(good) else None


def questions_needed(
    uncertainties: ArrayLike,
    wrong: ArrayLike,
    costs: ArrayLike,
    failed: ArrayLike,
    *,
    alpha: float,
    coverage: float,
    confidence: float,
    seed: int,
) -> Plan:
    """How many labelled questions certify a wished coverage at risk α, in 4 of 5 calibrations, judged by those so far?

    Calibrations are simulated: their questions are drawn with replacement from the ones given, and each answer is wrong
    with a probability that a logistic regression finds from the uncertainties, so that few questions do not look surer
    than they are. The number is searched in steps of a quarter.
    uncertainties, wrong, costs: [n, rungs], as in `certified_cascade`. failed: [n, rungs] bool: answers that are wrong
    whatever the regression says. coverage: the share of questions to answer.
    """
    _check_share(alpha, "The risk allowed")
    _check_share(coverage, "The coverage")
    _check_share(confidence, "The confidence")
    u, errors, cost = _checked_rungs(uncertainties, wrong, costs)
    known = ~np.asarray(failed, dtype=bool).any(axis=1)
    probabilities = errors.astype(np.float64)
    probabilities[known] = _error_probabilities(u[known], errors[known])
    levels = [_levels(column, u.shape[1]) for column in u.T]
    best = _outcomes(np.array(list(product(*levels))).reshape(-1, u.shape[1]), u, probabilities, cost)
    covered = best.answered / len(u)
    risk = best.errors / np.maximum(best.answered, 1)
    oracle_coverage = float(covered[risk <= alpha].max(initial=0.0))
    oracle_risk = float(risk[covered >= coverage].min(initial=1.0))
    plan = Plan(None, oracle_risk, oracle_coverage)
    if oracle_risk >= alpha:
        return plan
    n = _FEWEST
    while n <= MOST_QUESTIONS:
        answered = round(coverage * (1 - LEARNING_SHARE) * n)
        # cheap, and nearly never too strict: would the best thresholds be certified with the errors to be expected?
        if binomial_p(math.floor(oracle_risk * answered), answered, alpha) <= 1 - confidence:
            missed = 0
            for draw in np.random.default_rng([seed, n]).spawn(_CALIBRATIONS):
                rows = draw.integers(len(u), size=n)
                drawn = draw.random((n, u.shape[1])) < probabilities[rows]
                split = int(draw.integers(2**31))
                found = certified_cascade(u[rows], drawn, cost[rows], alpha=alpha, confidence=confidence, seed=split)
                vector = np.full((1, u.shape[1]), -np.inf) if found is None else np.array([found.thresholds])
                missed += int(_outcomes(vector, u, probabilities, cost).answered[0]) < coverage * len(u)
                if missed > 0.2 * _CALIBRATIONS:
                    break
            else:
                return plan._replace(questions=n)
        n = math.ceil(1.25 * n)
    return plan


def looks_alike(old: ArrayLike, new: ArrayLike, seed: int, permutations: int = 1999) -> Drift:
    """Do new uncertainties, [m], come from the same distribution as the old, [n]? A permutation test.

    The statistic is that of Anderson and Darling for two samples, with ties (Scholz and Stephens 1987, eq. 7): it sees
    a shift, a wider spread, and a small part of strange questions. NaN and inf count as the least sure.
    permutations: random ones; the smallest p-value is 1 / (permutations + 1).
    """
    first, second = (_checked_uncertainties(_column(values)) for values in (old, new))
    pooled, inverse, counts = np.unique(np.concatenate([first, second]), return_inverse=True, return_counts=True)
    total, ends = len(inverse), np.cumsum(counts)
    ranks = ends - counts / 2
    spread = ranks * (total - ranks) - total * counts / 4
    # with a single value the spread is 0, and all permutations are alike
    weights = np.divide(counts, spread, out=np.zeros(len(pooled)), where=spread > 1e-9)
    is_new = np.arange(total) >= len(first)
    observed = _anderson_darling(is_new[None], inverse, len(pooled), ranks, weights)[0]
    draw = np.random.default_rng(seed)
    as_far = 0
    rows = max(1, _NUMBERS_AT_ONCE // total)
    for start in range(0, permutations, rows):
        size = min(rows, permutations - start)
        shuffled = draw.permuted(np.tile(is_new, (size, 1)), axis=1)
        drawn = _anderson_darling(shuffled, inverse, len(pooled), ranks, weights)
        # equal up to rounding counts as at least as far
        as_far += int((drawn >= observed * (1 - 1e-9)).sum())
    below = float((ranks[inverse[is_new]].mean() - len(second) / 2) / len(first))
    return Drift((as_far + 1) / (permutations + 1), below)


def risk_interval(errors: int, answered: int, confidence: float) -> Interval:
    """The exact two-sided confidence interval of a risk from its errors (Clopper and Pearson 1934)."""
    _check_share(confidence, "The confidence")
    if not 0 <= errors <= answered or not answered:
        raise UserFault(f"{errors} errors among {answered} answers cannot be: count errors among the answers given.")
    tail = (1 - confidence) / 2
    # P(X ≥ errors) is P(right answers ≤ answered − errors)
    low = 0.0 if not errors else 1 - _upper_limit(answered - errors, answered, tail)
    high = 1.0 if errors == answered else _upper_limit(errors, answered, tail)
    return Interval(low, high)


def _upper_limit(errors: int, answered: int, tail: float) -> float:
    """The risk at which so few errors have probability `tail`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if not 0 < middle < 1 or high - low < 1e-15:
            break
        low, high = (middle, high) if binomial_p(errors, answered, middle) > tail else (low, middle)
    return (low + high) / 2


def _anderson_darling(
    is_new: NDArray[np.bool_],
    inverse: NDArray[np.int64],
    values: int,
    ranks: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The statistic of each row of is_new, [rows, N], up to a factor that no permutation changes."""
    rows, total = is_new.shape
    cells = np.arange(rows)[:, None] * values + inverse
    counts = np.bincount(cells[is_new], minlength=rows * values).reshape(rows, values)
    midranks = np.cumsum(counts, axis=1) - counts / 2
    expected = ranks * (is_new[0].sum() / total)
    return np.asarray(((midranks - expected) ** 2 * weights).sum(axis=1))


class _Outcomes(NamedTuple):
    """What a cascade does with each threshold vector: sums over questions, [vectors] each."""

    answered: NDArray[np.int64]
    errors: NDArray[np.float64]
    cost: NDArray[np.float64]
    beyond: NDArray[np.int64]


class _Calibration:
    """The calibration questions in two parts, and what each threshold vector does on the learning part."""

    def __init__(self, uncertainties: ArrayLike, wrong: ArrayLike, costs: ArrayLike, seed: int) -> None:
        u, errors, cost = _checked_rungs(uncertainties, wrong, costs)
        learning, testing = learning_part(len(u), seed)
        self.testing = (u[testing], errors[testing].astype(np.float64), cost[testing])
        self.n = len(testing)
        self.most = cost[learning].max(axis=0, initial=0.0)
        probabilities = _error_probabilities(u[learning], errors[learning])
        levels = [_levels(column, u.shape[1]) for column in u[learning].T]
        vectors = np.array(list(product(*levels))).reshape(-1, u.shape[1])
        learned = _outcomes(vectors, u[learning], probabilities, cost[learning])
        some = learned.answered > 0
        self.vectors, self.answered, self.cost = vectors[some], learned.answered[some], learned.cost[some]
        self.beyond = learned.beyond[some] / max(len(learning), 1)
        self.mean_cost = self.cost / max(len(learning), 1)
        self.risk = learned.errors[some] / self.answered
        # the place of each threshold among its rung's levels, from 0 to 1
        self.places = np.stack(
            [np.searchsorted(level, column) / len(level) for level, column in zip(levels, self.vectors.T, strict=True)],
            axis=1,
        )
        self.growth, self.step = self.n / max(len(learning), 1), max(1, round(STEP * len(learning)))

    def certified(
        self, alpha: float, confidence: float, beyond: float | None = None, mean_cost: float | None = None
    ) -> CertifiedCascade | None:
        """The last vector of the path up to which every "R > α" is rejected; None if the first is not.

        beyond, mean_cost: and every "the share beyond the first rung" and "the mean cost is larger than this".
        """
        besides = np.full(len(self.vectors), -np.inf)
        if beyond is not None:
            besides = _expected_log_p(np.full(len(besides), self.n), self.beyond, beyond)
        if mean_cost is not None:
            expected = np.maximum(self._mean_cost_p(self.mean_cost, self.vectors, mean_cost), 1e-300)
            besides = np.maximum(besides, np.log(expected))
        path = self.vectors[self._path(alpha, besides, math.log(1 - confidence))]
        tested = _outcomes(path, *self.testing)
        p_values = binomial_p(tested.errors, tested.answered, alpha)
        if beyond is not None:
            p_values = np.maximum(p_values, binomial_p(tested.beyond, np.full(len(path), self.n), beyond))
        if mean_cost is not None:
            u, _, costs = self.testing
            counted = np.minimum(_question_costs(path, u, costs), self._most_cost(path, mean_cost)[:, None])
            p_values = np.maximum(p_values, self._mean_cost_p(counted.mean(axis=1), path, mean_cost))
        # 1 − 0.9 is a little below 0.1
        kept = np.flatnonzero(p_values > (1 - confidence) * (1 + 1e-12))
        last = int(kept[0] if len(kept) else len(path)) - 1
        if last < 0:
            return None
        return CertifiedCascade(
            tuple(path[last].tolist()),
            int(tested.answered[last]),
            int(tested.errors[last]),
            self.n,
            float(p_values[last]),
            float(tested.cost[last]) / self.n,
            int(tested.beyond[last]),
            None if mean_cost is None else float(self._most_cost(path[last], mean_cost)),
        )

    def _most_cost(self, vectors: NDArray[np.float64], allowed: float) -> NDArray[np.float64]:
        """The most that is counted of a question's cost with each vector, [...]; vectors: [..., rungs].

        If it were below twice what is allowed, little or nothing would be promised.
        """
        return np.asarray(np.maximum((vectors > -np.inf) @ self.most, 2 * allowed))

    def _mean_cost_p(
        self, means: NDArray[np.float64], vectors: NDArray[np.float64], allowed: float
    ) -> NDArray[np.float64]:
        """Hoeffding's p-value of "the mean cost is above `allowed`", [V]. means: of the n questions' counted costs."""
        most = self._most_cost(vectors, allowed)
        limit, mean = allowed / most, np.minimum(means, allowed) / most
        below = mean * np.log(np.maximum(mean, 1e-300) / limit)
        return np.asarray(np.exp(-self.n * (below + (1 - mean) * np.log((1 - mean) / (1 - limit)))))

    def _path(self, alpha: float, besides: NDArray[np.float64], most: float) -> list[int]:
        """From the vector with the least expected p-value towards more answers: little risk, and small changes.

        After a small change the next test comes out like the last; the first that is not rejected ends the sequence.
        besides: of each vector the log of the largest p-value expected of what is promised beside the risk; only
        vectors with at most `most` are on the path.
        """
        hopeful = np.flatnonzero(besides <= most)
        if not len(hopeful):
            return []
        starts = hopeful
        if np.isneginf(besides).all():
            # for each number of answers the vector with the least risk, then the least cost
            order = hopeful[np.lexsort((self.cost[hopeful], self.risk[hopeful], self.answered[hopeful]))]
            starts = order[np.flatnonzero(np.diff(self.answered[order], prepend=0))]
        expected = _expected_log_p(self.answered[starts] * self.growth, self.risk[starts], alpha)
        path = [int(starts[np.argmin(np.maximum(expected, besides[starts]))])]
        by_answers = hopeful[np.argsort(self.answered[hopeful], kind="stable")]
        counts = self.answered[by_answers]
        while counts[-1] > self.answered[path[-1]]:
            now = path[-1]
            first = int(np.searchsorted(counts, self.answered[now], "right"))
            reach = max(self.answered[now] + self.step, counts[first])
            near = by_answers[first : np.searchsorted(counts, reach, "right")]
            good = near[self.risk[near] <= self.risk[near].min() + RISK_SLACK]
            change = np.abs(self.places[good] - self.places[now]).sum(axis=1)
            path.append(int(good[np.lexsort((self.cost[good], change))[0]]))
        return path


def _levels(column: NDArray[np.float64], rungs: int) -> NDArray[np.float64]:
    """The thresholds to try for a rung, rising: distinct values, evenly spaced in rank; −inf first if it can be off."""
    values = np.unique(column[np.isfinite(column)])
    most = LEVELS[rungs]
    if len(values) > most:
        # by rank of the answers and not of the values: of a value with many ties nothing is lost
        ordered = np.sort(column[np.isfinite(column)])
        values = np.unique(ordered[np.linspace(0, len(ordered) - 1, most).round().astype(int)])
    return values if rungs == 1 else np.concatenate([[-np.inf], values])


def _outcomes(
    vectors: NDArray[np.float64], u: NDArray[np.float64], wrong: NDArray[np.float64], costs: NDArray[np.float64]
) -> _Outcomes:
    """vectors: [V, rungs]; u, wrong (or its probability), costs: [m, rungs]."""
    answered, beyond = np.zeros(len(vectors), dtype=np.int64), np.full(len(vectors), len(u))
    errors, cost = np.zeros(len(vectors)), np.zeros(len(vectors))
    rows = max(1, _NUMBERS_AT_ONCE // max(1, len(u)))
    for start in range(0, len(vectors), rows):
        part = slice(start, start + rows)
        waiting = np.ones((len(vectors[part]), len(u)), dtype=bool)
        for rung, thresholds in enumerate(vectors[part].T):
            # a rung that is off costs nothing
            cost[part] += (waiting @ costs[:, rung]) * (thresholds > -np.inf)
            answers = waiting & (u[:, rung] <= thresholds[:, None])
            answered[part] += answers.sum(axis=1)
            errors[part] += answers @ wrong[:, rung]
            waiting &= ~answers
            if rung == 0:
                beyond[part] = waiting.sum(axis=1)
    return _Outcomes(answered, errors, cost, beyond)


def _question_costs(
    vectors: NDArray[np.float64], u: NDArray[np.float64], costs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What each question costs with each vector, [V, m]. vectors: [V, rungs]; u, costs: [m, rungs]."""
    spent, waiting = np.zeros((len(vectors), len(u))), np.ones((len(vectors), len(u)), dtype=bool)
    for rung, thresholds in enumerate(vectors.T):
        spent += (waiting & (thresholds > -np.inf)[:, None]) * costs[:, rung]
        waiting &= u[:, rung] > thresholds[:, None]
    return spent


def _expected_log_p(
    answered: NDArray[np.floating[Any]], risk: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """The log of the p-value if the errors are as many as the risk says, interpolated between whole numbers."""
    given = np.round(answered).astype(np.int64)
    errors = given * np.clip(risk, 0, 1)
    below = np.minimum(np.floor(errors).astype(np.int64), given)
    ends = [binomial_p(whole, given, alpha) for whole in (below, np.minimum(below + 1, given))]
    low, high = (np.log(np.maximum(end, 1e-300)) for end in ends)
    return np.asarray(low + (errors - below) * (high - low))


def _error_probabilities(u: NDArray[np.float64], wrong: NDArray[np.bool_]) -> NDArray[np.float64]:
    """P(wrong) of each rung given the uncertainties up to this rung, [m, rungs]: smoother than single errors.

    Ridge-penalised logistic regression on normal scores, which any rising function of u leaves unchanged, and on their
    squares: the surest answers may be wrong more often than others.
    """
    m, rungs = u.shape
    scores = np.stack([_normal_scores(column) for column in u.T], axis=1)
    estimated = np.empty((m, rungs))
    for rung in range(rungs):
        known = scores[:, : rung + 1]
        features = np.concatenate([np.ones((m, 1)), known, known**2 - 1], axis=1)
        penalties = [1e-3] + [RIDGE] * (rung + 1) + [CURVE_RIDGE] * (rung + 1)
        weights = logistic_regression(features, wrong[:, rung], penalties)
        estimated[:, rung] = _logistic(features @ weights)
    return estimated


def logistic_regression(
    features: NDArray[np.float64], wrong: NDArray[np.bool_], penalties: Sequence[float]
) -> NDArray[np.float64]:
    """The weights, [d], with the least negative log-likelihood + Σ penalties · weights² / 2, by Newton's method.

    features: [m, d], the constant 1 among them if there is an intercept; wrong: [m] bool; P(wrong) is the logistic
    function of features · weights.
    """
    penalty = np.diag(penalties)
    weights = np.zeros(len(penalties))
    for _ in range(25):
        p = _logistic(features @ weights)
        gradient = features.T @ (p - wrong) + penalty @ weights
        curvature = (features * (p * (1 - p))[:, None]).T @ features + penalty
        change = np.clip(np.linalg.solve(curvature, gradient), -2, 2)
        weights = weights - change
        if np.abs(change).max() < 1e-6:
            break
    return weights


def _normal_scores(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normal quantiles of the mid-ranks, [m]; equal values share one."""
    _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    quantile = NormalDist().inv_cdf
    return np.array([quantile((rank - 0.5) / len(column)) for rank in ranks])[inverse]


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


def _log_factorials(most: int) -> NDArray[np.float64]:
    """log n! of 0 to at least `most`."""
    return _log_factorials_of_bits(most.bit_length())


@cache
def _log_factorials_of_bits(bits: int) -> NDArray[np.float64]:
    return np.array([math.lgamma(n + 1) for n in range(2**bits)])


def _check_size(n: int, alpha: float, confidence: float) -> None:
    _check_share(alpha, "The risk allowed")
    _check_share(confidence, "The confidence")
    if n < _fewest_tested(alpha, confidence):
        raise UserFault(
            f"The {n} questions to test on cannot certify a risk of {alpha:g} with confidence {confidence:g} even if "
            f"all are right: give at least {fewest_certified(alpha, confidence):,} questions to calibrate on (any held "
            "back come on top), or a larger alpha."
        )


def _fewest_tested(alpha: float, confidence: float) -> int:
    """The fewest answers without an error whose p-value is at most 1 − confidence."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - alpha) - 1e-9)


def _check_share(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise UserFault(f"{name} is {value:g}: give a number between 0 and 1.")


def _checked_column(uncertainties: ArrayLike, wrong: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    u, errors = _column(uncertainties), np.asarray(wrong)
    if errors.shape != u.shape:
        raise UserFault(
            f"The uncertainties have shape {u.shape} and the errors {errors.shape}: give one of each for a question."
        )
    return _checked_uncertainties(u), _checked_errors(errors)


def _column(values: ArrayLike) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1:
        raise UserFault(f"The uncertainties have shape {column.shape}: give one for each question, as [n].")
    return column


def _checked_rungs(
    uncertainties: ArrayLike, wrong: ArrayLike, costs: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    u, errors = np.asarray(uncertainties, dtype=np.float64), np.asarray(wrong)
    cost = np.asarray(costs, dtype=np.float64)
    if u.ndim != 2 or u.shape[1] not in LEVELS or not u.shape == errors.shape == cost.shape:
        raise UserFault(
            f"The uncertainties have shape {u.shape}, the errors {errors.shape} and the costs {cost.shape}: give each "
            f"as [questions, rungs], with 1 to {MOST_RUNGS} rungs."
        )
    if not (np.isfinite(cost) & (cost >= 0)).all():
        raise UserFault("A cost is below 0, infinite or NaN: give the tokens or seconds of every rung.")
    return _checked_uncertainties(u), _checked_errors(errors), cost


def _checked_uncertainties(u: NDArray[np.float64]) -> NDArray[np.float64]:
    if (u == -np.inf).any():
        raise UserFault("An uncertainty is minus infinity: give finite numbers, and NaN where there is none.")
    if not u.size:
        raise UserFault("There are no calibration questions: give some with a known answer.")
    return np.where(np.isnan(u), np.inf, u)


def _checked_errors(wrong: NDArray[np.generic]) -> NDArray[np.bool_]:
    if not np.isin(wrong, (0, 1)).all():
        raise UserFault("An error is not true or false: say of every answer whether it is wrong; a failed question is.")
    return wrong.astype(np.bool_)
