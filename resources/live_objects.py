"""The caller's live objects, of dubito's or LangChain's kinds, as dubito's interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

    from ..models.interfaces import ChatModel, Encoder
    from ..retrieval.pool import Retriever


def as_chat_model(llm: ChatModel | BaseChatModel) -> ChatModel:
    """The chat model; LangChain's is wrapped."""
    from langchain_core.language_models import BaseChatModel  # noqa: PLC0415 - LangChain loads when first needed

    if not isinstance(llm, BaseChatModel):
        return llm
    from ..models.langchain_chat import LangChainChat  # noqa: PLC0415

    return LangChainChat(llm)


def as_encoder(encoder: Encoder | Embeddings) -> Encoder:
    """The encoder; LangChain's embeddings are wrapped."""
    from langchain_core.embeddings import Embeddings  # noqa: PLC0415 - LangChain loads when first needed

    if not isinstance(encoder, Embeddings):
        return encoder
    from ..models.encoders import LangChainEncoder  # noqa: PLC0415

    return LangChainEncoder(encoder)


async def as_retriever(
    retriever: Retriever | BaseRetriever | VectorStore, chunker: str, encoder: Callable[[], Awaitable[Encoder]]
) -> Retriever:
    """The retriever; LangChain's is wrapped. Its documents are the chunks, but a semantic chunker splits them again.

    encoder: opens the encoder, which is needed to wrap and to split.
    """
    from langchain_core.retrievers import BaseRetriever  # noqa: PLC0415 - LangChain loads when first needed
    from langchain_core.vectorstores import VectorStore  # noqa: PLC0415

    from ..retrieval.index import Index  # noqa: PLC0415 - faiss loads when first needed
    from ..retrieval.pool import SearchedOnce  # noqa: PLC0415 - NumPy loads when first needed

    live: Retriever
    if isinstance(retriever, BaseRetriever | VectorStore):
        from ..retrieval.langchain_retriever import LangChainRetriever  # noqa: PLC0415

        live = SearchedOnce(LangChainRetriever(retriever, await encoder()))
    else:
        # other graphs ask an index for more than pools
        live = retriever if isinstance(retriever, Index) else SearchedOnce(retriever)
    if not chunker.strip().startswith("semantic:"):
        return live
    from ..retrieval.chunkers import chunker_for  # noqa: PLC0415 - faiss loads when first needed
    from ..retrieval.rechunk import Rechunked  # noqa: PLC0415

    opened = await encoder()
    return Rechunked(live, await chunker_for(chunker, opened), opened)
