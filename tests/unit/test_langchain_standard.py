"""LangChain's own standard tests of what we offer to LangChain, offline and with real weights."""

from functools import cache
from typing import Any

import pytest
from dubito.models.as_langchain import DubitoChatModel, DubitoEmbeddings
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.interfaces import ChatModel, Encoder
from dubito.models.transformers_chat import TransformersChat
from dubito.models.weights import minilm_folder, smollm2_gguf
from dubito.retrieval.as_langchain import DubitoRetriever
from dubito.retrieval.langchain_retriever import LangChainRetriever
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

pytestmark = pytest.mark.weights

PLANETS = [
    "Mercury is the smallest planet and the closest to the Sun.",
    "Venus is hotter than Mercury because of its thick atmosphere.",
    "The Earth is the only planet known to harbour life.",
    "Mars is called the red planet for the rust on its surface.",
    "Jupiter is the largest planet of the solar system.",
    "Saturn is known for its rings of ice.",
    "Neptune is the farthest planet from the Sun.",
]


@cache
def minilm() -> Encoder:
    return SentenceTransformersEncoder("embedded", str(minilm_folder()))


@cache
def smollm2() -> ChatModel:
    return TransformersChat("embedded", str(smollm2_gguf()))


@cache
def planets() -> LangChainRetriever:
    return LangChainRetriever(InMemoryVectorStore.from_texts(PLANETS, DubitoEmbeddings(minilm())), minilm())


class _Embeddings:
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return DubitoEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"encoder": minilm()}


class TestEmbeddingsUnit(_Embeddings, EmbeddingsUnitTests):
    pass


class TestEmbeddings(_Embeddings, EmbeddingsIntegrationTests):
    pass


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


class _Chat:
    """Text only: no tools, no structured output, no other kinds of input; one set of weights."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return DubitoChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"llm": smollm2(), "max_tokens": 8}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "timeout": 60, "stop": [], "max_retries": 2}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_tool_choice(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_image_inputs(self) -> bool:
        return False

    @property
    def supports_model_override(self) -> bool:
        return False


class TestChatModelUnit(_Chat, ChatModelUnitTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"llm": smollm2()}


class TestChatModel(_Chat, ChatModelIntegrationTests):
    pass
