"""Is the promise of certified thresholds kept, and how many answers do they cost? Simulated, with the true risk known.

    python benchmarks/risk_control.py [--worlds 2000] [--rivals 500] [--seed 2026] [--parts PART ...]

A world is a population of 100,000 questions. A calibration draws its questions from the population, with replacement.
The risk in the population is therefore the true risk, and it is known exactly.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from dubito.errors import UserFault
from dubito.evals.answer_calibration import answers_of, learned_combination
from dubito.evals.calibration import Judged
from dubito.uncertainty.risk_control import (
    CertifiedCascade,
    binomial_p,
    certified_cascade,
    certified_threshold,
    looks_alike,
    risk_interval,
)
from numpy.typing import NDArray

Floats = NDArray[np.float64]
POPULATION = 100_000
CONFIDENCE = 0.9
LEVELS = 20
GRID = {1: 2000, 2: 60, 3: 24, 4: 9}  # by rungs: thresholds a rung that the oracle tries
PARTS = ("promise", "one", "cascade", "second", "combined", "failures", "drift")
COSTS = (1.0, 3.0, 10.0, 30.0)


class World(NamedTuple):
    """A population: uncertainties (NaN where unknown) and errors, [POPULATION, rungs]. name: of the signal."""

    name: str
    u: Floats
    wrong: NDArray[np.bool_]

    def outcome(self, thresholds: Sequence[float]) -> tuple[float, float, float]:
        """Coverage, selective risk and mean cost in the population; the risk of no answers is 0."""
        waiting, right, wrong, cost = np.arange(POPULATION), 0, 0, 0.0
        for rung, threshold in enumerate(thresholds):
            cost += COSTS[rung] * len(waiting) * (threshold > -math.inf)
            answers = self.u[waiting, rung] <= threshold
            errors = int(self.wrong[waiting[answers], rung].sum())
            wrong, right = wrong + errors, right + int(answers.sum()) - errors
            waiting = waiting[~answers]
        answered = right + wrong
        return answered / POPULATION, wrong / max(answered, 1), cost / POPULATION

    def safe(self, alpha: float) -> tuple[Floats, Floats]:
        """Coverage and mean cost of every vector of thresholds whose risk is at most α, on a grid of quantiles."""
        rungs = self.u.shape[1]
        shares = np.linspace(0.005, 1, GRID[rungs])
        grids = [np.concatenate([[-np.inf], np.nanquantile(u, shares, method="inverted_cdf")]) for u in self.u.T]
        found: list[Floats] = []

        def descend(rung: int, waiting: NDArray[np.int64], answered: int, errors: int, cost: float) -> None:
            order = waiting[np.argsort(self.u[waiting, rung])]
            ends = np.searchsorted(self.u[order, rung], grids[rung], "right")
            wrong = errors + np.concatenate([[0], np.cumsum(self.wrong[order, rung])])[ends]
            costs = cost + COSTS[rung] * len(waiting) * (grids[rung] > -np.inf)
            if rung < rungs - 1:
                for end, bad, paid in zip(ends.tolist(), wrong.tolist(), costs.tolist(), strict=True):
                    descend(rung + 1, order[end:], answered + end, bad, paid)
            else:
                good = wrong <= alpha * (answered + ends)
                found.append(np.stack([answered + ends[good], costs[good]]))

        descend(0, np.arange(POPULATION), 0, 0, 0.0)
        coverage, cost = np.concatenate(found, axis=1) / POPULATION
        return coverage, cost


def binormal(rng: np.random.Generator, right: float, auroc: float) -> World:
    """u is normal, and higher for wrong answers."""
    wrong = rng.random(POPULATION) >= right
    u = rng.normal(size=POPULATION) + math.sqrt(2) * NormalDist().inv_cdf(auroc) * wrong
    return World("binormal", u[:, None], wrong[:, None])


def partly_unknown(rng: np.random.Generator, right: float, auroc: float) -> World:
    """Normal, too; three tenths of the wrong answers and a tenth of the right ones have no uncertainty."""
    world = binormal(rng, right, auroc)
    unknown = rng.random((POPULATION, 1)) < np.where(world.wrong, 0.3, 0.1)
    return World("binormal, a part unknown", np.where(unknown, np.nan, world.u), world.wrong)


def tied(rng: np.random.Generator) -> World:
    """The entropy over the meanings of 10 samples: at most 42 values. The surer the question, the more often right."""
    sure = rng.beta(1.2, 0.8, POPULATION)
    others = (1 - sure[:, None]) * np.array([0.4, 0.25, 0.15, 0.1, 0.1])
    counts = np.sort(rng.multinomial(10, np.column_stack([sure, others])))
    shares = counts / 10
    u = -(shares * np.log(np.where(counts, shares, 1))).sum(axis=1)
    return World("entropy of 10 samples", u[:, None], rng.random((POPULATION, 1)) >= 0.05 + 0.85 * sure[:, None])


def overconfident(rng: np.random.Generator) -> World:
    """The least uncertain tenth is often wrong, the next four tenths seldom, the rest often."""
    u = rng.random((POPULATION, 1))
    risk = np.select([u < 0.1, u < 0.5], [0.6, 0.1], 0.7)
    return World("overconfident", u, rng.random((POPULATION, 1)) < risk)


def at_the_edge(rungs: int, alpha: float) -> World:
    """No signal: the risk is exactly α at every threshold, so that as good as every certificate is false."""
    values = {1: 20, 2: 10, 3: 5, 4: 5}[rungs]
    size = POPULATION // values**rungs
    cell, place = np.divmod(np.arange(POPULATION), size)
    u = np.stack(np.unravel_index(cell, (values,) * rungs), axis=1).astype(np.float64)
    return World("no signal", u, np.tile(place[:, None] < round(alpha * size), (1, rungs)))


def correlated(rng: np.random.Generator, rights: Sequence[float], aurocs: Sequence[float]) -> World:
    """A cascade with normal signals: its rungs tend to fail on the same questions, and to be unsure of the same."""
    shape = (POPULATION, len(rights))
    hardness, doubt = rng.normal(size=(2, POPULATION, 1))
    limits = [NormalDist().inv_cdf(right) for right in rights]
    wrong = math.sqrt(0.5) * hardness + math.sqrt(0.5) * rng.normal(size=shape) > np.array(limits)
    shifts = math.sqrt(2) * np.array([NormalDist().inv_cdf(auroc) for auroc in aurocs])
    return World("binormal", math.sqrt(0.3) * doubt + math.sqrt(0.7) * rng.normal(size=shape) + shifts * wrong, wrong)


class Case(NamedTuple):
    """A row: a world, and the number of calibration questions and α."""

    world: World
    n: int
    alpha: float

    def calibrations(self, count: int, seed: int) -> Iterator[tuple[Floats, NDArray[np.bool_], int]]:
        """u and wrong of drawn questions, [n, rungs], and the seed of their split."""
        rng = np.random.default_rng(seed)
        for calibration in range(count):
            drawn = rng.integers(POPULATION, size=self.n)
            yield self.world.u[drawn], self.world.wrong[drawn], calibration

    def about(self) -> list[str]:
        """Cells: signal, right and AUROC of each rung, n, α."""
        u, wrong = self.world.u, self.world.wrong
        right = ", ".join(f"{share:.2f}" for share in 1 - wrong.mean(axis=0))
        aurocs = ", ".join(f"{auroc(column, errors):.2f}" for column, errors in zip(u.T, wrong.T, strict=True))
        return [self.world.name, right, aurocs, str(self.n), f"{self.alpha:g}"]


ABOUT = ["signal", "right", "AUROC", "n", "α"]


def auroc(u: Floats, wrong: NDArray[np.bool_]) -> float:
    """The probability that a wrong answer has the higher u, of those that are known; ties count half."""
    good, bad = np.sort(u[~wrong & np.isfinite(u)]), u[wrong & np.isfinite(u)]
    places = np.searchsorted(good, bad, "left") + np.searchsorted(good, bad, "right")
    return float(places.mean() / 2 / len(good))


Method = Callable[[Floats, NDArray[np.bool_], float, int], Sequence[float] | None]
"""From u, wrong, α and a seed to thresholds, or None."""


class Kept(NamedTuple):
    """Over calibrations; coverage and cost are 0 where nothing is certified."""

    certified: int
    too_risky: int
    coverage: float
    cost: float


def tried(case: Case, method: Method, count: int, seed: int) -> Kept:
    """One method on many calibrations; a risk of exactly α counts as too risky."""
    certified = too_risky = 0
    coverage = cost = 0.0
    for u, wrong, split in case.calibrations(count, seed):
        thresholds = method(u, wrong, case.alpha, split)
        if thresholds is not None:
            covered, risk, paid = case.world.outcome(thresholds)
            certified, too_risky = certified + 1, too_risky + (risk >= case.alpha * (1 - 1e-9))
            coverage, cost = coverage + covered, cost + paid
    return Kept(certified, too_risky, coverage / count, cost / count)


def ours(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """`certified_cascade`, also for one rung."""
    costs = np.tile(COSTS[: u.shape[1]], (len(u), 1))
    found = certified_cascade(u, wrong, costs, alpha=alpha, confidence=CONFIDENCE, seed=seed)
    return found and found.thresholds


def levels(u: Floats, wrong: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """20 thresholds at quantiles of all questions; the errors and the answers at each."""
    ordered = np.sort(u[:, 0])
    thresholds = ordered[np.arange(1, LEVELS + 1) * len(u) // LEVELS - 1]
    answered = np.searchsorted(ordered, thresholds, "right")
    return thresholds, np.searchsorted(np.sort(u[wrong[:, 0], 0]), thresholds, "right"), answered


def last_rejected(thresholds: Floats, p_values: Floats) -> Sequence[float] | None:
    """The last threshold of a fixed sequence from low coverage upward."""
    kept = np.flatnonzero(p_values > 1 - CONFIDENCE)
    last = int(kept[0]) if len(kept) else len(thresholds)
    return [float(thresholds[last - 1])] if last else None


def upward(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """Exact p-values, in a fixed sequence from low coverage upward, no learning part."""
    thresholds, errors, answered = levels(u, wrong)
    return last_rejected(thresholds, binomial_p(errors, answered, alpha))


def hoeffding_bentkus(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """The same sequence, with the p-values of Hoeffding and Bentkus (Angelopoulos et al. 2021, section 3)."""
    thresholds, errors, answered = levels(u, wrong)
    risk = np.minimum(errors / answered, alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(risk > 0, risk * np.log(risk / alpha), 0) + (1 - risk) * np.log((1 - risk) / (1 - alpha))
    bentkus = math.e * binomial_p(errors, answered, alpha)
    return last_rejected(thresholds, np.minimum(np.exp(-answered * divergence), bentkus))


def holm(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """Exact p-values with Holm's correction for 20 thresholds."""
    thresholds, errors, answered = levels(u, wrong)
    p_values = binomial_p(errors, answered, alpha)
    order = np.argsort(p_values, kind="stable")
    kept = np.flatnonzero(p_values[order] > (1 - CONFIDENCE) / np.arange(LEVELS, 0, -1))
    rejected = order[: kept[0] if len(kept) else LEVELS]
    return [float(thresholds[rejected].max())] if len(rejected) else None


def each_alone(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """Each rung on the questions that earlier ones pass on, with its part of 1 − confidence (union bound)."""
    waiting, thresholds = np.ones(len(u), bool), []
    for rung in range(u.shape[1]):
        confidence = 1 - (1 - CONFIDENCE) / u.shape[1]
        given = u[waiting, rung], wrong[waiting, rung]
        try:
            found = certified_threshold(*given, alpha=alpha, confidence=confidence, seed=seed + rung)
        except UserFault:  # too few questions are left
            found = None
        thresholds.append(found.threshold if found else -math.inf)
        waiting &= u[:, rung] > thresholds[-1]
    return thresholds if max(thresholds) > -math.inf else None


def last_alone(u: Floats, wrong: NDArray[np.bool_], alpha: float, seed: int) -> Sequence[float] | None:
    """The last and best rung for every question."""
    found = certified_threshold(u[:, -1], wrong[:, -1], alpha=alpha, confidence=CONFIDENCE, seed=seed)
    return found and [*[-math.inf] * (u.shape[1] - 1), found.threshold]


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown; every line is printed as soon as it is there."""
    lines = []
    for cells in (head, ["---"] * len(head)):
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    for cells in rows:
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def validity(cases: Sequence[Case], worlds: int, seed: int) -> Iterator[list[str]]:
    """How often the certificate is false."""
    for case in cases:
        kept = tried(case, ours, worlds, seed)
        best = float(case.world.safe(case.alpha)[0].max())
        certified = f"{kept.certified / worlds:.2f}"
        yield [*case.about(), share_of(kept.too_risky, worlds), certified, f"{kept.coverage:.2f}", f"{best:.2f}"]


def share_of(count: int, worlds: int) -> str:
    """A share with its exact 95 % interval."""
    low, high = risk_interval(count, worlds, 0.95)
    return f"{count / worlds:.3f} ({low:.3f}-{high:.3f})"


def power(cases: Sequence[Case], methods: Sequence[Method], worlds: int, seed: int) -> Iterator[list[str]]:
    """Mean coverage of each method and of the best threshold."""
    for case in cases:
        found = [f"{tried(case, method, worlds, seed).coverage:.3f}" for method in methods]
        yield [*case.about(), f"{case.world.safe(case.alpha)[0].max():.2f}", *found]


def cascades(cases: Sequence[Case], worlds: int, seed: int) -> Iterator[list[str]]:
    """Mean coverage, and the cost of an answer given."""
    for case in cases:
        coverage, cost = case.world.safe(case.alpha)
        found = [tried(case, method, worlds, seed) for method in (ours, each_alone, last_alone)]
        enough = coverage >= found[0].coverage
        least = (cost[enough] / coverage[enough]).min()
        cells = [f"{kept.coverage:.3f} at {kept.cost / kept.coverage:.1f}" for kept in found]
        yield [*case.about()[1:], f"{coverage.max():.2f}", *cells, f"{least:.1f}"]


class Limited(NamedTuple):
    """A world of which more is promised than the risk. costs: of asking each rung each question, [POPULATION, rungs].

    beyond, mean_cost: see `certified_cascade`.
    """

    case: Case
    costs: Floats
    beyond: float | None = None
    mean_cost: float | None = None

    def promise(self) -> str:
        """What is promised, in words."""
        if self.beyond is not None:
            return f"at most {self.beyond:g} beyond the first rung"
        return f"a mean cost of at most {self.mean_cost:,.0f}"

    def is_kept(self, found: CertifiedCascade) -> bool:
        """Is all of it true in the population? What is exactly at a limit counts as not kept."""
        _, risk, _ = self.case.world.outcome(found.thresholds)
        kept = risk < self.case.alpha * (1 - 1e-9)
        waiting, spent = np.ones(POPULATION, bool), np.zeros(POPULATION)
        for rung, threshold in enumerate(found.thresholds):
            spent += waiting * (threshold > -math.inf) * self.costs[:, rung]
            waiting &= ~(self.case.world.u[:, rung] <= threshold)
            if rung == 0 and self.beyond is not None:
                kept &= waiting.mean() < self.beyond * (1 - 1e-9)
        if self.mean_cost is not None and found.most_cost is not None:
            kept &= np.minimum(spent, found.most_cost).mean() < self.mean_cost * (1 - 1e-9)
        return bool(kept)


def limited(rng: np.random.Generator, two: World) -> Iterator[Limited]:
    """Two ordinary cascades, and two whose second promise is exactly at its limit whatever the thresholds are."""
    usual = np.array([300.0, 900.0]) * rng.lognormal(-0.125, 0.5, (POPULATION, 2))
    yield Limited(Case(two, 300, 0.3), usual, beyond=0.8)
    yield Limited(Case(two, 600, 0.3), usual, mean_cost=1000)
    wrong = np.tile(np.arange(POPULATION)[:, None] % 10 == 0, (1, 2))
    u = rng.random((POPULATION, 2))
    u[: POPULATION // 2, 0] = np.nan
    yield Limited(Case(World("half of the first rung unknown", u, wrong), 300, 0.3), usual, beyond=0.5)
    dear = np.where(np.arange(POPULATION)[:, None] % 100 < 10, 4100.0, 100.0)
    yield Limited(Case(World("every tenth question is dear", u[:, 1:], wrong[:, 1:]), 300, 0.3), dear, mean_cost=500)


def second_promises(populations: Iterator[Limited], worlds: int, seed: int) -> Iterator[list[str]]:
    """How often a certificate with a second promise is false."""
    for population in populations:
        case, certified, broken, coverage = population.case, 0, 0, 0.0
        rng = np.random.default_rng(seed)
        for split in range(worlds):
            drawn = rng.integers(POPULATION, size=case.n)
            found = certified_cascade(
                case.world.u[drawn],
                case.world.wrong[drawn],
                population.costs[drawn],
                alpha=case.alpha,
                confidence=CONFIDENCE,
                seed=split,
                beyond=population.beyond,
                mean_cost=population.mean_cost,
            )
            if found is not None:
                certified, broken = certified + 1, broken + (not population.is_kept(found))
                coverage += case.world.outcome(found.thresholds)[0]
        shares = [share_of(broken, worlds), f"{certified / worlds:.2f}", f"{coverage / worlds:.2f}"]
        yield [*case.about(), population.promise(), *shares]


def combined(rng: np.random.Generator, worlds: int, seed: int) -> Iterator[list[str]]:
    """How often a certificate is false whose signal is learned from a part of the questions."""
    for areas, n, alpha in (((0.75, 0.7, 0.65), 300, 0.3), ((0.75, 0.7, 0.65), 600, 0.2), ((0.5, 0.5, 0.5), 300, 0.3)):
        is_edge = areas[0] == 0.5
        wrong = np.arange(POPULATION) % 10 < 3 if is_edge else rng.random(POPULATION) >= 0.5
        shift = math.sqrt(2) * np.array([NormalDist().inv_cdf(area) for area in areas])
        signals = rng.normal(size=(POPULATION, 3)) + shift * wrong[:, None]
        certified, broken, coverage = 0, 0, 0.0
        draws = np.random.default_rng(seed)
        for split in range(worlds):
            drawn = draws.integers(POPULATION, size=n)
            judged: list[Judged] = [
                ({"answer": "given", "signals": dict(zip("abc", row, strict=True))}, not error)
                for row, error in zip(signals[drawn].tolist(), wrong[drawn].tolist(), strict=True)
            ]
            combination = learned_combination(judged, split)
            u = [answer.uncertainty for answer in answers_of(judged, combination)]
            found = certified_threshold(u, wrong[drawn], alpha=alpha, confidence=CONFIDENCE, seed=split)
            if found is not None:
                logit = combination.intercept + signals @ [combination.weights[name] for name in "abc"]
                given = 1 / (1 + np.exp(-logit)) <= found.threshold
                risk = wrong[given].mean() if given.any() else 0.0
                certified, broken = certified + 1, broken + int(risk >= alpha)
                coverage += given.mean()
        about = [f"{1 - wrong.mean():.2f}", ", ".join(f"{area:.2f}" for area in areas), str(n), f"{alpha:g}"]
        yield [*about, share_of(broken, worlds), f"{certified / worlds:.2f}", f"{coverage / worlds:.2f}"]


class Failing(NamedTuple):
    """Questions at which rungs fail, [POPULATION, rungs]. A certificate is for runs in which no rung failed."""

    case: Case
    failed: NDArray[np.bool_]

    def risk(self, thresholds: Sequence[float]) -> float:
        """The true risk of runs without a failure."""
        waiting, unspoilt, errors, answered = np.arange(POPULATION), np.ones(POPULATION, bool), 0, 0
        for rung, threshold in enumerate(thresholds):
            if threshold > -math.inf:
                unspoilt[waiting] &= ~self.failed[waiting, rung]
                answers = (self.case.world.u[waiting, rung] <= threshold) & ~self.failed[waiting, rung]
                given = waiting[answers & unspoilt[waiting]]
                answered, errors = answered + len(given), errors + int(self.case.world.wrong[given, rung].sum())
                waiting = waiting[~answers]
        return errors / max(answered, 1)


def failing(rng: np.random.Generator) -> Iterator[Failing]:
    """One rung that fails on hard questions, and a first rung without a signal that fails on half of the questions."""
    one = binormal(rng, 0.5, 0.8)
    yield Failing(Case(one, 600, 0.3), rng.random((POPULATION, 1)) < np.where(one.wrong, 0.04, 0.005))
    sure = rng.random(POPULATION) < 0.5
    wrong = rng.random((POPULATION, 2)) < np.column_stack([np.full(POPULATION, 0.24), np.where(sure, 0.02, 0.6)])
    u = np.column_stack([rng.random(POPULATION), np.where(sure, rng.random(POPULATION), 1 + rng.random(POPULATION))])
    failed = np.column_stack([rng.random(POPULATION) < 0.5, np.zeros(POPULATION, bool)])
    yield Failing(Case(World("first rung without a signal", u, wrong), 1200, 0.2), failed)


def failures(populations: Iterator[Failing], worlds: int, seed: int) -> Iterator[list[str]]:
    """How often the certificate is false if failed questions count as given and wrong, and if they are passed on."""
    for population in populations:
        case, cells = population.case, []
        for counted in (True, False):
            certified = too_risky = 0
            rng = np.random.default_rng(seed)
            for split in range(worlds):
                drawn = rng.integers(POPULATION, size=case.n)
                failed = population.failed[drawn]
                u = np.where(failed, case.world.u[drawn].min(axis=0) if counted else np.inf, case.world.u[drawn])
                thresholds = ours(u, case.world.wrong[drawn] | failed, case.alpha, split)
                certified += thresholds is not None
                too_risky += thresholds is not None and population.risk(thresholds) >= case.alpha
            cells += [share_of(too_risky, worlds), f"{certified / worlds:.2f}"]
        share = ", ".join(f"{rung:.2f}" for rung in population.failed.mean(axis=0))
        yield [*case.about(), share, *cells]


def drift(worlds: int, seed: int) -> Iterator[list[str]]:
    """How often 20 new questions are called unlike 100 old ones though they are alike."""
    signals: dict[str, Callable[[np.random.Generator, int], Floats]] = {
        "normal": lambda rng, n: rng.normal(size=n),
        "7 values": lambda rng, n: np.clip(np.round(rng.normal(size=n)), -3, 3),
        "three tenths without uncertainty": lambda rng, n: np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
    }
    for name, draw in signals.items():
        rng = np.random.default_rng(seed)
        p_values = np.array(
            [looks_alike(draw(rng, 100), draw(rng, 20), seed=i, permutations=199).p_value for i in range(worlds)]
        )
        cells = []
        for level in (0.01, 0.05, 0.1):
            count = int((p_values <= level).sum())
            low, high = risk_interval(count, worlds, 0.95)
            cells.append(f"{count / worlds:.4f} ({low:.4f}-{high:.4f})")
        yield [name, *cells]


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000, help="calibrations for each row of the promise")
    parser.add_argument("--rivals", type=int, default=500, help="calibrations for each row of the comparisons")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the tables to make")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    entropy, sure = tied(rng), overconfident(rng)
    unknown = partly_unknown(np.random.default_rng(given.seed + 7), 0.5, 0.8)
    single = [
        *(
            Case(binormal(rng, right, auroc), n, alpha)
            for right, auroc, n, alpha in (
                (0.5, 0.8, 150, 0.3),
                (0.5, 0.8, 300, 0.3),
                (0.5, 0.8, 600, 0.3),
                (0.5, 0.8, 300, 0.2),
                (0.5, 0.8, 600, 0.2),
                (0.3, 0.9, 300, 0.2),
                (0.3, 0.8, 600, 0.3),
                (0.7, 0.6, 300, 0.3),
                (0.7, 0.8, 150, 0.2),
                (0.7, 0.9, 600, 0.1),
            )
        ),
        *(Case(entropy, n, alpha) for n, alpha in ((150, 0.3), (300, 0.3), (600, 0.2))),
        *(Case(sure, n, 0.3) for n in (300, 600, 1200)),
        *(Case(unknown, n, 0.3) for n in (300, 600)),
        *(Case(at_the_edge(1, alpha), n, alpha) for n, alpha in ((150, 0.3), (300, 0.2), (600, 0.1))),
    ]
    two = correlated(rng, (0.4, 0.55), (0.8, 0.8))
    three = correlated(rng, (0.35, 0.5, 0.6), (0.75, 0.8, 0.8))
    four = correlated(rng, (0.35, 0.45, 0.55, 0.6), (0.75, 0.75, 0.8, 0.8))
    unlike = correlated(rng, (0.5, 0.5), (0.6, 0.9))
    several = [
        Case(two, 300, 0.3),
        Case(two, 600, 0.2),
        Case(unlike, 300, 0.2),
        Case(three, 300, 0.3),
        Case(three, 600, 0.2),
        Case(four, 300, 0.3),
        Case(four, 400, 0.2),
        *(Case(at_the_edge(rungs, 0.2), 300, 0.2) for rungs in (2, 3, 4)),
    ]
    compared = [case for case in single if case.world.name not in ("no signal", unknown.name)]
    joint = [Case(world, n, alpha) for world in (two, unlike, three, four) for n, alpha in ((300, 0.3), (600, 0.2))]
    parts = {
        "promise": (
            [*ABOUT, "risk not below α", "certified", "coverage", "of the oracle"],
            validity([*single, *several], given.worlds, given.seed + 1),
        ),
        "one": (
            [*ABOUT, "oracle", "ours", "upward", "Hoeffding-Bentkus", "Holm"],
            power(compared, (ours, upward, hoeffding_bentkus, holm), given.rivals, given.seed + 2),
        ),
        "cascade": (
            [*ABOUT[1:], "oracle", "ours", "each rung alone", "last rung alone", "least cost"],
            cascades(joint, given.rivals, given.seed + 3),
        ),
        "second": (
            [*ABOUT, "second promise", "not kept", "certified", "coverage"],
            second_promises(limited(np.random.default_rng(given.seed + 8), two), given.worlds, given.seed + 9),
        ),
        "combined": (
            [*ABOUT[1:], "risk not below α", "certified", "coverage"],
            combined(np.random.default_rng(given.seed + 10), given.worlds, given.seed + 11),
        ),
        "failures": (
            [*ABOUT, "failed", "given and wrong: risk not below α", "certified", "passed on: the same", "certified"],
            failures(failing(np.random.default_rng(given.seed + 5)), given.worlds, given.seed + 6),
        ),
        "drift": (["signal", "0.01", "0.05", "0.1"], drift(given.worlds, given.seed + 4)),
    }
    tables = []
    for part in given.parts:
        print(f"\n{part}\n")
        tables.append(table(*parts[part]))
    if given.write:
        given.write.write_text("\n\n".join(tables) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
