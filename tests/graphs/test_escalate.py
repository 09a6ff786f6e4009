"""The cascade: which rungs are tried, what is given or withheld, limits, failures, and its calibration."""

from __future__ import annotations

import asyncio
import gc
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import ModelFault, ModelUnavailable, UserFault
from dubito.evals.reports.inputs import first_steps
from dubito.evals.runner import resources_with_memory
from dubito.graphs import escalate
from dubito.graphs.registry import graph_named
from dubito.models.interfaces import Choice, Message, Reply, Sampling, Tokens
from dubito.nodes.escalate import assess, conclude
from dubito.render.cards import CallCard, RunCard, cards
from dubito.render.facts import cost_of
from dubito.resources.allowlist import Forbidden
from dubito.resources.call_cache import CallMemory, counting
from dubito.resources.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.calibration import CascadeCalibration, Combination, identity, settings_of
from dubito.state.escalate import RUNGS, EscalateContext, Rung
from dubito.tests.recorded import recorded
from dubito.tests.scripted import (
    AGREE,
    CERTIFIED,
    DIFFER,
    QUERY,
    QUESTION,
    THE_CORPUS,
    VECTORS,
    KnownCorpus,
    Rungs,
    ScriptedChat,
    ScriptedJudge,
    ScriptedRetriever,
)
from dubito.traces.run import Run
from langgraph.graph import START, StateGraph

INPUT: Any = {"question": QUESTION}
TWO = {"rungs": "cot,vanilla_rag", "answer_samples": 2, "k": 1}


def opened(llm: ScriptedChat) -> Resources:
    judge = ScriptedJudge(lambda one, other: one == other)
    return KnownCorpus(llm, retriever=ScriptedRetriever(QUERY, VECTORS), judge=judge)


async def run(llm: ScriptedChat, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    """The final state and the cascade's own nodes in the order in which they ended."""
    graph: Any = escalate.build(opened(llm)).compile(name="escalate")
    path: list[str] = []
    state: dict[str, Any] = {}
    async for mode, part in graph.astream(INPUT, context={**TWO, **settings}, stream_mode=["updates", "values"]):
        if mode == "updates":
            path += list(part)
        else:
            state = part
    return state, path


async def test_a_certain_first_rung_is_the_answer() -> None:
    llm = Rungs(alone=AGREE)
    state, path = await run(llm)
    assert path == ["prepare", "cot", "assess", "conclude"]
    assert (state["answer"], state["abstained"], state["withheld_answer"]) == ("the Lune", False, "")
    assert [(rung["graph"], rung["certain"], rung["uncertainty"]) for rung in state["tried"]] == [("cot", True, 0.0)]
    assert llm.sampled == ["alone"]
    assert state["evidence"] == []


async def test_an_uncertain_rung_hands_on_and_its_cost_is_its_own() -> None:
    state, path = await run(Rungs())
    assert path == ["prepare", "cot", "assess", "vanilla_rag", "assess", "conclude"]
    assert [rung["certain"] for rung in state["tried"]] == [False, True]
    assert state["answer"] == "the Lune"
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0"]
    # a step and two samples in one call; an answer and two samples
    assert [(rung["calls"], rung["tokens"]) for rung in state["tried"]] == [(2, 10 + 13), (2, 10 + 13)]
    assert state["usage"]["calls"] == 4


async def test_where_no_rung_is_certain_the_last_answer_is_withheld() -> None:
    state, path = await run(Rungs(with_passages=DIFFER))
    assert path[-2:] == ["assess", "conclude"]
    assert (state["answer"], state["abstained"], state["withheld_answer"]) == ("", True, "the Lune")
    assert state["evidence"], "what was found stays visible"


async def test_an_uncertainty_at_the_limit_is_certain_enough() -> None:
    state, _ = await run(Rungs(), certain_up_to=math.log(2))  # two samples of two meanings
    assert [(rung["graph"], rung["certain"]) for rung in state["tried"]] == [("cot", True)]


async def test_an_empty_answer_is_never_certain() -> None:
    usage = {"calls": 1, "prompt_tokens": 5, "completion_tokens": 1, "nodes": {}}
    state: Any = {"tried": [], "failure": None, "answer": " ", "usage": usage}
    state["uncertainty"] = {"signal": "semantic entropy", "value": 0.0, "threshold": None}
    update = await assess(state, EscalateContext(**TWO), opened(Rungs()))
    assert (update["tried"][0]["certain"], update["next_rung"]) == (False, "vanilla_rag")


@pytest.mark.parametrize("last", [{"failure": "It broke.", "uncertainty": None}, {"uncertainty": 1.0}])
async def test_of_rungs_that_are_not_certain_the_latest_answer_is_told_with_its_own_doubt(
    last: dict[str, Any],
) -> None:
    def rung(answer: str, uncertainty: float | None, threshold: float, failure: str = "") -> Rung:
        return {
            "graph": "cot", "answer": answer, "uncertainty": uncertainty, "signal": f"entropy of '{answer}'",
            "threshold": threshold, "certain": False, "failure": failure, "calls": 1, "tokens": 5,
        }  # fmt: skip

    state: Any = {"tried": [rung("the Wyre", 3.0, 0.2), rung("the Lune", 2.0, 0.4), rung("", threshold=0.9, **last)]}
    update = await conclude(state, EscalateContext(**TWO), opened(Rungs()))
    assert (update["answer"], update["withheld_answer"]) == ("", "the Lune")
    assert update["uncertainty"] == {"signal": "entropy of 'the Lune'", "value": 2.0, "threshold": 0.4}


@pytest.mark.parametrize(
    ("limit", "reached"),
    [
        ({"max_calls": 2}, "model calls"),
        ({"max_tokens": 23}, "tokens"),
        ({"max_seconds": 1e-9}, "seconds"),
        ({"max_calls": 1, "max_tokens": 24, "max_seconds": 1e-9}, "model calls and seconds"),
    ],
)
async def test_a_limit_ends_the_cascade(limit: dict[str, float], reached: str) -> None:
    state, path = await run(Rungs(), **limit)
    assert path == ["prepare", "cot", "assess", "conclude"]
    assert state["abstained"]
    assert state["warnings"] == [f"The limit of {reached} was reached, so vanilla_rag was not tried."]


async def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    _, path = await run(Rungs(), max_calls=3, max_tokens=24, max_seconds=600.0)
    assert path == ["prepare", "cot", "assess", "vanilla_rag", "assess", "conclude"]


async def test_a_rung_that_fails_is_recorded_and_the_next_one_taken() -> None:
    state, path = await run(Rungs(broken=True))
    assert path == ["prepare", "cot", "assess", "vanilla_rag", "assess", "conclude"]
    assert state["answer"] == "the Lune"
    failed, answered = state["tried"]
    assert "connection refused" in failed["failure"]
    assert (answered["failure"], answered["certain"]) == ("", True)
    assert any("The rung cot failed" in warning for warning in state["warnings"])


async def test_a_rung_that_fails_late_has_cost_what_it_did_before() -> None:
    class NoSamples(Rungs):
        async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
            if sampling.temperature and "<passage" in messages[-1]["content"]:
                raise ModelFault("http://x", "connection refused", attempts=3)
            return await super().complete(messages, sampling)

    state, path = await run(NoSamples(alone=AGREE), rungs="vanilla_rag,cot")
    assert path == ["prepare", "vanilla_rag", "assess", "cot", "assess", "conclude"]
    # an answer; a step and two samples in one call
    assert [(rung["calls"], rung["tokens"]) for rung in state["tried"]] == [(1, 10), (2, 10 + 13)]
    assert state["usage"]["calls"] == 3
    with pytest.raises(ModelUnavailable, match="connection refused"):
        await run(NoSamples(alone=AGREE), rungs="vanilla_rag,cot", max_calls=1)  # the limit counts the call


async def test_what_a_later_rung_needs_is_looked_at_before_the_first_call() -> None:
    llm = Rungs(capabilities=frozenset())
    with pytest.raises(UserFault, match="log-probabilities"):
        await run(llm, rungs="cot,df_rag", rung_settings={"df_rag": {"evaluator": "likelihood"}})
    assert not llm.calls


@dataclass
class Choosing(Rungs):
    """Never certain, and DF-RAG's evaluator calls everything equally likely; a sample has its number."""

    with_passages: Sequence[str] = DIFFER

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        await self._begin("choose", messages)
        return Choice({option: 1 / len(options) for option in options}, Tokens(5, 1))


@dataclass
class Searched(ScriptedRetriever):
    """Keeps its queries."""

    searched: list[tuple[str, int | None]] = field(default_factory=list)

    async def pool(self, query: str, top_n: int | None) -> Pool:
        self.searched.append((query, top_n))
        return await super().pool(query, top_n)


SAME: dict[str, Any] = {
    **TWO,
    "rungs": "vanilla_rag,df_rag",
    "rung_settings": {"vanilla_rag": {"selection": "gmmr"}, "df_rag": {"evaluator": "choice"}},
}
"""With one chunk, both rungs answer from the same evidence."""


def never_certain() -> tuple[Any, Choosing, Searched]:
    llm, retriever = Choosing(), Searched(QUERY, VECTORS)
    judge = ScriptedJudge(lambda one, other: one == other)
    return escalate.build(Resources(llm, retriever=retriever, judge=judge)), llm, retriever


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_an_earlier_rung_asked_is_not_asked_again_and_costs_nothing(is_async: bool) -> None:
    machine, llm, retriever = never_certain()
    graph, modes = machine.compile(), ["custom", "values"]

    def stream() -> list[Any]:
        return list(graph.stream(INPUT, context=SAME, stream_mode=modes, subgraphs=True))

    parts = (
        [part async for part in graph.astream(INPUT, context=SAME, stream_mode=modes, subgraphs=True)]
        if is_async
        else await asyncio.to_thread(stream)
    )
    first, second = parts[-1][2]["tried"]
    assert (first["calls"], first["tokens"]) == (2, 10 + 13), "an answer, and two samples in one call"
    # DF-RAG's questions, their steps and one evaluation
    assert (second["calls"], second["tokens"]) == (3, 10 + 10 + 6)
    assert second["uncertainty"] == first["uncertainty"]
    asked = [(verb, json.dumps(messages)) for verb, messages in llm.calls]
    assert len(asked) == 5 == parts[-1][2]["usage"]["calls"]
    told = [part["call"] for _, mode, part in parts if mode == "custom" and part["type"] == "llm_call"]
    assert [call["reused"] for call in told] == [False] * 5 + [True] * 2
    for made, again in zip(told[:2], told[5:], strict=True):
        assert (again["request"], again["reply"]) == (made["request"], made["reply"])
        assert (again["prompt_tokens"], again["completion_tokens"], again["seconds"]) == (0, 0, 0.0)
    assert retriever.searched == [(QUESTION, None)]


async def test_every_question_is_asked_for_itself() -> None:
    machine, llm, retriever = never_certain()
    both: Any = StateGraph(machine.state_schema, context_schema=EscalateContext)
    for name in ("one", "other"):
        both.add_node(name, machine.compile())
    both.add_edge(START, "one").add_edge("one", "other")
    graph = both.compile()
    # with subgraphs, both have the whole run's writer of custom events
    async for _ in graph.astream(INPUT, context=EscalateContext(**SAME), stream_mode="custom", subgraphs=True):
        pass
    assert (len(llm.calls), len(retriever.searched)) == (10, 2), "two cascades in one run"
    await graph.ainvoke(INPUT, context=EscalateContext(**SAME))
    assert (len(llm.calls), len(retriever.searched)) == (20, 4), "a further run"
    await machine.compile().abatch([INPUT, INPUT], context=EscalateContext(**SAME))
    assert (len(llm.calls), len(retriever.searched)) == (30, 6), "two runs beside each other"
    gc.collect()
    kept = len(escalate._known)
    await graph.ainvoke(INPUT, context=EscalateContext(**SAME))
    gc.collect()
    assert len(escalate._known) == kept, "a run that has ended leaves nothing"


def test_a_trace_shows_the_calls_that_were_not_made_again(tmp_path: Path) -> None:
    recording = recorded(Run(never_certain()[0].compile(name="escalate"), QUESTION, EscalateContext(**SAME)), tmp_path)
    assert len(recording.calls) == 7
    assert (cost_of(recording.calls).calls, cost_of(recording.calls[5:]).calls) == (5, 0)
    steps, _ = first_steps(recording)
    assert {step[1]: step[4] for step in steps if step[0] == 0 and step[4]} == {"vanilla_rag": 2, "df_rag": 3}
    titles = [call.title for card in cards(recording) for run in card.runs for call in calls_in(run)]
    again = "complete · not made again: an earlier rung had the reply"
    assert [title == again for title in titles] == [False] * 5 + [True] * 2


def calls_in(run: RunCard) -> list[CallCard]:
    return [*run.calls, *(call for card in run.steps for inner in card.runs for call in calls_in(inner))]


async def test_a_cascade_draws_what_its_rungs_drew_in_an_evaluation(tmp_path: Path) -> None:
    _, llm, retriever = never_certain()
    judge = ScriptedJudge(lambda one, other: one == other)
    memory = CallMemory(tmp_path / "calls.sqlite")
    resources = resources_with_memory(memory, 0, llm=llm, retriever=retriever, judge=judge)
    context = EscalateContext(**SAME)
    alone: list[Any] = []
    for name in context.names:
        rung: Any = await asyncio.to_thread(graph_named, name, resources)
        with counting():
            alone.append(await rung.ainvoke(INPUT, context=context))
    asked = len(llm.calls)
    with counting():
        state = await escalate.build(resources).compile().ainvoke(INPUT, context=context)
    assert len(llm.calls) == asked == 5
    assert [rung["uncertainty"] for rung in state["tried"]] == [output["uncertainty"]["value"] for output in alone]


async def test_where_every_rung_fails_the_run_fails() -> None:
    with pytest.raises(ModelUnavailable, match="connection refused"):
        await run(Rungs(broken=True), rungs="cot")


async def calibrated(
    folder: Path, thresholds: dict[str, float | None], more: dict[str, Any] | None = None, **settings: Any
) -> str:
    context = EscalateContext(**{**TWO, "judge": "embedded", **settings})
    made = CascadeCalibration(
        technique="escalate",
        model=identity(context.llm),
        settings=settings_of(context),
        threshold=1.0,
        thresholds=thresholds,
        **CERTIFIED | {"corpus": THE_CORPUS} | (more or {}),
    )
    await asyncio.to_thread(made.save, folder / "c.json")
    return str(folder / "c.json")


async def test_a_calibration_has_a_threshold_for_each_rung_and_may_leave_one_out(tmp_path: Path) -> None:
    path = await calibrated(tmp_path, {"cot": 0.7, "vanilla_rag": 0.0})
    state, nodes = await run(Rungs(), calibration=path)
    assert nodes == ["prepare", "cot", "assess", "conclude"], "entropy log 2 = 0.69 is certain enough"
    assert state["certificate"]["holds"]
    assert state["certificate"]["sentence"].startswith("At most 20% of the answers given are wrong")
    unknown = await calibrated(tmp_path, {"cot": 0.7, "vanilla_rag": 0.0}, more={"corpus": None})
    state, _ = await run(Rungs(), calibration=unknown)
    assert not state["certificate"]["holds"]
    assert "does not say which corpus" in state["certificate"]["sentence"]
    without = await calibrated(tmp_path, {"cot": None, "vanilla_rag": 0.0})
    state, nodes = await run(Rungs(), calibration=without)
    assert nodes == ["prepare", "vanilla_rag", "assess", "conclude"]


async def test_a_rung_that_combines_its_signals_is_as_uncertain_as_its_own_weights_say(tmp_path: Path) -> None:
    # no sample means what the answer means: the disagreement is 1; the entropy has no weight
    weights = {"cot": (-1.0, 4.0), "vanilla_rag": (-3.0, 2.0)}
    combinations = {
        name: Combination(intercept=intercept, weights={"disagreement": weight})
        for name, (intercept, weight) in weights.items()
    }
    path = await calibrated(
        tmp_path,
        {"cot": 0.9, "vanilla_rag": 0.3},
        more={"combinations": combinations, "signal": "probability of an error"},
        uncertainty="combined",
    )
    state, _ = await run(Rungs(with_passages=DIFFER), uncertainty="combined", judge="embedded", calibration=path)
    sure = [1 / (1 + math.exp(-logit)) for logit in (-1 + 4, -3 + 2)]
    assert [rung["uncertainty"] for rung in state["tried"]] == pytest.approx(sure)
    assert [rung["certain"] for rung in state["tried"]] == [False, True]
    named = {"signal": "probability of an error", "value": pytest.approx(sure[1]), "threshold": 0.3}
    assert state["uncertainty"] == named


async def test_with_a_failed_rung_nothing_is_certified(tmp_path: Path) -> None:
    path = await calibrated(tmp_path, {"cot": 0.0, "vanilla_rag": 0.0})
    state, _ = await run(Rungs(broken=True), calibration=path)
    assert state["certificate"]["holds"] is False
    assert "cot failed" in state["certificate"]["sentence"]


async def test_a_calibration_of_other_rungs_is_refused(tmp_path: Path) -> None:
    path = await calibrated(tmp_path, {"cot": 0.0, "vanilla_rag": 0.0})
    with pytest.raises(UserFault, match="rungs cot,vanilla_rag, not vanilla_rag"):
        await run(Rungs(), calibration=path, rungs="vanilla_rag")


@pytest.mark.parametrize("name", ["encoder", "judge", "first_stage"])
async def test_a_rungs_own_settings_name_only_what_is_allowed(allow: Callable[[str], None], name: str) -> None:
    allow("")
    llm = Rungs()
    with pytest.raises(Forbidden, match=f"{name} 'hybrid:x' is not allowed here"):
        await run(llm, rung_settings={"vanilla_rag": {name: "hybrid:x"}})
    assert not llm.calls


async def test_a_rung_has_the_shared_settings_and_its_own() -> None:
    llm = Rungs()
    state, _ = await run(llm, rungs="vanilla_rag", k=2, rung_settings={"vanilla_rag": {"selection": "gmmr", "k": 3}})
    assert len(state["evidence"]) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rungs": "cot,nobody"}, "'nobody' is none of them"),
        ({"rungs": "cot,cot"}, "must list each graph once"),
        ({"rungs": ""}, "'' is none of them"),
        ({"rung_settings": {"df_rag": {}}}, "names 'df_rag', which is no rung"),
        ({"rung_settings": {"cot": {"steps": 3}}}, "steps"),
        ({"rung_settings": {"cot": {"llm": "x"}}}, "may not have llm: all rungs share it"),
        (
            {"rung_settings": {"vanilla_rag": {"fixed_lambda": 0.2}}},
            "fixed_lambda of the rung vanilla_rag has no effect",
        ),
        ({"rung_settings": "{"}, "rung_settings"),
        ({"calibration": "c.json", "max_calls": 3}, "calibration holds for runs without a limit"),
    ],
)
def test_what_cannot_be_a_cascade_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserFault, match=said):
        EscalateContext(**{**TWO, **settings})


def test_studio_sees_each_rung_as_a_subgraph() -> None:
    assert {name for name, _ in escalate.graph.get_subgraphs()} == set(RUNGS)
    assert "vanilla_rag:generate" in escalate.graph.get_graph(xray=True).nodes
    assert escalate.build(opened(Rungs()), ["cot"]).compile().invoke(INPUT, context=EscalateContext(rungs="cot"))
