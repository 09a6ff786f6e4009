"""A streamed request to a server: the reply that plain requests give, the text so far, and streams that break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dubito.errors import ModelFault
from dubito.models.answer_stream import AnswerStream, Shown, current_answer, showing
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Token, Tokens
from dubito.models.openai_chat import OpenAIChat
from dubito.models.openai_server import ATTEMPTS
from dubito.settings import settings
from dubito.tests.stub_server import Stub, serving
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ASK: list[Message] = [{"role": "user", "content": "Which river?"}]
TEXT = "the river Lune"
Pieces = list[tuple[str, str]]


@pytest.fixture
def pieces() -> Iterator[Pieces]:
    """The pieces that the listener of the test got, each with the id of its message."""
    shown: Pieces = []
    token = current_answer.set(AnswerStream(Shown(), lambda piece, message: shown.append((piece, message))))
    yield shown
    current_answer.reset(token)


@pytest.fixture
def stub(fast_retries: None) -> Iterator[Stub]:
    with serving(Stub(script=lambda body: TEXT)) as server:
        yield server


def vllm(url: str) -> OpenAIChat:
    return OpenAIChat("vllm:stub", url, "m", "vllm")


async def answered(chat: OpenAIChat, **sampling: Any) -> Reply:
    with showing(lambda text: text):
        return await chat.complete(ASK, Sampling(**sampling))


async def test_a_streamed_reply_is_the_plain_one(stub: Stub, pieces: Pieces) -> None:
    plain = await vllm(stub.url).complete(ASK, Sampling(logprobs=True))
    reply = await answered(vllm(stub.url), logprobs=True)
    words = tuple(Token(word, -0.5) for word in ("the", " river", " Lune"))
    assert reply.completions == (Completion(TEXT, "stop", words),)
    assert (reply.text, reply.tokens) == (plain.text, plain.tokens) == (TEXT, Tokens(10, 5))
    assert [piece for piece, _ in pieces] == ["the", " river", " Lune"]
    first, second = stub.requests
    assert second == {**first, "stream": True, "stream_options": {"include_usage": True}}


async def test_samples_are_not_streamed(stub: Stub, pieces: Pieces) -> None:
    await answered(vllm(stub.url), n=2, temperature=1.0)
    assert (["stream" in body for body in stub.requests], pieces) == ([False], [])


async def test_a_stream_that_breaks_is_repeated_as_a_plain_request(stub: Stub, pieces: Pieces) -> None:
    stub.breaks = lambda body, number: 2
    assert (await answered(vllm(stub.url))).text == TEXT
    assert ["stream" in body for body in stub.requests] == [True, False]
    assert [piece for piece, _ in pieces] == ["the", " river"]


async def test_a_server_that_is_busy_is_asked_for_a_stream_again(stub: Stub, pieces: Pieces) -> None:
    stub.fails = lambda body, number: 503 if number == 0 else 200
    assert (await answered(vllm(stub.url))).text == TEXT
    assert ["stream" in body for body in stub.requests] == [True, True]


async def test_a_server_that_breaks_every_reply_is_a_model_fault(stub: Stub, pieces: Pieces) -> None:
    stub.breaks = lambda body, number: 1
    stub.fails = lambda body, number: 200 if "stream" in body else 500
    with pytest.raises(ModelFault, match="HTTP 500") as caught:
        await answered(vllm(stub.url))
    assert caught.value.attempts == ATTEMPTS == len(stub.requests)


def events(*chunks: dict[str, Any]) -> Response:
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Response(lines + "data: [DONE]\n\n", content_type="text/event-stream")


def delta(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": delta.pop("finish_reason", None)}]}


WHOLE = {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}], "usage": None}


@pytest.mark.parametrize(
    "broken",
    [
        events(delta(content="the"), {"error": {"message": "the engine has ended"}}),
        events(delta(content="the")),
        events(delta(content="the"), {"choices": "none"}),
    ],
)
async def test_an_error_in_a_stream_and_a_missing_end_are_repeated(
    broken: Response, httpserver: HTTPServer, pieces: Pieces, fast_retries: None
) -> None:
    httpserver.expect_ordered_request("/v1/chat/completions").respond_with_response(broken)
    httpserver.expect_ordered_request("/v1/chat/completions").respond_with_json(WHOLE)
    assert (await answered(vllm(httpserver.url_for("/v1")))).text == TEXT
    assert [piece for piece, _ in pieces] == ["the"]


async def test_a_server_that_cannot_stream_answers_at_once(httpserver: HTTPServer, pieces: Pieces) -> None:
    httpserver.expect_request("/v1/chat/completions").respond_with_json(WHOLE)
    assert (await answered(vllm(httpserver.url_for("/v1")))).text == TEXT
    assert pieces == []


async def test_a_server_that_refuses_streams_is_asked_once(httpserver: HTTPServer, pieces: Pieces) -> None:
    asked = []

    def reply(request: Request) -> Response:
        asked.append("stream" in request.json)
        if "stream" in request.json:
            return Response('{"error": {"message": "Unknown field: stream_options"}}', 400)
        return Response(json.dumps(WHOLE), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(reply)
    chat = vllm(httpserver.url_for("/v1"))
    for _ in range(2):
        assert (await answered(chat)).text == TEXT
    assert asked == [True, False, False]


async def test_what_a_server_tells_apart_as_thoughts_is_not_shown(httpserver: HTTPServer, pieces: Pieces) -> None:
    stream = events(
        delta(reasoning="Thames?"), delta(content="the"), delta(content=" Lune"), delta(finish_reason="stop")
    )
    httpserver.expect_request("/v1/chat/completions").respond_with_response(stream)
    reply = await answered(vllm(httpserver.url_for("/v1")), thinking=True)
    assert reply.text == "the Lune"
    assert [piece for piece, _ in pieces] == ["the", " Lune"]


async def test_a_stream_is_over_its_deadline_as_a_whole(
    stub: Stub, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.drip, stub.script = 0.2, lambda body: "river " * 50
    stub.fails = lambda body, number: 200 if "stream" in body else 400
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "1")
    settings.cache_clear()
    with pytest.raises(Exception, match="HTTP 400"):
        await answered(vllm(stub.url))
    settings.cache_clear()
    assert "".join(piece for piece, _ in pieces).startswith("river river")
    assert stub.left.wait(5)
