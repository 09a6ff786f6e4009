"""`dubito eval` as a person runs it: against a server that fails, on a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.evals import on_ray
from dubito.evals.on_ray import Worker
from dubito.evals.run_folder import EvaluationTask
from dubito.evals.store import Outcome, Store
from dubito.tests.stub_server import Stub, serving
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner, Result
from werkzeug import Request

QUESTIONS = 60


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dubito", "eval", *map(str, arguments)]


def dubito(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def table(folder: Path) -> dict[tuple[str, str], Any]:
    """What came out, by system and question, without the time it took."""
    with Store(folder / "results.sqlite") as store:
        return {(one.system, one.question): (one.output, one.error) for one in store.outcomes()}


def without_seconds(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: without_seconds(value) for key, value in found.items() if key != "seconds"}
    return [without_seconds(one) for one in found] if isinstance(found, list | tuple) else found


def begin(stub: Stub, questions: Path, out: Path, *more: object, systems: Sequence[str] = ("cot",)) -> list[object]:
    model = f"openai:{stub.url}#stub"
    return [*systems, "--dataset", questions, "--corpus", "sample", "--llm", model, "--out", out, *more]


def test_every_question_ends_answered_or_recorded_when_a_third_of_all_requests_fail(
    fast_retries: None, questions: Path, tmp_path: Path
):
    # a refusal depends on how often the same was asked, so that neither luck nor speed decides what fails
    seen: dict[str, int] = {}

    def fails(body: dict[str, Any], number: int) -> int:
        text = json.dumps(body["messages"])
        seen[text] = seen.get(text, 0) + 1
        who = int(body["messages"][-1]["content"].split("number ")[1].split("?")[0])
        return 500 if who % 10 == 3 or (number + seen[text]) % 10 < 3 else 200

    with serving(Stub(fails=fails)) as stub:
        ended = dubito(*begin(stub, questions, tmp_path / "run", "--at-once", 8, "--json"))
        assert ended.exit_code == 0, ended.output
        found = table(tmp_path / "run")
    assert len(found) == QUESTIONS
    failed = {question for (_, question), (output, _) in found.items() if output is None}
    refused = sum(count for text, count in seen.items())
    assert refused > QUESTIONS
    assert len(failed) >= QUESTIONS // 10
    told = json.loads(ended.stdout)
    assert (told["failed"], told["answered"]) == (len(failed), QUESTIONS - len(failed))
    for output, error in found.values():
        assert (output is None) == (error is not None)
        assert error is None or "did not answer after 4 attempts" in error["message"]
        assert output is None or output["answer"]


def test_sigterm_ends_it_as_ctrl_c_does_and_says_what_is_kept(questions: Path, tmp_path: Path):
    with serving(Stub(seconds=0.05)) as stub:
        process = subprocess.Popen(
            command(*begin(stub, questions, tmp_path / "run")),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 120
        while len(stub.requests) < 20 and time.monotonic() < until:
            time.sleep(0.01)
        before = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - before < 10
    assert process.returncode == 130
    assert "are finished and kept: go on with dubito eval --resume" in said
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def cluster() -> Iterator[HTTPServer]:
    """Two cores of Ray; its workers send their spans to the server, which is no other test's."""
    ray = pytest.importorskip("ray")
    with HTTPServer() as receiver:
        receiver.expect_request("/v1/traces").respond_with_data()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("DUBITO_OTLP_ENDPOINT", receiver.url_for("/"))
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield receiver
        ray.shutdown()


def spans_in(request: Request) -> list[Span]:
    received = ExportTraceServiceRequest.FromString(request.data)
    return [span for kept in received.resource_spans for scope in kept.scope_spans for span in scope.spans]


def test_a_cluster_of_two_workers_gives_the_same(
    cluster: HTTPServer, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shares = tmp_path / "shares"
    shares.mkdir()

    class Watched(Worker):
        async def ask(self, task: EvaluationTask) -> Outcome:
            with (shares / f"{os.getpid()}").open("a") as share:
                share.write("1")
            return await super().ask(task)

    monkeypatch.setattr(on_ray, "Worker", Watched)
    with serving(Stub()) as stub:
        here = dubito(*begin(stub, questions, tmp_path / "here", "--limit", 12))
        assert here.exit_code == 0, here.output
        arguments = begin(stub, questions, tmp_path / "there", "--limit", 12, "--ray", "auto", "--workers", 2)
        there = dubito(*arguments, "--at-once", 4)
        assert there.exit_code == 0, there.output
    asked = [len(share.read_text()) for share in shares.iterdir()]
    assert (len(asked), sum(asked)) == (2, 12)
    spans = [span for request, _ in cluster.log for span in spans_in(request)]
    assert sum(span.name == "cot" and not span.parent_span_id for span in spans) == 12
    assert without_seconds(table(tmp_path / "there")) == without_seconds(table(tmp_path / "here"))


def test_more_workers_than_the_cluster_has_cores_are_refused(cluster: HTTPServer, questions: Path, tmp_path: Path):
    with serving(Stub()) as stub:
        arguments = begin(stub, questions, tmp_path / "run", "--limit", 1, "--ray", "auto", "--workers", 3)
        refused = dubito(*arguments)
    assert refused.exit_code == 2
    assert "has 2 cores, and 3 workers" in " ".join(refused.output.split())
