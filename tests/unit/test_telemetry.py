"""Runs as OpenTelemetry spans, received by a collector that speaks OTLP over HTTP."""

import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from dubito.cli import app
from dubito.errors import ContextOverflow, UserFault, extra_command
from dubito.graphs import df_rag
from dubito.models.interfaces import Sampling
from dubito.models.metering import Metered, watchers
from dubito.resources import telemetry
from dubito.resources.telemetry import export_spans, stop_exporting
from dubito.tests.scripted import PLAN, QUESTION, ScriptedChat, chat, resources
from dubito.tests.stub_server import Stub, collecting, serving
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

NOBODY = "http://127.0.0.1:9"
ERROR, OK = 2, 1


Span = SimpleNamespace


def span_of(sent: Any, service: str) -> Span:
    attributes = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in sent.attributes}
    ids = {"id": sent.span_id, "parent": sent.parent_span_id, "trace": sent.trace_id}
    told = {"name": sent.name, "start": sent.start_time_unix_nano, "end": sent.end_time_unix_nano, "service": service}
    ended = {"status": sent.status.code, "message": sent.status.message, "events": [one.name for one in sent.events]}
    return Span(**ids, **told, **ended, attributes=attributes, kind=attributes["openinference.span.kind"])


@dataclass
class Receiver:
    """A collector of spans. status: what it answers."""

    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    posts: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        self.posts.append((path, headers))
        if self.status != 200:
            return self.status
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            about = {one.key: one.value.string_value for one in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += [span_of(one, about["service.name"]) for one in scope.spans]
        return self.status

    def below(self, parent: Span | None) -> list[Span]:
        """Children in the order of their starts."""
        which = b"" if parent is None else parent.id
        return sorted((span for span in self.spans if span.parent == which), key=lambda span: span.start)

    def of(self, kind: str) -> list[Span]:
        return [span for span in self.spans if span.kind == kind]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    received = Receiver()
    with collecting(received.take) as received.url:
        yield received


@pytest.fixture(autouse=True)
def off_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("OTEL_", "OPENINFERENCE_", "DUBITO_OTLP"))]:
        monkeypatch.delenv(name)
    yield
    stop_exporting()


async def ask(llm: Any, *, synchronous: bool = False) -> dict[str, Any]:
    graph: Any = df_rag.build(resources(llm)).compile(name="df_rag")
    context = {"evaluator": "report"}
    if synchronous:
        return dict(graph.invoke({"question": QUESTION}, context=context))
    return dict(await graph.ainvoke({"question": QUESTION}, context=context))


@pytest.mark.parametrize("synchronous", [True, False])
async def test_a_run_is_graph_then_nodes_then_model_calls(receiver, synchronous):
    export_spans(receiver.url)
    llm = chat()
    await ask(llm, synchronous=synchronous)
    stop_exporting()
    [root] = receiver.below(None)
    assert (root.name, root.kind, root.status, root.service) == ("df_rag", "CHAIN", OK, "dubito")
    assert {span.trace for span in receiver.spans} == {root.trace}
    nodes = receiver.below(root)
    names = [node.name for node in nodes]
    assert names[0] == "prepare"
    assert set(names[1:3]) == {"plan", "candidates"}
    evaluations = len(llm.calls) - 2
    assert evaluations > 1
    assert names[3:] == ["select_lambdas", *["evaluate"] * evaluations, "select_lambdas", "choose_lambda", "generate"]
    calls = {node.id: [span for span in receiver.below(node) if span.kind == "LLM"] for node in nodes}
    for node in nodes:
        assert len(calls[node.id]) == (node.name in {"plan", "evaluate", "generate"})
        for call in calls[node.id]:
            assert node.start <= call.start <= call.end <= node.end
            assert receiver.below(call) == []
            assert call.status == OK
    assert len(receiver.of("LLM")) == len(llm.calls)


async def test_a_call_of_a_parallel_node_is_below_its_own_node(receiver):
    export_spans(receiver.url)
    llm = chat(seconds=0.2)
    await ask(llm)
    stop_exporting()
    assert llm.under_way_at_most > 1, "the calls must overlap for this to show anything"
    evaluations = [span for span in receiver.spans if span.name == "evaluate"]
    for node in evaluations:
        [call] = receiver.below(node)
        shown = call.attributes["llm.input_messages.7.message.content"]  # behind three worked examples
        given = json.loads(node.attributes["input.value"])["chunks"]
        assert [f"{chunk['title']}\n{chunk['text']}" in shown for chunk in given] == [True] * len(given)
        assert shown.count("<passage ") == len(given)
    assert len({span.attributes["input.value"] for span in evaluations}) == len(evaluations)


async def test_a_model_call_says_what_was_asked_what_came_back_and_what_it_cost(receiver):
    export_spans(receiver.url)
    llm = chat(name="vllm:http://127.0.0.1:8000/v1#smollm2")
    await ask(llm)
    stop_exporting()
    [node] = [span for span in receiver.spans if span.name == "plan"]
    [call] = receiver.below(node)
    told = call.attributes
    asked = llm.calls[0][1]
    assert call.name == "complete smollm2"
    assert told["openinference.span.kind"] == "LLM"
    assert told["llm.model_name"] == "smollm2"
    assert json.loads(told["metadata"])["llm"] == "vllm:http://127.0.0.1:8000/v1#smollm2"
    for place, message in enumerate(asked):
        assert told[f"llm.input_messages.{place}.message.role"] == message["role"]
        assert told[f"llm.input_messages.{place}.message.content"] == message["content"]
    assert f"llm.input_messages.{len(asked)}.message.role" not in told
    assert told["llm.output_messages.0.message.role"] == "assistant"
    assert told["llm.output_messages.0.message.content"] == told["output.value"] == PLAN
    assert json.loads(told["input.value"]) == {"messages": asked}
    counts = [told[f"llm.token_count.{what}"] for what in ("prompt", "completion", "total")]
    assert counts == [7, 3, 10]
    parameters = json.loads(told["llm.invocation_parameters"])
    assert (parameters["n"], parameters["temperature"]) == (1, 0.0)
    assert "messages" not in parameters
    assert (call.end - call.start) / 1e9 >= llm.seconds


async def test_samples_choices_and_scores_outside_a_graph(receiver):
    export_spans(receiver.url)
    said = iter(["one", "two", "three"])
    llm = Metered(
        ScriptedChat(
            reply=lambda system, user: next(said),
            pick=lambda user, options: options[1],
            mean_logprob=lambda user, text: -float(len(text)),
        ),
        2,
    )
    asked: Any = [{"role": "user", "content": "Well?"}]
    await llm.complete(asked, Sampling(n=3, temperature=1.0))
    await llm.choose(asked, ["yes", "no"])
    await llm.score(asked, ["a", "bb"])
    stop_exporting()
    samples, choice, scores = receiver.below(None)
    assert [samples.attributes[f"llm.output_messages.{i}.message.content"] for i in range(3)] == ["one", "two", "three"]
    assert json.loads(samples.attributes["output.value"])["texts"] == ["one", "two", "three"]
    assert samples.attributes["llm.token_count.completion"] == 9
    assert choice.attributes["llm.output_messages.0.message.content"] == "no"
    assert json.loads(choice.attributes["output.value"]) == {"probabilities": {"yes": 0.0, "no": 1.0}}
    assert json.loads(choice.attributes["input.value"])["options"] == ["yes", "no"]
    assert json.loads(scores.attributes["output.value"]) == {"mean_logprobs": [-1.0, -2.0]}
    assert json.loads(scores.attributes["input.value"])["continuations"] == ["a", "bb"]
    assert not [name for name in scores.attributes if name.startswith("llm.output_messages")]


async def test_more_samples_than_a_span_usually_has_room_for(receiver):
    export_spans(receiver.url)
    llm = Metered(ScriptedChat(reply=lambda system, user: "so"), 1)
    await llm.complete([{"role": "user", "content": "Well?"}], Sampling(n=100, temperature=1.0))
    stop_exporting()
    [call] = receiver.spans
    assert len([name for name in call.attributes if name.startswith("llm.output_messages")]) == 200


async def test_evidence_is_a_retrievers_span_with_its_documents(receiver):
    export_spans(receiver.url)
    output = await ask(chat())
    stop_exporting()
    [found] = receiver.of("RETRIEVER")
    assert [node.name for node in receiver.spans if node.id == found.parent] == ["choose_lambda"]
    assert found.attributes["input.value"] == QUESTION
    for place, chunk in enumerate(output["evidence"]):
        told = {name: found.attributes[f"retrieval.documents.{place}.document.{name}"] for name in ("id", "content")}
        assert told == {"id": chunk["id"], "content": chunk["text"]}
        assert found.attributes[f"retrieval.documents.{place}.document.score"] == chunk["score"]
        about = json.loads(found.attributes[f"retrieval.documents.{place}.document.metadata"])
        assert about == {"title": chunk["title"]}
    assert f"retrieval.documents.{len(output['evidence'])}.document.id" not in found.attributes


async def test_a_fault_is_an_error_of_the_call_the_node_and_the_run(receiver):
    export_spans(receiver.url)
    with pytest.raises(ContextOverflow):
        await ask(chat(faults=[ContextOverflow("The prompt is too long.")]))
    stop_exporting()
    [root] = receiver.below(None)
    [node] = [span for span in receiver.spans if span.name == "plan"]
    [call] = receiver.below(node)
    for span in (root, node, call):
        assert span.status == ERROR
        assert "The prompt is too long." in span.message
        assert "exception" in span.events
    assert "output.value" not in call.attributes


async def test_a_model_of_langchain_is_one_span_a_call(receiver):
    export_spans(receiver.url)
    output = await ask(FakeListChatModel(responses=["1) Find it"]))
    stop_exporting()
    calls = receiver.of("LLM")
    assert {span.name.partition(" ")[0] for span in calls} == {"complete"}
    assert len(calls) == output["usage"]["calls"] > 2


async def test_texts_can_be_kept_out(receiver, monkeypatch):
    monkeypatch.setenv("OPENINFERENCE_HIDE_INPUTS", "true")
    monkeypatch.setenv("OPENINFERENCE_HIDE_OUTPUTS", "true")
    export_spans(receiver.url)
    await ask(chat())
    stop_exporting()
    told = json.dumps([span.attributes for span in receiver.of("LLM")])
    assert "llm.token_count.prompt" in told
    assert QUESTION not in told
    assert PLAN.splitlines()[0] not in told


async def test_asked_for_twice_is_exported_once(receiver):
    export_spans(receiver.url)
    export_spans(f"{receiver.url}/v1/traces")
    await ask(chat())
    stop_exporting()
    stop_exporting()
    assert len(receiver.below(None)) == 1
    assert len({span.id for span in receiver.spans}) == len(receiver.spans)
    assert {path for path, _ in receiver.posts} == {"/v1/traces"}


async def test_when_it_has_stopped_nothing_is_exported(receiver):
    export_spans(receiver.url)
    stop_exporting()
    await ask(chat())
    assert receiver.posts == []
    assert (watchers.call, watchers.evidence) == (None, None)
    assert not LangChainInstrumentor().is_instrumented_by_opentelemetry


def test_one_process_exports_to_one_place(receiver):
    export_spans(receiver.url)
    with pytest.raises(UserFault, match=r": call stop_exporting\(\) first\.$"):
        export_spans(NOBODY)


async def test_a_pipeline_of_the_callers_own():
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    export_spans(provider=provider)
    await ask(chat())
    kinds = Counter(str((span.attributes or {})["openinference.span.kind"]) for span in kept.get_finished_spans())
    assert kinds["LLM"] > 2
    assert kinds["CHAIN"] > 5


async def test_where_langchain_is_instrumented_already_a_provider_is_needed():
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    LangChainInstrumentor().instrument(tracer_provider=provider)
    try:
        with pytest.raises(UserFault, match=r"export_spans\(provider=\.\.\.\)\.$"):
            export_spans(NOBODY)
        export_spans(provider=provider)
        await ask(chat())
        stop_exporting()
        assert LangChainInstrumentor().is_instrumented_by_opentelemetry
    finally:
        LangChainInstrumentor().uninstrument()
    spans = kept.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    calls = [span for span in spans if (span.attributes or {})["openinference.span.kind"] == "LLM"]
    assert {by_id[span.parent.span_id].name for span in calls if span.parent} == {"plan", "evaluate", "generate"}
    assert len({span.context.span_id for span in spans}) == len(spans)


def test_a_provider_and_an_endpoint_are_too_much():
    with pytest.raises(UserFault, match="give only one of the two"):
        export_spans(NOBODY, provider=TracerProvider())


@pytest.mark.parametrize(
    "text",
    ["", "localhost:4318", "127.0.0.1:6006", "ftp://here", "http://", "http://a b", "http://here:port", "http://[1"],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UserFault) as fault:
        export_spans(text)
    assert str(fault.value).startswith(f"{text!r} is not the URL of a server: write it as in http://localhost:4318")
    assert "\n" not in str(fault.value)


def test_the_standard_variables_say_where_to(monkeypatch):
    assert telemetry._endpoint(None) == "http://localhost:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://here/otel/")
    assert telemetry._endpoint(None) == "https://here/otel/v1/traces"
    assert telemetry._endpoint("http://there:1") == "http://there:1/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://here/spans")
    assert telemetry._endpoint(None) == "https://here/spans"


async def test_headers_are_sent_along(receiver):
    export_spans(receiver.url, headers={"x-key": "secret"})
    await ask(chat())
    stop_exporting()
    assert {headers["x-key"] for _, headers in receiver.posts} == {"secret"}


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openinference.instrumentation", None)
    monkeypatch.delitem(sys.modules, "dubito.resources.spans", raising=False)
    with pytest.raises(UserFault, match=re.escape(f"{extra_command('trace')}.")):
        export_spans(NOBODY)


async def test_a_collector_that_is_not_there_is_said_once_and_breaks_nothing(caplog, monkeypatch):
    from dubito.resources import spans  # noqa: PLC0415

    monkeypatch.setattr(spans, "BATCH", 3)
    monkeypatch.setattr(spans, "DELAY_MS", 10)
    export_spans(NOBODY)
    with caplog.at_level(logging.INFO):
        assert (await ask(chat()))["answer"] == "the Lune"
        assert (await ask(chat()))["answer"] == "the Lune"
        stop_exporting()
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == (
        f"Spans do not reach {NOBODY}/v1/traces (Connection refused): the run goes on without them; start the "
        "collector or correct the address."
    )


@pytest.mark.parametrize(("status", "reason"), [(503, "(Service Unavailable)"), (401, "(401")])
async def test_at_the_end_nothing_is_waited_for(receiver, caplog, monkeypatch, status, reason):
    from dubito.resources import spans  # noqa: PLC0415

    monkeypatch.setattr(spans, "BATCH", 512)
    monkeypatch.setattr(spans, "DELAY_MS", 3_600_000)
    receiver.status = status
    export_spans(receiver.url)
    await ask(chat())
    assert receiver.posts == []
    stop_exporting()
    assert len(receiver.posts) == 1, "what was refused was tried again"
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert reason in said


def test_what_the_exporter_says_of_others_stays(receiver, caplog):
    export_spans(receiver.url)
    logging.getLogger(OTLPSpanExporter.__module__).error("theirs")
    assert [record.getMessage() for record in caplog.records] == ["theirs"]


SCRIPT = """
from dubito.tests.scripted import QUESTION, chat, resources
from dubito.graphs import df_rag
graph = df_rag.build(resources(chat())).compile(name="df_rag")
print(graph.invoke({"question": QUESTION}, context={"evaluator": "report"})["answer"])
import sys
slow = ("openinference", "opentelemetry.exporter", "dubito.resources.spans")
print(*[name for name in sys.modules if name.startswith(slow)])
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=given
    )


@pytest.mark.parametrize("place", ["environment", "file"])
def test_a_setting_makes_any_process_export_and_what_is_left_is_sent_at_its_end(receiver, tmp_path, place):
    file = tmp_path / "server.toml"
    file.write_text(f"[process]\notlp_endpoint = '{receiver.url}'", encoding="utf-8")
    asked = {"DUBITO_CONFIG": str(file)} if place == "file" else {"DUBITO_OTLP_ENDPOINT": receiver.url}
    done = run(SCRIPT, **asked, OTEL_SERVICE_NAME="mine", OTEL_EXPORTER_OTLP_HEADERS="x-key=a")
    assert done.stdout.startswith("the Lune\n")
    assert done.stderr == ""
    assert [span.name for span in receiver.below(None)] == ["df_rag"]
    assert {span.service for span in receiver.spans} == {"mine"}
    assert {headers["x-key"] for _, headers in receiver.posts} == {"a"}


@pytest.mark.parametrize("variables", [{}, {"DUBITO_OTLP_ENDPOINT": ""}])
def test_off_it_imports_nothing(receiver, variables):
    done = run(SCRIPT, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **variables)
    assert done.stdout == "the Lune\n\n"
    assert receiver.posts == []


def test_the_command_line_exports(receiver):
    with serving(Stub()) as stub:
        command = ["ask", QUESTION, "--graph", "cot", "--llm", f"openai:{stub.url}#stub", "--otlp", receiver.url]
        done = CliRunner().invoke(app, [*command, "--json"])
        stop_exporting()
    assert json.loads(done.stdout)["graph"] == "cot"
    [root] = receiver.below(None)
    assert root.name == "cot"
    assert {span.attributes["llm.model_name"] for span in receiver.of("LLM")} == {"stub"}
    assert {span.attributes["llm.token_count.total"] for span in receiver.of("LLM")} == {15}


@pytest.mark.parametrize("verb", [["ask", "why"], ["eval", "cot", "--dataset", "q.jsonl"]])
def test_the_command_line_refuses_what_is_no_address(verb):
    done = CliRunner().invoke(app, [*verb, "--otlp", "here"])
    assert done.exit_code == 2
    assert "'here' is not the URL of a server" in done.stderr
