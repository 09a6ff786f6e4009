"""LangChain's own standard tests of the retriever that we offer to LangChain."""

from functools import cache
from typing import Any

from dubito.models.encoders import LangChainEncoder
from dubito.retrieval.as_langchain import DubitoRetriever
from dubito.retrieval.langchain_retriever import LangChainRetriever
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests

PLANETS = [
    "Mercury is the smallest planet and the closest to the Sun.",
    "Venus is hotter than Mercury because of its thick atmosphere.",
    "The Earth is the only planet known to harbour life.",
    "Mars is called the red planet for the rust on its surface.",
    "Jupiter is the largest planet of the solar system.",
]


@cache
def planets() -> LangChainRetriever:
    embeddings = DeterministicFakeEmbedding(size=8)
    return LangChainRetriever(InMemoryVectorStore.from_texts(PLANETS, embeddings), LangChainEncoder(embeddings))


class _Retriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return DubitoRetriever

    @property
    def retriever_query_example(self) -> str:
        return "Which planet is nearest to the Sun?"


class TestRetriever(_Retriever):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": planets()}


class TestDiverseRetriever(_Retriever):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": planets(), "lam": 0.5}
