"""What can be certified of the answers of a real model to real questions, and is the promise kept?

    dubito eval vanilla_rag --set uncertainty=combined ... --out real.run
    python benchmarks/certified_answers.py --keep real.run
    python benchmarks/certified_answers.py [--splits 200] [--seed 2026]

The first line asks, the second one keeps of each answer what is needed here, in certified_answers.jsonl beside this
file. The third one prints the tables. Half of the questions calibrate and the other half tests, in random splits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
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
    part_of,
)
from dubito.evals.calibration import Judged
from dubito.evals.reliability import auroc
from dubito.evals.scores import scores_of
from dubito.evals.store import Store
from dubito.uncertainty import certified_threshold

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
    """Outcomes as the calibration reads them."""
    return [
        (
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
    """What a threshold that was certified on one half does on the other. answered, errors: None if there is none."""

    coverage: float
    answered: int
    errors: int
    certified: bool


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


def main() -> None:
    """Keep the outcomes of a run, or print the tables of those that are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="RUN")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    if arguments.keep:
        lines = [json.dumps(one._asdict()) for one in kept(arguments.keep)]
        OUTCOMES.write_text("\n".join(lines) + "\n", encoding="utf-8")
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
