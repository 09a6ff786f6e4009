"""SePer's machine through every branch, with scripted models: the path taken, the state, the calls, the figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from dubito.errors import CapabilityMissing, ModelFault, UserFault
from dubito.graphs import seper
from dubito.models.interfaces import Completion, Judgements, Sampling, Token
from dubito.prompts import answer as prompt
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.seper import SePerFigures
from dubito.tests.scripted import (
    QUERY,
    QUESTION,
    VECTORS,
    Believer,
    ScriptedEncoder,
    ScriptedJudge,
    ScriptedRetriever,
    walk,
)
from langgraph.checkpoint.memory import InMemorySaver

GOLD = "Linda Davis"
THREAD: Any = {"configurable": {"thread_id": "1"}}
OUTPUT = {"answer", "evidence", "uncertainty", "usage", "warnings", *SePerFigures.__annotations__}

Row = tuple[float, float, float]


class Table:
    """A judge with label probabilities for each ordered pair; a pair that is not listed is neutral."""

    name = "table"

    def __init__(self, rows: dict[tuple[str, str], Row | None] | None = None, faults: Sequence[Exception] = ()) -> None:
        self.rows = rows or {}
        self.faults = list(faults)
        self.batches: list[list[tuple[str, str]]] = []

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        assert pairs
        self.batches.append(list(pairs))
        if self.faults:
            raise self.faults.pop(0)
        rows = [self.rows.get(pair, (0.0, 1.0, 0.0)) for pair in pairs]
        return np.array([[math.nan] * 3 if row is None else row for row in rows])


def said(text: str, *probabilities: float, reason: Any = "stop") -> Completion:
    """A response whose tokens have these probabilities."""
    logs = [math.log(one) if one else -math.inf for one in probabilities]
    return Completion(text, reason, tuple(Token(f"t{i}", one) for i, one in enumerate(logs)))


def beliefs(
    there: Sequence[str | Completion], without: Sequence[str | Completion]
) -> Callable[[str, Sequence[str]], Sequence[str | Completion]]:
    """The sampled responses with chunks and without."""
    return lambda question, shown: there if shown else without


def machine(llm: Believer, judge: Any = None, count: int = 7, **compile_with: Any) -> Any:
    retriever = ScriptedRetriever(QUERY, VECTORS[:count])
    opened = Resources(llm=llm, judge=judge or Table(), retriever=retriever)
    return seper.build(opened).compile(name="seper", **compile_with)


async def measure(
    llm: Believer, judge: Any = None, chunks: Any = ("one", "two"), right: Any = (GOLD,), **context: Any
) -> tuple[dict[str, Any], list[str]]:
    """The final state and the path. chunks: None for a retrieval."""
    asked = {"question": QUESTION, "answers": list(right)}
    if chunks is not None:
        asked["chunks"] = list(chunks)
    state, path, _ = await walk(machine(llm, judge), asked, context)
    return state, path


# --- the path ---


async def test_given_chunks_are_measured() -> None:
    llm, judge = Believer(believes=beliefs([GOLD], ["Reba McEntire"])), Table()
    state, path = await measure(llm, judge)
    assert path == ["prepare", "sample_responses*2", "judge_responses", "measure_seper"]
    assert (state["seper"], state["seper_without"], state["delta"]) == (1.0, 0.0, 1.0)
    assert state["answer"] == GOLD
    assert [chunk["text"] for chunk in state["evidence"]] == ["one", "two"]
    assert state["gold_answers"] == [GOLD]
    assert state["warnings"] == []
    assert sorted(llm.sampled) == [(QUESTION, ()), (QUESTION, ("one", "two"))]
    # equal to the right answer: not asked about
    assert [set(batch) for batch in judge.batches] == [{("Reba McEntire", GOLD), (GOLD, "Reba McEntire")}]


async def test_without_chunks_a_retrieval_is_measured() -> None:
    llm = Believer(believes=beliefs([GOLD], ["Reba McEntire"]))
    state, path = await measure(llm, chunks=None, k=3)
    assert path == ["prepare", "retrieve", "sample_responses*2", "judge_responses", "measure_seper"]
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0", "c1", "c2"]
    assert (QUESTION, ("text 0", "text 1", "text 2")) in llm.sampled
    assert state["delta"] == 1.0


@pytest.mark.parametrize(("count", "chunks"), [(7, []), (0, None)])
async def test_without_anything_to_measure_delta_is_0(count: int, chunks: Any) -> None:
    llm = Believer(believes=lambda question, shown: ["Reba McEntire", GOLD])
    asked = {"question": QUESTION, "answers": [GOLD], "chunks": chunks}
    state, path, _ = await walk(machine(llm, count=count), asked)
    assert path == [
        "prepare",
        *([] if chunks == [] else ["retrieve"]),
        "sample_responses",
        "judge_responses",
        "measure_seper",
    ]
    assert (state["seper"], state["seper_without"], state["delta"]) == (0.5, 0.5, 0.0)
    assert state["with_context"] == state["without_context"]
    assert any("no chunks to measure" in warning for warning in state["warnings"])
    assert len(llm.sampled) == 1


async def test_both_sides_are_sampled_in_parallel_with_the_settings() -> None:
    llm = Believer(believes=beliefs([GOLD], ["no"]), seconds=0.2)
    settings: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "thinking": True}
    await measure(llm, samples=7, max_answer_tokens=33, stop=r"\n,Question:", **settings)
    wanted = Sampling(n=7, max_tokens=33, stop=("\n", "Question:"), logprobs=True, **settings)
    assert llm.samplings == [wanted] * 2
    assert llm.under_way_at_most == 2
    again = Believer(seconds=0.05)
    await measure(again, concurrency=1)
    assert again.under_way_at_most == 1


async def test_the_prompts_are_those_of_the_generator() -> None:
    llm = Believer()
    await measure(llm, chunks=["one"])
    chunk: Chunk = {"id": "given#1", "doc_id": "given#1", "title": "", "text": "one"}
    asked = [messages for _, messages in llm.calls]
    assert sorted(asked, key=str) == sorted(
        [prompt.messages(QUESTION, []), prompt.messages(QUESTION, [chunk])], key=str
    )


# --- the figures ---

FOUR = [said("Davis", 0.5, 0.5), said("Reba", 0.2), said("Linda Davis!", 0.9, 0.4, 0.1), said("", 0.3)]
ENTAILS: dict[tuple[str, str], Row | None] = {
    ("Davis", GOLD): (0.3, 0.6, 0.1),
    (GOLD, "Davis"): (0.8, 0.15, 0.05),
    ("Reba", GOLD): (0.05, 0.15, 0.8),
    (GOLD, "Reba"): (0.1, 0.2, 0.7),
}


def raw(likelihood: str) -> list[float]:
    products = [0.25, 0.2, 0.036, 0.3]
    return products if likelihood == "sum" else [0.5, 0.2, 0.036 ** (1 / 3), 0.3]


@pytest.mark.parametrize("likelihood", ["mean", "sum"])
@pytest.mark.parametrize("direction", ["either", "forward"])
async def test_soft_by_hand(likelihood: str, direction: str) -> None:
    llm, judge = Believer(believes=beliefs(FOUR, FOUR[1:2])), Table(ENTAILS)
    state, _ = await measure(llm, judge, samples=4, likelihood=likelihood, direction=direction)
    weights = [one / sum(raw(likelihood)) for one in raw(likelihood)]
    kernel = [0.8, 0.1, 1.0, 0.0] if direction == "either" else [0.3, 0.05, 1.0, 0.0]
    expected = sum(w * k for w, k in zip(weights, kernel, strict=True))
    assert state["seper"] == pytest.approx(expected, abs=1e-9)
    assert state["seper_without"] == pytest.approx(kernel[1], abs=1e-9)
    assert state["delta"] == pytest.approx(expected - kernel[1], abs=1e-9)
    belief = state["with_context"]
    assert [one["weight"] for one in belief["responses"]] == pytest.approx(weights, abs=1e-9)
    assert [one["text"] for one in belief["responses"]] == ["Davis", "Reba", "Linda Davis!", ""]
    assert [one["entails"] for one in belief["responses"]] == [[0.3], [0.05], [1.0], [0.0]]
    back = [[0.8], [0.1], [1.0], [0.0]]
    assert [one["entailed"] for one in belief["responses"]] == (back if direction == "either" else [[]] * 4)
    assert [one["tokens"] for one in belief["responses"]] == [2, 1, 3, 1]
    assert belief["responses"][0]["log_probability"] == pytest.approx(math.log(0.25))
    assert (belief["clusters"], belief["responses"][0]["cluster"]) == ([], None)
    assert belief["by_answer"] == pytest.approx([expected], abs=1e-9)
    ways = 2 if direction == "either" else 1
    assert len(judge.batches) == 1
    assert len(judge.batches[0]) == 2 * ways, "Davis and Reba, once each; Reba of the other side is the same question"


@pytest.mark.parametrize(
    ("clusters", "match", "groups", "matches"),
    [
        # Davis is entailed by the right answer, which it does not entail: a loose match
        ("bidirectional", "loose", [0, 1, 2, 3], [True, False, True, False]),
        ("bidirectional", "bidirectional", [0, 1, 2, 3], [False, False, True, False]),
        # the right answer, a response too, entails Davis and not the other way round: Davis speaks for both
        ("loose", "loose", [0, 1, 0, 2], [True, False, False]),
        ("loose", "bidirectional", [0, 1, 0, 2], [False, False, False]),
    ],
)
async def test_hard_by_hand(clusters: str, match: str, groups: list[int], matches: list[bool]) -> None:
    llm, judge = Believer(believes=beliefs(FOUR, FOUR[1:2])), Table(ENTAILS)
    settings = {"samples": 4, "rule": "hard", "cluster_rule": clusters, "match_rule": match}
    state, path = await measure(llm, judge, **settings)
    weights = [one / sum(raw("mean")) for one in raw("mean")]
    expected = sum(w for w, group in zip(weights, groups, strict=True) if matches[group])
    assert path == ["prepare", "sample_responses*2", "judge_responses", "measure_seper"]
    assert state["seper"] == pytest.approx(expected, abs=1e-9)
    assert state["seper_without"] == 0
    belief = state["with_context"]
    assert [one["cluster"] for one in belief["responses"]] == groups
    assert [one["matches"] for one in belief["clusters"]] == [[one] for one in matches]
    assert belief["clusters"][0]["first"] == "Davis"
    by_cluster = [sum(w for w, own in zip(weights, groups, strict=True) if own == c) for c in range(len(matches))]
    assert [one["weight"] for one in belief["clusters"]] == pytest.approx(by_cluster, abs=1e-9)
    assert len(judge.batches) == 1
    assert len(judge.batches[0]) == len(set(judge.batches[0])) == 6, "Davis, Reba and the right answer"


@pytest.mark.parametrize("rule", ["soft", "hard"])
@pytest.mark.parametrize(("several", "of"), [("max", max), ("mean", lambda two: sum(two) / 2)])
async def test_several_right_answers(rule: str, several: str, of: Any) -> None:
    llm = Believer(believes=beliefs(["Ada"], ["Bob", "Ada", "Cy", "Cy"]))
    state, _ = await measure(llm, right=["Ada", "Bob", "ADA."], samples=4, rule=rule, several_answers=several)
    assert state["gold_answers"] == ["Ada", "Bob"]
    assert state["with_context"]["by_answer"] == [1.0, 0.0]
    assert state["without_context"]["by_answer"] == [0.25, 0.25]
    assert state["seper"] == of([1.0, 0.0])
    assert state["seper_without"] == 0.25


async def test_the_answer_is_the_one_with_the_greatest_total_weight() -> None:
    # ten tenths: two of 0.3 each together outweigh one of 0.5; an empty one is no answer
    there = [said("Reba", 0.5), said("Linda Davis", 0.3), said("linda davis.", 0.3), said("", 0.9)]
    state, _ = await measure(Believer(believes=beliefs(there, ["no"])), samples=4)
    assert state["answer"] == "Linda Davis"


async def test_identical_responses_are_judged_once() -> None:
    judge = Table()
    llm = Believer(believes=beliefs(["Reba", "the Reba", " REBA!"], ["Reba"]))
    state, _ = await measure(llm, judge, samples=9)
    assert [sorted(batch) for batch in judge.batches] == [[(GOLD, "Reba"), ("Reba", GOLD)]]
    assert state["seper"] == state["seper_without"] == 0


async def test_the_judge_is_not_called_if_every_response_is_right() -> None:
    judge = Table()
    state, _ = await measure(Believer(believes=lambda question, shown: [GOLD, "linda davis"]), judge, rule="hard")
    assert judge.batches == []
    assert (state["seper"], state["delta"]) == (1.0, 0.0)


async def test_one_response() -> None:
    state, _ = await measure(Believer(believes=beliefs([GOLD], ["Reba"])), samples=1)
    assert (state["seper"], state["seper_without"], state["delta"]) == (1.0, 0.0, 1.0)


# --- what goes wrong ---


@pytest.mark.parametrize("rule", ["soft", "hard"])
async def test_empty_responses_entail_no_answer(rule: str) -> None:
    llm = Believer(believes=beliefs([said("", 0.5)], [GOLD]))
    state, _ = await measure(llm, rule=rule, samples=2)
    assert (state["seper"], state["seper_without"], state["delta"]) == (0.0, 1.0, -1.0)
    assert state["answer"] == ""
    assert state["warnings"] == ["Every response sampled with the chunks is empty: the belief in every answer is 0."]


async def test_a_response_of_probability_0_has_weight_0() -> None:
    llm = Believer(believes=beliefs([said("Reba", 0.5, 0.0), said(GOLD, 0.1)], ["no"]))
    state, _ = await measure(llm, samples=2)
    assert [one["weight"] for one in state["with_context"]["responses"]] == [0.0, 1.0]
    assert state["with_context"]["responses"][0]["log_probability"] is None
    assert state["seper"] == 1.0


async def test_a_response_that_is_only_the_end_of_turn_token_keeps_it() -> None:
    ended = Completion(GOLD, "stop", (Token(GOLD, math.log(0.5)), Token("", math.log(0.125))))
    empty = Completion("", "stop", (Token("", math.log(0.25)),))
    cut = Completion("Li", "length", (Token("Li", math.log(0.5)), Token("", math.log(0.5))))
    llm = Believer(believes=beliefs([ended, empty, cut], ["no"]))
    for counted, likelihoods in ((True, [0.25, 0.25, 0.5]), (False, [0.5, 0.25, 0.5])):
        state, _ = await measure(llm, samples=3, end_of_turn=counted)
        weights = [one["weight"] for one in state["with_context"]["responses"]]
        assert weights == pytest.approx([one / sum(likelihoods) for one in likelihoods])


@pytest.mark.parametrize("rule", ["soft", "hard"])
async def test_a_pair_without_a_label_counts_as_neutral_with_a_warning(rule: str) -> None:
    rows: dict[tuple[str, str], Row | None] = {("Davis", GOLD): None, (GOLD, "Davis"): (0.6, 0.4, 0.0)}
    state, _ = await measure(Believer(believes=beliefs(["Davis"], ["Reba"])), Table(rows), rule=rule)
    assert state["seper"] == (0.6 if rule == "soft" else 1.0)
    assert state["with_context"]["responses"][0]["entails"] == [None]
    assert len(state["warnings"]) == 1
    assert "'table' could not label" in state["warnings"][0]


async def test_responses_that_were_cut_off_give_a_warning() -> None:
    llm = Believer(believes=beliefs([said("It is", 0.5, reason="length"), GOLD], ["no"]))
    state, _ = await measure(llm, samples=4)
    (warning,) = state["warnings"]
    assert warning.startswith("Some responses sampled with the chunks were cut off at 64 tokens")
    assert [one["cut"] for one in state["with_context"]["responses"]] == [True, False] * 2


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (None, "no right answer"),
        ([], "no right answer"),
        ("Ada", "no right answer"),
        ({"a": 1}, "no right answer"),
        (["Ada", ""], "Right answer 2 is no text"),
        ([" \n"], "Right answer 1 is no text"),
        ([7], "Right answer 1 is no text"),
        ([None], "Right answer 1 is no text"),
    ],
)
async def test_bad_right_answers_are_refused(answers: Any, message: str) -> None:
    llm = Believer()
    with pytest.raises(UserFault, match=message):
        await machine(llm).ainvoke({"question": QUESTION, "answers": answers, "chunks": ["one"]})
    assert llm.calls == []


async def test_missing_right_answers_are_refused() -> None:
    with pytest.raises(UserFault, match='give "answers"'):
        await machine(Believer()).ainvoke({"question": QUESTION, "chunks": ["one"]})


async def test_bad_chunks_are_refused() -> None:
    with pytest.raises(UserFault, match="Chunk 2 has no text"):
        await measure(Believer(), chunks=["one", ""])


async def test_a_model_without_log_probabilities_is_refused_before_it_is_called() -> None:
    llm = Believer(capabilities=frozenset({"seed"}))
    with pytest.raises(CapabilityMissing, match=r"its own tokens.*'scripted' does not give: set llm"):
        await measure(llm)
    assert llm.calls == []


@pytest.mark.parametrize("judge", ["nli:/nowhere/model", "nobody"])
async def test_an_unknown_judge_is_refused_before_any_model_is_called(judge: str) -> None:
    llm = Believer()
    graph: Any = seper.build(Resources(llm=llm, encoder=ScriptedEncoder())).compile()
    with pytest.raises(UserFault, match="There is no"):
        await graph.ainvoke({"question": QUESTION, "answers": [GOLD], "chunks": ["x"]}, context={"judge": judge})
    assert llm.calls == []


async def test_a_fault_of_the_judge_is_retried_without_sampling_again(fast_retries: None) -> None:
    llm, judge = Believer(), Table(faults=[ModelFault("judge", "timed out")] * 2)
    await measure(llm, judge)
    assert len(judge.batches) == 3
    assert len(llm.calls) == 2


# --- in other programs ---


async def test_two_questions_in_one_thread() -> None:
    llm = Believer(believes=beliefs([GOLD], ["no"]))
    graph = machine(llm, checkpointer=InMemorySaver())
    first = await graph.ainvoke({"question": "first?", "answers": [GOLD], "chunks": ["one"]}, THREAD)
    assert first["delta"] == 1.0
    with pytest.raises(UserFault, match="no right answer"):
        await graph.ainvoke({"question": "second?"}, THREAD)
    third = await graph.ainvoke({"question": "third?", "answers": ["no"], "chunks": []}, THREAD)
    assert (third["gold_answers"], third["seper"], third["delta"], third["evidence"]) == (["no"], 1.0, 0.0, [])
    assert third["usage"]["calls"] == 1
    fourth = await graph.ainvoke({"question": "fourth?", "answers": ["no"]}, THREAD, context={"k": 2})
    assert [chunk["id"] for chunk in fourth["evidence"]] == ["c0", "c1"]
    assert fourth["delta"] == -1.0


async def test_soft_takes_the_probability_and_hard_the_likeliest_label() -> None:
    # the likeliest label of every pair is entailment, with a probability of 0.45
    state, _ = await measure(Believer(believes=beliefs(["Davis"], ["Reba"])), ScriptedJudge(lambda one, other: True))
    assert state["seper"] == pytest.approx(0.45)
    state, _ = await measure(
        Believer(believes=beliefs(["Davis"], ["Reba"])), ScriptedJudge(lambda one, other: True), rule="hard"
    )
    assert state["seper"] == 1.0
