"""How well does each way of judging an answer agree with a human? SePer's Table 1 (section 4.1.1), on EVOUNA.

Every answer of five systems to questions of Natural Questions and TriviaQA carries a human judgement. Matching judges
by the words, an entailment judge as SePer does: right iff the highest P(entailment), over the gold answers and both
directions, question before both, is above 0.5.

    python benchmarks/evouna.py --data DIR [--judges NAME ...] [--limit N] [--golds M]

DIR holds NQ.json and TQ.json; a judge is what the setting `judge` takes, such as embedded, nli:FOLDER or llm. For slow
ones, N answers of each data set are drawn at random, and judged by the first M gold answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from dubito.errors import DubitoError
from dubito.evals.answers import cover_em, exact_match, f1, squad_normalised
from dubito.models.interfaces import LABELS, Judge
from dubito.resources.resources import Resources
from dubito.state.dense import DenseContext
from numpy.typing import NDArray

SEED = 0
SETS = {"NQ": "Natural Questions", "TQ": "TriviaQA"}
SYSTEMS = {"fid": "DPR-FiD", "gpt35": "InstructGPT", "chatgpt": "ChatGPT", "gpt4": "GPT-4", "newbing": "BingChat"}
THRESHOLD = 0.5
SWEEP = (0.01, 0.02, 0.03, 0.04, *(t / 20 for t in range(1, 21)))
Decisions = NDArray[np.bool_]


@dataclass(frozen=True)
class Judged:
    """What a system said to a question, the gold answers, and whether a human called it right."""

    question: str
    system: str
    said: str
    golds: tuple[str, ...]
    right: bool


def judged_answers(folder: Path, name: str) -> list[Judged]:
    """The answers of EVOUNA's NQ or TQ that a human judged; gold answers are parted by "/"."""
    found = []
    for record in json.loads((folder / f"{name}.json").read_text(encoding="utf-8")):
        golds = tuple(dict.fromkeys(one.strip() for one in record["golden_answer"].split("/") if one.strip()))
        for system in SYSTEMS:
            said, right = record[f"answer_{system}"], record[f"judge_{system}"]
            # an improper question has null for a judgement in NQ and the text "nan" in TQ
            if record["improper"] is not True and isinstance(right, bool) and said:
                found.append(Judged(record["question"], system, said, golds, right))
    return found


def distinct(one: Judged) -> Judged:
    """Without the gold answers that differ from an earlier one only in case, articles and punctuation."""
    forms: dict[str, str] = {}
    for gold in one.golds:
        forms.setdefault(squad_normalised(gold), gold)
    return replace(one, golds=tuple(forms.values()))


async def entailment(judge: Judge, answers: Sequence[Judged]) -> tuple[NDArray[np.float64], int]:
    """The highest P(entailment) of each answer, and how many of the pairs the judge could not say; they count as 0."""
    by_question: dict[str, list[Judged]] = {}
    for one in answers:
        by_question.setdefault(one.question, []).append(one)
    rows = await asyncio.gather(*(_question(judge, question, some) for question, some in by_question.items()))
    found = {
        one: score
        for some, (scores, _) in zip(by_question.values(), rows, strict=True)
        for one, score in zip(some, scores, strict=True)
    }
    return np.array([found[one] for one in answers]), sum(unsaid for _, unsaid in rows)


async def _question(judge: Judge, question: str, answers: Sequence[Judged]) -> tuple[list[float], int]:
    """All answers to one question in one call."""
    pairs = [pair for one in answers for gold in one.golds for pair in ((one.said, gold), (gold, one.said))]
    entailed = (await judge.judge(question, pairs))[:, LABELS.index("entailment")]
    ends = np.cumsum([2 * len(one.golds) for one in answers])[:-1]
    scores = [float(np.nan_to_num(some).max()) for some in np.split(entailed, ends)]
    return scores, int(np.isnan(entailed).sum())


# --- figures ---


def agreement(decided: Decisions, right: Decisions) -> tuple[float, float]:
    """F1 of "right", and accuracy, against the human judgement; in [0, 1]."""
    both = (decided & right).sum()
    return float(2 * both / max(1, decided.sum() + right.sum())), float((decided == right).mean())


def matching(answers: Sequence[Judged]) -> dict[str, Decisions]:
    """What the ways of matching decide."""
    scores = f1_scores(answers)
    best, right = best_threshold(answers), rights(answers)
    return {
        "(all are right)": np.ones_like(right),
        "exact match": _by(exact_match, answers) == 1,
        "F1 ≥ 0.5": scores >= THRESHOLD,
        f"F1 ≥ {best:.2f}, the best T in hindsight": scores >= best,
        "gold answer contained": _by(cover_em, answers) == 1,
        "the same, within words too": _by(within, answers) == 1,
    }


def best_threshold(answers: Sequence[Judged]) -> float:
    """T of the highest accuracy on these very answers; the highest of equals."""
    scores, right = f1_scores(answers), rights(answers)
    return max(SWEEP, key=lambda t: (agreement(scores >= t, right)[1], t))


def f1_scores(answers: Sequence[Judged]) -> NDArray[np.float64]:
    """SQuAD's F1 of each answer."""
    return _by(f1, answers)


def within(said: str, golds: Sequence[str]) -> float:
    """Whether a gold answer is any part of what was said, both normalised."""
    return float(any(squad_normalised(gold) in squad_normalised(said) for gold in golds))


def rights(answers: Sequence[Judged]) -> Decisions:
    """The human judgements."""
    return np.array([one.right for one in answers])


def _by(metric: Callable[[str, Sequence[str]], float], answers: Sequence[Judged]) -> NDArray[np.float64]:
    return np.array([metric(one.said, one.golds) for one in answers])


# --- the page ---


def table(answers: Sequence[Judged], decisions: dict[str, Decisions]) -> str:
    """F1 and accuracy of each way of judging, for each system and for all, and how many wrong answers it lets pass."""
    right = rights(answers)
    of = {name: np.array([one.system == system for one in answers]) for system, name in SYSTEMS.items()}
    of = {name: mine for name, mine in of.items() if mine.any()} | {"all": np.ones_like(right)}
    lines = ["| F1 / accuracy | " + " | ".join(of) + " | wrong ones called right |", "|---" * (len(of) + 2) + "|"]
    counts = " | ".join(f"{m.sum()} ({right[m].mean():.0%})" for m in of.values())
    lines.append(f"| answers (right) | {counts} | |")
    for name, decided in decisions.items():
        cells = (agreement(decided[mine], right[mine]) for mine in of.values())
        shown = " | ".join(f"{100 * one:.1f} / {100 * two:.1f}" for one, two in cells)
        lines.append(f"| {name} | {shown} | {(decided & ~right).sum() / max(1, (~right).sum()):.0%} |")
    return "\n".join(lines)


def sweep(answers: dict[str, list[Judged]]) -> str:
    """F1 and accuracy of "F1 ≥ T" for every T."""
    lines = ["| T | " + " | ".join(answers) + " |", "|---" * (len(answers) + 1) + "|"]
    scored = [(f1_scores(some), rights(some)) for some in answers.values()]
    for threshold in SWEEP:
        cells = (agreement(scores >= threshold, right) for scores, right in scored)
        lines.append(
            f"| {threshold:.2f} | " + " | ".join(f"{100 * one:.1f} / {100 * two:.1f}" for one, two in cells) + " |"
        )
    return "\n".join(lines)


async def measure(folder: Path, judges: Sequence[str], llm: str, limit: int | None, golds: int | None) -> None:
    """Print both tables and the sweep."""
    resources = Resources()
    answers = {name: [distinct(one) for one in judged_answers(folder, name)] for name in SETS}
    if limit is not None:
        answers = {name: random.Random(SEED).sample(some, min(limit, len(some))) for name, some in answers.items()}
    if golds is not None:
        answers = {name: [replace(one, golds=one.golds[:golds]) for one in some] for name, some in answers.items()}
    opened = {
        name: await resources.judge(DenseContext(judge=name, llm=llm, encoder="embedded", concurrency=4))
        for name in judges
    }
    for name, some in answers.items():
        decisions = matching(some)
        for judge_name, judge in opened.items():
            start = time.perf_counter()
            scores, unsaid = await entailment(judge, some)
            pairs = sum(2 * len(one.golds) for one in some)
            seconds = time.perf_counter() - start
            print(f"{name}, {judge_name}: {pairs:,} pairs, {unsaid} of them unsaid, {seconds:.0f} s", file=sys.stderr)
            decisions[f"entailment, `{judge_name}`"] = scores > THRESHOLD
        print(f"\n{SETS[name]}\n\n{table(some, decisions)}")
    print(f"\nF1 ≥ T\n\n{sweep(answers)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with NQ.json and TQ.json")
    parser.add_argument("--judges", nargs="*", default=["embedded"], help="entailment judges; embedded if left out")
    parser.add_argument("--llm", default="embedded", help="the chat model that the judge llm asks")
    parser.add_argument("--limit", type=int, help="answers of each data set, drawn at random; all if left out")
    parser.add_argument("--golds", type=int, help="the first gold answers of each question; all if left out")
    arguments = parser.parse_args()
    missing = [name for name in SETS if not (arguments.data / f"{name}.json").is_file()]
    if missing:
        parser.error(f"there is no {missing[0]}.json in '{arguments.data}': give EVOUNA's folder as --data")
    if any(number is not None and number < 1 for number in (arguments.limit, arguments.golds)):
        parser.error("--limit and --golds have to be at least 1")
    try:
        asyncio.run(measure(arguments.data, arguments.judges, arguments.llm, arguments.limit, arguments.golds))
    except DubitoError as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
