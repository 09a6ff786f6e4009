"""Every graph, gone on with from each of its checkpoints: as they are, and edited as Studio edits them.

A fork takes the path that the run took from there, counts no call twice, and ends in the same figures, or in what the
edit makes of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import ModelFault, ModelUnavailable, UserFault
from dubito.graphs import (
    chat,
    cot,
    dense,
    dense_rag,
    df_rag,
    escalate,
    flare,
    ircot,
    iter_retgen,
    neighbourhood,
    reviewed,
    seakr,
    seper,
    sunar,
    vanilla_rag,
)
from dubito.models.interfaces import Completion, Judgements, Message, Reply, Sampling, Tokens
from dubito.prompts import standalone
from dubito.resources.resources import Resources
from dubito.state.dense import ORIGINAL
from dubito.state.records import NO_USAGE, Usage
from dubito.tests.graphs.test_dense_rag import FIXED, SEMANTIC, Story, TwoCuts, cut
from dubito.tests.scripted import (
    QUERY,
    QUESTION,
    VECTORS,
    Believer,
    Explorer,
    ListedRetriever,
    Reader,
    Reasoner,
    Rungs,
    ScriptedChat,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
    ScriptedRetriever,
    document,
    doubted,
    walk,
)
from dubito.tests.scripted import chat as planner
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import LastValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

THREAD: Any = {"configurable": {"thread_id": "1"}}
MARK = "Zanzibar"
"""What an edit puts into the state, and what must be found in what comes of it."""

LAST = "So the final answer is: the Lune."
FOLLOW_UP = [HumanMessage("Who founded the mill?"), AIMessage("Ada."), HumanMessage("And where was she born?")]


@dataclass(frozen=True)
class Edit:
    """values: what is written over a state, from that state; path: the steps from there, of those that the run took;
    shows: whether the fork's output and what its models were asked are what the edit asks for."""

    values: Callable[[Any], dict[str, Any]]
    path: Callable[[list[str]], list[str]] = lambda path: path
    shows: Callable[[dict[str, Any], str], bool] = lambda output, asked: MARK in asked


@dataclass
class Case:
    """A graph, the models that it runs with, a run of it, and for each step an edit just before it."""

    builder: Any
    resources: Resources
    models: list[Any]
    given: dict[str, Any]
    edits: Mapping[str, Edit]
    context: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=lambda: {"question": MARK})

    def asked(self) -> str:
        """What the models were asked since they were last forgotten."""
        heard = ("calls", "asked", "batches")
        return str([getattr(model, name, ()) for model in self.models for name in heard])

    def calls(self) -> int:
        """Of the chat model."""
        return len(self.models[0].calls)

    def forget(self) -> None:
        for model in self.models:
            for name in ("calls", "asked", "batches"):
                getattr(model, name, []).clear()
        self.resources.is_deterministic.clear()  # or the next run would not check the model again


def to(**values: Any) -> Edit:
    return Edit(lambda state: values)


def answered(values: Callable[[Any], dict[str, Any]]) -> Edit:
    """An edit that the answer shows."""
    return Edit(values, shows=lambda output, asked: MARK in output["answer"])


ASKED = to(question=MARK)
EVIDENCE = to(evidence=[document(MARK)])


# --- the cases ---


def df_rag_case(**context: Any) -> Case:
    llm = planner()
    opened = Resources(llm=llm, retriever=ScriptedRetriever(QUERY, VECTORS))
    best: Any = {"candidate": 0, "scores": [99.0], "answers": []}
    edits = {
        "candidates+plan": ASKED,
        "select_lambdas": Edit(
            lambda state: {"evaluations": None},
            lambda path: path if len(path) == 5 else ["select_lambdas", EVALUATED, *path],
            lambda output, asked: "how well a set of passages" in asked,
        ),
        "evaluate": to(plan=[MARK]),
        "choose_lambda": Edit(
            lambda state: {"evaluations": [best]},
            shows=lambda output, asked: 99.0 in [one["support"] for one in output["supports"]],
        ),
        "generate": EVIDENCE,
    }
    settings = {"evaluator": "report", "k": 3, **context}
    return Case(df_rag.build(opened), opened, [llm], {"question": QUESTION}, edits, settings)


EVALUATED = "evaluate*5"


def vanilla_case() -> Case:
    llm = planner()
    opened = Resources(llm=llm, retriever=ScriptedRetriever(QUERY, VECTORS))
    edits = {"retrieve": ASKED, "generate": EVIDENCE}
    return Case(vanilla_rag.build(opened), opened, [llm], {"question": QUESTION}, edits, {"k": 2})


def escalate_case() -> Case:
    llm, judge = Rungs(), ScriptedJudge(lambda one, other: one == other)
    opened = Resources(llm=llm, judge=judge, retriever=ScriptedRetriever(QUERY, VECTORS))
    shown = Edit(lambda state: {"evidence": [document(MARK)]}, shows=lambda output, asked: MARK in str(output))
    renamed = Edit(lambda state: {"answer": MARK}, shows=lambda output, asked: MARK in str(output["tried"]))
    edits = {"cot": ASKED, "assess": renamed, "vanilla_rag": ASKED, "conclude": shown}
    settings = {"rungs": "cot,vanilla_rag", "answer_samples": 2, "k": 1}
    return Case(escalate.build(opened), opened, [llm, judge], {"question": QUESTION}, edits, settings)


def dense_case(chunks: list[str] | None) -> Case:
    llm, judge = Reader(answer=lambda texts: texts[0] if texts[0].startswith("other") else "the Lune"), ScriptedJudge()
    opened = Resources(llm=llm, judge=judge, retriever=ScriptedRetriever(QUERY, VECTORS))
    edits = {
        "retrieve_top_k": ASKED,
        "rephrase": Edit(lambda state: {"evidence": [document(MARK)]}, one_chunk),
        "contexts": ASKED,
        "repeat+respond": ASKED,
        "entail": to(response_by_key={ORIGINAL: MARK}),
        "measure_dse": answered(lambda state: {"responses": [MARK, *state["responses"][1:]]}),
    }
    given = {"question": QUESTION} if chunks is None else {"question": QUESTION, "chunks": chunks}
    return Case(dense.build(opened), opened, [llm, judge], given, edits, {"k": 3, "dse_threshold": 0.0})


def one_chunk(path: list[str]) -> list[str]:
    fewer = {"rephrase*3": "rephrase", "repeat+respond*4": "repeat+respond*2"}
    return [fewer.get(step, step) for step in path]


WAVERS = Story(wavering={*FIXED, "s1"}, needed={*FIXED, "s1"}, settling={"s5"}, enough={"s5"})


def dense_rag_resources(llm: Reader, judge: ScriptedJudge) -> Resources:
    return TwoCuts(llm, judge, cut(FIXED), cut(SEMANTIC))


def dense_rag_case(**context: Any) -> Case:
    llm, judge = WAVERS.reader(), ScriptedJudge()
    opened = dense_rag_resources(llm, judge)
    recorded = Edit(
        lambda state: {"responses": [MARK, *state["responses"][1:]]},
        shows=lambda output, asked: output["rounds"][0]["responses"][0] == MARK,
    )
    done = Edit(
        lambda state: {"dse": 0.0, "sufficient": True},
        lambda path: ["update_best", "give_best_answer"],
        lambda output, asked: (output["dse"], output["stop_reason"]) == (0.0, "accepted"),
    )
    edits = {
        "retrieve_context": ASKED,
        "dense": to(question=MARK),
        "rechunk": recorded,
        "dense+self_evaluate": ASKED,
        "self_evaluate": ASKED,
        "update_best": done,
        "ablate": ASKED,
        "classify": Edit(
            lambda state: {"ablations": dict.fromkeys(state["ablations"], MARK)},
            shows=lambda output, asked: MARK in str(output["rounds"]),
        ),
        "refine": Edit(
            lambda state: {"classified": [{**one, "kind": "certain"} for one in state["classified"]]},
            lambda path: ["refine", "give_best_answer"],
            lambda output, asked: output["stop_reason"] == "unchanged",
        ),
        "give_best_answer": answered(lambda state: {"best": {**(state["best"] or found(state)), "answer": MARK}}),
    }
    settings = {"k": 3, "check_determinism": False, **context}
    return Case(dense_rag.build(opened), opened, [llm, judge], {"question": QUESTION}, edits, settings)


def found(state: Any) -> dict[str, Any]:
    return {
        "chunk_ids": [chunk["id"] for chunk in state["context_chunks"]],
        "dse": 1.0,
        "probed": True,
        "sufficient": None,
    }


FOUND = ["a", "b", "c", "d"]
SCORES = {"a": 0.9, "b": 0.2, "c": 0.5, "d": 0.4, "x": 0.95, "y": 0.3, MARK: 0.6}


def exploring() -> tuple[Explorer, list[Any], Resources]:
    def step(question: str, lines: Sequence[str], must: bool) -> str:
        return "Final answer: the Wyre" if must or len(lines) > 1 else f"Follow-up: Who is number {len(lines)}?"

    llm = Explorer(step=step, samples=lambda query, names: ["one", "two"])
    judge, reranker = ScriptedJudge(), ScriptedReranker(lambda query, name: SCORES[name])
    retriever = ListedRetriever(lambda query: FOUND)
    graph = ScriptedGraph({"a": ["x"], "b": ["y"]})
    opened = Resources(llm, ScriptedEncoder(), retriever, judge=judge, reranker=reranker, graph=graph)
    return llm, [llm, judge, reranker, retriever], opened


EXPLORING: Any = {"batch_size": 2, "samples": 2, "k": 3}


def neighbourhood_case(**context: Any) -> Case:
    _, models, opened = exploring()
    looked_up = to(sub_question=MARK)
    edits = {
        "search_first_stage": looked_up,
        "select_batch": Edit(
            lambda state: {"first_stage": [], "frontier": []},
            lambda path: ["select_batch", "intermediate_answer"],
            lambda output, asked: output["stop_reason"] == "exhausted" and "score_batch" not in asked,
        ),
        "score_batch": looked_up,
        "sample_answers": looked_up,
        "count_semantic_sets": to(sampled_answers=[MARK, "two"]),
        "update_frontier": Edit(
            lambda state: {"raw_scores": [0.125] * len(state["batch_ids"])},
            shows=lambda output, asked: 0.125 in [one["raw_score"] for one in output["scored"]],
        ),
        "intermediate_answer": looked_up,
    }
    given = {"question": QUESTION, "query": "Who is it?"}
    settings = {**EXPLORING, **context}
    return Case(neighbourhood.build(opened), opened, models, given, edits, settings, {"query": MARK})


def sunar_case(**context: Any) -> Case:
    _, models, opened = exploring()
    edits = {
        "decompose": ASKED,
        "neighbourhood": to(query=MARK),
        "record_hop": Edit(
            lambda state: {"answer": MARK},
            shows=lambda output, asked: MARK in [hop["answer"] for hop in output["hops"]],
        ),
        "rerank_all_evidence": to(evidence_by_id={MARK: document(MARK)}),
        "reason_over_all_evidence": to(meta_evidence=[document(MARK)]),
        "keep_sequential_answer": answered(lambda state: {"sequential_answer": MARK}),
    }
    settings = {**EXPLORING, **context}
    return Case(sunar.build(opened), opened, models, {"question": QUESTION}, edits, settings)


def reasoning(llm: Reasoner) -> tuple[list[Any], Resources]:
    retriever, judge = ListedRetriever(lambda query: FOUND), ScriptedJudge()
    return [llm, retriever, judge], Resources(llm, ScriptedEncoder(), retriever, judge=judge)


def said_so_far(shown: Sequence[str], said: Sequence[str]) -> str | Completion:
    first = doubted("The founder is Ada.", Ada=0.1)
    return first if not said else LAST if len(said) > 1 else "Ada was born in Kirkby."


def rewritten(state: Any) -> dict[str, Any]:
    """The step as it stands, with the mark in it."""
    key = "kept" if state["kept"] else "draft"
    written = state[key]
    text = written["rationale"].removesuffix(".")
    return {key: {**written, "rationale": f"{text} {MARK}."}}


WRITTEN = Edit(rewritten, shows=lambda output, asked: MARK in str(output["steps"]))
ENDED = Edit(
    lambda state: {"rationales": [f"So the final answer is: {MARK}."]},
    shows=lambda output, asked: MARK in str(output),
)


def word(probability: float) -> Edit:
    """The only word of the draft is the mark."""
    words = [{"text": MARK, "probability": probability}]
    return Edit(lambda state: {"draft": {**state["draft"], "words": words}})


STEPWISE = {
    "draft_step": ASKED,
    "query_from_last_rationale": ASKED,
    "mask_unlikely_words": word(0.5),
    "search_snippets": to(query=MARK),
    "keep_snippets": to(snippets=[document(MARK)]),
    "write_step": ASKED,
    "append_rationale": WRITTEN,
    "answer_from_rationales": ENDED,
    "answer_with_uncertainty": ENDED,
}


def baseline_case(graph: Any, **context: Any) -> Case:
    models, opened = reasoning(Reasoner(step=said_so_far))
    return Case(graph.build(opened), opened, models, {"question": QUESTION}, STEPWISE, context)


def iter_retgen_case() -> Case:
    models, opened = reasoning(Reasoner(whole=lambda shown: LAST))
    edits = {"generation_augmented_retrieval": ASKED, "retrieval_augmented_generation": EVIDENCE}
    return Case(iter_retgen.build(opened), opened, models, {"question": QUESTION}, edits, {"max_iterations": 3})


def seakr_case(**context: Any) -> Case:
    def uncertainty(kind: str, shown: Sequence[str], said: Sequence[str]) -> float:
        return -5.5 if not said and not shown else -6.5

    models, opened = reasoning(Reasoner(step=said_so_far, uncertainty=uncertainty))
    sure: Any = {"uncertainty": -99.0}
    edits = {
        "pseudo_generate": ASKED,
        "formulate_query": word(1.0),
        "search_snippets": to(query=MARK),
        "try_snippet": Edit(
            lambda state: {"snippets": [document(MARK)]},
            lambda path: ["try_snippet", *path[1:]],
        ),
        "rerank_snippets": Edit(
            lambda state: {"attempts": [{"chunk_id": state["snippets"][0]["id"], "rationale": f"{MARK}.", **sure}]},
            shows=WRITTEN.shows,
        ),
        "append_rationale": WRITTEN,
        "reason_over_rationales": ENDED,
        "reason_over_knowledge+reason_over_rationales": ENDED,
        "choose_strategy": answered(
            lambda state: {"strategy_answers": [{"strategy": "rationales", "answer": MARK, "reasoning": "", **sure}]}
        ),
    }
    settings = {"retrieval_threshold": "-6", "samples": 2, "k": 2, **context}
    return Case(seakr.build(opened), opened, models, {"question": QUESTION}, edits, settings)


class Same:
    """A judge for whom equal texts entail each other."""

    name = "same"

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, str]]] = []

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        self.batches.append(list(pairs))
        return np.array([[1.0, 0.0, 0.0] if one == other else [0.0, 1.0, 0.0] for one, other in pairs])


def seper_case(chunks: list[str] | None) -> Case:
    llm = Believer(believes=lambda question, shown: ["Ada", "Bo"] if shown else ["Bo", "Cy"])
    judge = Same()
    opened = Resources(llm=llm, judge=judge, retriever=ScriptedRetriever(QUERY, VECTORS))
    believed: Any = {"log_probability": 0.0, "tokens": 1, "weight": 0.5, "cut": False, "text": MARK}
    edits = {
        "retrieve": ASKED,
        "sample_responses": EVIDENCE,
        "judge_responses": to(responses_by_side={"with": [believed] * 2}),
        "measure_seper": answered(lambda state: {"responses_by_side": {"with": [believed] * 2}}),
    }
    given = {"question": QUESTION, "answers": ["Ada"], **({} if chunks is None else {"chunks": chunks})}
    return Case(seper.build(opened), opened, [llm, judge], given, edits, {"samples": 2, "k": 2})


class Converses(ScriptedChat):
    """Puts a follow-up question into words that stand alone."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        if messages[0] != standalone.messages([], "")[0]:
            return await super().complete(messages, sampling)
        await self._begin("complete", messages)
        return Reply((Completion("Where was Ada born?", "stop"),), Tokens(7, 3))


def chat_case(name: str, case: Callable[[], Case]) -> Case:
    within = case()
    llm = within.models[0]
    llm.__class__ = type("Chatting", (Converses, type(llm)), {})
    edits = {
        "standalone": ASKED,
        name: ASKED,
        "reply": Edit(
            lambda state: {"answer": MARK}, shows=lambda output, asked: output["messages"][-1].content == MARK
        ),
    }
    given, first = {"messages": FOLLOW_UP}, {"messages": [*FOLLOW_UP[:-1], HumanMessage(MARK)]}
    builder = chat.build(name, within.resources)
    return Case(builder, within.resources, within.models, given, edits, within.context, first)


CASES: dict[str, Callable[[], Case]] = {
    "cot": lambda: baseline_case(cot, max_steps=3),
    "dense": lambda: dense_case(["one", "two", "three"]),
    "dense, of a retrieval": lambda: dense_case(None),
    "dense_rag": dense_rag_case,
    "dense_rag, not cut anew": lambda: dense_rag_case(adaptive=False, max_rounds=1),
    "dense_rag, not judged": lambda: dense_rag_case(self_evaluation=False, max_rounds=1),
    "dense_rag, not refined": lambda: dense_rag_case(refinement="off"),
    "df_rag": df_rag_case,
    "escalate": escalate_case,
    "flare": lambda: baseline_case(flare, max_docs=1),
    "flare, with another bound": lambda: baseline_case(flare, likely_from=0.05),
    "ircot": lambda: baseline_case(ircot, max_docs=1),
    "iter_retgen": iter_retgen_case,
    "neighbourhood": neighbourhood_case,
    "neighbourhood, without a penalty": lambda: neighbourhood_case(penalty="none", samples=10),
    "seakr": lambda: seakr_case(max_docs=2),
    "seakr, of one strategy": lambda: seakr_case(reasoning="rationales", self_aware_retrieval=False, max_docs=1),
    "seper": lambda: seper_case(["one", "two"]),
    "seper, of a retrieval": lambda: seper_case(None),
    "sunar": sunar_case,
    "sunar, without meta evidence": lambda: sunar_case(meta_evidence=False),
    "vanilla_rag": vanilla_case,
    "dense_rag_chat": lambda: chat_case("dense_rag", dense_rag_case),
    "df_rag_chat": lambda: chat_case("df_rag", df_rag_case),
    "seakr_chat": lambda: chat_case("seakr", seakr_case),
    "sunar_chat": lambda: chat_case("sunar", sunar_case),
}


# --- threads ---


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("_chat")])
async def test_a_threads_next_question_ends_in_the_state_of_a_fresh_thread(name: str) -> None:
    case = CASES[name]()
    graph = case.builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({**case.given, **case.first}, THREAD, context=case.context)
    plain = [key for key in graph.stream_channels if type(graph.channels[key]) is LastValue]
    await graph.aupdate_state(THREAD, dict.fromkeys(plain, MARK))  # also keys that no step of this run writes
    second = {key: case.given[key] for key in graph.get_input_jsonschema()["required"]}  # no chunks, no query
    ends = []
    for thread in ("1", "2"):
        case.forget()
        config: Any = {"configurable": {"thread_id": thread}}
        await graph.ainvoke(second, config, context=case.context)
        ends.append(figures((await graph.aget_state(config)).values))
    assert ends[0] == ends[1]
    assert ends[0].keys() >= set(plain)


# --- forks ---


@dataclass
class Ran:
    """A finished run: its output, its steps, its checkpoints from the first to the last."""

    graph: Any
    output: dict[str, Any]
    path: list[str]
    checkpoints: list[Any]

    def rest(self, checkpoint: Any) -> list[str]:
        """The steps that the run took from there."""
        return self.path[max(0, checkpoint.metadata["step"]) :]

    def before(self, checkpoint: Any) -> list[str]:
        """The nodes that had written it, in whose name Studio edits it."""
        step = checkpoint.metadata["step"]
        return ["__input__"] if step < 0 else ["__start__"] if step == 0 else nodes(self.path[step - 1])


def nodes(step: str) -> list[str]:
    return [name.partition("*")[0] for name in step.split("+")]


async def run(case: Case, saver: Any) -> Ran:
    graph = case.builder.compile(checkpointer=saver)
    output, path, _ = await walk(graph, case.given, case.context, THREAD)
    checkpoints = [one async for one in graph.aget_state_history(THREAD)][::-1]
    assert [one.metadata["step"] for one in checkpoints] == list(range(-1, len(path) + 1))
    return Ran(graph, output, path, checkpoints)


async def go_on(case: Case, ran: Ran, config: Any) -> tuple[dict[str, Any], list[str]]:
    """Where a run from a checkpoint leads, and its steps."""
    case.forget()
    state, path, _ = await walk(ran.graph, None, case.context, config)
    return state, path


def figures(output: Mapping[str, Any]) -> dict[str, Any]:
    """The output with what a run cost, without the time that it took and the ids of messages."""
    told = {**output, "usage": timeless(output["usage"])}
    if "messages" in told:
        told["messages"] = [(one.content, one.response_metadata) for one in told["messages"]]
    return told


def timeless(usage: Usage) -> Any:
    costs = {name: {**cost, "seconds": None} for name, cost in usage["nodes"].items()}
    return {**usage, "nodes": costs}


def counted(ran: Ran, checkpoint: Any) -> int:
    """The calls that a question's usage holds at a checkpoint; the first step begins it anew."""
    usage = (checkpoint.values.get("usage") or NO_USAGE) if checkpoint.metadata["step"] > 0 else NO_USAGE
    return int(usage["calls"])


@pytest.mark.parametrize("name", CASES)
async def test_a_replay_of_every_checkpoint_is_the_rest_of_the_run(name: str) -> None:
    case = CASES[name]()
    ran = await run(case, InMemorySaver())
    assert ran.output["usage"]["calls"] == case.calls() > 0
    for checkpoint in ran.checkpoints:
        output, path = await go_on(case, ran, checkpoint.config)
        assert path == ran.rest(checkpoint)
        offered = Counter(task.name for task in checkpoint.tasks)
        expected = path[0] if path else ""
        assert checkpoint.next == ("__start__",) or "+".join(sorted(offered)) == "+".join(nodes(expected))
        assert figures(output) == figures(ran.output)
        assert counted(ran, checkpoint) + case.calls() == output["usage"]["calls"], "no call counts twice"


@pytest.mark.parametrize("name", [name for name in CASES if "," not in name])
async def test_a_program_that_was_started_anew_goes_on_from_a_file(name: str, tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoints.sqlite")
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        ran = await run(CASES[name](), saver)
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        case = CASES[name]()
        again = replace(ran, graph=case.builder.compile(checkpointer=saver))
        kept = [one async for one in again.graph.aget_state_history(THREAD)][::-1]
        plain = [{key: value for key, value in one.values.items() if key != "messages"} for one in kept]
        assert json.loads(json.dumps(plain)) == plain
        assert [one.next for one in kept] == [one.next for one in ran.checkpoints]
        middle = kept[len(kept) // 2]
        output, path = await go_on(case, again, middle.config)
        assert path == ran.rest(middle)
        assert figures(output) == figures(ran.output)


@pytest.mark.parametrize("name", CASES)
async def test_an_edit_at_every_checkpoint_is_what_the_rest_of_the_run_goes_by(name: str) -> None:
    case = CASES[name]()
    ran = await run(case, InMemorySaver())
    assert MARK not in case.asked() + str(ran.output)
    for checkpoint in ran.checkpoints:
        rest = ran.rest(checkpoint)
        edit = edit_before(rest, checkpoint, case)
        for node in ran.before(checkpoint):
            values = edit.values(checkpoint.values)
            edited = await ran.graph.aupdate_state(checkpoint.config, values, as_node=node)
            output, path = await go_on(case, ran, edited)
            where = f"{rest[:1]} as {node}"
            assert path == edit.path(rest), where
            assert edit.shows(output, case.asked()), where
            assert counted(ran, checkpoint) + case.calls() == output["usage"]["calls"], where


def edit_before(rest: list[str], checkpoint: Any, case: Case) -> Edit:
    if checkpoint.metadata["step"] <= 0:
        return to(**case.given | case.first)  # the whole input: LangGraph forgets what is no part of an edit of it
    if not rest:
        return Edit(lambda state: {"answer": MARK}, shows=lambda output, asked: output["answer"] == MARK)
    return case.edits["+".join(nodes(rest[0]))]


async def test_the_routing_goes_by_the_settings_of_the_last_step_where_a_replay_had_others() -> None:
    case = iter_retgen_case()
    ran = await run(case, InMemorySaver())
    checkpoint = next(one for one in ran.checkpoints if one.next == ("retrieval_augmented_generation",))
    assert ran.rest(checkpoint).count("generation_augmented_retrieval") == 2
    await ran.graph.ainvoke(None, checkpoint.config, context={"max_iterations": 1})
    state = await ran.graph.aget_state(THREAD)
    edited = await ran.graph.aupdate_state(state.config, {"warnings": [MARK]}, as_node="retrieval_augmented_generation")
    assert (await ran.graph.aget_state(edited)).next == (), "one iteration was asked for"
    assert len(state.values["iterations"]) == 1


async def test_df_rag_does_not_go_on_without_its_candidates() -> None:
    case = df_rag_case()
    ran = await run(case, InMemorySaver())
    prepared = next(one for one in ran.checkpoints if "plan" in one.next)
    planned = await ran.graph.aupdate_state(prepared.config, {"plan": [MARK]}, as_node="plan")
    with pytest.raises(UserFault, match="no candidate chunk sets yet"):
        await ran.graph.ainvoke(None, planned, context=case.context)


# --- inside a subgraph ---


@pytest.mark.parametrize(("name", "inner"), [("dense_rag", "dense"), ("sunar", "neighbourhood")])
async def test_a_checkpoint_inside_a_subgraph_leads_to_the_runs_own_end(name: str, inner: str) -> None:
    """LangGraph begins the subgraph anew there (issue 8458 of its repository); nothing counts twice all the same."""
    case = CASES[name]()
    ran = await run(case, InMemorySaver())
    outer = next(one for one in ran.checkpoints if one.next == (inner,))
    within = [one async for one in ran.graph.aget_state_history(outer.tasks[0].state)]
    assert len(within) > 5
    for checkpoint in (within[0], within[len(within) // 2], within[-1]):
        output, path = await go_on(case, ran, checkpoint.config)
        assert path == ran.rest(outer)
        assert figures(output) == figures(ran.output)


async def test_what_failed_inside_a_subgraph_is_edited_there_and_goes_on_there(fast_retries: None) -> None:
    case = CASES["dense_rag, not refined"]()
    judge = case.models[1]
    graph = case.builder.compile(checkpointer=InMemorySaver())
    judge.faults = [ModelFault("judge", "connection refused")] * 4
    with pytest.raises(ModelUnavailable):
        await graph.ainvoke(case.given, THREAD, context=case.context)
    failed = (await graph.aget_state(THREAD, subgraphs=True)).tasks[0].state
    assert failed.next == ("entail",)
    case.forget()
    await graph.aupdate_state(failed.config, {"response_by_key": {ORIGINAL: MARK}}, as_node="respond")
    output, _, (inner, *_) = await walk(graph, None, case.context, THREAD)
    assert inner == ["entail", "measure_dse"]
    assert MARK in str(judge.batches[0])
    assert "rounds" in output


# --- with a person in the loop ---


async def test_a_reviewed_run_is_replayed_and_edited_at_every_checkpoint() -> None:
    within = dense_rag_case()
    graph: Any = reviewed.build("dense_rag", within.resources).compile(checkpointer=InMemorySaver())
    context = {**within.context, "refinement": "off", "adaptive": False}
    stopped = await graph.ainvoke(within.given, THREAD, context=context)
    end = await graph.ainvoke(Command(resume={"action": "accept"}), THREAD, context=context)
    history = [one async for one in graph.aget_state_history(THREAD)][::-1]
    assert [one.next for one in history] == [("__start__",), ("begin_review",), ("dense_rag",), ("review",), ()]
    for checkpoint in history[:-1]:
        within.forget()
        shown = await graph.ainvoke(None, checkpoint.config, context=context)
        assert [one.value for one in shown["__interrupt__"]] == [one.value for one in stopped["__interrupt__"]]
        assert (await graph.ainvoke(Command(resume="accept"), THREAD, context=context))["decisions"] == end["decisions"]
        usage = (await graph.aget_state(THREAD)).values["usage"]
        assert timeless(usage) == timeless(end["usage"])
    edited = await graph.aupdate_state(history[3].config, {"answer": MARK}, as_node="dense_rag")
    (shown,) = (await graph.ainvoke(None, edited, context=context))["__interrupt__"]
    assert shown.value["answer"] == MARK
    asked = await graph.aupdate_state(history[2].config, {"question": MARK}, as_node="begin_review")
    within.forget()
    await graph.ainvoke(None, asked, context=context)
    assert MARK in within.asked()
