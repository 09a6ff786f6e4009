import asyncio
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import ModelFault, UserFault
from dubito.models.encoders import LangChainEncoder
from dubito.retrieval.as_langchain import DubitoRetriever
from dubito.retrieval.langchain_retriever import LangChainRetriever
from dubito.state.records import Chunk
from dubito.tests.scripted import ScriptedRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError


class Given(BaseRetriever):
    documents: Any

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        if isinstance(self.documents, Exception):
            raise self.documents
        return list(self.documents)


class Angles(Embeddings):
    """A text that is a number of degrees lies in that direction; the question lies at 0."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(np.cos(np.radians(float(t)))), float(np.sin(np.radians(float(t))))] for t in texts]

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]


ENCODER = LangChainEncoder(Angles())


def given(*documents: Document) -> LangChainRetriever:
    return LangChainRetriever(Given(documents=documents), ENCODER)


async def test_documents_are_chunks_nearest_first() -> None:
    pool = await given(Document("60", id="a"), Document("10", id="b"), Document("30", id="c")).pool("?", None)
    assert [pool.chunk(i)["id"] for i in range(len(pool))] == ["b", "c", "a"]
    np.testing.assert_allclose(pool.vectors @ pool.query, np.cos(np.radians([10, 30, 60])), rtol=1e-5)
    assert pool.vectors.dtype == pool.query.dtype == np.float32


async def test_what_a_document_does_not_say_is_made_up_from_what_it_does() -> None:
    documents = [
        Document("1", id="a", metadata={"title": "Title", "source": "file.txt", "doc_id": "d"}),
        Document("2", metadata={"id": 7, "source": "file.txt"}),
        Document("3", metadata={"title": None, "source": ""}),
    ]
    pool = await given(*documents).pool("?", None)
    first, second, third = (pool.chunk(i) for i in range(3))
    assert first == {
        "id": "a", "doc_id": "d", "title": "Title", "text": "1", "metadata": {"source": "file.txt"},
    }  # fmt: skip
    assert second == {
        "id": "7", "doc_id": "file.txt", "title": "file.txt", "text": "2", "metadata": {"source": "file.txt"},
    }  # fmt: skip
    assert "metadata" not in third
    assert third["title"] == ""
    assert third["id"] == third["doc_id"]
    again = await given(documents[2]).pool("?", None)
    assert again.chunk(0)["id"] == third["id"]


async def test_a_document_that_comes_twice_counts_once() -> None:
    documents = [Document("20", id="a"), Document("10", id="b"), Document("20", id="a"), Document("30"), Document("30")]
    pool = await given(*documents).pool("?", None)
    assert [pool.chunk(i)["text"] for i in range(len(pool))] == ["10", "20", "30"]


async def test_no_documents_make_an_empty_pool() -> None:
    pool = await given().pool("?", None)
    assert len(pool) == 0
    assert pool.vectors.shape == (0, 2)
    assert pool.query.shape == (2,)


async def test_a_retriever_gives_what_it_is_set_to_cut_to_what_is_asked() -> None:
    retriever = given(*(Document(str(i)) for i in range(300)))
    assert len(await retriever.pool("?", None)) == 200
    assert len(await retriever.pool("?", 7)) == 7


async def test_a_vector_store_gives_as_many_as_are_asked_for() -> None:
    store = InMemoryVectorStore(Angles())
    await store.aadd_documents([Document(str(i / 2), id=f"c{i}", metadata={"title": f"T{i}"}) for i in range(250)])
    retriever = LangChainRetriever(store, ENCODER)
    pool = await retriever.pool("?", 3)
    assert [(pool.chunk(i)["id"], pool.chunk(i)["title"]) for i in range(3)] == [
        ("c0", "T0"),
        ("c1", "T1"),
        ("c2", "T2"),
    ]
    assert len(await retriever.pool("?", None)) == 200
    assert len(await LangChainRetriever(store.as_retriever(search_kwargs={"k": 6}), ENCODER).pool("?", None)) == 6


async def test_nothing_of_it_blocks_the_loop() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    await store.aadd_documents([Document("one"), Document("two")])
    encoder = LangChainEncoder(DeterministicFakeEmbedding(size=8))
    with blockbuster_ctx():
        pool = await LangChainRetriever(store, encoder).pool("one", None)
        documents = await DubitoRetriever(retriever=LangChainRetriever(store, encoder)).ainvoke("one")
    assert len(pool) == len(documents) == 2


@pytest.mark.parametrize(("error", "fault"), [(ConnectionError("gone"), ModelFault), (KeyError("no index"), UserFault)])
async def test_errors_of_the_source_are_told_apart(error: Exception, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="Given"):
        await LangChainRetriever(Given(documents=error), ENCODER).pool("?", None)


# --- the other way round ---

NEAR_AND_FAR = ScriptedRetriever([1, 0], [[0.5, 1], [1, 0.1], [1, 0.11], [1, 0], [1, -0.6]])
"""Nearest first 3, 1, 2, 4, 0; 1, 2 and 3 are nearly the same."""


def test_documents_carry_id_title_and_score() -> None:
    documents = DubitoRetriever(retriever=NEAR_AND_FAR).invoke("?")
    assert [document.id for document in documents] == ["c3", "c1", "c2", "c4", "c0"]
    first = documents[0]
    assert first.page_content == "text 3"
    assert first.metadata == {"doc_id": "d3", "title": "T3", "score": pytest.approx(1.0), "start": 0}
    assert type(first.metadata["score"]) is float


async def test_k_and_lam_are_set_or_given_with_a_call() -> None:
    retriever = DubitoRetriever(retriever=NEAR_AND_FAR, k=2, lam=0.3)
    assert [d.id for d in await retriever.ainvoke("?", lam=1.0)] == ["c3", "c1"]
    diverse = [d.id for d in await retriever.ainvoke("?")]
    assert len(diverse) == 2
    assert not set(diverse) <= {"c1", "c2", "c3"}
    assert [d.id for d in retriever.invoke("?")] == diverse
    assert len(retriever.invoke("?", k=4)) == 4
    assert len(retriever.invoke("?", k=400)) == 5


async def test_top_n_narrows_what_is_selected_among() -> None:
    retriever = DubitoRetriever(retriever=NEAR_AND_FAR, k=3, lam=0.1, top_n=3)
    assert {d.id for d in await retriever.ainvoke("?")} == {"c1", "c2", "c3"}


def test_bounds_hold_for_settings_and_calls() -> None:
    retriever = DubitoRetriever(retriever=NEAR_AND_FAR)
    for wrong in ({"k": 0}, {"lam": 1.5}, {"lam": -0.1}):
        with pytest.raises(ValidationError):
            DubitoRetriever(retriever=NEAR_AND_FAR, **wrong)
        with pytest.raises(ValidationError):
            retriever.invoke("?", **wrong)


@pytest.mark.parametrize("lam", [1.0, 0.5])
def test_an_empty_pool_gives_no_documents(lam: float) -> None:
    assert DubitoRetriever(retriever=ScriptedRetriever([1, 0], []), lam=lam).invoke("?") == []


def test_metadata_survives_both_bridges() -> None:
    class Dated(ScriptedRetriever):
        def chunk(self, row: int) -> Chunk:
            return {**super().chunk(row), "metadata": {"year": 2000 + row, "score": 7}}

    there = DubitoRetriever(retriever=Dated([1.0, 0.0], [[1.0, 0.0]]))
    (document,) = there.invoke("?")
    assert document.metadata == {
        "year": 2000, "doc_id": "d0", "title": "T0", "score": pytest.approx(1.0), "start": 0,
    }  # fmt: skip
    pool = asyncio.run(LangChainRetriever(there, LangChainEncoder(DeterministicFakeEmbedding(size=4))).pool("?", None))
    assert pool.chunk(0)["metadata"] == {"year": 2000}


def test_documents_survive_both_bridges() -> None:
    back = LangChainRetriever(
        DubitoRetriever(retriever=NEAR_AND_FAR), LangChainEncoder(DeterministicFakeEmbedding(size=4))
    )
    pool = asyncio.run(back.pool("?", None))
    chunks = {pool.chunk(i)["id"]: pool.chunk(i) for i in range(len(pool))}
    assert chunks["c3"] == {"id": "c3", "doc_id": "d3", "title": "T3", "text": "text 3"}
