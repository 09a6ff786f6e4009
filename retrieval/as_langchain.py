"""dubito's retrievers as LangChain's."""

import asyncio
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, SkipValidation

from ..models.background import run_in_background
from .pool import Pool, Retriever, nearest


class DubitoRetriever(BaseRetriever):
    """A `Retriever` as a LangChain retriever; `k` and `lam` may also be given with a call."""

    retriever: SkipValidation[Retriever] = Field(exclude=True)
    k: int = Field(default=5, ge=1, description="How many documents to return.")
    lam: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Diversity level λ: 1 returns the most similar chunks; below 1, gMMR selects them.",
    )
    top_n: int | None = Field(
        default=None, ge=1, description="Select among this many nearest chunks; None for all chunks."
    )

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        lam: float | None = None,
    ) -> list[Document]:
        return run_in_background(self._select(query, k, lam))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        lam: float | None = None,
    ) -> list[Document]:
        return await self._select(query, k, lam)

    async def _select(self, query: str, k: int | None, lam: float | None) -> list[Document]:
        # a call's values are checked against the same bounds as the fields
        chosen = self if k is None and lam is None else self._with(k, lam)
        pool = await self.retriever.pool(query, chosen.top_n)
        return await asyncio.to_thread(_documents, pool, chosen.k, chosen.lam)

    def _with(self, k: int | None, lam: float | None) -> Self:
        given: dict[str, Any] = {"k": self.k if k is None else k, "lam": self.lam if lam is None else lam}
        return type(self)(retriever=self.retriever, top_n=self.top_n, **given)


def _documents(pool: Pool, k: int, lam: float) -> list[Document]:
    k = min(k, len(pool))
    if k == 0:
        return []
    if lam == 1.0:
        rows = nearest(pool.vectors, pool.query, k)
    else:
        from .gmmr import gmmr_sweep  # noqa: PLC0415 - needed only for λ below 1

        rows = gmmr_sweep(pool.query, pool.vectors, [lam], k)[0].tolist()
    return [_document(pool, row) for row in rows]


def _document(pool: Pool, row: int) -> Document:
    chunk, score = pool.chunk(row), float(pool.vectors[row] @ pool.query)
    own = {"doc_id": chunk["doc_id"], "title": chunk["title"], "score": score}
    metadata = {**chunk.get("metadata", {}), **own}
    if "start" in chunk:
        metadata["start"] = chunk["start"]
    return Document(chunk["text"], id=chunk["id"], metadata=metadata)
