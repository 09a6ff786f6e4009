"""Documents restored from their chunks and cut again, for sources that only give chunks."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from ..models.interfaces import Encoder
from ..state.records import Chunk
from .chunking import Chunker, embedding_text
from .corpus import Document
from .metadata import shared
from .pool import Pool, Retriever, at_least_one, nearest

REMEMBERED = 8
"""Questions whose pools are remembered."""

LONGEST_GAP = 1000
"""The most characters between two chunks that count as left-out white space; a longer gap is missing text."""


def documents_of(chunks: Iterable[Chunk]) -> list[Document]:
    """The documents that chunks were cut from, in the order of their first chunks.

    Chunks of one document that know their start are joined: repeated text is kept once, gaps become spaces. Chunks
    without a start are documents of their own, under their own ids. So are all chunks of a document if they contradict
    each other or are more than `LONGEST_GAP` apart. An id that is taken gets a number behind it: `id (2)`.
    """
    sources: dict[tuple[str, str], list[Chunk]] = {}
    for chunk in chunks:
        # chunks with a start are grouped by document, others stand alone
        key = ("document", chunk["doc_id"]) if "start" in chunk else ("chunk", chunk["id"])
        sources.setdefault(key, []).append(chunk)
    taken: set[str] = set()
    documents = []
    for (kind, doc_id), parts in sources.items():
        joined = _joined(parts) if kind == "document" else None
        known = [chunk.get("metadata", {}) for chunk in parts]
        alone = [(chunk["id"], chunk["title"], chunk["text"], own) for chunk, own in zip(parts, known, strict=True)]
        whole = [] if joined is None else [(doc_id, parts[0]["title"], joined, shared(known))]
        for name, title, text, metadata in whole or alone:
            documents.append(Document(_free(name, taken), title, text, metadata))
    return documents


def _joined(chunks: Sequence[Chunk]) -> str | None:
    """The text of which all these chunks are slices; None if there is no such text."""
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


def _free(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    taken.add(free)
    return free


class Rechunked:
    """The chunks of a live retriever, cut again.

    The pools of the last `REMEMBERED` questions are remembered, because a run asks for them several times.
    """

    def __init__(self, retriever: Retriever, chunker: Chunker, encoder: Encoder) -> None:
        self._retriever, self._chunker, self._encoder = retriever, chunker, encoder
        self._remembered: OrderedDict[str, Pool] = OrderedDict()
        # several event loops may share the pools
        self._lock = threading.Lock()

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; the chunks come from all that the retriever gives for this query."""
        if top_n is not None:
            at_least_one(top_n)
        pool = self._remembered.get(query)
        if pool is None:  # not `not pool`: an empty pool is a result
            pool = await self._build(query)
        with self._lock:
            self._remembered[query] = pool
            self._remembered.move_to_end(query)
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        if top_n is None:
            return pool
        rows = await asyncio.to_thread(nearest, pool.vectors, pool.query, top_n)
        return Pool(pool.query, pool.vectors[rows], lambda i: pool.chunk(rows[i]), pool.left_out)

    async def _build(self, query: str) -> Pool:
        base = await self._retriever.pool(query, None)
        documents = await asyncio.to_thread(lambda: documents_of(base.chunk(i) for i in range(len(base))))
        chunks = await self._chunker.cut(documents)
        vectors = await self._encoder.embed([embedding_text(chunk) for chunk in chunks])
        question = base.query
        if len(question) != vectors.shape[1]:
            question = (await self._encoder.embed([query], query=True))[0]
        return Pool(question, vectors, lambda i: chunks[i].copy(), base.left_out)
