import asyncio
import json
import sys
import threading
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault, UserFault
from dubito.models.encoders import LangChainEncoder, SentenceTransformersEncoder, openai_encoder, unit_rows
from dubito.settings import settings
from langchain_core.embeddings import Embeddings
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response


class Lengths(Embeddings):
    """A text's vector is (length, 1), a question's (1, length); what is asked is kept."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.asked.append(text)
        return [1.0, float(len(text))]


class Fixed(Embeddings):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def embed_documents(self, texts: list[str]) -> Any:
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows

    def embed_query(self, text: str) -> Any:
        return self.embed_documents([text])[0]


async def test_langchain_embeddings_are_normalised_on_either_side() -> None:
    embeddings = Lengths()
    encoder = LangChainEncoder(embeddings)
    passages = await encoder.embed(["abc", ""])
    assert passages.dtype == np.float32
    np.testing.assert_allclose(passages, np.array([[3 / 10**0.5, 1 / 10**0.5], [0, 1]]), rtol=1e-6)
    np.testing.assert_allclose(await encoder.embed(["abc"], query=True), [[1 / 10**0.5, 3 / 10**0.5]], rtol=1e-6)
    assert embeddings.asked == [["abc", ""], "abc"]
    assert await encoder.dimension() == 2
    assert await encoder.max_tokens() is None


async def test_no_texts_make_no_rows_of_the_right_length() -> None:
    empty = await LangChainEncoder(Lengths()).embed([])
    assert empty.shape == (0, 2)
    assert empty.dtype == np.float32


def test_encoders_are_called_by_class_and_model_unless_named() -> None:
    embeddings = Lengths()
    assert LangChainEncoder(embeddings).name == "langchain:Lengths"
    assert LangChainEncoder(embeddings, "mine").name == "mine"
    embeddings.model = "small"  # type: ignore[attr-defined]
    assert LangChainEncoder(embeddings).name == "langchain:Lengths#small"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([[1.0, float("nan")]], "not finite"),
        ([[1.0, float("inf")]], "not finite"),
        ([[1.0, 2.0], [3.0, 4.0]], r"shape \[2, 2\] where 1 vectors"),
        ([], r"shape \[0\] where 1 vectors"),
        ([[]], r"shape \[1, 0\] where 1 vectors"),
        ([1.0], r"shape \[1\] where 1 vectors"),
        ([[1.0], [1.0, 2.0]], "not equally long"),
        ([["a", "b"]], "not equally long"),
        (None, r"shape \[\] where 1 vectors"),
    ],
)
async def test_what_is_not_one_vector_a_text_is_refused(rows: Any, complaint: str) -> None:
    with pytest.raises(UserFault, match=complaint):
        await LangChainEncoder(Fixed(rows), "odd").embed(["one"])


async def test_vectors_that_change_their_length_are_refused() -> None:
    embeddings = Fixed([[1.0, 2.0]])
    encoder = LangChainEncoder(embeddings, "odd")
    await encoder.embed(["one"])
    embeddings.rows = [[1.0, 2.0, 3.0]]
    with pytest.raises(UserFault, match="length 3 after vectors of length 2"):
        await encoder.embed(["two"])


@pytest.mark.parametrize(("error", "fault"), [(TimeoutError("slow"), ModelFault), (KeyError("model"), UserFault)])
async def test_errors_of_the_embeddings_are_told_apart(error: Exception, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="odd"):
        await LangChainEncoder(Fixed(error), "odd").embed(["one"])


def test_rows_of_length_zero_stay_finite_and_large_numbers_do_not_overflow() -> None:
    rows = unit_rows([[0, 0], [3, 4], [3e30, 4e30]], 3, "e")
    np.testing.assert_array_equal(rows, np.array([[0, 0], [0.6, 0.8], [0.6, 0.8]], dtype=np.float32))


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UserFault, match=r'pip install "dubito\[local\]"'):
        await SentenceTransformersEncoder("st:/x", "/x").dimension()


# --- an OpenAI-compatible server ---


class Server:
    """Answers /embeddings with (length of the text, 1) and keeps the requests."""

    def __init__(self, httpserver: HTTPServer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.at_once = self.at_once_most = 0
        self._lock = threading.Lock()
        self.url = httpserver.url_for("/v1")
        httpserver.expect_request("/v1/embeddings", method="POST").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        with self._lock:
            self.requests.append(body := request.get_json())
            self.keys.append(request.headers.get("Authorization"))
        rows = [
            {"object": "embedding", "index": i, "embedding": [float(len(text)), 1.0]}
            for i, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        reply = {"object": "list", "data": rows, "model": body["model"], "usage": usage}
        return Response(json.dumps(reply), content_type="application/json")


@pytest.fixture
def server(httpserver: HTTPServer) -> Server:
    return Server(httpserver)


def test_a_server_is_used_from_one_event_loop_after_another(server: Server) -> None:
    encoder = openai_encoder("openai:x", server.url, "small")
    first = asyncio.run(encoder.embed(["abc"]))
    second = asyncio.run(encoder.embed(["abc"], query=True))
    np.testing.assert_allclose(first, [[3 / 10**0.5, 1 / 10**0.5]], rtol=1e-6)
    np.testing.assert_array_equal(first, second)


def test_a_server_is_used_from_several_threads_loops_at_once(server: Server) -> None:
    encoder = openai_encoder("openai:x", server.url, "small")
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append((i, asyncio.run(encoder.embed(["a" * i])))))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for i, vectors in results:
        np.testing.assert_allclose(vectors[0], np.array([i, 1]) / (i**2 + 1) ** 0.5, rtol=1e-6)


async def test_texts_are_sent_as_texts_in_batches_and_come_back_in_order(server: Server) -> None:
    encoder = openai_encoder("openai:x", server.url, "small")
    vectors = await encoder.embed(["a" * i for i in range(100)])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], range(100), rtol=1e-5)
    assert sorted(len(request["input"]) for request in server.requests) == [4, 32, 32, 32]
    assert all(isinstance(text, str) for request in server.requests for text in request["input"])
    assert {(request["model"], request["encoding_format"]) for request in server.requests} == {("small", "float")}


async def test_embedding_on_a_server_does_not_block_the_loop(server: Server) -> None:
    encoder = openai_encoder("openai:x", server.url, "small")
    with blockbuster_ctx():
        await encoder.embed(["abc"])


@pytest.mark.parametrize(
    ("ours", "openais", "sent"), [("k1", "k2", "k1"), (None, "k2", "k2"), (None, None, "none"), (None, "", "none")]
)
async def test_the_key_is_the_settings_one_or_openais(
    server: Server, monkeypatch: pytest.MonkeyPatch, ours: str | None, openais: str | None, sent: str
) -> None:
    for variable, value in (("DUBITO_API_KEY", ours), ("OPENAI_API_KEY", openais)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    settings.cache_clear()
    try:
        await openai_encoder("openai:x", server.url, "small").embed(["a"])
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert server.keys == [f"Bearer {sent}"]


@pytest.mark.parametrize(
    ("status", "fault"),
    [(500, ModelFault), (503, ModelFault), (429, ModelFault), (404, UserFault), (401, UserFault), (400, UserFault)],
)
async def test_a_servers_refusals_are_told_apart_and_not_retried(
    httpserver: HTTPServer, status: int, fault: type[Exception]
) -> None:
    body = {"error": {"message": "The model `small` does not exist.", "type": "x"}}
    httpserver.expect_request("/v1/embeddings").respond_with_json(body, status=status)
    with pytest.raises(fault, match=r"openai:x: .*The model `small` does not exist"):
        await openai_encoder("openai:x", httpserver.url_for("/v1"), "small").embed(["a"])
    assert len(httpserver.log) == 1


async def test_a_slow_server_is_the_models_fault(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    httpserver.expect_request("/v1/embeddings").respond_with_handler(lambda _: Response(str(gone.wait(5))))
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "0.3")
    settings.cache_clear()
    try:
        with pytest.raises(ModelFault, match="timed out"):
            await openai_encoder("openai:x", httpserver.url_for("/v1"), "small").embed(["a"])
    finally:
        gone.set()
        monkeypatch.undo()
        settings.cache_clear()


async def test_a_server_that_is_not_there_is_the_models_fault() -> None:
    with pytest.raises(ModelFault, match="openai:x"):
        await openai_encoder("openai:x", "http://127.0.0.1:9/v1", "small").embed(["a"])


async def test_a_reply_with_too_few_vectors_is_refused(httpserver: HTTPServer) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [1.0, 2.0]}]
    reply = {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    httpserver.expect_request("/v1/embeddings").respond_with_json(reply)
    with pytest.raises(UserFault, match="openai:x"):
        await openai_encoder("openai:x", httpserver.url_for("/v1"), "small").embed(["a", "b"])


@pytest.mark.parametrize("reply", ["<html>Welcome</html>", "{}", "not json"])
@pytest.mark.parametrize("query", [True, False])
async def test_a_malformed_reply_is_the_models_fault(httpserver: HTTPServer, reply: str, query: bool) -> None:
    kind = "text/html" if reply.startswith("<") else "application/json"
    httpserver.expect_request("/v1/embeddings").respond_with_data(reply, content_type=kind)
    with pytest.raises(ModelFault, match="openai:x: the reply is malformed"):
        await openai_encoder("openai:x", httpserver.url_for("/v1"), "small").embed(["a"], query=query)


@pytest.mark.parametrize(("url", "model"), [("host/v1", "small"), ("", "small"), ("http://host/v1", "")])
def test_half_a_name_is_refused_before_anything_is_sent(url: str, model: str) -> None:
    with pytest.raises(UserFault, match="openai:https://host/v1#model"):
        openai_encoder("openai:x", url, model)
