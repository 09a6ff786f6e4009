"""Neighbourhood-aware retrieval: against the reference loop, by hand, and through every branch with scripted models."""

from __future__ import annotations

import asyncio
import gc
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import CapabilityMissing, ModelFault, ModelUnavailable, UserFault
from dubito.graphs import neighbourhood, wiring
from dubito.models.interfaces import LABELS, Choice, Judgements, Message
from dubito.nodes import select_batch as selecting
from dubito.resources.resources import Resources
from dubito.state.calibration import PenaltyCalibration, settings_of
from dubito.state.neighbourhood import MOST_BATCHES, NeighbourhoodContext
from dubito.tests.graphs import record_orders
from dubito.tests.graphs import sunar_reference as reference
from dubito.tests.scripted import (
    QUESTION,
    Explorer,
    ListedRetriever,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
    walk,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph._internal._config import DEFAULT_RECURSION_LIMIT
from langgraph.checkpoint.memory import InMemorySaver

THREAD: Any = {"configurable": {"thread_id": "1"}}

BEGUN = ["prepare", "search_first_stage", "select_batch"]
BATCH = ["score_batch", "sample_answers", "count_semantic_sets", "update_frontier", "select_batch"]
UNPENALISED = ["score_batch", "update_frontier", "select_batch"]

FOUND = ["a", "b", "c", "d"]
SCORES = {"a": 0.9, "b": 0.2, "c": 0.5, "d": 0.4, "x": 0.95, "y": 0.3, "z": 0.6}
NEAR = {"a": ["x", "c"], "b": ["y"], "c": ["y"], "x": ["z", "a"]}


@dataclass
class Ran:
    """A finished run and its models."""

    state: dict[str, Any]
    path: list[str]
    llm: Explorer
    judge: ScriptedJudge
    reranker: ScriptedReranker

    @property
    def order(self) -> list[str]:
        return [one["chunk_id"] for one in self.state["scored"]]

    @property
    def evidence(self) -> list[str]:
        return [chunk["id"] for chunk in self.state["evidence"]]

    @property
    def batches(self) -> list[list[str]]:
        return [names for _, names in self.reranker.asked]

    def of(self, name: str) -> dict[str, Any]:
        [found] = [one for one in self.state["scored"] if one["chunk_id"] == name]
        return dict(found)


def machine(
    llm: Explorer,
    judge: ScriptedJudge | None = None,
    reranker: ScriptedReranker | None = None,
    *,
    found: Callable[[str], Sequence[str]] = lambda query: FOUND,
    near: Mapping[str, Sequence[str]] = NEAR,
    **compile_with: Any,
) -> Any:
    opened = Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(found),
        judge=judge or ScriptedJudge(),
        reranker=reranker or by(SCORES),
        graph=ScriptedGraph(near),
    )
    return neighbourhood.build(opened).compile(name="neighbourhood", **compile_with)


def by(scores: Mapping[str, float]) -> ScriptedReranker:
    return ScriptedReranker(lambda query, name: scores[name])


async def run(
    llm: Explorer | None = None,
    judge: ScriptedJudge | None = None,
    *,
    found: Sequence[str] = FOUND,
    scores: Mapping[str, float] = SCORES,
    near: Mapping[str, Sequence[str]] = NEAR,
    given_state: Mapping[str, Any] | None = None,
    **context: Any,
) -> Ran:
    llm, judge, reranker = llm or Explorer(), judge or ScriptedJudge(), by(scores)
    graph = machine(llm, judge, reranker, found=lambda query: found, near=near)
    asked = given_state or {"question": QUESTION}
    state, path, inner = await walk(
        graph, asked, NeighbourhoodContext.unchecked({"batch_size": 2, "samples": 4, **context})
    )
    assert inner == []
    assert json.loads(json.dumps(state)) == state
    return Ran(state, path, llm, judge, reranker)


class LabellingJudge(ScriptedJudge):
    """A judge that gives pairs these labels; null: it cannot label the pair."""

    def __init__(self, labels: Mapping[tuple[str, str], str | None]) -> None:
        super().__init__()
        self._labels = labels

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        unlabelled = [np.nan] * len(LABELS)
        rows = [
            [float(one == label) for one in LABELS] if label else unlabelled for label in map(self._labels.get, pairs)
        ]
        return np.array(rows, dtype=np.float64)


def with_sets(*sets: int) -> Callable[[str, Sequence[str]], list[str]]:
    """Answers with this many semantic sets, batch by batch, under a judge to whom no two answers mean the same."""
    left = iter(sets)
    return lambda query, names: [f"answer {number}" for number in range(next(left))] or [""]


# --- graph-adaptive re-ranking ---


async def test_without_penalty_it_is_graph_adaptive_reranking() -> None:
    """The published behaviour of graph-adaptive re-ranking (MacAvaney et al. 2022, Algorithm 1), worked by hand.

    - Batches come from the first stage's list and from the frontier in turn, the first stage first.
    - A document waits in the frontier with the score of the scored document whose neighbour it is, the highest of
      them where there are several: x and c have that of a, y at first that of b, then that of c, z that of x.
    - What is scored leaves both pools, so that none is scored twice: c is taken from the frontier and does not come
      again from the first stage, a does not come again as a neighbour of x.
    - The budget counts scored documents of both pools; the last batch is as small as what is left of it.
    - The outcome is ordered by the re-ranker's scores.
    """
    ran = await run(penalty="none", budget=6, k=6)
    assert ran.batches == [["a", "b"], ["x", "c"], ["d"], ["z"]]
    pools = [(one["pool"], one["parent"], one["iteration"]) for one in ran.state["scored"]]
    assert pools == [
        *[("first_stage", None, 0), ("first_stage", None, 0)],
        *[("frontier", "a", 1), ("frontier", "a", 1)],
        ("first_stage", None, 2),
        ("frontier", "x", 3),
    ]
    assert [one["score"] for one in ran.state["scored"]] == [0.9, 0.2, 0.95, 0.5, 0.4, 0.6]
    assert ran.evidence == ["x", "a", "z", "c", "d", "b"]
    assert [chunk["score"] for chunk in ran.state["evidence"]] == [0.95, 0.9, 0.6, 0.5, 0.4, 0.2]
    assert ran.state["stop_reason"] == "budget"
    assert ran.path == [*BEGUN, *UNPENALISED * 4, "intermediate_answer"]


async def test_a_frontier_document_keeps_its_best_parent() -> None:
    ran = await run(penalty="none")
    assert ran.batches[-1] == ["z", "y"]
    assert (ran.of("y")["parent"], ran.of("z")["parent"]) == ("c", "x")
    assert ran.state["stop_reason"] == "exhausted"


async def test_a_later_parent_with_an_equal_score_does_not_take_over() -> None:
    near = {"a": ["x", "y"], "b": ["y", "z"]}
    scores = {"a": 0.5, "b": 0.5, "x": 0.1, "y": 0.1, "z": 0.1}
    ran = await run(found=["a", "b"], near=near, scores=scores, penalty="none", batch_size=2)
    assert ran.batches == [["a", "b"], ["x", "y"], ["z"]]
    assert [ran.of(name)["parent"] for name in "xyz"] == ["a", "a", "b"]


async def test_the_batchs_best_document_is_the_first_parent_whatever_its_place_in_the_batch() -> None:
    scores = {"a": 0.5, "b": 0.5, "c": 0.6, "x": 0.1, "y": 0.1}
    near = {"a": ["x"], "c": ["y", "x"]}
    ran = await run(found=["a", "b", "c"], near=near, scores=scores, penalty="none", batch_size=3, k=2)
    assert ran.batches == [["a", "b", "c"], ["y", "x"]]
    assert [ran.of(name)["parent"] for name in "xy"] == ["c", "c"]
    assert ran.evidence == ["c", "a"], "of equal ones the first scored"


async def test_a_better_parent_leaves_a_document_in_its_place() -> None:
    # p and q entered as neighbours of a; b then gives q the score that r and s have: q comes before them
    near = {"a": ["p", "q", "o"], "o": [], "b": ["r", "q", "s"]}
    scores = {"a": 0.5, "b": 0.7, **dict.fromkeys("opqrs", 0.1)}
    ran = await run(found=["a", "b"], near=near, scores=scores, penalty="none", batch_size=1)
    assert ran.batches == [["a"], ["p"], ["b"], ["q"], ["r"], ["s"], ["o"]]
    assert (ran.of("q")["parent"], ran.of("o")["parent"]) == ("b", "a")


async def test_a_document_in_both_pools_is_scored_in_whichever_turn_reaches_it_first() -> None:
    # d is in both pools at the first stage's turn; c is scored before its turn there
    ran = await run(near={"a": ["c", "d"]}, penalty="none", batch_size=1, found=["a", "d", "b", "c"])
    assert [(one["chunk_id"], one["pool"], one["parent"]) for one in ran.state["scored"]] == [
        ("a", "first_stage", None),
        ("c", "frontier", "a"),
        ("d", "first_stage", None),
        ("b", "first_stage", None),
    ]


async def test_more_batches_than_a_graph_has_steps_by_default() -> None:
    found = [f"n{number}" for number in range(100)]
    near = {name: [f"m{name}"] for name in found}
    scores = {name: 0.5 for one in found for name in (one, f"m{one}")}
    ran = await run(found=found, near=near, scores=scores, batch_size=1, budget=100)
    assert (len(ran.order), len(set(ran.order)), ran.state["stop_reason"]) == (100, 100, "budget")
    assert ran.path == [*BEGUN, *BATCH * 100, "intermediate_answer"]


# --- branches ---


async def test_one_batch() -> None:
    ran = await run(batch_size=16, near={})
    assert ran.path == [*BEGUN, *BATCH, "intermediate_answer"]
    assert ran.llm.asked == ["sample", "answer"]
    assert (ran.state["answer"], ran.state["stop_reason"]) == ("found", "exhausted")
    assert ran.evidence == ["a", "c", "d", "b"]
    assert ran.llm.of("answer") == [(QUESTION, ["a", "c", "d", "b"])]
    assert ran.state["warnings"] == []


async def test_a_budget_smaller_than_a_batch() -> None:
    ran = await run(budget=1, batch_size=16)
    assert (ran.batches, ran.state["stop_reason"]) == ([["a"]], "budget")
    assert ran.path == [*BEGUN, *BATCH, "intermediate_answer"]


async def test_an_empty_frontier_is_skipped() -> None:
    ran = await run(near={})
    assert ran.batches == [["a", "b"], ["c", "d"]]
    assert {one["pool"] for one in ran.state["scored"]} == {"first_stage"}


async def test_an_empty_first_stage_is_skipped() -> None:
    near = {"a": ["x"], "x": ["y"], "y": ["z"]}
    ran = await run(found=["a"], near=near, batch_size=4)
    assert ran.batches == [["a"], ["x"], ["y"], ["z"]]
    assert [one["parent"] for one in ran.state["scored"]] == [None, "a", "x", "y"]


async def test_a_part_of_the_graph_that_the_first_stage_does_not_reach_is_not_explored() -> None:
    ran = await run(found=["a", "b"], near={"a": ["b"], "b": ["a"], "x": ["y"], "y": ["x"]})
    assert (ran.order, ran.state["stop_reason"]) == (["a", "b"], "exhausted")


async def test_the_first_stage_finds_nothing() -> None:
    ran = await run(found=[])
    assert ran.path == [*BEGUN, "intermediate_answer"]
    assert (ran.state["scored"], ran.state["evidence"], ran.state["stop_reason"]) == ([], [], "exhausted")
    assert ran.llm.of("answer") == [(QUESTION, [])]
    assert ran.state["warnings"] == ["The first stage found no documents; the answer is made without evidence."]


async def test_a_document_found_twice_is_scored_once() -> None:
    ran = await run(found=["a", "b", "a", "c", "b", "d"], near={})
    assert ran.batches == [["a", "b"], ["c", "d"]]


async def test_the_first_stage_is_asked_for_its_size() -> None:
    ran = await run(near={}, first_stage_n=3)
    assert ran.order == ["a", "b", "c"]


async def test_the_answer_is_made_from_the_k_best() -> None:
    ran = await run(penalty="none", k=3)
    assert ran.evidence == ["x", "a", "z"]
    assert ran.llm.of("answer") == [(QUESTION, ["x", "a", "z"])]
    assert {chunk["id"]: chunk["text"] for chunk in ran.state["evidence"]} == {"x": "x", "a": "a", "z": "z"}


async def test_an_empty_answer() -> None:
    ran = await run(Explorer(answer=lambda query, names: " "), near={})
    assert (ran.state["answer"], ran.llm.asked.count("answer")) == ("", 2)
    assert ran.state["warnings"] == ["The model's reply gave no answer: it is empty."]


# --- patience ---

FALLING = {name: 0.9 - place / 10 for place, name in enumerate("abcdefgh")}


@pytest.mark.parametrize(("patience", "scored"), [(1, 2), (2, 3), (5, 6), (0, 8), (7, 8), (8, 8)])
async def test_patience(patience: int, scored: int) -> None:
    ran = await run(
        found=list(FALLING), near={}, scores=FALLING, batch_size=1, k=1, patience=patience, penalty="none", tolerance=0
    )
    assert len(ran.order) == scored
    assert ran.state["stop_reason"] == ("converged" if scored < 8 else "exhausted")


async def test_better_documents_reset_the_count_of_batches() -> None:
    scores = dict(zip("abcdef", [0.5, 0.4, 0.6, 0.3, 0.3, 0.9], strict=True))
    ran = await run(found=list(scores), near={}, scores=scores, batch_size=1, k=1, patience=2, penalty="none")
    assert (ran.order, ran.state["stop_reason"]) == (list("abcde"), "converged")


async def test_more_evidence_counts_as_an_improvement() -> None:
    ran = await run(found=list(FALLING), near={}, scores=FALLING, batch_size=1, k=3, patience=1, penalty="none")
    assert (ran.order, ran.state["stop_reason"]) == (list("abcd"), "converged")


@pytest.mark.parametrize(("tolerance", "scored"), [(0.049, 3), (0.051, 2)])
async def test_the_tolerance_of_an_improvement(tolerance: float, scored: int) -> None:
    # the mean of the two best: 0.4, then 0.45, then the same
    scores = {"a": 0.4, "b": 0.4, "c": 0.5, "d": 0.1, "e": 0.1, "f": 0.1}
    ran = await run(found=list(scores), near={}, scores=scores, k=2, patience=1, tolerance=tolerance, penalty="none")
    assert len(ran.batches) == scored


async def test_the_budget_ends_it_before_the_patience_does() -> None:
    ran = await run(found=list(FALLING), near={}, scores=FALLING, batch_size=1, k=1, patience=1, budget=2)
    assert ran.state["stop_reason"] == "budget"


# --- answer semantic uncertainty ---


@pytest.mark.parametrize(
    ("penalty", "factor"), [("1/s", 1 / 3), ("1/sqrt(s)", 1 / math.sqrt(3)), ("fixed", 0.25), ("none", 1.0)]
)
async def test_a_penalty_multiplies_the_scores_of_the_whole_batch(penalty: str, factor: float) -> None:
    llm = Explorer(samples=with_sets(3, 1))
    ran = await run(llm, near={}, penalty=penalty, fixed_penalty=0.25)
    sets = [None] * 4 if penalty == "none" else [3, 3, 1, 1]
    assert [one["number_of_semantic_sets"] for one in ran.state["scored"]] == sets
    assert [one["raw_score"] for one in ran.state["scored"]] == [0.9, 0.2, 0.5, 0.4]
    assert [one["score"] for one in ran.state["scored"]] == pytest.approx([0.9 * factor, 0.2 * factor, 0.5, 0.4])
    mean = None if penalty == "none" else (3 + 1) / 2
    assert ran.state["uncertainty"] == {"signal": "mean number of semantic sets", "value": mean, "threshold": None}


async def test_penalised_documents_lose_their_rank_and_so_do_their_neighbours() -> None:
    near = {"a": ["x", "u"], "x": ["y"]}
    scores = {"a": 0.9, "x": 0.3, "u": 0.1, "y": 0.2}
    plain = await run(near=near, found=["a"], batch_size=1, scores=scores)
    assert (plain.order, plain.evidence) == (["a", "x", "u", "y"], ["a", "x", "y", "u"])
    # in the frontier u has 0.9 / 4, y has 0.3
    ran = await run(Explorer(samples=with_sets(4, 1, 1, 1)), near=near, found=["a"], batch_size=1, scores=scores)
    assert (ran.order, ran.evidence) == (["a", "x", "y", "u"], ["x", "a", "y", "u"])


async def test_sampling_is_one_request_a_batch() -> None:
    ran = await run(samples=7, temperature=0.9, max_answer_tokens=11, thinking=True, near={})
    assert ran.llm.asked == ["sample", "sample", "answer"]
    assert {(one.n, one.temperature, one.max_tokens, one.thinking) for one in ran.llm.samplings} == {(7, 0.9, 11, True)}


async def test_answers_are_sampled_from_the_best_of_the_batch() -> None:
    scores = {"a": 0.1, "b": 0.5, "c": 0.9, "d": 0.5}
    ran = await run(batch_size=4, sampled_documents=3, scores=scores, near={})
    assert ran.llm.of("sample") == [(QUESTION, ["c", "b", "d"])]


async def test_without_penalty_the_model_is_asked_for_the_answer_alone() -> None:
    ran = await run(penalty="none")
    assert ran.llm.asked == ["answer"]
    assert ran.judge.batches == []
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {None}


async def test_answers_that_entail_each_other_make_one_set() -> None:
    samples = ["Paris", "paris.", "the city of Paris", "Lyon"]
    both = ScriptedJudge(lambda one, other: "Lyon" not in (one, other))
    ran = await run(Explorer(samples=lambda query, names: samples), both, budget=2)
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {2}
    one_way = ScriptedJudge(lambda one, other: one == "the city of Paris")
    ran = await run(Explorer(samples=lambda query, names: samples), one_way, budget=2)
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {3}
    assert "paris." not in {text for pair in one_way.asked for text in pair}
    assert len(one_way.asked) == len(set(one_way.asked)) == 6


async def test_answers_that_are_alike_are_not_judged() -> None:
    ran = await run(Explorer(samples=lambda query, names: ["Ada", "ada."]), near={})
    assert ran.judge.batches == []
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {1}


async def test_empty_answers_are_left_out() -> None:
    ran = await run(Explorer(samples=lambda query, names: ["Ada", "", " \n", "Ida"]), budget=2)
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {2}
    assert ran.state["warnings"] == []


@pytest.mark.parametrize("penalty", ["1/s", "fixed"])
async def test_all_answers_empty_means_no_penalty_for_the_batch(penalty: str) -> None:
    ran = await run(Explorer(samples=with_sets(2, 0)), near={}, penalty=penalty)
    assert [one["number_of_semantic_sets"] for one in ran.state["scored"]] == [2, 2, None, None]
    assert [one["score"] for one in ran.state["scored"]] == [0.45, 0.1, 0.5, 0.4]
    assert ran.state["uncertainty"]["value"] == 2.0, "the second batch has no number"
    assert ran.state["warnings"] == ["Batch 2: every sampled answer is empty; no penalty."]
    assert ran.path == [*BEGUN, *BATCH * 2, "intermediate_answer"]


def failing_at_the_second(times: int) -> ScriptedJudge:
    """A judge that judges once, then fails this many times."""
    judge = ScriptedJudge(faults=[])
    asked = judge.judge

    async def judged(question: str, pairs: Sequence[tuple[str, str]]) -> Any:
        if len(judge.batches) == 1:
            judge.faults = [ModelFault("judge", "timed out")] * times
        return await asked(question, pairs)

    judge.judge = judged  # type: ignore[method-assign]
    return judge


async def test_a_judge_that_fails_for_good_means_no_penalty_for_that_batch(fast_retries: None) -> None:
    judge = failing_at_the_second(4)
    ran = await run(Explorer(samples=with_sets(2, 2, 2)), judge, found=list(FALLING)[:6], scores=FALLING, near={})
    assert [one["number_of_semantic_sets"] for one in ran.state["scored"]] == [2, 2, None, None, 2, 2]
    assert [one["score"] / one["raw_score"] for one in ran.state["scored"]] == [0.5, 0.5, 1, 1, 0.5, 0.5]
    assert ran.state["warnings"] == [
        "Batch 2: the judge failed, no penalty (judge did not answer after 4 attempts: timed out.)"
    ]
    assert (ran.state["stop_reason"], len(judge.batches)) == ("exhausted", 6)
    assert ran.state["usage"]["nodes"]["count_semantic_sets"]["runs"] == 3


async def test_any_other_fault_of_the_judge_is_raised_at_once(fast_retries: None) -> None:
    judge = ScriptedJudge(faults=[UserFault("no such judge")])
    with pytest.raises(UserFault, match="no such judge"):
        await run(Explorer(samples=with_sets(2)), judge)


async def test_an_undecided_pair_counts_as_no_entailment() -> None:
    judge = ScriptedJudge(lambda one, other: None if "Ida" in (one, other) else True)
    ran = await run(Explorer(samples=lambda query, names: ["Ada", "Ida", "Ada L."]), judge, budget=2)
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {2}
    assert ran.state["warnings"] == [
        "The judge 'judge' could not label 4 pairs of answers; they count as not entailing."
    ]


async def test_the_whole_batch_is_shown_in_the_order_of_its_pool() -> None:
    near = {"a": ["x", "y"], "b": ["z"]}
    scores = {"a": 0.2, "b": 0.9, "x": 0.1, "y": 0.3, "z": 0.5}
    ran = await run(found=["a", "b"], near=near, scores=scores, batch_size=3, sampled_documents=0)
    assert ran.llm.of("sample") == [(QUESTION, ["a", "b"]), (QUESTION, ["z", "x", "y"])]


async def test_neighbours_of_a_penalised_document_may_wait_with_its_raw_score() -> None:
    # penalised, x and u wait with 0.9 / 4, y with 0.3; raw, x and u wait with 0.9
    near = {"a": ["x", "u"], "x": ["y"]}
    scores = {"a": 0.9, "x": 0.3, "u": 0.1, "y": 0.2}
    llm = Explorer(samples=with_sets(4, 1, 1, 1))
    ran = await run(llm, near=near, found=["a"], batch_size=1, scores=scores, frontier_score="raw")
    assert ran.order == ["a", "x", "u", "y"]
    assert ran.evidence == ["x", "a", "y", "u"], "the evidence is ranked by penalised scores all the same"


LABELLED = {
    # (first, second): the likeliest label of the pair
    ("Ada", "Ida"): "contradiction", ("Ida", "Ada"): "neutral",
    ("Ada", "Ada L."): "entailment", ("Ada L.", "Ada"): "entailment",
    ("Ida", "Ada L."): "contradiction", ("Ada L.", "Ida"): "contradiction",
}  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "s"),
    [
        (["Ada", "Ida", "Ada L.", "ada."], 2),  # Ada and Ida, Ida and Ada L.; equal answers count once
        (["Ada", "Ada L."], 1),  # none
        (["Ida", "ida"], 1),
        (["Ada", "", "Ida"], 1),
    ],
)
async def test_contradicting_pairs_may_be_counted_in_place_of_semantic_sets(answers: list[str], s: int) -> None:
    judge = LabellingJudge(LABELLED)
    ran = await run(Explorer(samples=lambda query, names: answers), judge, budget=2, asu="contradictions")
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {s}
    assert [one["score"] for one in ran.state["scored"]] == pytest.approx([0.9 / s, 0.2 / s])
    assert ran.state["uncertainty"]["signal"] == "mean number of contradictions"


async def test_a_pair_without_a_label_is_no_contradiction() -> None:
    judge = LabellingJudge({**LABELLED, ("Ada", "Ida"): None, ("Ida", "Ada"): None})
    answers = ["Ada", "Ida", "Ada L."]
    ran = await run(Explorer(samples=lambda query, names: answers), judge, budget=2, asu="contradictions")
    assert {one["number_of_semantic_sets"] for one in ran.state["scored"]} == {1}
    assert ran.state["warnings"] == [
        "The judge 'judge' could not label 2 pairs of answers; they count as not contradicting."
    ]


@pytest.mark.parametrize("judge", ["embedded", "similarity:0.7"])
def test_contradictions_need_a_judge_that_knows_them(judge: str) -> None:
    with pytest.raises(UserFault, match=f"judge={judge} does not: set judge=llm, or judge to nli:FOLDER-OR-HUB-NAME"):
        NeighbourhoodContext(asu="contradictions", judge=judge)
    taken = NeighbourhoodContext(asu="contradictions").fitted(frozenset({"encoder"}))
    assert taken.chosen["judge"] == {"value": "llm", "because": "it knows contradictions"}
    of_the_paper = NeighbourhoodContext(asu="contradictions", preset="paper").fitted(frozenset({"encoder"}))
    assert of_the_paper.judge == "nli:FacebookAI/roberta-large-mnli"


# --- the conformal penalty ---


async def penalty_file(folder: Path, scores: Sequence[int], model: str = "scripted", **made_with: Any) -> str:
    """A calibration file with these numbers of semantic sets, for the settings of `run` except `made_with`."""
    context = NeighbourhoodContext(**{"samples": 4, "judge": "embedded", **made_with})
    found = {"scores": sorted(scores), "right": "exact", "left_out": 0, "made_with": {}}
    settings = settings_of(context, ("samples", "judge"))
    calibration = PenaltyCalibration(technique="penalty", model=model, settings=settings, **found)
    await asyncio.to_thread(calibration.save, folder / "penalty.json")
    return str(folder / "penalty.json")


async def test_the_conformal_penalty_is_the_p_value_of_s(tmp_path: Path) -> None:
    # of the four scores 1, 1, 2, 4: all are at least 1, two at least 2, one at least 3, none at least 5
    file = await penalty_file(tmp_path, [4, 1, 2, 1])
    found = list(FALLING)
    llm = Explorer(samples=with_sets(1, 2, 3, 4))
    ran = await run(llm, found=found, near={}, scores=FALLING, penalty="conformal", penalty_file=file)
    factors = [one["score"] / one["raw_score"] for one in ran.state["scored"]]
    assert factors == pytest.approx([1, 1, 3 / 5, 3 / 5, 2 / 5, 2 / 5, 2 / 5, 2 / 5])


async def test_a_conformal_penalty_without_p_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match="needs calibrated p-values: make a file with dubito calibrate penalty"):
        NeighbourhoodContext(penalty="conformal")
    with pytest.raises(UserFault, match="penalty_file has no effect with penalty=1/s"):
        NeighbourhoodContext(penalty_file="x.json")
    llm = Explorer()
    with pytest.raises(UserFault, match=r"There is no calibration at .* make one with dubito calibrate penalty"):
        await run(llm, penalty="conformal", penalty_file=str(tmp_path / "none.json"))
    assert llm.calls == []


@pytest.mark.parametrize(
    ("made_with", "told"),
    [
        ({"samples": 5}, "samples 5, not 4"),
        ({"judge": "llm"}, "judge llm, not embedded"),
        ({"model": "embedded"}, "the chat model embedded, not scripted"),
    ],
)
async def test_the_p_values_of_another_model_m_or_judge_are_refused(
    tmp_path: Path, made_with: dict[str, Any], told: str
) -> None:
    llm, file = Explorer(), await penalty_file(tmp_path, [1], **made_with)
    with pytest.raises(UserFault, match=f"holds for {told}: use the settings it was made with"):
        await run(llm, penalty="conformal", penalty_file=file)
    assert llm.calls == []


# --- the sub-question ---


async def test_the_first_stage_may_search_for_the_question_itself() -> None:
    for query, searched in (("question", QUESTION), ("sub_question", "Who is it?")):
        retriever = ListedRetriever(lambda query: FOUND)
        resources = Resources(
            Explorer(),
            ScriptedEncoder(),
            retriever,
            judge=ScriptedJudge(),
            reranker=by(SCORES),
            graph=ScriptedGraph({}),
        )
        graph: Any = neighbourhood.build(resources).compile()
        await graph.ainvoke({"question": QUESTION, "query": "Who is it?"}, context={"first_stage_query": query})
        assert retriever.asked == [searched]


@pytest.mark.parametrize("given_query", [None, "missing", "Who is it?"])
async def test_the_query_is_looked_up_in_place_of_the_question(given_query: str | None) -> None:
    given_state: dict[str, Any] = {"question": QUESTION, "query": given_query}
    if given_query == "missing":
        del given_state["query"]
    asked = given_query if given_query == "Who is it?" else QUESTION
    llm = Explorer(samples=lambda query, names: ["one", "two"])
    judge, reranker, retriever = ScriptedJudge(), by(SCORES), ListedRetriever(lambda query: FOUND)
    questions: list[str] = []
    judged = judge.judge

    async def judge_it(question: str, pairs: Sequence[tuple[str, str]]) -> Any:
        questions.append(question)
        return await judged(question, pairs)

    judge.judge = judge_it  # type: ignore[method-assign]
    resources = Resources(llm, ScriptedEncoder(), retriever, judge=judge, reranker=reranker, graph=ScriptedGraph(NEAR))
    graph: Any = neighbourhood.build(resources).compile()
    await graph.ainvoke(given_state)
    assert {query for query, _ in llm.of("sample")} == {query for query, _ in llm.of("answer")} == {asked}
    assert {query for query, _ in reranker.asked} == {asked}
    assert (retriever.asked, set(questions)) == ([asked], {asked})


# --- faults ---


@pytest.mark.parametrize("query", ["", "  \n ", "x" * 100_000])
async def test_a_bad_query_is_refused_before_any_model_is_called(query: str) -> None:
    llm = Explorer()
    with pytest.raises(UserFault, match="question"):
        await machine(llm).ainvoke({"question": QUESTION, "query": query})
    assert llm.calls == []


@pytest.mark.parametrize(
    ("context", "told"),
    [
        ({"first_stage": "bm52"}, "no first stage named 'bm52'"),
        ({"reranker": "crossing:x"}, "no re-ranker named 'crossing:x'"),
        ({"judge": "nil:x"}, "nil:x"),
    ],
)
async def test_unknown_names_are_refused_before_any_model_is_called(context: dict[str, str], told: str) -> None:
    llm = Explorer()
    retriever = ListedRetriever(lambda query: FOUND)
    graph: Any = neighbourhood.build(Resources(llm, ScriptedEncoder(), retriever)).compile()
    with pytest.raises(UserFault, match=told):
        await graph.ainvoke({"question": QUESTION}, context=context)
    assert (llm.calls, retriever.asked) == ([], [])


async def test_without_penalty_the_judge_is_not_opened() -> None:
    llm = Explorer()
    resources = Resources(
        llm, ScriptedEncoder(), ListedRetriever(lambda query: FOUND), reranker=by(SCORES), graph=ScriptedGraph({})
    )
    graph: Any = neighbourhood.build(resources).compile()
    context = NeighbourhoodContext.unchecked({"judge": "nil:x", "penalty": "none"})
    state = await graph.ainvoke({"question": QUESTION}, context=context)
    assert state["answer"] == "found"


async def test_documents_of_a_live_retriever_have_no_neighbours() -> None:
    resources = Resources(Explorer(), ScriptedEncoder(), ListedRetriever(lambda query: FOUND), reranker=by(SCORES))
    graph: Any = neighbourhood.build(resources).compile()
    state = await graph.ainvoke({"question": QUESTION}, context={"penalty": "none"})
    assert [one["chunk_id"] for one in state["scored"]] == FOUND


async def test_a_model_that_cannot_score_is_refused_for_likelihood() -> None:
    llm = Explorer(capabilities=frozenset())
    with pytest.raises(CapabilityMissing, match=r"reranker=likelihood needs .* given text, .* set reranker=embedded"):
        await machine(llm).ainvoke({"question": QUESTION}, context={"reranker": "likelihood"})
    assert llm.calls == []


@pytest.mark.parametrize("where", ["llm", "re-ranker"])
async def test_faults_are_retried(fast_retries: None, where: str) -> None:
    llm, reranker = Explorer(), by(SCORES)
    (llm if where == "llm" else reranker).faults.extend([ModelFault("scripted", "timed out")] * 2)
    graph = machine(llm, reranker=reranker)
    state = await graph.ainvoke({"question": QUESTION}, context={"batch_size": 2})
    assert [one["chunk_id"] for one in state["scored"]] == ["a", "b", "x", "c", "d", "z", "y"]
    llm, reranker = Explorer(), by(SCORES)
    (llm if where == "llm" else reranker).faults.extend([ModelFault("scripted", "timed out")] * 9)
    with pytest.raises(ModelUnavailable, match="after 4 attempts"):
        await machine(llm, reranker=reranker).ainvoke({"question": QUESTION}, context={"batch_size": 2})


@pytest.mark.parametrize("is_sync", [False, True])
async def test_the_calls_of_failed_attempts_are_counted_once_each(fast_retries: None, is_sync: bool) -> None:
    class Flaky(Explorer):
        chose = 0

        async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
            self.chose += 1
            if self.chose in (9, 18):
                await asyncio.sleep(0.05)  # calls beside it come to an end
                raise ModelFault("scripted", "HTTP 429")
            return await super().choose(messages, options)

    opened = Resources(
        Flaky(samples=with_sets(*[9] * 9), pick=lambda user, options: options[1]),
        ScriptedEncoder(),
        ListedRetriever(lambda query: FOUND),
        reranker=by(SCORES),
        graph=ScriptedGraph(NEAR),
    )
    gc.collect()
    held = len(wiring._calls)
    graph = neighbourhood.build(opened).compile()
    calls: list[Any] = []
    state: dict[str, Any] = {}
    asked: Any = ({"question": QUESTION}, None)
    how: Any = {"context": {"judge": "llm"}, "stream_mode": ["custom", "values"]}
    parts = graph.stream(*asked, **how) if is_sync else [part async for part in graph.astream(*asked, **how)]
    for kind, part in parts:
        calls += [part["call"]] if kind == "custom" and part["type"] == "llm_call" else []
        state = part if kind == "values" else state
    usage = state["usage"]
    assert usage["calls"] == sum(node["calls"] for node in usage["nodes"].values()) == len(calls) > 20
    assert usage["prompt_tokens"] == sum(call["prompt_tokens"] for call in calls)
    del parts
    gc.collect()
    assert len(wiring._calls) <= held + 2, "the calls go with the tasks"  # a client may keep the context that opened it


@pytest.mark.parametrize(("budget", "batch"), [(2001, 1), (100_000, 49)])
async def test_more_batches_than_langgraph_has_steps_for_are_refused(budget: int, batch: int) -> None:
    llm = Explorer()
    with pytest.raises(
        ValueError, match=r"more than 2000 batches: set batch_size to at least (2|50), or use a smaller"
    ):
        await machine(llm).ainvoke({"question": QUESTION}, context={"budget": budget, "batch_size": batch})
    assert llm.calls == []
    NeighbourhoodContext(budget=budget - 1, batch_size=batch + (batch > 1))


async def test_a_chain_of_single_neighbours_ends_before_langgraphs_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = {f"n{i}": [f"n{i + 1}"] for i in range(50)}
    scores = {f"n{i}": 0.5 for i in range(51)}
    whole = await run(found=["n0"], scores=scores, near=chain, budget=40, batch_size=20, penalty="none")
    assert ([len(batch) for batch in whole.batches], whole.state["stop_reason"]) == ([1] * 40, "budget")
    monkeypatch.setattr(selecting, "MOST_BATCHES", 12)
    ran = await run(found=["n0"], scores=scores, near=chain, budget=40, batch_size=20)
    assert (ran.order, ran.state["stop_reason"]) == ([f"n{i}" for i in range(12)], "batches")
    assert ran.state["warnings"] == ["Exploring ended after 12 batches, many of them small."]
    assert ran.path == [*BEGUN, *BATCH * 12, "intermediate_answer"]


def test_the_most_batches_fit_into_langgraphs_steps() -> None:
    steps = len(BEGUN) + len(BATCH) * MOST_BATCHES + len(["intermediate_answer"])
    assert steps <= DEFAULT_RECURSION_LIMIT


# --- in other programs ---


async def test_the_query_of_a_look_up_that_was_refused_does_not_reach_the_threads_next_question() -> None:
    llm = Explorer()
    graph = machine(llm, checkpointer=InMemorySaver())
    with pytest.raises(UserFault):
        await graph.ainvoke({"question": "x" * 100_000, "query": "sub?"}, THREAD)
    await graph.ainvoke({"question": "second?"}, THREAD)
    assert [query for query, _ in llm.of("answer")] == ["second?"]


# --- against published programs ---

RECORDED = json.loads((Path(__file__).parent / "recorded_orders.json").read_text(encoding="utf-8"))
"""What the programs did in these worlds: see `record_orders`."""


async def in_recorded_world(number: int, **context: Any) -> Ran:
    world = record_orders.world_of(number)
    left = iter(world.answers)
    llm = Explorer(samples=lambda query, names: next(left))
    labels = {
        (a, b): "contradiction" if (a, b) in world.contradicting else "neutral"
        for a in record_orders.NAMES
        for b in record_orders.NAMES
    }
    judge = LabellingJudge(labels)
    return await run(llm, judge, found=world.found, scores=world.raw, near=world.near, **context)


@pytest.mark.parametrize("number", record_orders.WORLDS)
async def test_without_penalty_it_scores_the_documents_in_the_order_of_gar(number: int) -> None:
    world = record_orders.world_of(number)
    ran = await in_recorded_world(number, penalty="none", budget=world.budget, batch_size=world.batch)
    assert ran.order == RECORDED[number]["gar"]


@pytest.mark.parametrize("number", record_orders.WORLDS)
async def test_with_their_settings_it_does_what_the_authors_script_does(number: int) -> None:
    recorded = RECORDED[number]["sunar"]
    theirs = {"frontier_score": "raw", "sampled_documents": 0, "asu": "contradictions", "samples": 10}
    ran = await in_recorded_world(number, batch_size=16, **theirs)
    assert [names for _, names in ran.llm.of("sample")] == ran.batches == recorded["batches"]
    assert ran.evidence == recorded["best"]


async def test_their_settings_matter() -> None:
    theirs = {"frontier_score": "raw", "asu": "contradictions"}
    for left_out in theirs:
        ran = [
            await in_recorded_world(n, batch_size=16, samples=10, **{**theirs, left_out: ours})
            for n in record_orders.WORLDS
            for ours in [NeighbourhoodContext.model_fields[left_out].default]
        ]
        assert any(one.evidence != two["sunar"]["best"] for one, two in zip(ran, RECORDED, strict=True))


# --- against the reference loop ---


@dataclass(frozen=True)
class World:
    """The first stage's list, the re-ranker's scores, the document graph, the number of semantic sets of each batch."""

    found: list[str]
    raw: dict[str, float]
    near: dict[str, list[str]]
    sets: list[int]


def world_of(seed: int) -> World:
    """A random world: a graph of one or more parts, documents without neighbours, equal scores, repeated documents."""
    luck = np.random.default_rng(seed)
    names = [f"d{number}" for number in range(int(luck.integers(1, 17)))]
    parts, linked = int(luck.choice([1, 1, 2, 3])), float(luck.choice([0.3, 0.7, 1]))
    levels = [[0.5], [0.25, 0.5, 0.75], [number / 97 for number in range(1, 97)]][int(luck.integers(3))]

    def neighbours(name: str) -> list[str]:
        own = [other for other in names if other != name and (int(other[1:]) - int(name[1:])) % parts == 0]
        return list(luck.permutation(own).tolist())[: int(luck.integers(0, 5))]

    return World(
        found=list(luck.choice(names, size=int(luck.integers(0, len(names) + 1))).tolist()),
        raw={name: float(luck.choice(levels)) for name in names},
        near={name: neighbours(name) for name in names if luck.random() < linked},
        sets=luck.integers(0, 5, size=len(names)).tolist(),
    )


worlds = st.integers(0, 2**32 - 1).map(world_of)


@st.composite
def options(draw: st.DrawFn) -> reference.Settings:
    return reference.Settings(
        budget=draw(st.sampled_from([100, 7, 3, 1, 10])),
        batch=draw(st.sampled_from([2, 3, 1, 5, 16])),
        evidence=draw(st.sampled_from([10, 3, 1])),
        penalty=draw(st.sampled_from(["1/s", "1/sqrt(s)", "fixed", "none", "conformal"])),
        fixed=draw(st.sampled_from([0.5, 0.1, 1.0])),
        patience=draw(st.sampled_from([0, 0, 1, 2])),
        epsilon=draw(st.sampled_from([0.001, 0.0, 0.1])),
        frontier_score=draw(st.sampled_from(["penalised", "raw"])),
        calibration=draw(st.sampled_from([(1,), (1, 1, 2, 2, 3), (2, 4, 4)])),
    )


def by_the_reference(world: World, chosen: reference.Settings) -> reference.Outcome:
    return reference.nar(world.found, world.raw, world.near, lambda number, batch: world.sets[number], chosen)


@settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
@given(worlds, options())
async def test_it_computes_the_same_as_the_reference(tmp_path: Path, world: World, chosen: reference.Settings) -> None:
    expected = by_the_reference(world, chosen)
    llm, reranker = Explorer(samples=with_sets(*world.sets)), by(world.raw)
    graph = machine(llm, reranker=reranker, found=lambda query: world.found, near=world.near)
    context = {
        "budget": chosen.budget,
        "batch_size": chosen.batch,
        "k": chosen.evidence,
        "penalty": chosen.penalty,
        "fixed_penalty": chosen.fixed,
        "frontier_score": chosen.frontier_score,
        "penalty_file": await penalty_file(tmp_path, chosen.calibration) if chosen.penalty == "conformal" else "",
        "patience": chosen.patience,
        "tolerance": chosen.epsilon,
        "samples": 4,
    }
    state = await graph.ainvoke({"question": QUESTION}, context=NeighbourhoodContext.unchecked(context))

    scored = [
        reference.Scored(one["chunk_id"], one["score"], one["raw_score"], one["pool"], one["parent"], one["iteration"])
        for one in state["scored"]
    ]
    assert scored == expected.scored
    assert [names for _, names in reranker.asked] == expected.batches
    assert [(chunk["id"], chunk["score"]) for chunk in state["evidence"]] == [
        (one.id, one.score) for one in expected.best
    ]
    assert state["stop_reason"] == expected.stop_reason
    sampled = 0 if chosen.penalty == "none" else len(expected.batches)
    assert llm.asked == ["sample"] * sampled + ["answer"]
    assert state["usage"]["calls"] == sampled + 1


def test_the_random_worlds_reach_every_end() -> None:
    reached: Counter[str] = Counter()

    @settings(max_examples=250, derandomize=True, database=None)
    @given(worlds, options())
    def tell(world: World, chosen: reference.Settings) -> None:
        outcome = by_the_reference(world, chosen)
        reached[outcome.stop_reason] += 1
        reached[chosen.penalty] += any(one.score < one.raw_score for one in outcome.scored)
        reached["found twice"] += len(set(world.found)) < len(world.found)
        reached["first stage skipped"] += _turns(outcome).count("frontier frontier") > 0
        reached["frontier skipped"] += _turns(outcome).count("first_stage first_stage") > 0
        reached["taken from the frontier though found"] += any(
            one.pool == "frontier" and one.id in world.found for one in outcome.scored
        )

    tell()
    expected = {"budget", "exhausted", "converged", "1/s", "1/sqrt(s)", "fixed", "conformal", "found twice"}
    expected |= {"first stage skipped", "frontier skipped", "taken from the frontier though found"}
    assert {name for name in expected if reached[name] >= 5} == expected, reached


def _turns(outcome: reference.Outcome) -> list[str]:
    pools = list({one.batch: one.pool for one in outcome.scored}.values())
    return [f"{one} {other}" for one, other in pairwise(pools)]
