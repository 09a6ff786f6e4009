"""A Qdrant collection as a corpus, in the client's local mode: the same code talks to a server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dubito.cli import app
from dubito.errors import UserFault
from dubito.models.encoders import LangChainEncoder
from dubito.resources.resources import Resources
from dubito.retrieval.chunking import WordWindows
from dubito.retrieval.corpus import Corpus, Document, read_corpus
from dubito.retrieval.index import Index
from dubito.retrieval.qdrant import Place, fill, open_collection
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.state.where import condition_of, passes
from dubito.tests.scripted import ScriptedChat
from langchain_core.embeddings import DeterministicFakeEmbedding
from typer.testing import CliRunner

qdrant_client = pytest.importorskip("qdrant_client")

CHUNKS = 30  # windows of 4 words: texts of 2, 4, 6 and 8 words make 1, 1, 2 and 2
ENCODER = LangChainEncoder(DeterministicFakeEmbedding(size=16))
CORPUS = Corpus(
    tuple(
        Document(
            f"d{n}", f"Title {n % 3}", " ".join(f"w{n}.{i}" for i in range(2 * (n % 4 + 1))), {"n": n} if n % 2 else {}
        )
        for n in range(20)
    )
)
MANY = Corpus(tuple(Document(f"m{n}", "", f"text {n}") for n in range(300)))


@pytest.fixture
async def name(tmp_path: Path) -> str:
    name = f"qdrant:{tmp_path / 'store'}#notes"
    assert await fill(name, CORPUS, WordWindows(4), ENCODER, lambda done, total: None) == CHUNKS
    return name


async def test_many_chunks_are_stored_in_batches(tmp_path: Path):
    progress: list[tuple[int, int]] = []
    name = f"qdrant:{tmp_path / 'store'}#many"
    await fill(name, MANY, WordWindows(4), ENCODER, lambda done, total: progress.append((done, total)))
    assert progress == [(256, 300), (300, 300)]
    collection = await open_collection(name, ENCODER)
    assert len(await collection.pool("x", None)) == 200
    assert len(await collection.pool("x", 290)) == 290


async def test_a_collection_finds_what_an_index_finds(name: str):
    index = await Index.build(CORPUS, WordWindows(4), ENCODER)
    collection = await open_collection(name, ENCODER)
    for query in ("text 7", "something else", "x"):
        found, right = await collection.pool(query, 10), await index.pool(query, 10)
        assert [found.chunk(row) for row in range(10)] == [right.chunk(row) for row in range(10)]
        np.testing.assert_allclose(found.vectors, right.vectors, atol=1e-6)
        np.testing.assert_array_equal(found.query, right.query)
        assert found.vectors.dtype == np.float32
    with pytest.raises(UserFault, match="at least 1"):
        await collection.pool("x", 0)


async def test_filling_again_replaces_and_adds(name: str):
    more = Corpus((*CORPUS.documents[:3], Document("new", "", "something new")))
    await fill(name, more, WordWindows(4), ENCODER, lambda done, total: None)
    client = Place.named(name).open()
    assert client.count("notes").count == CHUNKS + 1
    client.close()


async def test_a_graph_answers_from_a_collection(name: str):
    context = VanillaRagContext(corpus=name, k=3)
    llm = ScriptedChat(reply=lambda system, user: "the Lune")
    from dubito.graphs import vanilla_rag  # noqa: PLC0415

    graph = vanilla_rag.build(Resources(llm=llm, encoder=ENCODER)).compile()
    found = await graph.ainvoke({"question": "text 7"}, context=context)
    best = await (await Index.build(CORPUS, WordWindows(4), ENCODER)).pool("text 7", 3)
    assert [chunk["id"] for chunk in found["evidence"]] == [best.chunk(row)["id"] for row in range(3)]
    assert {"id", "doc_id", "title", "text", "score"} <= found["evidence"][0].keys()


async def test_a_collection_that_langchain_filled_can_be_asked(tmp_path: Path):
    langchain_qdrant = pytest.importorskip("langchain_qdrant")
    embeddings = DeterministicFakeEmbedding(size=16)
    store = langchain_qdrant.QdrantVectorStore.from_texts(
        ["one", "two"],
        embeddings,
        metadatas=[{"source": "a.txt", "page": 3}, {}],
        path=str(tmp_path / "store"),
        collection_name="theirs",
    )
    live = await Resources(encoder=ENCODER, retriever=store).retriever(VanillaRagContext())
    theirs = await live.pool("one", 2)
    assert theirs.chunk(0)["text"] == "one"
    store.client.close()
    found = await (await open_collection(f"qdrant:{tmp_path / 'store'}#theirs", ENCODER)).pool("one", 2)
    assert [found.chunk(row)["text"] for row in range(2)] == ["one", "two"]
    assert (found.chunk(0)["doc_id"], found.chunk(0)["title"]) == ("a.txt", "a.txt")
    assert found.chunk(0)["metadata"] == {"source": "a.txt", "page": 3}
    assert found.chunk(1)["id"] == found.chunk(1)["doc_id"]


@pytest.mark.parametrize("wrong", ["qdrant:", "qdrant:/x", "qdrant:#c", "qdrant:/x#"])
def test_a_name_that_names_no_collection_is_refused(wrong: str):
    with pytest.raises(UserFault, match="write it as qdrant:http://host:6333#collection"):
        Place.named(wrong)


async def test_what_cannot_be_asked_is_refused_in_a_sentence(name: str, tmp_path: Path):
    with pytest.raises(UserFault, match=r"There is no collection 'other' at .*: make it by `dubito index`"):
        await open_collection(name.replace("#notes", "#other"), ENCODER)


async def test_another_encoder_is_refused(name: str):
    other = LangChainEncoder(DeterministicFakeEmbedding(size=8))
    with pytest.raises(UserFault, match=r"have 16 dimensions, but the encoder .* has 8: name the encoder"):
        await open_collection(name, other)


async def test_nothing_is_stored_beside_vectors_of_another_encoder(name: str):
    other = LangChainEncoder(DeterministicFakeEmbedding(size=8))
    with pytest.raises(UserFault, match=r"have 16 dimensions.*or another collection"):
        await fill(name, CORPUS, WordWindows(4), other, lambda done, total: None)


async def test_a_folder_that_is_in_use_is_said(name: str):
    held = Place.named(name).open()
    with pytest.raises(UserFault, match="is open in another process"):
        await open_collection(name, ENCODER)
    held.close()


async def test_points_without_a_text_are_said(tmp_path: Path):
    from qdrant_client.models import Distance, PointStruct, VectorParams  # noqa: PLC0415

    name = f"qdrant:{tmp_path / 'store'}#bare"
    client = Place.named(name).open()
    client.create_collection("bare", vectors_config=VectorParams(size=16, distance=Distance.COSINE))
    client.upsert("bare", [PointStruct(id=1, vector=[1.0] * 16, payload={"text": "x"})])
    client.close()
    with pytest.raises(UserFault, match="points without a text under page_content"):
        await (await open_collection(name, ENCODER)).pool("x", 1)


async def test_vectors_with_names_are_refused(tmp_path: Path):
    from qdrant_client.models import Distance, VectorParams  # noqa: PLC0415

    name = f"qdrant:{tmp_path / 'store'}#named"
    client = Place.named(name).open()
    client.create_collection("named", vectors_config={"a": VectorParams(size=16, distance=Distance.COSINE)})
    client.close()
    with pytest.raises(UserFault, match="are named: use one with a single unnamed vector"):
        await open_collection(name, ENCODER)


async def test_a_server_that_is_not_there_is_a_model_fault():
    from dubito.errors import ModelFault  # noqa: PLC0415

    with pytest.raises(ModelFault, match="Qdrant does not answer"):
        await open_collection("qdrant:http://127.0.0.1:9#c", ENCODER)


@pytest.mark.parametrize("more", [["--force"], ["--add-to", "x"], ["--graph-neighbours", "3"]])
def test_options_of_an_index_folder_are_refused(more: list[str]):
    found = CliRunner().invoke(app, ["index", "sample", "--out", "qdrant:/x#c", *more])
    assert found.exit_code == 2
    assert "A Qdrant collection is filled with new documents by itself" in found.stderr


def test_a_corpus_is_indexed_into_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from dubito.cli import indexing  # noqa: PLC0415

    monkeypatch.setattr(indexing, "shared_resources", lambda: Resources(encoder=ENCODER))
    found = CliRunner().invoke(app, ["index", "sample", "--out", f"qdrant:{tmp_path / 's'}#c", "--json"])
    assert found.exit_code == 0, found.stderr
    figures = json.loads(found.stdout)
    assert figures["documents"] == len(read_corpus(Path("examples/sample/corpus.jsonl").absolute()).documents)
    assert figures["chunks"] >= figures["documents"]
    shown = CliRunner().invoke(app, ["index", "sample", "--out", f"qdrant:{tmp_path / 's'}#c"])
    assert f"{figures['chunks']} chunks (words:100), " in shown.stdout
    assert 'Now: dubito ask "..." --corpus' in shown.stdout


@pytest.mark.parametrize(
    "where",
    [
        {"n": 3},
        {"n": {"$gte": 5, "$lt": 13}},
        {"n": {"$ne": 3}},
        {"n": {"$in": [1, 3, 99]}},
        {"n": {"$in": []}},
        {"n": {"$nin": [1, 3]}},
        {"n": {"$exists": False}},
        {"n": {"$exists": True}},
        {"$or": [{"title": "Title 1"}, {"n": {"$gt": 15}}]},
        {"$not": {"title": {"$in": ["Title 0", "Title 1"]}}},
        {"doc_id": "d4", "n": {"$exists": False}},
    ],
)
async def test_the_server_filters_as_an_index_does(name: str, where: dict[str, object]):
    condition = condition_of(json.dumps(where))
    index = await Index.build(CORPUS, WordWindows(4), ENCODER)
    expected = {chunk["id"] for chunk in index.chunks if passes(condition, chunk)}
    pool = await (await open_collection(name, ENCODER)).restricted(condition).pool("text", CHUNKS)
    assert {pool.chunk(row)["id"] for row in range(len(pool))} == expected


async def test_an_order_of_texts_is_refused(name: str):
    with pytest.raises(UserFault, match=r"Qdrant orders numbers alone, and where asks for \$gt of the text '2020'"):
        (await open_collection(name, ENCODER)).restricted(condition_of('{"date": {"$gt": "2020"}}'))
