"""benchmarks/parts.py: what it says of outcomes that were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from dubito.benchmarks.parts import (
    Asked,
    merged,
    of_dense_rag,
    of_df_rag,
    of_ratings,
    of_seakr,
    of_seper,
    of_sunar,
    parts_of,
)
from dubito.evals.questions import GoldQuestion

WHO = GoldQuestion("Who?", ("Ada Tarn",), id="q1", gold_documents=("a", "b#2"))


def df_rag(*sets: tuple[list[str], float], chosen: int) -> Asked:
    """A plan of two steps and its chunk sets, from small λ to 1, each with its chunks and its support."""
    output: dict[str, Any] = {
        "answer": "Bo" if chosen else "Ada Tarn",
        "lambda_star": chosen,
        "plan": ["first", "second"],
        "candidates": [{"lambdas": [level], "chunk_ids": chunks} for level, (chunks, _) in enumerate(sets)],
        # in no fixed order
        "supports": [{"lambdas": [level], "support": support} for level, (_, support) in enumerate(sets)][::-1],
    }
    return Asked(WHO, output)


def test_the_recall_of_the_set_with_most_support_stands_beside_that_of_any_set() -> None:
    told = df_rag((["a#0", "b#2#1"], 9), (["a#0", "x#0"], 7), (["x#0", "y#0"], 2), chosen=0)
    unscored = df_rag((["a#0"], 9), (["x#0"], 2), chosen=0)
    unscored.output["supports"].pop()  # as with binary sampling
    tied = df_rag((["a#0", "x#0"], 10), (["x#0", "y#0"], 10), chosen=1)
    means = [re.sub(r"( \(-?\d\.\d\d to [^)]*\))", "", line) for line in of_df_rag([told, unscored, tied])]
    assert means == [
        "2 questions, 5 sets; all sets of a question have the same support: 1",
        "sets with the full score for every step: 2",
        "rank correlation of support and recall within a question: 1.00 (1 questions)",
        "recall of the chosen set: 0.50",
        "recall of a set of most support: 0.62",
        "recall of any set: 0.38",
        "recall of the set of λ = 1: 0.00",
        "recall of the best set: 0.75",
        "the chosen set above the set of λ = 1: 0.50",
        "F1 of the answers: 0.50",
    ]


def measured(answer: str, dse: float, *, sufficient: bool | None = None) -> dict[str, Any]:
    return {"responses": [answer, "another"], "dse": dse, "sufficient": sufficient}


def test_each_stage_of_dense_rag_is_scored_where_the_first_answer_was_uncertain() -> None:
    certain = Asked(WHO, {"rounds": [measured("Ada Tarn", 0.0)], "answer": "Ada Tarn", "dse": 0.0})
    rounds = [measured("Bo", 0.6), measured("Bo", 0.4, sufficient=False), measured("Ada Tarn", 0.1, sufficient=True)]
    refined = Asked(WHO, {"rounds": rounds, "answer": "Ada Tarn", "dse": 0.1})
    assert list(of_dense_rag([certain, refined])) == [
        "certain at first: 1, F1 1.00 (1.00 to 1.00)",
        "uncertain at first: 1, F1 1.00 (1.00 to 1.00)",
        "first context: right 0, F1 0.00 (0.00 to 0.00), DSE 0.60 (0.60 to 0.60), answers changed 0",
        "split again: right 0, F1 0.00 (0.00 to 0.00), DSE 0.40 (0.40 to 0.40), answers changed 0",
        "refined: right 1, F1 1.00 (1.00 to 1.00), DSE 0.10 (0.10 to 0.10), answers changed 1",
        "refined above the first context: 1.00 (1.00 to 1.00)",
        "context called sufficient: 1, right 1",
        "context called insufficient: 1, right 0",
    ]


def test_two_answers_of_a_run_are_compared() -> None:
    path = Asked(WHO, {"hops": [{}, {}], "sequential_answer": "Bo", "answer": "Ada Tarn"})
    assert list(of_sunar([path])) == [
        "questions with two sub-questions or more: 1 of 1",
        "F1 path: 0.00 (0.00 to 0.00); read again: 1.00 (1.00 to 1.00); difference 1.00 (1.00 to 1.00)",
        "better: 1, worse: 0",
    ]
    endings = [{"strategy": "rationales", "answer": "Ada Tarn"}, {"strategy": "knowledge", "answer": "Bo"}]
    both = Asked(WHO, {"evidence": [{}], "strategy_answers": endings, "answer": "Bo"})
    one = Asked(WHO, {"evidence": [], "strategy_answers": endings[:1], "answer": "Ada Tarn"})
    assert list(of_seakr([both, one])) == [
        "questions for which something was retrieved: 1 of 2; with both endings: 1",
        "F1 rationales: 1.00 (1.00 to 1.00); knowledge: 0.00 (0.00 to 0.00); difference -1.00 (-1.00 to -1.00)",
        "better: 0, worse: 1",
        "F1 chosen: 0.00 (0.00 to 0.00)",
    ]
    assert list(of_seakr([one])) == ["questions for which something was retrieved: 0 of 1; with both endings: 0"]


def test_seper_stands_beside_the_documents_and_the_answers() -> None:
    def believed(answer: str, documents: list[str], with_evidence: float, delta: float) -> Asked:
        evidence = [{"doc_id": document} for document in documents]
        seper = {"seper": with_evidence, "seper_without": with_evidence - delta, "delta": delta}
        return Asked(WHO, {"answer": answer, "evidence": evidence}, seper)

    asked = [
        believed("Ada Tarn", ["b#2", "x", "a"], 0.9, 0.5),
        believed("Ada", ["a"], 0.7, 0.25),  # F1 2/3 is right
        believed("Bo", [], 0.2, -0.25),
        Asked(WHO, {"answer": "Bo", "evidence": []}),
    ]
    means = [re.sub(r" \(-?\d\.\d\d to [^)]*\)", "", line) for line in of_seper(asked)]
    assert means == [
        "ΔSePer of 3: 0.17",
        "ΔSePer of evidence with every supporting document: 0.50 (1); without: 0.00 (2)",
        "SePer of right answers: 0.80 (2); of wrong ones: 0.20 (1)",
    ]
    assert list(parts_of("vanilla_rag", asked)) == [of_seper]
    assert list(parts_of("seakr", asked)) == [of_seakr, of_seper]
    assert list(parts_of("vanilla_rag", asked[3:])) == []


def test_a_question_of_two_runs_counts_once() -> None:
    key, other = ("dense_rag", "dense_rag"), ("plain", "vanilla_rag")
    first, again, when = Asked(WHO, {"dse": 0.1}), Asked(WHO, {"dse": 0.9}), Asked(replace(WHO, id="q2"), {})
    assert merged([{key: [first]}, {key: [again, when], other: [again]}]) == {key: [first, when], other: [again]}


def test_the_ratings_of_right_answers_stand_beside_those_of_wrong_ones() -> None:
    def rated(answer: str, correctness: float, without: float) -> Asked:
        return Asked(WHO, {"answer": answer}, {"correctness": correctness, "correctness_without": without})

    asked = [rated("Ada Tarn", 1.0, 0.5), rated("Bo", 0.5, 0.5), rated("Cy", 1.0, 0.25), Asked(WHO, {"answer": "Bo"})]
    without_intervals = [re.sub(r" \(-?\d\.\d\d to [^)]*\)", "", line) for line in of_ratings(asked)]
    assert without_intervals == [
        "rated with the evidence: right answers 1.00 (1), wrong ones 0.75 (2)",
        "AUROC of this rating: 0.75",
        "rated without it: right answers 0.50 (1), wrong ones 0.38 (2)",
        "AUROC of this rating: 0.75",
    ]
    assert list(parts_of("vanilla_rag", asked)) == [of_ratings]
