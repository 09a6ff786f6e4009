"""Any LangChain retriever or vector store as a `Retriever`."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

from ..models.interfaces import Encoder
from ..models.provider_faults import provider_fault
from ..state.records import Chunk
from .metadata import metadata_of
from .pool import Pool, nearest

TOP_N = 200
"""Documents requested from a source that cannot list all of them."""


OWN = frozenset({"id", "chunk_id", "doc_id", "title", "start", "score", "metadata"})
"""Fields of a document's metadata that are fields of a chunk."""


class LangChainRetriever:
    """Documents of a LangChain source, embedded by dubito's encoder so that diversity can be measured."""

    def __init__(self, source: BaseRetriever | VectorStore, encoder: Encoder) -> None:
        """source: a vector store returns as many documents as requested, a retriever as many as it is set to."""
        self._source = source
        self._encoder = encoder

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; None means the best 200, best first."""
        documents = await self._documents(query, TOP_N if top_n is None else top_n)
        unique: dict[str, Chunk] = {}
        for document in documents:
            metadata = document.metadata
            chunk = chunk_of(document.page_content, metadata, document.id, metadata.get("id"), metadata.get("chunk_id"))
            unique.setdefault(chunk["id"], chunk)
        chunks = list(unique.values())
        question = (await self._encoder.embed([query], query=True))[0]
        vectors = await self._encoder.embed([chunk["text"] for chunk in chunks])
        order = await asyncio.to_thread(nearest, vectors, question, len(vectors))
        return Pool(question, vectors[order], lambda i: chunks[order[i]])

    async def _documents(self, query: str, top_n: int) -> Sequence[Document]:
        try:
            if isinstance(self._source, VectorStore):
                return await self._source.asimilarity_search(query, k=top_n)
            return (await self._source.ainvoke(query))[:top_n]
        except Exception as error:
            raise provider_fault(type(self._source).__name__, error) from error


def chunk_of(text: str, metadata: Mapping[str, Any], *ids: object) -> Chunk:
    """A chunk of a document's text and metadata; its id is the first usable one of `ids`, else a hash of its text."""
    inner = metadata.get("metadata")  # of a collection that dubito filled
    kept = metadata_of(inner if isinstance(inner, Mapping) else metadata, without=OWN)
    identity = first_of(*ids) or hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    chunk: Chunk = {
        "id": identity,
        "doc_id": first_of(metadata.get("doc_id"), metadata.get("source")) or identity,
        "title": first_of(metadata.get("title"), metadata.get("source")) or "",
        "text": text,
    }
    if kept:
        chunk["metadata"] = kept
    return chunk


def first_of(*values: object) -> str | None:
    """The first value that is neither None nor blank, as text."""
    return next((str(value) for value in values if value is not None and str(value).strip()), None)
