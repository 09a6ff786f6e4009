"""Several servers of one model behind one name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from dubito.cli import app
from dubito.errors import ModelFault, ModelUnavailable, UserFault
from dubito.models import outage
from dubito.models.interfaces import Message, Sampling
from dubito.models.openai_chat import OpenAIChat
from dubito.models.replicas import open_servers
from dubito.resources.opening import check_server, open_chat_model, open_encoder
from dubito.server_url import bind_general_keys, key_for
from dubito.settings import settings
from dubito.tests.stub_server import Stub, serving
from pytest_httpserver import HTTPServer
from typer.testing import CliRunner

Pair = tuple[Stub, Stub]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with serving(Stub(script=lambda body: "one")) as one, serving(Stub(script=lambda body: "two")) as two:
        yield one, two


def chat(pair: Pair, kind: str = "openai:", model: str = "#m") -> Any:
    return open_chat_model(f"{kind}{pair[0].url},{pair[1].url}{model}")


def asks(text: str) -> list[Message]:
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}]


async def ask(model: OpenAIChat, text: str) -> str:
    return (await model.complete(asks(text), Sampling())).text


async def test_prompts_with_one_beginning_go_to_one_server_while_it_is_free(pair: Pair) -> None:
    model, passages = chat(pair), "The same passages. " * 200
    said = {await ask(model, f"{passages} Question {number}?") for number in range(6)}
    assert len(said) == 1
    others = {await ask(model, f"Passages {number}.") for number in range(12)}
    assert others == {"one", "two"}


async def test_examples_before_the_question_send_nothing_to_one_server(pair: Pair) -> None:
    model = chat(pair)
    examples: list[Message] = [
        {"role": "user", "content": "An example. " * 200},
        {"role": "assistant", "content": "Its answer."},
    ]
    said = set()
    for number in range(12):
        *system, question = asks(f"Passages {number}.")
        said.add((await model.complete([*system, *examples, question], Sampling())).text)
    assert said == {"one", "two"}


async def test_a_fan_out_is_shared_by_both_servers(pair: Pair) -> None:
    for stub in pair:
        stub.seconds = 0.05
    model, passages = chat(pair), "The same passages. " * 200
    said = await asyncio.gather(*(ask(model, f"{passages} Question {number}?") for number in range(20)))
    assert min(said.count("one"), said.count("two")) >= 8


@pytest.mark.usefixtures("fast_retries")
async def test_the_work_of_a_server_that_goes_down_is_done_by_the_other_until_it_is_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(outage, "LONGEST_PAUSE_S", 0.02)
    one = pair[0]
    model, prompts = chat(pair), [f"Passages {number}." for number in range(12)]
    assert {await ask(model, prompt) for prompt in prompts} == {"one", "two"}
    one.fails = lambda body, number: 503
    assert [await ask(model, prompt) for prompt in prompts] == ["two"] * 12
    refused = len(one.requests)
    assert [await ask(model, prompt) for prompt in prompts] == ["two"] * 12
    assert len(one.requests) == refused  # it is not asked in vain
    one.fails = lambda body, number: 200
    await asyncio.sleep(0.2)
    assert {await ask(model, prompt) for prompt in prompts} == {"one", "two"}


@pytest.mark.usefixtures("fast_retries")
async def test_a_prompt_that_no_server_can_answer_is_a_fault_with_a_server_in_it(pair: Pair) -> None:
    model = chat(pair)
    for stub in pair:
        stub.fails = lambda body, number: 500
    with pytest.raises(ModelFault, match=r"127\.0\.0\.1.*HTTP 500: out of order"):
        await ask(model, "Q?")
    assert len(pair[0].requests) == len(pair[1].requests) == 4


async def test_all_servers_must_be_there_at_the_start_and_have_the_model(pair: Pair) -> None:
    two = pair[1]
    two.models = [{"id": "other", "owned_by": "vllm"}]
    with pytest.raises(UserFault, match=f"same model: {pair[0].url} serves m; {two.url} serves other"):
        await chat(pair).check(frozenset())
    for stub in pair:
        stub.models = [{"id": "both"}, *stub.models]
    with pytest.raises(UserFault, match=f"{pair[0].url}, {two.url} does not serve the model m; it serves both"):
        await chat(pair, "vllm:").check(frozenset())
    dead = "http://127.0.0.1:9/v1"
    with pytest.raises(ModelUnavailable, match=dead):
        check_server(f"vllm:{pair[0].url},{dead}#m")
    with pytest.raises(ModelFault, match=dead):
        await OpenAIChat("n", f"{pair[0].url},{dead}", "m").check(frozenset())


async def test_the_only_model_of_all_servers_needs_no_name_and_has_the_smallest_window(pair: Pair) -> None:
    for stub, window in zip(pair, (4096, 2048), strict=True):
        stub.models = [{"id": "m", "owned_by": "vllm", "max_model_len": window}]
    model = chat(pair, "", "")
    assert await model.window() == 2048
    assert "score" in model.capabilities


async def test_texts_are_embedded_by_both(pair: Pair) -> None:
    encoder = open_encoder(f"openai:{pair[0].url},{pair[1].url}#m")
    vectors = await encoder.embed([f"text {'abcdefgh'[number % 8] * number}" for number in range(400)])
    assert vectors.shape == (400, 26)
    assert all(stub.requests for stub in pair)


def test_hidden_states_come_from_one_server(pair: Pair) -> None:
    with pytest.raises(UserFault, match="hidden states come from one server"):
        chat(pair, "vllm:", "#m&states=http://127.0.0.1:8001/v1")


def test_each_server_that_the_command_line_names_gets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_API_KEY", "dk-1")
    monkeypatch.setenv("DUBITO_KEYS", "")
    settings.cache_clear()
    bind_general_keys(["--llm", "vllm:http://10.0.0.1:8000,http://10.0.0.2:8000#m"])
    keys = [key_for(f"http://10.0.0.{host}:8000/v1", settings().api_key) for host in (1, 2, 3)]
    settings.cache_clear()
    assert keys == ["dk-1", "dk-1", ""]


def test_doctor_names_every_server_and_says_which_model_is_an_adapter(pair: Pair) -> None:
    base = {"id": "base", "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 4096}
    for stub in pair:
        adapter = {"id": "m", "object": "model", "created": 0, "owned_by": "vllm", "parent": "base"}
        stub.models = [base, adapter]
    done = CliRunner().invoke(app, ["doctor", "--llm", f"vllm:{pair[0].url},{pair[1].url}#m"], env={"COLUMNS": "400"})
    for stub in pair:
        assert f"{stub.url} answers in " in done.stdout
    assert done.stdout.count("serves base, m (a LoRA adapter of base)") == 2
    assert "context window: 4,096 tokens" in done.stdout


async def test_a_page_is_that_of_all_servers_or_of_none(httpserver: HTTPServer) -> None:
    both = open_servers(",".join(httpserver.url_for(f"/{name}/v1") for name in "ab"))
    httpserver.expect_request("/a/metrics").respond_with_data("first", content_type="text/plain")
    assert await both.page("/../metrics") == ""
    httpserver.expect_request("/b/metrics").respond_with_data("second", content_type="text/plain")
    assert await both.page("/../metrics") == "first\nsecond"
