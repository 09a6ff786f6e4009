"""Documents put together again from their chunks and cut anew, for sources whose documents are not at hand."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors
from ..state.records import Chunk
from .chunking import Chunker, embedding_text
from .corpus import Document
from .pool import Pool, Retriever

REMEMBERED = 8
"""Questions whose pools are kept."""

LONGEST_GAP = 1000
"""Characters between two chunks that can be white space which a chunker left out; more is text that is not there."""


def documents_of(chunks: Iterable[Chunk]) -> list[Document]:
    """The documents that chunks were cut from, in the order of their first chunks.

    Chunks of one document that say where they start are put together: what they repeat is there once, and what was
    left out between them becomes spaces. Chunks that do not say it are documents of their own, under their own ids; so
    are all chunks of a document that contradict each other or are more than `LONGEST_GAP` apart. An id that is taken
    gets a number after it: `id (2)`.
    """
    sources: dict[tuple[str, str], list[Chunk]] = {}
    for chunk in chunks:
        # what says where it starts is grouped by document, the rest stands alone
        key = ("document", chunk["doc_id"]) if "start" in chunk else ("chunk", chunk["id"])
        sources.setdefault(key, []).append(chunk)
    taken: set[str] = set()
    documents = []
    for (kind, name), some in sources.items():
        text = _together(some) if kind == "document" else None
        alone = [(chunk["id"], chunk["title"], chunk["text"]) for chunk in some]
        for wanted, title, whole in alone if text is None else [(name, some[0]["title"], text)]:
            documents.append(Document(_free(wanted, taken), title, whole))
    return documents


def _together(chunks: Sequence[Chunk]) -> str | None:
    """The text that all these chunks are slices of; None if there is none."""
    text = ""
    for chunk in sorted(chunks, key=lambda chunk: chunk["start"]):
        start, piece = chunk["start"], chunk["text"]
        if not 0 <= start <= len(text) + LONGEST_GAP:
            return None
        text += " " * (start - len(text))
        known = text[start : start + len(piece)]
        if not piece.startswith(known):
            return None
        text += piece[len(known) :]
    return text


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted} ({number})"
    taken.add(name)
    return name


class Rechunked:
    """The chunks of a live retriever, cut anew.

    What a question finds is remembered for the last `REMEMBERED` questions, as a run asks for it several times.
    """

    def __init__(self, retriever: Retriever, chunker: Chunker, encoder: Encoder) -> None:
        """retriever: where the chunks come from; chunker: cuts their documents; encoder: embeds the new chunks."""
        self._retriever, self._chunker, self._encoder = retriever, chunker, encoder
        self._remembered: OrderedDict[str, Pool] = OrderedDict()
        # several event loops may share it
        self._lock = threading.Lock()

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`: the chunks cut from all that the retriever gives for this query."""
        if top_n is not None and top_n < 1:
            raise UserFault(f"The number of chunks to search for is {top_n}: give one of at least 1.")
        pool = self._recalled(query)
        if pool is None:  # an empty one is as good as any
            pool = self._kept(query, await self._made(query))
        if top_n is None:
            return pool
        nearest = (await asyncio.to_thread(_nearest_first, pool.query, pool.vectors))[:top_n]
        return Pool(pool.query, pool.vectors[nearest], lambda i: pool.chunk(nearest[i]), pool.left_out)

    async def _made(self, query: str) -> Pool:
        base = await self._retriever.pool(query, None)
        documents = await asyncio.to_thread(lambda: documents_of(base.chunk(i) for i in range(len(base))))
        chunks = await self._chunker.cut(documents)
        vectors = await self._encoder.embed([embedding_text(chunk) for chunk in chunks])
        question = base.query
        if len(question) != vectors.shape[1]:
            question = (await self._encoder.embed([query], query=True))[0]
        return Pool(question, vectors, lambda i: chunks[i].copy(), base.left_out)

    def _recalled(self, query: str) -> Pool | None:
        with self._lock:
            if query in self._remembered:
                self._remembered.move_to_end(query)
            return self._remembered.get(query)

    def _kept(self, query: str, pool: Pool) -> Pool:
        with self._lock:
            self._remembered[query] = pool
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return pool


def _nearest_first(question: Vectors, vectors: Vectors) -> list[int]:
    order: list[int] = np.argsort(-(vectors @ question), kind="stable").tolist()
    return order
