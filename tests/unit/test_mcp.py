"""`dubito mcp` as the official client sees it: over standard input and output, over HTTP, and in the process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dubito.cli import app
from dubito.errors import ModelFault, extra_command
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.resources.resources import Resources
from dubito.tests.graphs.test_forks import CASES
from dubito.tests.scripted import ANSWERED, ScriptedChat, ScriptedRetriever
from dubito.tests.stub_server import Stub, serving
from dubito.ui.mcp_server import GraphTool, GraphTools
from httpx2 import AsyncClient
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult
from typer.testing import CliRunner

QUESTION = {"question": "Which river?"}


def tool(llm: ScriptedChat, name: str = "vanilla_rag", **more: Any) -> GraphTool:
    retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1], [1.0, 0.2]], ["first", "second"])
    graph = graph_named(name, Resources(llm=llm, retriever=retriever))
    return GraphTool(name, graph, context_type(graph)(**more))


def lune(**more: Any) -> ScriptedChat:
    return ScriptedChat(reply=lambda system, user: "the Lune", **more)


def text(result: CallToolResult) -> str:
    (content,) = result.content
    return str(getattr(content, "text", ""))


async def test_the_answer_is_text_and_its_evidence_and_cost_are_structured() -> None:
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with Client(GraphTools([tool(lune(), k=2)], 1).server) as client:
        result = await client.call_tool("vanilla_rag", QUESTION, progress_callback=on_progress)
    assert (text(result), result.is_error) == ("the Lune", False)
    assert sorted(result.structured_content) == sorted(ANSWERED)
    assert [chunk["text"] for chunk in result.structured_content["evidence"]] == ["first", "second"]
    assert result.structured_content["usage"]["calls"] == 1
    words = ["prepare", "retrieve", "retrieve: 2 chunks, similarity 0.98 to 1.00", "generate"]
    assert told == list(enumerate(words, 1))


async def test_a_tool_says_what_it_is_for_and_takes_a_question() -> None:
    cot = graph_named("cot")
    documents = "Answers from our articles."
    tools = [
        GraphTool("library", graph_named("dense_rag"), context_type(graph_named("dense_rag"))(), documents),
        GraphTool("cot", cot, context_type(cot)(), documents),
    ]
    async with Client(GraphTools(tools, 1).server) as client:
        library, thought = (await client.list_tools()).tools
    assert library.description is not None
    assert library.description.startswith(f"{documents} Ask one full question in plain words")
    assert (library.name, library.title) == ("library", "DENSE-RAG")
    assert list(library.input_schema["properties"]) == library.input_schema["required"] == ["question"]
    assert documents not in str(thought.description)  # it looks nothing up


@pytest.mark.parametrize(
    "name", [name for name in graph_names() if name in CASES and list(CASES[name]().given) == ["question"]]
)
async def test_the_output_of_every_graph_keeps_the_schema_that_its_client_checks(name: str) -> None:
    case = CASES[name]()
    graph = case.builder.compile(name=name)
    async with Client(GraphTools([GraphTool(name, graph, context_type(graph)(**case.context))], 1).server) as client:
        result = await client.call_tool(name, case.given)
    assert not result.is_error, text(result)
    assert sorted(result.structured_content) == sorted(ANSWERED)


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize(
    ("name", "given", "fault", "sentence"),
    [
        ("vanilla_rag", {"question": " "}, None, "The question is empty"),
        ("vanilla_rag", QUESTION, ModelFault("m", "down"), "m did not answer after 4 attempts: down."),
        ("vanilla_rag", QUESTION, KeyError("lost"), "Unexpected KeyError: 'lost'"),
        ("vanilla_rag", {}, None, "vanilla_rag takes one argument, a question as text, and got nothing"),
        ("vanilla_rag", {"question": 3}, None, "takes one argument, a question as text"),
        ("vanilla_rag", {**QUESTION, "k": 3}, None, "got question and k: give question alone."),
        ("vanilla", QUESTION, None, "There is no tool named 'vanilla': use vanilla_rag"),
    ],
)
async def test_a_fault_reaches_the_client_as_its_sentence(
    name: str, given: dict[str, Any], fault: Exception | None, sentence: str
) -> None:
    async with Client(GraphTools([tool(lune(faults=[fault] * 4 if fault else []))], 1).server) as client:
        result = await client.call_tool(name, given)
    assert result.is_error
    assert sentence in text(result)


async def test_a_client_is_told_again_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubito.ui.mcp_server.QUIET_S", 0.02)
    told: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with Client(GraphTools([tool(lune(seconds=0.3))], 1).server) as client:
        await client.call_tool("vanilla_rag", QUESTION, progress_callback=on_progress)
    assert told.count("generate") > 2


async def test_no_more_questions_run_at_once_than_it_was_told() -> None:
    llm = lune(seconds=0.02)
    async with Client(GraphTools([tool(llm)], 2).server) as client:
        results = await asyncio.gather(*(client.call_tool("vanilla_rag", QUESTION) for _ in range(6)))
    assert [text(result) for result in results] == ["the Lune"] * 6
    assert llm.under_way_at_most == 2


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_question_that_its_client_gives_up_ends(mode: str) -> None:
    llm = lune(seconds=0.2)
    async with Client(GraphTools([tool(llm)], 1).server, mode=mode) as client:
        asking = asyncio.create_task(client.call_tool("vanilla_rag", QUESTION))
        await until(lambda: len(llm.calls) == 1)
        asking.cancel()
        assert text(await client.call_tool("vanilla_rag", QUESTION)) == "the Lune"  # one at a time: the first has ended
        assert llm.under_way_at_most == 2  # its call was cut off, and so never counted as done


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`dubito mcp` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dubito", "mcp", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def until(is_so: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() < begun + 20
        await asyncio.sleep(0.02)


async def test_over_standard_input_and_output_with_a_model_on_a_server() -> None:
    fails = {"broken": False}
    stub = Stub(script=lambda body: "So the final answer is: Ada.", fails=lambda *_: 400 if fails["broken"] else 200)
    with serving(stub):
        arguments = ["-m", "dubito", "mcp", "--graph", "thinker=cot", "--llm", f"openai:{stub.url}#m"]
        parameters = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with Client(stdio_client(parameters)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["thinker"]
            result = await client.call_tool("thinker", QUESTION)
            assert (text(result), result.is_error) == ("Ada", False)
            fails["broken"] = True
            result = await client.call_tool("thinker", QUESTION)
            assert result.is_error
            assert text(result) == f"{stub.url} refused the request (HTTP 400): out of order."
            fails["broken"] = False
            stub.seconds, before = 30.0, len(stub.requests)
            waiting = asyncio.create_task(client.call_tool("thinker", QUESTION))
            await until(lambda: len(stub.requests) > before)
            waiting.cancel()
            begun = time.monotonic()
    assert time.monotonic() < begun + 15  # it ends with its client, in the middle of a question too


async def test_over_http_with_a_token_and_for_its_own_page_alone() -> None:
    stub = Stub(script=lambda body: "So the final answer is: Ada.")
    with serving(stub), command("--graph", "cot", "--llm", stub.url, "--port", "0", DUBITO_TOKEN="secret") as process:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert line.startswith("MCP tools cot at http://127.0.0.1:"), line
        url = line.split(" at ")[1].split()[0]
        headers = {"Authorization": "Bearer secret"}
        async with AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
            foreign = {**headers, "Origin": "http://evil.com"}
            assert (await http.post(url, json={}, headers=foreign)).status_code == 403
            proxied = {**headers, "Host": "ask.example"}
            assert (await http.post(url, json={}, headers=proxied)).status_code not in {401, 403, 421}
        async with (
            AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            messages: list[str | None] = []

            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                messages.append(message)

            result = await client.call_tool("cot", QUESTION, progress_callback=on_progress)
            assert (text(result), result.is_error) == ("Ada", False)
            assert messages[0] == "prepare"
            result = await client.call_tool("cot", {"question": ""})
            assert (text(result).startswith("The question is empty"), result.is_error) == (True, True)
            stub.seconds, before = 30.0, len(stub.requests)
            waiting = asyncio.create_task(client.call_tool("cot", QUESTION))
            await until(lambda: len(stub.requests) > before)
            process.terminate()
            assert text(await waiting) == "The server is being stopped: ask again when it runs."
            assert await asyncio.to_thread(process.wait, 10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--graph", "dense_rga"], "There is no graph named 'dense_rga'"),
        (["--graph", "seper"], "seper needs more than a question: leave it out."),
        (["--graph", "vanilla_rag:k=3"], "'vanilla_rag:k=3' cannot be the name of a tool"),
        (["--graph", "cot", "--graph", "cot=ircot"], "Two tools are named cot"),
        (["--set", "kk=3"], "No system has the setting 'kk'"),
        (["--set", "k=0"], "k"),
        (["--corpus", "/no/such"], "There is no corpus at '/no/such'"),
        (["--llm", "gpt-4o"], "for OpenAI's API write openai:https://api.openai.com/v1#gpt-4o"),
        (["--host", "0.0.0.0"], "--host and --everybody-may-ask are for HTTP: add --port N."),
        (["--host", "0.0.0.0", "--port", "0"], "On --host 0.0.0.0 others can reach this server"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_on_standard_output(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["mcp", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["dubito.cli.mcp"], "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["mcp"])
    assert (done.exit_code, done.stderr) == (
        2,
        f"dubito mcp runs on the package mcp: run `{extra_command('mcp')}`.\n",
    )
