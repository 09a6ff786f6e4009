"""What do the parts of a technique do to an answer? From the outcomes of an evaluation, without asking anything again.

    python benchmarks/parts.py RUN [RUN ...] [--together]

RUN: a run of `dubito eval`, or what `dubito report RUN --keep` made of it. DF-RAG: does the support tell which chunk
set has the gold documents (sampling=uniform, which scores every set)? DENSE-RAG: the answers to uncertain questions
after each stage, with the DSE. SUNAR: the answer before and after the evidence is read again. SeaKR: the answers of
both endings. If they were measured: is ΔSePer larger where the evidence has every supporting document, and do right
answers get higher ratings by a model? Intervals are 95 %, over questions. --together: the answers of a system in all
runs as if they were of one; a question counts once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dubito.errors import UserFault
from dubito.evals import run_folder
from dubito.evals.answers import f1
from dubito.evals.measuring import RATINGS, SEPER
from dubito.evals.questions import GoldQuestion
from dubito.evals.reliability import auroc, auroc_interval
from dubito.evals.scores import RIGHT
from dubito.evals.statistics import bootstrap_interval
from dubito.evals.store import Store
from scipy.stats import spearmanr

SEED = 0
FULL = 5.0
"""The highest score that the evaluators `report` and `choice` give a step of the plan."""


class Asked(NamedTuple):
    """A question with what a system gave for it. measured: SePer and ratings, by their names, if they were measured."""

    question: GoldQuestion
    output: Mapping[str, Any]
    measured: Mapping[str, float] = {}


Answers = dict[tuple[str, str], list[Asked]]
"""By the system's name and its graph."""


def asked_in(folder: Path) -> Answers:
    """The answered questions of each system of a run."""
    run = run_folder.read(folder)
    by_id = {question.id: question for question in run.questions}
    graphs = {system.label: system.graph for system in run.systems}
    found: Answers = {}
    with Store(run.results) as store:
        seper, ratings = store.measurements(SEPER), store.measurements(RATINGS)
        for outcome in store.outcomes():
            if outcome.output is not None:
                key, asked = (outcome.system, graphs[outcome.system]), (outcome.system, outcome.question)
                measured = {**seper.get(asked, {}), **ratings.get(asked, {})}
                found.setdefault(key, []).append(Asked(by_id[outcome.question], outcome.output, measured))
    return found


def merged(runs: Iterable[Answers]) -> Answers:
    """The answers of all runs; a question that several have answers to counts once, as in the first."""
    together: dict[tuple[str, str], dict[str, Asked]] = {}
    for found in runs:
        for key, asked in found.items():
            by_question = together.setdefault(key, {})
            for one in asked:
                by_question.setdefault(one.question.id, one)
    return {key: list(by_question.values()) for key, by_question in together.items()}


def figure(values: Sequence[float]) -> str:
    """A mean with its interval: "0.54 (0.49 to 0.60)"; "-" of nothing."""
    if not values:
        return "-"
    mean = bootstrap_interval(values, SEED)
    return f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f})"


def of_df_rag(asked: Sequence[Asked]) -> Iterator[str]:
    """The support of chunk sets beside the gold documents that are in them."""
    names = ("the chosen set", "a set of most support", "any set", "the set of λ = 1", "the best set")
    recalls: dict[str, list[float]] = {name: [] for name in names}
    levels, ties, orders, sets, scores = [], 0, [], 0, []
    for one in asked:
        candidates, gold = one.output["candidates"], set(one.question.gold_documents)
        by_levels = {tuple(each["lambdas"]): each["support"] for each in one.output["supports"]}
        if not candidates or not gold or len(by_levels) < len(candidates):
            continue
        steps = len(one.output["plan"])
        support = [by_levels[tuple(each["lambdas"])] / steps for each in candidates]
        recall = [len(gold & {name.rsplit("#", 1)[0] for name in each["chunk_ids"]}) / len(gold) for each in candidates]
        most = [share for share, value in zip(recall, support, strict=True) if value == max(support)]
        star = one.output["lambda_star"]
        chosen = next(share for share, each in zip(recall, candidates, strict=True) if star in each["lambdas"])
        shares = (chosen, fmean(most), fmean(recall), recall[-1], max(recall))
        for name, value in zip(names, shares, strict=True):
            recalls[name].append(value)
        scores.append(score(one.output["answer"], one.question))
        ties += len(set(support)) == 1
        sets += len(support)
        levels += support
        if len(set(support)) > 1 and len(set(recall)) > 1:
            orders.append(float(spearmanr(support, recall).statistic))
    yield f"{len(recalls['any set'])} questions, {sets} sets; all sets of a question have the same support: {ties}"
    if full := levels.count(FULL):
        yield f"sets with the full score for every step: {full}"
    yield f"rank correlation of support and recall within a question: {figure(orders)} ({len(orders)} questions)"
    yield from (f"recall of {name}: {figure(values)}" for name, values in recalls.items())
    gains = [chosen - similar for chosen, similar in zip(recalls[names[0]], recalls[names[3]], strict=True)]
    yield f"the chosen set above the set of λ = 1: {figure(gains)}"
    yield f"F1 of the answers: {figure(scores)}"


def of_dense_rag(asked: Sequence[Asked]) -> Iterator[str]:
    """What splitting again and refining did to the answers that were uncertain at first."""
    uncertain = [one for one in asked if len(one.output["rounds"]) > 1]
    certain = [one for one in asked if len(one.output["rounds"]) == 1]
    for name, part in (("certain at first", certain), ("uncertain at first", uncertain)):
        yield f"{name}: {len(part)}, F1 {figure([score(one.output['answer'], one.question) for one in part])}"
    stages: dict[str, Callable[[Mapping[str, Any]], tuple[str, float]]] = {
        "first context": lambda output: after(output["rounds"][0]),
        "split again": lambda output: after(output["rounds"][1]),
        "refined": lambda output: (output["answer"], output["dse"]),
    }
    before: dict[str, str] = {}
    for name, stage in stages.items():
        answers = {one.question.id: stage(one.output) for one in uncertain}
        scores = [score(answers[one.question.id][0], one.question) for one in uncertain]
        changed = sum(answer != before.get(key, answer) for key, (answer, _) in answers.items())
        yield (
            f"{name}: right {sum(value >= RIGHT for value in scores)}, F1 {figure(scores)}, DSE "
            f"{figure([dse for _, dse in answers.values()])}, answers changed {changed}"
        )
        before = {key: answer for key, (answer, _) in answers.items()}
    first = [after(one.output["rounds"][0])[0] for one in uncertain]
    gains = [
        score(one.output["answer"], one.question) - score(answer, one.question)
        for one, answer in zip(uncertain, first, strict=True)
    ]
    yield f"refined above the first context: {figure(gains)}"
    verdicts = [
        (bool(measured["sufficient"]), score(measured["responses"][0], one.question) >= RIGHT)
        for one in uncertain
        for measured in one.output["rounds"]
        if measured["sufficient"] is not None
    ]
    for sufficient in (True, False):
        rights = [right for verdict, right in verdicts if verdict is sufficient]
        yield f"context called {'' if sufficient else 'in'}sufficient: {len(rights)}, right {sum(rights)}"


def after(measured: Mapping[str, Any]) -> tuple[str, float]:
    """The answer from a measured context, and its DSE."""
    return measured["responses"][0], measured["dse"]


def of_sunar(asked: Sequence[Asked]) -> Iterator[str]:
    """The answer at the end of the path beside the one from the evidence that is read again."""
    several = sum(len(one.output["hops"]) > 1 for one in asked)
    yield f"questions with two sub-questions or more: {several} of {len(asked)}"
    yield from compared(
        asked, "path", lambda output: output["sequential_answer"], "read again", lambda output: output["answer"]
    )


def of_seakr(asked: Sequence[Asked]) -> Iterator[str]:
    """The two endings, where both were written, and what was chosen."""

    def by(strategy: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda output: next(
            each["answer"] for each in output["strategy_answers"] if each["strategy"] == strategy
        )

    both = [one for one in asked if len(one.output["strategy_answers"]) == 2]
    searched = sum(bool(one.output["evidence"]) for one in asked)
    yield f"questions for which something was retrieved: {searched} of {len(asked)}; with both endings: {len(both)}"
    if both:
        yield from compared(both, "rationales", by("rationales"), "knowledge", by("knowledge"))
        yield f"F1 chosen: {figure([score(one.output['answer'], one.question) for one in both])}"


def of_seper(asked: Sequence[Asked]) -> Iterator[str]:
    """ΔSePer beside the gold documents in the evidence, and SePer beside right and wrong answers."""
    measured = [one for one in asked if "delta" in one.measured]
    yield f"ΔSePer of {len(measured)}: {figure(values(measured, 'delta'))}"
    whole, part = parted(measured, has_all_documents)
    yield (
        f"ΔSePer of evidence with every supporting document: {figure(values(whole, 'delta'))} ({len(whole)}); without: "
        f"{figure(values(part, 'delta'))} ({len(part)})"
    )
    right, wrong = parted(measured, is_right)
    yield (
        f"SePer of right answers: {figure(values(right, 'seper'))} ({len(right)}); of wrong ones: "
        f"{figure(values(wrong, 'seper'))} ({len(wrong)})"
    )


def of_ratings(asked: Sequence[Asked]) -> Iterator[str]:
    """The judge's ratings of right and of wrong answers, with their evidence and without."""
    right, wrong = parted([one for one in asked if "correctness" in one.measured], is_right)
    for name, what in (("correctness", "with the evidence"), ("correctness_without", "without it")):
        yield (
            f"rated {what}: right answers {figure(values(right, name))} ({len(right)}), wrong ones "
            f"{figure(values(wrong, name))} ({len(wrong)})"
        )
        if right and wrong:
            doubts = [-value for value in values([*right, *wrong], name)]
            area = auroc(doubts, [False] * len(right) + [True] * len(wrong)) or 0.0
            low, high = auroc_interval(area, len(right), len(wrong))
            yield f"AUROC of this rating: {area:.2f} ({low:.2f} to {high:.2f})"


def is_right(one: Asked) -> bool:
    """Is its answer right?"""
    return score(one.output["answer"], one.question) >= RIGHT


def values(asked: Sequence[Asked], name: str) -> list[float]:
    """What was measured under this name."""
    return [one.measured[name] for one in asked]


def parted(asked: Sequence[Asked], belongs: Callable[[Asked], bool]) -> tuple[list[Asked], list[Asked]]:
    """Those of which it is true, and the others."""
    return [one for one in asked if belongs(one)], [one for one in asked if not belongs(one)]


def has_all_documents(one: Asked) -> bool:
    """Has the evidence every supporting document?"""
    return set(one.question.gold_documents) <= {chunk["doc_id"] for chunk in one.output["evidence"]}


def compared(
    asked: Sequence[Asked],
    first: str,
    first_of: Callable[[Mapping[str, Any]], str],
    second: str,
    second_of: Callable[[Mapping[str, Any]], str],
) -> Iterator[str]:
    """The F1 of two answers to the same questions, and their difference."""
    before = [score(first_of(one.output), one.question) for one in asked]
    then = [score(second_of(one.output), one.question) for one in asked]
    differences = [late - early for early, late in zip(before, then, strict=True)]
    yield f"F1 {first}: {figure(before)}; {second}: {figure(then)}; difference {figure(differences)}"
    yield f"better: {sum(one > 0 for one in differences)}, worse: {sum(one < 0 for one in differences)}"


def score(answer: str, question: GoldQuestion) -> float:
    """The F1 of an answer."""
    return f1(answer, question.answers)


PARTS = {"df_rag": of_df_rag, "dense_rag": of_dense_rag, "sunar": of_sunar, "seakr": of_seakr}


def parts_of(graph: str, asked: Sequence[Asked]) -> Iterator[Callable[[Sequence[Asked]], Iterator[str]]]:
    """What there is to say of a system's answers."""
    if graph in PARTS:
        yield PARTS[graph]
    for name, part in (("delta", of_seper), ("correctness", of_ratings)):
        if any(name in one.measured for one in asked):
            yield part


def main() -> None:
    """Print the parts of every system of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--together", action="store_true", help="a system's answers in all runs as if of one run")
    given = parser.parse_args()
    try:
        runs = {str(folder): asked_in(folder) for folder in given.runs}
    except UserFault as fault:
        parser.error(str(fault))
    if given.together:
        runs = {" and ".join(runs): merged(runs.values())}
    for name, found in runs.items():
        parts = [(label, asked, of) for (label, graph), asked in found.items() for of in parts_of(graph, asked)]
        if not parts:
            parser.error(f"{name} has no answers of {', '.join(PARTS)}, no measured SePer and no ratings.")
        for label, asked, of in parts:
            print(f"\n{label}: {len(asked)} answers")
            print("\n".join(f"  {line}" for line in of(asked)))


if __name__ == "__main__":
    main()
