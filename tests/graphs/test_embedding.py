"""The graphs inside somebody else's program: every way to call them, every place to put them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
from blockbuster import BlockingError
from dubito.errors import CapabilityMissing, ContextOverflow, ContractFault, ModelFault, ModelUnavailable, UserFault
from dubito.graphs import df_rag, vanilla_rag
from dubito.graphs.wiring import Machine
from dubito.models.metering import report_progress
from dubito.resources import resources as registry
from dubito.resources.resources import Resources
from dubito.state.df_rag import DFRagContext, DFRagState
from dubito.state.flow import Flow, Question
from dubito.state.records import Chunk, Usage, add_usage, extend
from dubito.state.vanilla_rag import SelectionState, VanillaRagContext
from dubito.tests.scripted import ANSWERED, QUERY, QUESTION, VECTORS, ScriptedChat, ScriptedRetriever, chat, resources
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

INPUT: Any = {"question": QUESTION}
REPORT: Any = {"evaluator": "report"}
LIKELIHOOD: Any = {"evaluator": "likelihood"}
GRAPHS: dict[str, Any] = {"df_rag": df_rag, "vanilla_rag": vanilla_rag}


def model(**more: Any) -> ScriptedChat:
    """A model for the defaults of both graphs: it can score, so the embedded preset's evaluator works."""
    return chat(mean_logprob=lambda user, step: -1.0, **more)


def machine(name: str, llm: ScriptedChat | None = None, **compile_with: Any) -> Any:
    return GRAPHS[name].build(resources(llm or model())).compile(name=name, **compile_with)


def calls(result: Mapping[str, Any]) -> Any:
    return result["usage"]["calls"]


# --- every way to call ---


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("context", [None, {}, {"k": 2}])
async def test_ainvoke_and_astream(name: str, context: dict[str, Any] | None) -> None:
    graph = machine(name)
    result = await graph.ainvoke(INPUT, context=context)
    assert result["answer"] == "the Lune"
    assert set(result) >= ANSWERED
    assert "question" not in result
    assert len(result["evidence"]) == (2 if context else 5)
    updates = [node async for part in graph.astream(INPUT, context=context, stream_mode="updates") for node in part]
    assert (updates[0], updates[-1]) == ("prepare", "generate")


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("context", [None, {}, {"k": 2}])
def test_invoke_and_stream(name: str, context: dict[str, Any] | None) -> None:
    graph = machine(name)
    result = graph.invoke(INPUT, context=context)
    assert result["answer"] == "the Lune"
    assert set(result) >= ANSWERED
    assert len(result["evidence"]) == (2 if context else 5)
    updates = [node for part in graph.stream(INPUT, context=context, stream_mode="updates") for node in part]
    assert (updates[0], updates[-1]) == ("prepare", "generate")


def test_batch() -> None:
    results = machine("vanilla_rag").batch([INPUT] * 4)
    assert [one["answer"] for one in results] == ["the Lune"] * 4


@pytest.mark.filterwarnings("ignore:This API is in beta")
async def test_as_a_tool_of_an_agent() -> None:
    tool = machine("df_rag").as_tool(name="look_up", description="Looks things up.")
    assert list(tool.args) == ["question"]
    assert (await tool.ainvoke(INPUT))["answer"] == "the Lune"
    assert (await asyncio.to_thread(tool.invoke, INPUT))["answer"] == "the Lune"


async def test_every_model_call_is_reported_while_it_runs() -> None:
    events = [event async for event in machine("df_rag").astream(INPUT, context=REPORT, stream_mode="custom")]
    assert json.loads(json.dumps(events)) == events
    assert {event["type"] for event in events} == {"llm_call"}
    assert [event["node"] for event in events] == ["plan", *["evaluate"] * (len(events) - 2), "generate"]
    evaluations = [event for event in events if event["node"] == "evaluate"]
    assert len({event["task"] for event in evaluations}) == len(evaluations), "parallel tasks can be told apart"
    call = events[-1]["call"]
    assert call["request"]["messages"][-1]["content"].endswith(QUESTION)
    assert call["reply"]["texts"] == ["the Lune"]
    assert (call["verb"], call["prompt_tokens"], call["completion_tokens"]) == ("complete", 7, 3)


def test_every_model_call_is_reported_to_sync_callers_too() -> None:
    events = list(machine("df_rag").stream(INPUT, context=REPORT, stream_mode="custom"))
    assert [event["node"] for event in events] == ["plan", *["evaluate"] * (len(events) - 2), "generate"]


async def test_a_notebook_cell_may_invoke_while_its_loop_runs() -> None:
    assert machine("df_rag").invoke(INPUT)["answer"] == "the Lune"


async def test_a_notebook_cell_may_invoke_while_a_task_of_its_loop_opens_the_same_model(slow_opening: Any) -> None:
    graph = df_rag.build(Resources(retriever=ScriptedRetriever(QUERY, VECTORS))).compile()
    task = asyncio.create_task(graph.ainvoke(INPUT))
    await asyncio.sleep(0.05)
    assert slow_opening == ["embedded"], "the task is waiting for the model"
    assert graph.invoke(INPUT)["answer"] == "the Lune"
    assert (await task)["answer"] == "the Lune"
    assert slow_opening == ["embedded"], "opened once"


async def test_inside_an_async_node_of_ours_invoke_says_what_to_do() -> None:
    # the node runs on the loop that serves `.invoke`: waiting there for another `.invoke` would never end
    inner = machine("vanilla_rag")

    async def node(state: Any, context: Any, opened: Any) -> dict[str, Any]:
        return {"answer": inner.invoke(INPUT)["answer"]}

    with pytest.raises(RuntimeError, match="await the coroutine there instead"):
        await asyncio.to_thread(one_step(node).invoke, INPUT)


@pytest.mark.parametrize("name", GRAPHS)
async def test_twenty_at_once_in_one_loop(name: str) -> None:
    def reply(system: str, user: str) -> str:
        if "plan how to answer" in system:
            return f"1) {user.removeprefix('Question: ')}"
        return "answer to " + user.rsplit("in a few words: ", 1)[1].split("\n", maxsplit=1)[0]

    llm = ScriptedChat(reply=reply, mean_logprob=lambda user, step: -1.0, seconds=0.5)
    graph = machine(name, llm)
    results = await asyncio.gather(*(graph.ainvoke({"question": f"question {i}"}) for i in range(20)))
    assert [one["answer"] for one in results] == [f"answer to question {i}" for i in range(20)]
    assert len({calls(one) for one in results}) == 1, "each counts its own calls"
    assert sum(calls(one) for one in results) == len(llm.calls)
    assert llm.under_way_at_most == 16, "the model's bound holds for all of them together"


@pytest.mark.parametrize("name", GRAPHS)
def test_one_graph_serves_several_event_loops(name: str) -> None:
    graph = machine(name)
    answers = [asyncio.run(graph.ainvoke(INPUT, context={"concurrency": 1}))["answer"] for _ in range(3)]
    assert [*answers, graph.invoke(INPUT, context={"concurrency": 1})["answer"]] == ["the Lune"] * 4


# --- as a node of another graph ---


class Parent(TypedDict, total=False):
    """The state of an agent that shares every key with ours and joins them as we do."""

    question: str
    answer: str
    evidence: list[Chunk]
    usage: Annotated[Usage, add_usage]
    warnings: Annotated[list[str], extend]
    topic: str


@dataclass
class Tenant:
    """A context that is none of ours, with a name that we use too."""

    customer: str
    k: str = "not a number"


class Plain(TypedDict):
    """A context that is a plain dict and none of ours."""

    customer: str


def parent_of(child: Any, context_schema: type | None = None, **compile_with: Any) -> Any:
    graph = StateGraph(Parent, context_schema=context_schema)
    graph.add_node("greet", lambda state: {"topic": "rivers", "warnings": ["said hello"]})
    graph.add_node("rag", child)
    graph.add_node("sign", lambda state: {"answer": state["answer"] + ", I think"})
    graph.add_edge(START, "greet")
    graph.add_edge("greet", "rag")
    graph.add_edge("rag", "sign")
    graph.add_edge("sign", END)
    return graph.compile(**compile_with)


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemorySaver(serde=strict())
    else:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.sqlite")) as opened:
            opened.serde = strict()
            yield opened


def strict() -> JsonPlusSerializer:
    """What LANGGRAPH_STRICT_MSGPACK=true selects: nothing but plain values comes back from a checkpoint."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("name", GRAPHS)
async def test_as_a_node_with_a_checkpointer(name: str, saver: BaseCheckpointSaver[Any]) -> None:
    llm = model()
    graph = parent_of(machine(name, llm), checkpointer=saver)
    inner: list[str] = []
    outer: list[str] = []
    async for path, part in graph.astream(INPUT, THREAD, stream_mode="updates", subgraphs=True):
        (inner if path else outer).extend(part)
    assert outer == ["greet", "rag", "sign"]
    assert (inner[0], inner[-1]) == ("prepare", "generate")
    values = (await graph.aget_state(THREAD)).values
    assert values["answer"] == "the Lune, I think"
    assert values["topic"] == "rivers"
    assert values["warnings"] == ["said hello"]
    assert calls(values) == len(llm.calls), "the parent adds the child's usage once"
    assert sum(cost["calls"] for cost in values["usage"]["nodes"].values()) == len(llm.calls)

    again = await graph.ainvoke(INPUT, THREAD)
    assert calls(again) == len(llm.calls), "the parent's usage goes on over its thread, as its reducer says"
    assert again["warnings"] == ["said hello"] * 2


async def test_the_childs_warnings_reach_the_parent_once() -> None:
    opened = resources(model(), vectors=VECTORS[:3])
    result = await parent_of(df_rag.build(opened).compile()).ainvoke(INPUT)
    assert len(result["warnings"]) == 2
    assert result["warnings"][0] == "said hello"
    assert "were found: 3." in result["warnings"][1]


async def test_a_parent_may_stop_inside_the_child_and_go_on(saver: BaseCheckpointSaver[Any]) -> None:
    llm = model()
    graph = parent_of(machine("df_rag", llm, interrupt_before=["generate"]), checkpointer=saver)
    await graph.ainvoke(INPUT, THREAD)
    stopped = await graph.aget_state(THREAD, subgraphs=True)
    assert stopped.next == ("rag",)
    child = stopped.tasks[0].state
    assert child.next == ("generate",)
    assert child.values["lambda_star"] == 0.6
    evidence = [{**child.values["evidence"][0], "text": "The Wye, says the editor."}]
    await graph.aupdate_state(child.config, {"evidence": evidence})
    result = await graph.ainvoke(None, THREAD)
    assert result["answer"] == "the Lune, I think"
    assert [chunk["text"] for chunk in result["evidence"]] == ["The Wye, says the editor."]
    assert "The Wye, says the editor." in llm.calls[-1][1][-1]["content"]
    assert calls(result) == len(llm.calls)


async def test_called_inside_a_node_it_streams_its_steps_and_takes_its_own_context() -> None:
    child = machine("df_rag")

    async def look_up(state: Parent) -> dict[str, Any]:
        result = await child.ainvoke({"question": state["question"]}, context={"k": 2, **REPORT})
        return {"answer": result["answer"], "evidence": result["evidence"], "usage": result["usage"]}

    graph = parent_of(look_up, Tenant)
    seen = [
        node
        async for path, part in graph.astream(
            INPUT, context=Tenant("c"), stream_mode="updates", subgraphs=True, version="v1"
        )
        for node in part
        if path
    ]
    assert seen[-1] == "generate"
    assert len((await graph.ainvoke(INPUT, context=Tenant("c")))["evidence"]) == 2


def test_called_inside_a_sync_node_with_invoke() -> None:
    child = machine("df_rag")
    graph = parent_of(lambda state: {"answer": child.invoke({"question": state["question"]})["answer"]})
    assert graph.invoke(INPUT)["answer"] == "the Lune, I think"


@pytest.mark.parametrize(
    ("schema", "context", "chunks"),
    [
        (None, None, 5),
        (None, {"k": 2}, 2),
        (None, {"customer": "c"}, 5),
        (Tenant, Tenant("c"), 5),
        (Tenant, {"customer": "c"}, 5),
        (Plain, {"customer": "c"}, 5),
        (DFRagContext, {"k": 2}, 2),
        (VanillaRagContext, {"k": 2}, 2),
    ],
    ids=["none", "dict", "other-dict", "dataclass", "dataclass-dict", "typeddict", "ours", "sibling"],
)
async def test_a_parents_context_is_ours_only_if_it_looks_like_ours(schema: Any, context: Any, chunks: int) -> None:
    result = await parent_of(machine("df_rag"), schema).ainvoke(INPUT, context=context)
    assert len(result["evidence"]) == chunks


async def test_a_parents_dict_with_a_wrong_setting_of_ours_is_refused() -> None:
    with pytest.raises(UserFault, match="k is '5000' and must be a whole number from 1 to 1000"):
        await parent_of(machine("df_rag")).ainvoke(INPUT, context={"k": 5000})


# --- being stopped ---


class Hanging(ScriptedChat):
    """A model whose calls never end; it tells when one begins and when one is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def complete(self, messages: Any, sampling: Any) -> Any:
        self.calls.append(("complete", list(messages)))
        self.begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.calls.append(("cancelled", []))
            raise


@pytest.mark.parametrize("name", GRAPHS)
async def test_a_cancelled_run_cancels_its_model_call(name: str) -> None:
    llm = Hanging()
    task = asyncio.create_task(machine(name, llm).ainvoke(INPUT, context={} if name == "vanilla_rag" else REPORT))
    await llm.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [verb for verb, _ in llm.calls] == ["complete", "cancelled"]


async def test_a_timeout_around_a_run_cancels_its_model_call() -> None:
    llm = Hanging()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(machine("vanilla_rag", llm).ainvoke(INPUT), 0.1)
    assert [verb for verb, _ in llm.calls] == ["complete", "cancelled"]


async def test_leaving_a_stream_cancels_its_model_call() -> None:
    llm = Hanging()
    stream = machine("df_rag", llm).astream(INPUT, context=REPORT, stream_mode="updates")
    assert "prepare" in await anext(stream)
    assert "candidates" in await anext(stream)
    await stream.aclose()
    assert [verb for verb, _ in llm.calls] == ["complete", "cancelled"]


@pytest.fixture
def slow_opening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Chat models take a moment to open; the list tells which were."""
    opened: list[str] = []

    def open_slowly(name: str) -> ScriptedChat:
        opened.append(name)
        time.sleep(0.3)
        return model()

    monkeypatch.setattr(registry, "open_chat_model", open_slowly)
    return opened


async def test_a_caller_that_gives_up_does_not_stop_what_others_wait_for(slow_opening: list[str]) -> None:
    graph = vanilla_rag.build(Resources(retriever=ScriptedRetriever(QUERY, VECTORS))).compile()
    first = asyncio.create_task(graph.ainvoke(INPUT))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(graph.ainvoke(INPUT))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await second)["answer"] == "the Lune"
    assert slow_opening == ["embedded"]


def test_what_a_closed_loop_began_to_open_is_opened_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def open_with_progress(name: str) -> ScriptedChat:
        begun.append(name)
        for done in range(6):
            time.sleep(0.1)
            report_progress("opening", done, 6)
        return model()

    monkeypatch.setattr(registry, "open_chat_model", open_with_progress)
    graph = vanilla_rag.build(Resources(retriever=ScriptedRetriever(QUERY, VECTORS))).compile()

    async def watch() -> list[Any]:
        return [event async for event in graph.astream(INPUT, stream_mode="custom")]

    async def give_up() -> None:
        await asyncio.wait_for(watch(), 0.15)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert asyncio.run(graph.ainvoke(INPUT))["answer"] == "the Lune"
    assert begun == ["embedded"]


async def test_a_model_that_could_not_be_opened_is_tried_again_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ScriptedChat:
        raise UserFault("There is no such model.")

    graph = vanilla_rag.build(Resources(retriever=ScriptedRetriever(QUERY, VECTORS))).compile()
    monkeypatch.setattr(registry, "open_chat_model", refuse)
    results = await asyncio.gather(*(graph.ainvoke(INPUT) for _ in range(3)), return_exceptions=True)
    assert [str(one) for one in results] == ["There is no such model."] * 3
    monkeypatch.setattr(registry, "open_chat_model", lambda name: model())
    assert (await graph.ainvoke(INPUT))["answer"] == "the Lune"


# --- what goes wrong reaches the caller as it is ---


FAULTS = {
    "empty question": (model(), {"question": " "}, {}, UserFault, "question is empty"),
    "cannot score": (chat(capabilities=frozenset()), INPUT, LIKELIHOOD, CapabilityMissing, "set evaluator=report"),
    "overflow": (chat(faults=[ContextOverflow("Too long.")]), INPUT, REPORT, ContextOverflow, "Too long"),
    "lasting": (chat(faults=[ModelFault("m", "no route")] * 4), INPUT, REPORT, ModelUnavailable, "after 4 attempts"),
    "a bug": (chat(faults=[ZeroDivisionError("oops")]), INPUT, REPORT, ZeroDivisionError, "oops"),
}


async def drained(stream: Any) -> list[Any]:
    return [part async for part in stream]


CALLERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "ainvoke": lambda graph, given, context: graph.ainvoke(given, context=context),
    "invoke": lambda graph, given, context: asyncio.to_thread(graph.invoke, given, context=context),
    "astream": lambda graph, given, context: drained(graph.astream(given, context=context)),
    "stream": lambda graph, given, context: asyncio.to_thread(lambda: list(graph.stream(given, context=context))),
    "child": lambda graph, given, context: parent_of(graph, DFRagContext).ainvoke(given, context=context),
}


@pytest.mark.parametrize("how", CALLERS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_surface_as_they_are(how: str, fault: str, fast_retries: None) -> None:
    llm, given, context, kind, text = FAULTS[fault]
    llm = ScriptedChat(**{**vars(llm), "faults": list(llm.faults), "calls": []})
    graph = machine("df_rag", llm)
    with pytest.raises(kind, match=text) as caught:
        await CALLERS[how](graph, given, context)
    assert type(caught.value) is kind
    assert not llm.faults, "nothing was tried more often than it should be"


async def test_a_contract_fault_never_leaves() -> None:
    graph = machine("df_rag", ScriptedChat(reply=lambda system, user: ""))
    for evaluator in ("report", "choice"):
        llm = ScriptedChat(reply=lambda system, user: "", pick=_broken_choice)
        result = await machine("df_rag", llm).ainvoke(INPUT, context={"evaluator": evaluator})
        assert result["answer"] == ""
        assert any("Planner" in warning for warning in result["warnings"])
        assert any("it scores 0" in warning for warning in result["warnings"])
    assert (await graph.ainvoke(INPUT, context=REPORT))["plan"] == [QUESTION]


def _broken_choice(user: str, options: Any) -> str:
    raise ContractFault("it names no option", "maybe")


# --- the state ---


SETTINGS: list[dict[str, Any]] = [
    {},
    {"evaluator": "report"},
    {"evaluator": "report", "incremental_context": True, "sampling": "binary"},
    {"evaluator": "choice", "diversity": "mmr"},
    {"search": "ann", "top_n": 4, "sampling": "binary"},
]
SELECTIONS: list[dict[str, Any]] = [{"selection": one} for one in ("top_k", "gmmr", "mmr", "long_context")]
RUNS = [("df_rag", one) for one in SETTINGS] + [("vanilla_rag", one) for one in SELECTIONS]
PLAIN = (str, int, float, bool, type(None), list, dict)


def able(**more: Any) -> ScriptedChat:
    return model(pick=lambda user, options: "4" if "founder" in user else "1", context_window=4096, **more)


def foreign(value: object, path: str = "state") -> list[str]:
    """Where a value holds anything that is not exactly a JSON type: a NumPy scalar, a tuple, a dataclass."""
    if type(value) not in PLAIN:
        return [f"{path}: {type(value).__name__}"]
    if isinstance(value, dict):
        return [one for key, inner in value.items() for one in foreign(inner, f"{path}.{key}")]
    if isinstance(value, list):
        return [one for i, inner in enumerate(value) for one in foreign(inner, f"{path}[{i}]")]
    return []


def test_foreign_values_are_found() -> None:
    import numpy as np  # noqa: PLC0415

    assert foreign({"a": [1, np.float64(1.5)], "b": (1,)}) == ["state.a[1]: float64", "state.b: tuple"]


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=str)
@pytest.mark.parametrize("vectors", [VECTORS, VECTORS[:2], []], ids=["many", "few", "none"])
async def test_every_checkpoint_holds_plain_values_and_comes_back_equal(
    name: str, settings: dict[str, Any], vectors: list[list[float]]
) -> None:
    saver, serde = InMemorySaver(serde=strict()), strict()
    graph = GRAPHS[name].build(resources(able(), vectors)).compile(checkpointer=saver)
    await graph.ainvoke(INPUT, THREAD, context=settings)
    history = [snapshot async for snapshot in graph.aget_state_history(THREAD)]
    assert len(history) >= 5
    for snapshot in history:
        assert foreign(dict(snapshot.values)) == []
        assert serde.loads_typed(serde.dumps_typed(snapshot.values)) == snapshot.values
        assert json.loads(json.dumps(snapshot.values)) == snapshot.values


@pytest.mark.parametrize(("name", "settings"), RUNS, ids=str)
@pytest.mark.parametrize("vectors", [VECTORS, VECTORS[:2], []], ids=["many", "few", "none"])
async def test_every_key_that_a_node_returns_is_a_key_of_the_state(
    name: str, settings: dict[str, Any], vectors: list[list[float]], returned: dict[str, set[str]]
) -> None:
    # LangGraph drops any other key without a word
    graph = GRAPHS[name].build(resources(able(), vectors)).compile()
    await graph.ainvoke(INPUT, context=settings)
    known = set(get_type_hints(DFRagState if name == "df_rag" else SelectionState))
    assert {node: sorted(keys - known) for node, keys in returned.items() if keys - known} == {}
    skipped = {"check_certainty", "cite", *({"evaluate"} if name == "df_rag" and not vectors else ())}
    assert set(returned) == set(graph.get_graph().nodes) - {"__start__", "__end__"} - skipped, "every node ran"


@pytest.mark.parametrize("reply", ["", "nonsense"])
async def test_every_key_that_a_failing_node_returns_is_a_key_of_the_state(
    reply: str, returned: dict[str, set[str]]
) -> None:
    llm = ScriptedChat(reply=lambda system, user: reply)
    result = await machine("df_rag", llm).ainvoke(INPUT, context=REPORT)
    assert result["warnings"]
    assert {key for keys in returned.values() for key in keys} <= set(get_type_hints(DFRagState))


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The keys that each node returned, by node."""
    keys: dict[str, set[str]] = {}
    add = Machine._add_step

    def watched(machine: Any, name: str, node: Callable[..., Any], fallback: Any = None) -> None:
        async def watching(state: Any, context: Any, opened: Any) -> Any:
            update = await node(state, context, opened)
            keys.setdefault(name, set()).update(update)
            return update

        add(machine, name, watching, fallback)

    monkeypatch.setattr(Machine, "_add_step", watched)
    return keys


# --- the detector that all these tests run under ---


def one_step(node: Any) -> Any:
    graph = Machine(Flow, VanillaRagContext, Question, Flow, resources(model()))
    graph.add_steps(node)
    graph.add_edge(START, node.__name__)
    return graph.compile()


async def asleep(state: Any, context: Any, opened: Any) -> dict[str, Any]:
    time.sleep(0)  # noqa: ASYNC251 - the detector must see it
    return {}


async def makes_a_folder(state: Any, context: Any, opened: Any) -> dict[str, Any]:
    Path("/nowhere/at/all").mkdir()  # noqa: ASYNC240
    return {}


@pytest.mark.parametrize("node", [asleep, makes_a_folder])
async def test_a_node_that_blocks_the_loop_is_found(node: Any) -> None:
    with pytest.raises(BlockingError):
        await one_step(node).ainvoke(INPUT)


@pytest.mark.parametrize("node", [asleep, makes_a_folder])
def test_a_node_that_blocks_the_loop_behind_invoke_is_found(node: Any) -> None:
    with pytest.raises(BlockingError):
        one_step(node).invoke(INPUT)


async def test_what_blocks_in_a_thread_is_fine() -> None:
    async def node(state: Any, context: Any, opened: Any) -> dict[str, Any]:
        await asyncio.to_thread(time.sleep, 0.001)
        return {"answer": "rested"}

    assert (await one_step(node).ainvoke(INPUT))["answer"] == "rested"
