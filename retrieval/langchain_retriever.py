"""Any LangChain retriever or vector store as a `Retriever`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

from ..models.interfaces import Encoder, Vectors
from ..models.provider_faults import provider_fault
from ..state.records import Chunk
from .pool import Pool

TOP_N = 200
"""How many documents a source is asked for when all are wanted: it cannot list them."""


class LangChainRetriever:
    """Documents of a LangChain source, embedded by our encoder so that diversity can be measured."""

    def __init__(self, source: BaseRetriever | VectorStore, encoder: Encoder) -> None:
        """source: a vector store gives as many documents as are asked for, a retriever what it is set to."""
        self._source = source
        self._encoder = encoder

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; with None the best 200, and best first here too."""
        documents = await self._documents(query, TOP_N if top_n is None else top_n)
        unique: dict[str, Chunk] = {}
        for document in documents:
            known = document.metadata
            chunk = chunk_of(document.page_content, known, document.id, known.get("id"), known.get("chunk_id"))
            unique.setdefault(chunk["id"], chunk)
        chunks = list(unique.values())
        question = (await self._encoder.embed([query], query=True))[0]
        vectors = await self._encoder.embed([chunk["text"] for chunk in chunks])
        order = await asyncio.to_thread(_nearest_first, question, vectors)
        return Pool(question, vectors[order], lambda i: chunks[order[i]])

    async def _documents(self, query: str, top_n: int) -> Sequence[Document]:
        try:
            if isinstance(self._source, VectorStore):
                return await self._source.asimilarity_search(query, k=top_n)
            return (await self._source.ainvoke(query))[:top_n]
        except Exception as error:
            raise provider_fault(type(self._source).__name__, error) from error


def _nearest_first(question: Vectors, vectors: Vectors) -> list[int]:
    order: list[int] = np.argsort(-(vectors @ question), kind="stable").tolist()
    return order


def chunk_of(text: str, known: Mapping[str, Any], *names: object) -> Chunk:
    """A chunk of a document's text and metadata; its id is the first of `names` that is there, else its text's hash."""
    identity = first_of(*names) or hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return {
        "id": identity,
        "doc_id": first_of(known.get("doc_id"), known.get("source")) or identity,
        "title": first_of(known.get("title"), known.get("source")) or "",
        "text": text,
    }


def first_of(*values: object) -> str | None:
    """The first value that is there, as text."""
    return next((str(value) for value in values if value is not None and str(value).strip()), None)
