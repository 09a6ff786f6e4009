"""Is the p-value of SUNAR's conformal penalty one, and does it rank documents better than 1/s?

    dubito eval neighbourhood --dataset 2wiki:FILE --corpus FILE --llm NAME --out RUN --no-traces \\
        --set budget=48 --set samples=5 --set penalty=fixed --set fixed_penalty=1.0
    python benchmarks/conformal_penalty.py RUN [--write docs/measurements/conformal_penalty.md]

The run explores without a penalty, so that every penalty finds the same documents and only their order differs. The
questions are divided at random into two halves, again and again: one half is calibrated with, the other is measured.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dubito.benchmarks.sunar_recall import interval
from dubito.evals import run_folder
from dubito.evals.answers import f1
from dubito.evals.penalty_calibration import batches_of
from dubito.evals.reliability import auroc
from dubito.evals.store import Store
from dubito.nodes.update_frontier import FACTORS, ranked
from dubito.state.neighbourhood import NeighbourhoodContext, Penalty, ScoredDocument

BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"
HALVES, SEED, CUTS = 500, 0, (5, 10)
LEVELS = (0.1, 0.2, 0.3, 0.5, 0.7)
PENALTIES: tuple[Penalty, ...] = ("none", "1/s", "1/sqrt(s)", "fixed", "conformal")


@dataclass(frozen=True)
class Asked:
    """A question: its scored documents, its gold documents, and the s of its batches.

    holding: of the batches with a right answer, if the question was answered right; else empty. others: of the rest.
    """

    scored: Sequence[ScoredDocument]
    gold: frozenset[str]
    holding: Sequence[int]
    others: Sequence[int]


def asked(folder: Path) -> Iterator[Asked]:
    """The answered questions of a run."""
    run = run_folder.read(folder)
    questions = {question.id: question for question in run.questions}
    with Store(run.results) as store:
        for outcome in store.outcomes():
            if outcome.output is None or not outcome.output.get("scored"):
                continue
            question, found = (
                questions[outcome.question],
                batches_of(outcome.output, questions[outcome.question].answers),
            )
            is_right = f1(outcome.output["answer"], question.answers) >= 0.5
            gold = frozenset(question.gold_documents)
            yield Asked(outcome.output["scored"], gold, found.holding if is_right else [], found.others)


def recall(one: Asked, kind: Penalty, scores: Sequence[int], cut: int) -> float:
    """The share of the gold documents among the first `cut` documents, a document being the best of its chunks."""
    context = NeighbourhoodContext.unchecked({})
    rescored: list[ScoredDocument] = [
        {
            **document,
            "score": document["raw_score"]
            * (1.0 if (s := document["number_of_semantic_sets"]) is None else FACTORS[kind](s, context, scores)),
        }
        for document in one.scored
    ]
    documents = dict.fromkeys(document["chunk_id"].rpartition("#")[0] for document in ranked(rescored))
    return len(one.gold & set(list(documents)[:cut])) / len(one.gold)


def measure(questions: Sequence[Asked]) -> str:
    """The measured part of the page."""
    draw = np.random.default_rng(SEED)
    eligible = [place for place, one in enumerate(questions) if one.holding]
    below: dict[float, list[float]] = {level: [] for level in LEVELS}
    conformal: dict[int, list[list[float]]] = {cut: [[] for _ in questions] for cut in CUTS}
    for _ in range(HALVES):
        order = draw.permutation(len(questions))
        first, second = set(order[: len(order) // 2].tolist()), order[len(order) // 2 :].tolist()
        scores = [int(draw.choice(questions[place].holding)) for place in eligible if place in first]
        fresh = [int(draw.choice(questions[place].holding)) for place in eligible if place not in first]
        p = np.array([FACTORS["conformal"](s, NeighbourhoodContext.unchecked({}), scores) for s in fresh])
        for level in LEVELS:
            below[level].append(float((p <= level).mean()))
        for place in second:
            for cut in CUTS:
                conformal[cut][place].append(recall(questions[place], "conformal", scores, cut))
    return "\n\n".join([about(questions), sets_table(questions), promise(below), orders(questions, conformal)])


def about(questions: Sequence[Asked]) -> str:
    """How many questions there were."""
    holding = sum(bool(one.holding) for one in questions)
    batches = [s for one in questions for s in (*one.holding, *one.others)]
    return (
        f"{len(questions)} questions, {len(batches)} batches with a number of semantic sets. {holding} questions were "
        "answered right (F1 at least 0.5) from a batch that holds the answer."
    )


def sets_table(questions: Sequence[Asked]) -> str:
    """How many batches have s sets."""
    right = [s for one in questions for s in one.holding]
    other = [s for one in questions for s in one.others]
    counts: tuple[Mapping[int, int], Mapping[int, int]] = Counter(right), Counter(other)
    lines = ["| s | batches with the answer, of questions answered right | all other batches |", "|---|---|---|"]
    lines += [f"| {s} | {counts[0].get(s, 0)} | {counts[1].get(s, 0)} |" for s in sorted({*right, *other})]
    area = auroc([*right, *other], [False] * len(right) + [True] * len(other))
    return "\n".join([*lines, "", f"The AUROC of s for the other batches is {area or 0:.2f}; 0.5 is chance."])


def promise(below: Mapping[float, Sequence[float]]) -> str:
    """How often p is at most a."""
    lines = ["| a | promised: at most | share of batches with p ≤ a, mean over the halves |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {a} | {a} | {np.mean(shares):.3f} |" for a, shares in below.items())])


def orders(questions: Sequence[Asked], conformal: Mapping[int, Sequence[Sequence[float]]]) -> str:
    """Recall under every penalty."""
    lines = ["| penalty | " + " | ".join(f"recall@{cut} | less none | less 1/s" for cut in CUTS) + " |"]
    lines.append("|---|" + "---|" * (3 * len(CUTS)))
    found = {
        (kind, cut): np.array(
            [float(np.mean(one)) if one else 0.0 for one in conformal[cut]]
            if kind == "conformal"
            else [recall(one, kind, [], cut) for one in questions]
        )
        for kind in PENALTIES
        for cut in CUTS
    }
    for kind in PENALTIES:
        cells = []
        for cut in CUTS:
            own = found[kind, cut]
            cells.append(f"{own.mean():.3f}")
            others: tuple[Penalty, Penalty] = ("none", "1/s")
            cells += ["" if other == kind else interval(own - found[other, cut]) for other in others]
        lines.append(f"| {kind}{' (0.5)' if kind == 'fixed' else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    given = parser.parse_args()
    measured = measure([one for one in asked(given.run) if one.gold])
    print(measured)
    if given.write:
        head, tail = (
            given.write.read_text(encoding="utf-8").split(BEGIN)[0],
            given.write.read_text(encoding="utf-8").split(END)[1],
        )
        given.write.write_text(f"{head}{BEGIN}\n\n{measured}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
