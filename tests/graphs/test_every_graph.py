"""What every graph owes its callers, in whichever way it is called; the cases are those of the forks."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from dubito.benchmarks.chaos import settings_of
from dubito.errors import ModelFault, ModelUnavailable, UserFault
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.graphs.settings_of_nodes import WHOLE_RUN
from dubito.graphs.wiring import nodes_of_settings
from dubito.prompt_templates import PROMPTS
from dubito.state.context import BaseContext, all_contexts
from dubito.tests.graphs.test_forks import CASES, Case, figures
from dubito.tests.recorded import RUNS
from dubito.tests.scripted import ANSWERED, ScriptedChat
from dubito.tests.unit.test_trace_viewer import WHY
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph

CONTEXT_FIELDS = {name for context in all_contexts() for name in context.model_fields}


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACES: dict[str, set[str]] = {
    "CASES in tests/graphs/test_forks.py": {
        name.partition(",")[0] for name in CASES if name.removesuffix("_chat") == name
    },
    "RUNS in tests/recorded.py": set(RUNS),
    "WHY in tests/unit/test_trace_viewer.py": set(WHY),
    "the first table of README.md": {
        name
        for cell in re.findall(r"^\| (`[^|]*)\|", README.partition("\n## ")[0], re.M)
        for name in re.findall(r"\w+", cell)
    },
    "<!-- figure NAME --> or <!-- settings NAME --> in a page of docs/": {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"^<!-- (?:figure|settings) (\w+) -->$", page.read_text(encoding="utf-8"), re.M)
    }
    - {"shared"},
}
"""Where each graph has to stand, and the graphs that stand there."""


@pytest.mark.parametrize("place", PLACES)
def test_every_graph_has_its_place(place: str) -> None:
    assert PLACES[place] == set(graph_names()), place


@pytest.fixture(params=graph_names())
def case(request: pytest.FixtureRequest, fast_retries: None) -> Case:
    return CASES[request.param]()


async def output_of(case: Case) -> dict[str, Any]:
    """What the graph gives if nothing is in the way."""
    output: dict[str, Any] = await case.builder.compile().ainvoke(case.given, context=case.context)
    case.forget()
    return figures(output)


@pytest.mark.parametrize("name", graph_names())
async def test_every_way_to_call_gives_the_same(name: str) -> None:
    case = CASES[name]()
    graph: Any = case.builder.compile()
    settings = context_type(graph)(**case.context)
    ways = [
        lambda: graph.ainvoke(case.given, context=case.context),
        lambda: graph.ainvoke(case.given, context=settings),
        lambda: asyncio.to_thread(graph.invoke, case.given, context=case.context),
        lambda: last(graph.astream(case.given, context=settings, stream_mode="values")),
        lambda: asyncio.to_thread(lambda: [*graph.stream(case.given, context=settings, stream_mode="values")][-1]),
    ]
    expected = await output_of(case)
    assert set(expected) == set(case.builder.output_schema.__annotations__) >= ANSWERED
    assert json.loads(json.dumps(expected, allow_nan=False)) == expected
    for way in ways:
        got = await way()
        assert figures({key: got[key] for key in expected}) == expected  # a stream of values has the whole state
        case.forget()


@pytest.mark.parametrize("name", graph_names())
async def test_the_settings_say_whether_it_measures_an_uncertainty_of_its_own(name: str) -> None:
    case = CASES[name]()
    measured = (await output_of(case))["uncertainty"] is not None
    assert getattr(context_type(case.builder.compile()), "measures_itself", False) == measured, "`measures_itself`"


async def last(stream: Any) -> Any:
    return [part async for part in stream][-1]


@pytest.mark.parametrize("as_object", [True, False], ids=["context", "dict"])
async def test_as_a_subgraph_of_another_graph(case: Case, as_object: bool) -> None:
    graph = case.builder.compile()
    parent: Any = StateGraph(
        case.builder.state_schema, input_schema=case.builder.input_schema, output_schema=case.builder.output_schema
    )
    parent.add_node("inner", graph)
    parent.add_edge(START, "inner")
    parent.add_edge("inner", END)
    expected = await output_of(case)
    context = context_type(graph)(**case.context) if as_object else case.context
    assert figures(await parent.compile().ainvoke(case.given, context=context)) == expected


@pytest.mark.parametrize("question", ["", "  \n ", "x" * 100_000, None])
async def test_a_bad_question_is_refused_before_any_model_is_called(case: Case, question: Any) -> None:
    with pytest.raises(UserFault, match="question"):
        await case.builder.compile().ainvoke({**case.given, "question": question}, context=case.context)
    assert case.calls() == 0


async def test_a_model_fault_is_retried_and_not_counted(case: Case) -> None:
    expected = await output_of(case)
    case.models[0].faults = [ModelFault("scripted", "timed out")] * 3
    assert figures(await case.builder.compile().ainvoke(case.given, context=case.context)) == expected


async def test_a_lasting_model_fault_ends_as_unavailable(case: Case) -> None:
    case.models[0].faults = [ModelFault("scripted", "connection refused")] * 99
    with pytest.raises(ModelUnavailable, match="scripted did not answer after 4 attempts: connection refused"):
        await case.builder.compile().ainvoke(case.given, context=case.context)


async def test_a_fault_whose_request_was_retried_is_not_retried_by_the_node(case: Case) -> None:
    # twice, because a cascade asks its second rung
    case.models[0].faults = [ModelFault("scripted", "connection refused", attempts=7) for _ in range(2)]
    with pytest.raises(ModelUnavailable, match="scripted did not answer after 7 attempts: connection refused"):
        await case.builder.compile().ainvoke(case.given, context=case.context)


async def test_each_prompt_is_used_where_its_template_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[str, str]] = set()
    begin = ScriptedChat._begin

    async def noted(chat: ScriptedChat, verb: str, messages: Any) -> None:
        asked.add((messages[0]["content"], get_config()["metadata"]["langgraph_node"]))
        await begin(chat, verb, messages)

    monkeypatch.setattr(ScriptedChat, "_begin", noted)
    await case.builder.compile().ainvoke(case.given, context=case.context)
    # a prompt may speak of passages only where there are some
    names = {system_turn(prompt, chunks): name for name, prompt in PROMPTS.items() for chunks in ([], ["a chunk"])}
    assert asked
    assert [(names[system], node) for system, node in asked if node not in PROMPTS[names[system]].nodes] == []


async def test_each_setting_is_read_where_the_graph_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[tuple[str, str]] = set()

    def noted(context: BaseContext, name: str) -> Any:
        if name in CONTEXT_FIELDS and sys._getframe(1).f_globals["__name__"].startswith("dubito.nodes."):
            with suppress(RuntimeError):  # outside of a run
                read.add((name, get_config()["metadata"]["langgraph_node"]))
        return object.__getattribute__(context, name)

    graph: Any = case.builder.compile()
    monkeypatch.setattr(BaseContext, "__getattribute__", noted)
    await graph.ainvoke(case.given, context=case.context)
    monkeypatch.undo()
    said = {(name, node) for name, nodes in nodes_of_settings(graph).items() for node in nodes}
    # `prepare` opens what all settings name
    of_nodes = {(name, node) for name, node in read if node != "prepare" and name not in WHOLE_RUN}
    assert of_nodes, "the nodes read settings"
    assert of_nodes - said == set()


def test_a_setting_that_decides_what_follows_stands_at_the_node_before() -> None:
    nodes = nodes_of_settings(CASES["vanilla_rag"]().builder.compile())
    assert "generate" in nodes["cite"], "after_answer looks at it"


def system_turn(prompt: Any, chunks: list[str]) -> str:
    return "".join(prompt.template.blocks["system"](prompt.template.new_context({"chunks": chunks}))).strip()


def test_a_notebook_draws_a_graph_without_the_network() -> None:
    shown = CASES["cot"]().builder.compile()._repr_mimebundle_()
    assert set(shown) == {"text/plain", "text/markdown"}
    assert shown["text/markdown"].startswith("```mermaid\n")
    assert "prepare --> draft_step;" in shown["text/markdown"]


@pytest.mark.parametrize("name", graph_names())
def test_the_benchmark_of_faults_asks_it_with_settings_that_it_takes(name: str) -> None:
    assert context_type(graph_named(name))(**settings_of(name, "http://127.0.0.1:1/v1"))
