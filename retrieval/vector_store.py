"""Collections of vector databases as corpora, for corpora larger than the memory of one machine.

Rows have LangChain's layout: the content is a chunk's text, the metadata has its id, doc_id, title and own metadata.
Collections filled by LangChain, with any metadata, work too.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors
from ..state.records import Chunk
from ..state.where import Condition, passes
from .chunking import Chunker, Progress, batches, embedding_text
from .corpus import Corpus
from .langchain_retriever import TOP_N, chunk_of
from .pool import Pool, at_least_one
from .vector_databases import Database, Key, Place

if TYPE_CHECKING:
    from langchain_core.vectorstores import VectorStore

BATCH = 256
"""Chunks embedded and stored together."""

_NAMESPACE = uuid.UUID("6d0ff6a5-3a0c-4c5b-9d0a-2f6f3c5f1e4b")


class Collection:
    """A collection as a `Retriever`."""

    def __init__(self, place: Place, database: Database, encoder: Encoder) -> None:
        """encoder: the encoder that the collection was filled with. Blocks."""
        self._place = place
        self._database = database
        self._encoder = encoder
        self._store = place.called(lambda: database.store(_Prepared()))
        self._condition: Condition | None = None
        self._whole: Collection | None = None
        # a client's own finalizer may fail when Python ends
        weakref.finalize(self, database.close)

    def restricted(self, condition: Condition) -> Collection:
        """The same collection, in which the database finds only the rows that pass."""
        self._place.called(lambda: self._database.searching(condition))  # what it cannot do is said now
        restricted = copy(self)
        restricted._condition, restricted._whole = condition, self  # the whole closes the database in the end
        return restricted

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; None means the best 200, best first."""
        question = (await self._encoder.embed([query], query=True))[0]
        count = TOP_N if top_n is None else at_least_one(top_n)
        chunks, found = await asyncio.to_thread(self._place.called, lambda: self._nearest(question, count))
        vectors = np.array(found, dtype=np.float32).reshape(len(found), len(question))
        return Pool(question, _normalised(vectors), lambda row: chunks[row])

    def _nearest(self, question: Vectors, count: int) -> tuple[list[Chunk], list[Vectors]]:
        condition = self._condition
        only = self._database.searching(condition) if condition else {}
        documents = self._store.similarity_search_by_vector(question.tolist(), k=count, **only)
        if not all(document.page_content for document in documents):
            raise UserFault(
                f"The collection '{self._place.collection}' holds rows without a text in LangChain's layout: fill "
                "it by `dubito index`, or by LangChain's vector store."
            )
        keys = [self._database.key(document) for document in documents]
        vectors = self._database.vectors(keys)
        rows = [
            (_chunk(document, key), np.asarray(vectors[key])) for document, key in zip(documents, keys, strict=True)
        ]
        kept = [row for row in rows if condition is None or passes(condition, row[0])]
        return [chunk for chunk, _ in kept], [vector for _, vector in kept]


def _chunk(document: Document, key: Key) -> Chunk:
    metadata = document.metadata
    chunk = chunk_of(document.page_content, metadata, metadata.get("id"), metadata.get("chunk_id"), key)
    return {**chunk, "start": metadata["start"]} if isinstance(metadata.get("start"), int) else chunk


async def open_collection(name: str, encoder: Encoder) -> Collection:
    """The collection of that name; `UserFault` if it is missing or its vectors have another length."""
    place = Place.named(name)
    database = await asyncio.to_thread(place.open)
    try:
        await _check_exists(name, database, place, encoder)
        return await asyncio.to_thread(Collection, place, database, encoder)
    except BaseException:
        await asyncio.to_thread(database.close)
        raise


async def fill(name: str, corpus: Corpus, chunker: Chunker, encoder: Encoder, progress: Progress) -> int:
    """Cut a corpus and store its chunks in a collection, which is made if it is missing; returns their number.

    Chunks with the id of a stored chunk replace it. progress: gets the number of stored chunks.
    """
    place = Place.named(name)
    database = await asyncio.to_thread(place.open)
    try:
        if not await _exists(name, database, place, encoder):
            dimension = await encoder.dimension()
            await asyncio.to_thread(place.called, lambda: database.make(dimension))
        prepared = _Prepared()
        store = await asyncio.to_thread(place.called, lambda: database.store(prepared))
        chunks = await chunker.cut(corpus.documents)
        for batch in batches(chunks, BATCH, progress):
            prepared.take(await encoder.embed([embedding_text(chunk) for chunk in batch]))
            await asyncio.to_thread(_put, place, database, store, batch)
        return len(chunks)
    finally:
        await asyncio.to_thread(database.close)


async def _check_exists(name: str, database: Database, place: Place, encoder: Encoder) -> None:
    if not await _exists(name, database, place, encoder):
        raise UserFault(
            f"There is no collection '{place.collection}' at {place.at}: make it by `dubito index`, with {name} as the "
            "output."
        )


async def _exists(name: str, database: Database, place: Place, encoder: Encoder) -> bool:
    """Is there such a collection? `UserFault` if its vectors are not the encoder's."""
    dimension, stored = await encoder.dimension(), await asyncio.to_thread(place.called, database.dimension)
    if stored not in {None, dimension}:
        raise UserFault(
            f"The vectors of '{name}' have {stored} dimensions, but the encoder {encoder.name} has {dimension}: "
            "name the encoder that the collection was filled with, or another collection."
        )
    return stored is not None


def _put(place: Place, database: Database, store: VectorStore, chunks: Sequence[Chunk]) -> None:
    keys = [str(uuid.uuid5(_NAMESPACE, chunk["id"])) for chunk in chunks]
    documents = [
        Document(chunk["text"], metadata={key: value for key, value in chunk.items() if key != "text"})
        for chunk in chunks
    ]
    place.called(lambda: database.put(store, keys, documents))


class _Prepared(Embeddings):
    """Gives a store the vectors that were made beforehand: of a chunk with its title, which the store's texts lack."""

    def __init__(self) -> None:
        self._vectors: Iterator[list[float]] = iter(())

    def take(self, vectors: Vectors) -> None:
        """The vectors [N, d] of the next N texts."""
        self._vectors = iter(vectors.tolist())

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The next vectors, one for each text."""
        return list(islice(self._vectors, len(texts)))

    def embed_query(self, text: str) -> list[float]:
        """Not possible: a question is embedded by dubito's encoder."""
        raise NotImplementedError(text)


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)
