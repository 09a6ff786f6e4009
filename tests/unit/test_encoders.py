import asyncio
import json
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault, UserFault, extra_command
from dubito.models.embedding_cache import CachedEncoder
from dubito.models.encoders import LangChainEncoder, SentenceTransformersEncoder, ServerEncoder, unit_rows
from dubito.models.openai_server import ATTEMPTS
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
    with pytest.raises(UserFault, match=re.escape(extra_command("local"))):
        await SentenceTransformersEncoder("st:/x", "/x").dimension()


# --- an OpenAI-compatible server ---


class Embedding:
    """Answers /embeddings with (length of the text, 1), the last text first, and keeps the requests."""

    def __init__(self, httpserver: HTTPServer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.url = httpserver.url_for("/v1")
        httpserver.expect_request("/v1/embeddings", method="POST").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        self.requests.append(body := request.get_json())
        rows = [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(body["input"])]
        return Response(json.dumps({"data": rows[::-1], "model": body["model"]}), content_type="application/json")


@pytest.fixture
def server(httpserver: HTTPServer) -> Embedding:
    return Embedding(httpserver)


def test_a_server_is_used_from_several_threads_loops_at_once(server: Embedding) -> None:
    encoder = ServerEncoder("openai:x", server.url, "small")
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append((i, asyncio.run(encoder.embed(["a" * i], query=i > 4)))))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for i, vectors in results:
        np.testing.assert_allclose(vectors[0], np.array([i, 1]) / (i**2 + 1) ** 0.5, rtol=1e-6)


async def test_texts_are_sent_in_batches_and_come_back_in_order(server: Embedding) -> None:
    encoder = ServerEncoder("openai:x", server.url, "small")
    with blockbuster_ctx():
        vectors = await encoder.embed(["a" * i for i in range(100)])
    np.testing.assert_allclose(vectors[:, 0] / vectors[:, 1], range(100), rtol=1e-5)
    assert sorted(len(request["input"]) for request in server.requests) == [
        1,
        4,
        32,
        32,
        32,
    ]  # the single text asks for the length
    assert {(request["model"], request["encoding_format"]) for request in server.requests} == {("small", "float")}


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize(
    ("status", "reply", "said"),
    [
        (503, {"error": {"message": "Busy."}}, "HTTP 503: Busy"),
        (200, {}, "the reply is malformed"),
        (200, {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}, "it has no 2 equally long vectors"),
    ],
)
async def test_a_servers_faults_are_those_of_a_chat_models_server(
    httpserver: HTTPServer, status: int, reply: object, said: str
) -> None:
    httpserver.expect_request("/v1/embeddings").respond_with_json(reply, status=status)
    with pytest.raises(ModelFault, match=said):
        await ServerEncoder("openai:x", httpserver.url_for("/v1"), "small").embed(["a", "b"])
    assert len(httpserver.log) == ATTEMPTS


async def test_one_reply_of_another_length_is_not_believed(httpserver: HTTPServer, tmp_path: Path) -> None:
    def vectors(length: int) -> dict[str, Any]:
        return {"data": [{"index": 0, "embedding": [1.0] * length}]}

    for length in (3, 2, 2, 2, 3, 2):
        httpserver.expect_ordered_request("/v1/embeddings").respond_with_json(vectors(length))
    encoder = CachedEncoder(ServerEncoder("openai:x", httpserver.url_for("/v1"), "small"), tmp_path / "cache.sqlite")
    with pytest.raises(ModelFault, match="gave vectors of length 3 and of length 2"):
        await encoder.embed(["a"])
    assert (await encoder.embed(["a"])).shape == (1, 2)
    with pytest.raises(ModelFault, match="gave vectors of length 3 and of length 2"):
        await encoder.embed(["b"])
    assert (await encoder.embed(["a"])).shape == (1, 2)  # from the cache, which has nothing of another length


@pytest.mark.parametrize(
    ("url", "model", "said"),
    [("host/v1", "small", "is not the URL of a server"), ("http://host/v1", "", "openai:https://host/v1#model")],
)
def test_half_a_name_is_refused_before_anything_is_sent(url: str, model: str, said: str) -> None:
    with pytest.raises(UserFault, match=said):
        ServerEncoder("openai:x", url, model)
