"""Collections of a Qdrant vector store as corpora, for corpora larger than the memory of one machine.

Points have the layout of LangChain's `QdrantVectorStore`: `page_content` is a chunk's text, `metadata` has its id,
doc_id and title. Collections filled by LangChain, with any metadata, work too.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import ModelFault, UserFault, extra_command
from ..models.interfaces import Encoder, Vectors
from ..server_url import checked_url, key_for
from ..settings import settings
from ..state.records import Chunk
from ..state.where import OWN_FIELDS, Combined, Condition, Test
from .chunking import Chunker, Progress, batches, embedding_text
from .corpus import Corpus
from .langchain_retriever import TOP_N, chunk_of
from .pool import Pool, at_least_one

if TYPE_CHECKING:
    from qdrant_client import QdrantClient
    from qdrant_client.models import FieldCondition, Filter

T = TypeVar("T")

PREFIX = "qdrant:"

BATCH = 256
"""Chunks embedded and stored together."""

_NAMESPACE = uuid.UUID("6d0ff6a5-3a0c-4c5b-9d0a-2f6f3c5f1e4b")


@dataclass(frozen=True)
class Place:
    """A collection at a server's URL or in a folder."""

    at: str
    collection: str

    @classmethod
    def named(cls, name: str) -> Place:
        """The place in `qdrant:URL#collection` or `qdrant:FOLDER#collection`; `UserFault` for another form."""
        at, _, collection = name.removeprefix(PREFIX).partition("#")
        if not at or not collection:
            raise UserFault(
                f"'{name}' does not name a collection: write it as qdrant:http://host:6333#collection, or "
                "qdrant:FOLDER#collection."
            )
        return cls(at, collection)

    def open(self) -> QdrantClient:
        """A client; `UserFault` without the extra, and for a folder that another process has open. Blocks."""
        try:
            from qdrant_client import QdrantClient  # noqa: PLC0415 - an extra
        except ImportError as fault:
            raise UserFault(f"A Qdrant collection needs its client: {extra_command('qdrant')}.") from fault
        if self.at.startswith(("http://", "https://")):
            return QdrantClient(
                url=checked_url(self.at, "http://127.0.0.1:6333"),
                api_key=key_for(self.at, settings().qdrant_api_key) or None,
                timeout=int(settings().timeout_s),
                check_compatibility=False,
            )
        try:
            return QdrantClient(path=self.at)
        except RuntimeError as fault:
            raise UserFault(
                f"The folder '{self.at}' is open in another process, and Qdrant lets only one use it: end that "
                "process, or start a Qdrant server and name its URL."
            ) from fault


class Collection:
    """A collection as a `Retriever`."""

    def __init__(self, place: Place, client: QdrantClient, encoder: Encoder) -> None:
        """encoder: the encoder that the collection was filled with."""
        self._place = place
        self._client = client
        self._encoder = encoder
        self._filter: Filter | None = None
        self._whole: Collection | None = None
        # the client's own finalizer fails when Python ends
        weakref.finalize(self, client.close)

    def restricted(self, condition: Condition) -> Collection:
        """The same collection, in which the server finds only the points that pass."""
        restricted = copy(self)
        restricted._filter, restricted._whole = _filter(condition), self  # the whole closes the client in the end
        return restricted

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; None means the best 200, best first."""
        question = (await self._encoder.embed([query], query=True))[0]
        points = await asyncio.to_thread(self._nearest, question, TOP_N if top_n is None else at_least_one(top_n))
        chunks = [_chunk(point) for point in points]
        vectors = np.array([_vector(point) for point in points], dtype=np.float32).reshape(len(points), len(question))
        return Pool(question, _normalised(vectors), lambda row: chunks[row])

    def _nearest(self, question: Vectors, count: int) -> list[Any]:
        points = _called(
            self._place.at,
            lambda: (
                self._client.query_points(
                    self._place.collection,
                    query=question.tolist(),
                    query_filter=self._filter,
                    limit=count,
                    with_payload=True,
                    with_vectors=True,
                ).points
            ),
        )
        if not all("page_content" in (point.payload or {}) for point in points):
            raise UserFault(
                f"The collection '{self._place.collection}' holds points without a text under page_content: fill it "
                "by `dubito index`, or by LangChain's QdrantVectorStore."
            )
        return list(points)


def _chunk(point: Any) -> Chunk:  # noqa: ANN401 - the client's own type
    metadata = point.payload.get("metadata") or {}
    chunk = chunk_of(point.payload["page_content"], metadata, metadata.get("id"), metadata.get("chunk_id"), point.id)
    return {**chunk, "start": metadata["start"]} if isinstance(metadata.get("start"), int) else chunk


def _vector(point: Any) -> list[float]:  # noqa: ANN401
    vector: list[float] = point.vector[""] if isinstance(point.vector, dict) else point.vector
    return vector


async def open_collection(name: str, encoder: Encoder) -> Collection:
    """The collection of that name; `UserFault` if it is missing or its vectors have another length."""
    place = Place.named(name)
    client = await asyncio.to_thread(place.open)
    if not await _exists(name, client, place, encoder):
        raise UserFault(
            f"There is no collection '{place.collection}' at {place.at}: make it by `dubito index`, with {name} "
            "as the output."
        )
    return Collection(place, client, encoder)


async def fill(name: str, corpus: Corpus, chunker: Chunker, encoder: Encoder, progress: Progress) -> int:
    """Cut a corpus and store its chunks in a collection, which is made if it is missing; returns their number.

    Chunks with the id of a stored chunk replace it. progress: gets the number of stored chunks.
    """
    place = Place.named(name)
    client = await asyncio.to_thread(place.open)
    try:
        if not await _exists(name, client, place, encoder):
            await asyncio.to_thread(_make, client, place, await encoder.dimension())
        chunks = await chunker.cut(corpus.documents)
        for batch in batches(chunks, BATCH, progress):
            vectors = await encoder.embed([embedding_text(chunk) for chunk in batch])
            await asyncio.to_thread(_put, client, place, batch, vectors)
        return len(chunks)
    finally:
        await asyncio.to_thread(client.close)


async def _exists(name: str, client: QdrantClient, place: Place, encoder: Encoder) -> bool:
    """Is there such a collection? `UserFault` if its vectors are not the encoder's."""
    dimension, stored = await encoder.dimension(), await asyncio.to_thread(_dimension, client, place)
    if stored not in {None, dimension}:
        raise UserFault(
            f"The vectors of '{name}' have {stored} dimensions, but the encoder {encoder.name} has {dimension}: "
            "name the encoder that the collection was filled with, or another collection."
        )
    return stored is not None


def _dimension(client: QdrantClient, place: Place) -> int | None:
    def look() -> int | None:
        if not client.collection_exists(place.collection):
            return None
        config = client.get_collection(place.collection).config.params.vectors
        unnamed = config.get("") if isinstance(config, dict) else config
        if unnamed is None:
            raise UserFault(
                f"The vectors of the collection '{place.collection}' are named: use one with a single unnamed vector."
            )
        return int(unnamed.size)

    return _called(place.at, look)


def _make(client: QdrantClient, place: Place, dimension: int) -> None:
    from qdrant_client.models import Distance, VectorParams  # noqa: PLC0415 - an extra

    config = VectorParams(size=dimension, distance=Distance.COSINE)
    _called(place.at, lambda: client.create_collection(place.collection, vectors_config=config))


def _put(client: QdrantClient, place: Place, chunks: Sequence[Chunk], vectors: Vectors) -> None:
    from qdrant_client.models import PointStruct  # noqa: PLC0415 - an extra

    points = [
        PointStruct(
            id=str(uuid.uuid5(_NAMESPACE, chunk["id"])),
            vector=vector.tolist(),
            payload={
                "page_content": chunk["text"],
                "metadata": {key: value for key, value in chunk.items() if key != "text"},
            },
        )
        for chunk, vector in zip(chunks, vectors, strict=True)
    ]
    _called(place.at, lambda: client.upsert(place.collection, points, wait=True))


def _filter(condition: Condition) -> Filter:
    """The condition in Qdrant's form. `UserFault` for an order of texts, which Qdrant has for dates alone."""
    from qdrant_client.models import Filter  # noqa: PLC0415 - an extra

    if isinstance(condition, Combined):
        parts = [_filter(part) for part in condition.parts]
        if condition.how == "$and":
            return Filter(must=parts)
        return Filter(should=parts) if condition.how == "$or" else Filter(must_not=parts)
    positive = {"$ne": "$eq", "$nin": "$in"}.get(condition.operator)
    if positive:
        return Filter(must_not=[_filter(replace(condition, operator=positive))])
    if condition.operator == "$exists" and not condition.value:
        return Filter(must_not=[_filter(replace(condition, value=True))])
    return Filter(should=[_match(key, condition) for key in _keys(condition.field)])


def _keys(field: str) -> list[str]:
    """Where a field is: below the metadata of a collection that dubito filled, or of one that LangChain filled."""
    return [f"metadata.{field}"] if field in OWN_FIELDS else [f"metadata.metadata.{field}", f"metadata.{field}"]


def _match(key: str, test: Test) -> FieldCondition | Filter:
    from qdrant_client.models import (  # noqa: PLC0415 - an extra
        FieldCondition,
        Filter,
        IsEmptyCondition,
        MatchValue,
        PayloadField,
        Range,
    )

    value = test.value
    if test.operator == "$exists":
        return Filter(must_not=[IsEmptyCondition(is_empty=PayloadField(key=key))])
    if test.operator == "$in":
        matches = [_match(key, Test(test.field, "$eq", one)) for one in value]
        return Filter(should=matches) if matches else Filter(must_not=[Filter()])
    if test.operator == "$eq":
        if isinstance(value, str | bool):
            return FieldCondition(key=key, match=MatchValue(value=value))
        return FieldCondition(key=key, range=Range(gte=value, lte=value))
    if isinstance(value, str):
        raise UserFault(
            f"Qdrant orders numbers alone, and where asks for {test.operator} of the text '{value}': compare a number, "
            "or use $in."
        )
    return FieldCondition(key=key, range=Range(**{test.operator.removeprefix("$"): value}))


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _called(at: str, ask: Callable[[], T]) -> T:
    from qdrant_client.http.exceptions import ApiException, UnexpectedResponse  # noqa: PLC0415 - an extra

    try:
        return ask()
    except UnexpectedResponse as fault:
        if fault.status_code is not None and fault.status_code < 500:
            raise UserFault(f"Qdrant at {at} refuses ({fault.status_code} {fault.reason_phrase}).") from fault
        raise ModelFault(at, f"status {fault.status_code}") from fault
    except ApiException as fault:
        raise ModelFault(at, f"Qdrant does not answer ({fault})") from fault
