"""What can be certified of the answers of a real model to real questions, and is the promise kept?

    dubito eval vanilla_rag --set uncertainty=combined ... --out real.run
    python benchmarks/certified_answers.py --keep real.run
    python benchmarks/certified_answers.py [--splits 200] [--seed 2026]
    python benchmarks/certified_answers.py --rungs benchmarks/rungs.run [--plot FILE.png]

The first line asks, the second one keeps of each answer what is needed here, in certified_answers.jsonl beside this
file. The third one prints the tables. Half of the questions calibrate and the other half tests, in random splits.
The fourth one does the same with each system of a run alone and with the cascade of all of them, in their order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dubito.evals import run_folder
from dubito.evals.answer_calibration import (
    COMBINED,
    JudgedAnswer,
    answers_of,
    hash_of,
    learned_combination,
    measured,
    part_of,
)
from dubito.evals.calibration import Judged
from dubito.evals.cascade_calibration import Outcome as CascadeOutcome
from dubito.evals.cascade_calibration import outcome_of
from dubito.evals.reliability import auroc
from dubito.evals.scores import ScoredOutcome, scores_of
from dubito.evals.store import Store
from dubito.uncertainty import certified_threshold
from dubito.uncertainty.risk_control import certified_cascade
from numpy.typing import NDArray

OUTCOMES = Path(__file__).with_suffix(".jsonl")
SIGNALS = ("semantic entropy", "disagreement", "negative log-likelihood", COMBINED)
RISKS = (0.2, 0.3, 0.4)
CONFIDENCE = 0.9
HOLDOUT = 0.5


class Outcome(NamedTuple):
    """An answer: is it right, how unsure is each signal, and how many tokens did the question cost?"""

    graph: str
    dataset: str
    question: str
    right: bool
    signals: dict[str, float | None]
    tokens: int


def kept(folder: Path) -> list[Outcome]:
    """The outcomes of an evaluation so far; a failed question is a wrong answer without a signal."""
    run = run_folder.read(folder)
    found = []
    with Store(run.results) as store:
        scores = scores_of(run, store)
        for question in run.questions:
            for system in run.systems:
                scored = scores.get((system.label, question.id))
                if scored is None:  # not asked yet
                    continue
                usage: dict[str, Any] = scored.output.get("usage") or {"prompt_tokens": 0, "completion_tokens": 0}
                signals = {
                    name: None if value is None else round(value, 5)
                    for name, value in (scored.output.get("signals") or {}).items()
                }
                tokens = usage["prompt_tokens"] + usage["completion_tokens"]
                dataset, key = question.dataset, hash_of(question.question)
                found.append(Outcome(system.graph, dataset, key, scored.right, signals, tokens))
    return found


def judged(outcomes: Sequence[Outcome], signal: str) -> list[Judged]:
    """Outcomes as the calibration reads them; a failed one has no signals."""
    return [
        None
        if not one.signals
        else (
            {
                "answer": "given",
                "signals": one.signals,
                "uncertainty": {"signal": signal, "value": one.signals.get(signal)},
            },
            one.right,
        )
        for one in outcomes
    ]


class Split(NamedTuple):
    """What a threshold that was certified on one half does on the other. 0 if there is none; tokens: a question."""

    coverage: float
    answered: int
    errors: int
    certified: bool
    tokens: float = 0.0


def tried(outcomes: Sequence[Outcome], signal: str, alpha: float, seed: int) -> Split:
    """Calibrate on a random half, as `dubito calibrate` does, and count on the other."""
    order = np.random.default_rng(seed).permutation(len(outcomes))
    held = round(HOLDOUT * len(outcomes))
    used, tested = ([outcomes[i] for i in part] for part in (order[held:], order[:held]))
    combination = learned_combination(judged(used, signal), seed) if signal == COMBINED else None
    answers, others = (answers_of(judged(part, signal), combination) for part in (used, tested))
    certified = certified_threshold(*columns(answers), alpha=alpha, confidence=CONFIDENCE, seed=seed)
    if certified is None:
        return Split(0.0, 0, 0, certified=False)
    part = part_of(others, certified.threshold)
    return Split(part.answered / part.questions, part.answered, part.errors, certified=True)


def columns(answers: Sequence[JudgedAnswer]) -> tuple[list[float], list[bool]]:
    """The uncertainties, and what is wrong."""
    return [answer.uncertainty for answer in answers], [not answer.right for answer in answers]


def signals_table(outcomes: Sequence[Outcome]) -> list[str]:
    """A row a dataset: how many are right, and how well each signal tells right from wrong."""
    names = [name for name in SIGNALS if name != COMBINED]
    lines = [f"| dataset | questions | right | tokens | {' | '.join(names)} |", "|" + "---|" * (4 + len(names))]
    datasets = dict.fromkeys(one.dataset for one in outcomes)
    for label, chosen in [(name, [name]) for name in datasets] + [("all", list(datasets))]:
        some = [one for one in outcomes if one.dataset in chosen]
        cells = []
        for name in names:
            known = [(value, not one.right) for one in some if (value := one.signals.get(name)) is not None]
            area = auroc(*zip(*known, strict=True)) if known else None
            cells.append("-" if area is None else f"{area:.2f}")
        right, tokens = (np.mean([getattr(one, field) for one in some]) for field in ("right", "tokens"))
        lines.append(f"| {label} | {len(some)} | {right:.2f} | {tokens:,.0f} | {' | '.join(cells)} |")
    return lines


def certified_table(outcomes: Sequence[Outcome], splits: int, seed: int) -> list[str]:
    """A row an α and signal, over random splits."""
    lines = [
        "| α | signal | certified | coverage | realised risk | splits with a risk above α | tokens an answer |",
        "|---|---|---|---|---|---|---|",
    ]
    tokens = float(np.mean([one.tokens for one in outcomes]))
    for alpha in RISKS:
        for signal in SIGNALS:
            found = [tried(outcomes, signal, alpha, seed + i) for i in range(splits)]
            answered, errors = (sum(getattr(one, field) for one in found) for field in ("answered", "errors"))
            above = sum(one.errors > alpha * one.answered for one in found)
            coverage = float(np.mean([one.coverage for one in found]))
            risk = f"{errors / answered:.3f}" if answered else "-"
            price = f"{tokens / coverage:,.0f}" if coverage else "-"
            share = np.mean([one.certified for one in found])
            row = (f"{alpha:g}", signal, f"{share:.2f}", f"{coverage:.2f}", risk, f"{above / splits:.3f}", price)
            lines.append(f"| {' | '.join(row)} |")
    return lines


def shuffled_table(outcomes: Sequence[Outcome], splits: int, seed: int) -> list[str]:
    """The same with shuffled labels: how often is anything certified?"""
    lines = ["| α | certified with shuffled labels |", "|---|---|"]
    for alpha in RISKS:
        certified = 0
        for i in range(splits):
            labels = np.random.default_rng([seed, i]).permutation([one.right for one in outcomes]).tolist()
            strangers = [one._replace(right=bool(right)) for one, right in zip(outcomes, labels, strict=True)]
            certified += tried(strangers, SIGNALS[0], alpha, seed + i).certified
        lines.append(f"| {alpha:g} | {certified / splits:.3f} |")
    return lines


class Rungs(NamedTuple):
    """The questions that every system of a run was asked: [n, systems] each. known: is there an uncertainty?"""

    names: list[str]
    uncertainties: NDArray[np.float64]
    known: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    tokens: NDArray[np.float64]


def rungs_of(folder: Path) -> Rungs:
    """What each system of an evaluation did, in the terms of `dubito calibrate escalate`."""
    run = run_folder.read(folder)
    with Store(run.results) as store:
        scores = scores_of(run, store)
    names = [system.label for system in run.systems]
    questions = {hash_of(question.question): question.id for question in run.questions}
    rows = [[scores.get((name, question)) for name in names] for question in questions.values()]
    whole = [[one for one in row if one is not None] for row in rows if None not in row]
    columns = [
        answers_of([None if one.failed else (one.output, one.right) for one in column], None)
        for column in zip(*whole, strict=True)
    ]
    return Rungs(
        names,
        np.array([[answer.uncertainty for answer in column] for column in columns]).T,
        np.array([[np.isfinite(measured(answer)) for answer in column] for column in columns]).T,
        np.array([[not answer.right for answer in column] for column in columns]).T,
        np.array([[tokens_of(one) for one in row] for row in whole], dtype=np.float64),
    )


def tokens_of(scored: ScoredOutcome) -> int:
    """Tokens read and written, those of remembered calls too."""
    usage = scored.output.get("usage") or {}
    return int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))


def rungs_table(rungs: Rungs, splits: int, seed: int) -> list[str]:
    """How well does each system answer and doubt, and what does it cost?"""
    lines = ["| system | right | AUROC | tokens a question |", "|---|---|---|---|"]
    for place, name in enumerate(rungs.names):
        u, wrong = rungs.uncertainties[:, place], rungs.wrong[:, place]
        known = rungs.known[:, place]
        area = auroc(u[known].tolist(), wrong[known].tolist())
        shown = "-" if area is None else f"{area:.2f}"
        lines.append(f"| {name} | {1 - wrong.mean():.2f} | {shown} | {rungs.tokens[:, place].mean():,.0f} |")
    return [*lines, "", *cascade_table(rungs, splits, seed)]


def cascade_table(rungs: Rungs, splits: int, seed: int) -> list[str]:
    """A row an α and system, over random splits; `cascade` is all of them in their order."""
    lines = [
        f"{len(rungs.wrong)} questions",
        "",
        "| α | system | certified | coverage | realised risk | splits with a risk above α | tokens a question |",
        "|---|---|---|---|---|---|---|",
    ]
    chosen = [([place], name) for place, name in enumerate(rungs.names)]
    chosen.append((list(range(len(rungs.names))), "cascade"))
    for alpha in RISKS:
        for places, name in chosen:
            found = [cascade_split(rungs, places, alpha, seed + i) for i in range(splits)]
            answered, errors = (sum(getattr(one, field) for one in found) for field in ("answered", "errors"))
            above = np.mean([one.errors > alpha * one.answered for one in found])
            risk = f"{errors / answered:.3f}" if answered else "-"
            certified = [one for one in found if one.certified]
            tokens = f"{np.mean([one.tokens for one in certified]):,.0f}" if certified else "-"
            share, coverage = len(certified) / splits, np.mean([one.coverage for one in found])
            row = (f"{alpha:g}", name, f"{share:.2f}", f"{coverage:.2f}", risk, f"{above:.3f}", tokens)
            lines.append(f"| {' | '.join(row)} |")
    return lines


def cascade_split(rungs: Rungs, places: Sequence[int], alpha: float, seed: int) -> Split:
    """Calibrate these rungs at once on a random half, and ask the other half of one after the other."""
    order = np.random.default_rng(seed).permutation(len(rungs.wrong))
    held = round(HOLDOUT * len(order))
    used, tested = order[held:], order[:held]
    u, wrong, tokens = rungs.uncertainties[:, places], rungs.wrong[:, places], rungs.tokens[:, places]
    found = certified_cascade(u[used], wrong[used], tokens[used], alpha=alpha, confidence=CONFIDENCE, seed=seed)
    if found is None:
        return Split(0.0, 0, 0, certified=False)
    return split_of(outcome_of(found.thresholds, u[tested], wrong[tested], tokens[tested]))


def split_of(outcome: CascadeOutcome) -> Split:
    """What certified thresholds did, as shares."""
    coverage = outcome.answered / outcome.questions
    return Split(coverage, outcome.answered, outcome.errors, certified=True, tokens=outcome.tokens)


class Hindsight(NamedTuple):
    """What each choice of thresholds does with all questions, for each system and for the cascade of all."""

    names: list[str]
    splits: dict[str, list[Split]]

    @classmethod
    def of(cls, rungs: Rungs) -> Hindsight:
        """Thresholds at 25 quantiles a rung, or the rung is off."""
        levels = [
            np.array([-np.inf, *np.unique(np.quantile(values[known], np.linspace(0, 1, 26)[1:]))])
            for values, known in zip(rungs.uncertainties.T, rungs.known.T, strict=True)
        ]
        found: dict[str, list[Split]] = {name: [] for name in [*rungs.names, "cascade"]}
        for chosen in product(*levels):
            limits = np.array(chosen)
            split = split_of(outcome_of(chosen, rungs.uncertainties, rungs.wrong, rungs.tokens))
            found["cascade"].append(split)
            if (limits > -np.inf).sum() == 1:
                found[rungs.names[int(np.argmax(limits))]].append(split)
            elif not (limits > -np.inf).any():
                for name in rungs.names:
                    found[name].append(split)
        return cls(rungs.names, found)

    def table(self) -> list[str]:
        """The most answers with at most that share of errors: an upper bound."""
        lines = ["| α | system | coverage | tokens a question |", "|---|---|---|---|"]
        for alpha in RISKS:
            best = {
                name: max(
                    (one for one in splits if one.errors <= alpha * one.answered),
                    key=lambda one: (one.answered, -one.tokens),
                )
                for name, splits in self.splits.items()
            }
            most = max(best[name].answered for name in self.names)
            cascades = self.splits["cascade"]
            enough = [one for one in cascades if one.errors <= alpha * one.answered and one.answered >= most]
            best["cascade, as many as the best alone"] = min(enough, key=lambda one: one.tokens)
            lines += [f"| {alpha:g} | {name} | {one.coverage:.2f} | {one.tokens:,.0f} |" for name, one in best.items()]
        return lines

    def plot(self, file: Path) -> None:
        """Draw the least risk at each coverage, and the most right answers for each cost."""
        import matplotlib  # noqa: PLC0415 - only where a plot is asked for

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415

        figure, (risks, costs) = plt.subplots(1, 2, figsize=(11, 4))
        for (name, splits), style in zip(self.splits.items(), ("-", "--", "-.", ":"), strict=False):
            width = 3 if name == "cascade" else 1.5
            risk, least = 1.0, []
            for one in sorted((one for one in splits if one.answered), key=lambda one: -one.answered):
                risk = min(risk, one.errors / one.answered)
                least.append((one.coverage, risk))
            risks.plot(*zip(*least, strict=True), style, linewidth=width, label=name)
            most, right = 0, []
            for one in sorted(splits, key=lambda one: (one.tokens, one.errors - one.answered)):
                if one.answered - one.errors > most:
                    most = one.answered - one.errors
                    right.append((one.tokens, one.coverage * most / one.answered))
            costs.step(*zip(*right, strict=True), style, where="post", marker="o", linewidth=width, label=name)
        risks.set(xlabel="at least this share of questions answered", ylabel="share of these answers that is wrong")
        costs.set(xlabel="tokens a question", ylabel="share of questions answered right", xlim=(0, None), ylim=(0, 0.6))
        risks.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(file, dpi=110)


def main() -> None:
    """Keep the outcomes of a run, or print the tables of those that are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="RUN")
    parser.add_argument("--rungs", type=Path, metavar="RUN")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    if arguments.keep:
        lines = [json.dumps(one._asdict()) for one in kept(arguments.keep)]
        OUTCOMES.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    if arguments.rungs:
        rungs = rungs_of(arguments.rungs)
        hindsight = Hindsight.of(rungs)
        print("\n".join([*rungs_table(rungs, arguments.splits, arguments.seed), "", *hindsight.table()]))
        if arguments.plot:
            hindsight.plot(arguments.plot)
        return
    records = [Outcome(**json.loads(line)) for line in OUTCOMES.read_text(encoding="utf-8").splitlines()]
    tables: list[Callable[[Sequence[Outcome]], list[str]]] = [
        signals_table,
        lambda outcomes: certified_table(outcomes, arguments.splits, arguments.seed),
        lambda outcomes: shuffled_table(outcomes, arguments.splits, arguments.seed),
    ]
    for graph in dict.fromkeys(one.graph for one in records):
        own = [one for one in records if one.graph == graph]
        print(f"## {graph}\n")
        for table in tables:
            print("\n".join(table(own)), end="\n\n")


if __name__ == "__main__":
    main()
