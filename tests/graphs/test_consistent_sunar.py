"""SUNAR with its answer's consistency: the share by hand, what is sampled and how, threads, faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals import sunar_calibration
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.prompts import answer, decompose, unparsed
from dubito.resources.resources import Resources
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
from langgraph.checkpoint.memory import InMemorySaver

SETTINGS: dict[str, Any] = {"samples": 4, "temperature": 0.9, "penalty": "none"}


@dataclass
class Repeater(Explorer):
    """Gives `again` when the final answer is sampled; keeps those prompts."""

    again: Callable[[str], Sequence[str]] = lambda question: ["Ada"]
    resampled: list[tuple[list[Message], Sampling]] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.resampled = []

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        if sampling.temperature == 0 or messages[0] == answer.messages("", [])[0]:
            return await super().complete(messages, sampling)
        await self._begin("complete", messages)
        self.resampled.append((list(messages), sampling))
        some = self.again(messages[1]["content"])
        texts = [some[number % len(some)] for number in range(sampling.n)]
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(11, 2 * len(texts)))


def machine(llm: Repeater, judge: ScriptedJudge | None = None, **compile_with: Any) -> Any:
    opened = Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(lambda query: ["f1", "f2"]),
        judge=judge or ScriptedJudge(),
        reranker=ScriptedReranker(lambda query, name: {"f1": 0.9, "f2": 0.8}[name]),
        graph=ScriptedGraph({}),
    )
    return sunar_calibration.build(opened).compile(name="consistent_sunar", **compile_with)


async def run(llm: Repeater, judge: ScriptedJudge | None = None, **more: Any) -> dict[str, Any]:
    state, path, _ = await walk(machine(llm, judge), {"question": QUESTION}, {**SETTINGS, **more})
    assert path == ["begin", "sunar", "measure_consistency"]
    assert json.loads(json.dumps(state)) == state
    return dict(state)


@pytest.mark.parametrize(
    ("again", "share"),
    [
        (["Ada"], 1.0),
        (["ada.", "the Ada", "Bo", "Cy"], 0.5),  # the same but for how they are written
        (["Bo"], 0.0),
        (["Ada", "", "  ", "**Ada**"], 0.5),  # empty ones are no agreement, bold is taken off
        (["Ada", "Bo", "Bo", "Bo"], 0.25),  # it is the answer's share and not the largest set's
    ],
)
async def test_the_share_of_samples_that_mean_the_same(again: list[str], share: float) -> None:
    state = await run(Repeater(again=lambda text: again))
    assert state["answer"] == "Ada"
    assert state["consistency"] == share
    assert len(state["resampled"]) == 4
    assert state["warnings"] == []


async def test_the_judge_decides_in_both_directions_and_about_the_question() -> None:
    one_way = {("Ada", "Ada Brand"), ("Ada Brand", "Ada"), ("Ada", "a woman"), ("Bo", "Ada")}
    judge = ScriptedJudge(lambda one, other: (one, other) in one_way)
    state = await run(Repeater(again=lambda text: ["Ada Brand", "a woman", "Bo", "Cy"]), judge)
    assert state["consistency"] == 0.25
    assert {pair for pair in judge.asked if "Cy" in pair} == {("Ada", "Cy"), ("Cy", "Ada")}
    assert not any("Cy" in pair and "Bo" in pair for pair in judge.asked), "samples are compared to the answer alone"


async def test_what_the_judge_cannot_say_is_no_agreement_and_a_warning() -> None:
    state = await run(Repeater(again=lambda text: ["Bo", "Ada"]), ScriptedJudge(lambda one, other: None))
    assert state["consistency"] == 0.5
    assert state["warnings"] == ["The judge 'judge' could not label 2 pairs of answers; they count as not entailing."]


async def test_it_samples_the_very_prompt_of_the_final_answer() -> None:
    llm = Repeater()
    await run(llm)
    ((messages, sampling),) = llm.resampled
    final = [asked for _, asked in llm.calls if asked[0] == unparsed.meta_evidence("", [], "", [])[0]]
    assert final == [messages, messages]
    assert sampling == Sampling(n=4, temperature=0.9, max_tokens=64)


async def test_without_meta_evidence_it_samples_the_decompositions_last_word() -> None:
    replies = ["Final answer: Ada", "So the final answer is: Bo", "Follow-up: Who?", "nothing of the kind"]
    llm = Repeater(again=lambda text: replies)
    state = await run(llm, meta_evidence=False)
    assert (state["answer"], state["consistency"]) == ("Ada", 0.25)
    assert state["resampled"] == ["Ada", "Bo", "", ""]
    ((messages, sampling),) = llm.resampled
    assert messages == decompose.messages(QUESTION, state["hops"], must_answer=True)
    assert (sampling.n, sampling.max_tokens) == (4, 96)


async def test_an_empty_answer_is_not_consistent_and_nothing_is_sampled() -> None:
    llm = Repeater(reason=lambda question, line, names: "", step=lambda question, lines, must: "Follow-up: Who?")
    llm.answer = lambda query, names: ""
    state = await run(llm, max_hops=1)
    assert (state["answer"], state["consistency"], state["resampled"]) == ("", 0.0, [])
    assert llm.resampled == []


async def test_what_it_costs_is_counted_and_the_rest_is_sunars_output() -> None:
    llm = Repeater()
    state = await run(llm)
    assert state["usage"]["calls"] == len(llm.calls)
    assert state["usage"]["nodes"]["measure_consistency"]["calls"] == 1
    assert state["usage"]["nodes"]["measure_consistency"]["completion_tokens"] == 8
    assert [hop["question"] for hop in state["hops"]] == [QUESTION]
    assert {"answer", "evidence", "hops", "sequential_answer", "changed"} <= set(state)


async def test_a_threads_next_question_begins_anew() -> None:
    graph = machine(Repeater(again=lambda text: ["Bo", "Ada"]), checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    first = await graph.ainvoke({"question": QUESTION}, thread, context=sunar_calibration.ConsistentContext(**SETTINGS))
    second = await graph.ainvoke({"question": "Who?"}, thread, context=sunar_calibration.ConsistentContext(**SETTINGS))
    assert [hop["question"] for hop in second["hops"]] == ["Who?"]
    assert second["usage"]["calls"] == first["usage"]["calls"]


async def test_an_unknown_judge_is_refused_before_any_model_is_called() -> None:
    llm = Repeater()
    opened = Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(lambda query: ["f1"]),
        reranker=ScriptedReranker(lambda query, name: 0.5),
        graph=ScriptedGraph({}),
    )
    graph = sunar_calibration.build(opened).compile()
    with pytest.raises(UserFault, match="nobody"):
        await graph.ainvoke(
            {"question": QUESTION}, context=sunar_calibration.ConsistentContext(judge="nobody", penalty="none")
        )
    assert llm.calls == []
