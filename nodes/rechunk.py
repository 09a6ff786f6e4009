"""retrieve and rechunk: the k nearest chunks, of the chunker given or of semantic chunks (DENSE section 5.1)."""

from __future__ import annotations

import asyncio

from ..models.resources import Resources
from ..retrieval.pool import Pool
from ..state.context import BaseContext
from ..state.dense import DenseContext, DenseState
from ..state.dense_rag import DenseRagContext, DenseRagState
from ..state.records import Chunk
from .evidence import nearest, scored_chunk, selectable
from .refine import left


async def retrieve_evidence(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """Put the k chunks nearest to the question into `evidence`, most similar first."""
    chunks, _, warnings = await top_k(state["question"], context.chunker, context, resources)
    return {"evidence": chunks, "warnings": warnings}


async def retrieve_context(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Make the k chunks nearest to the question the context C."""
    return await _context(state["question"], context.chunker, context, resources)


async def rechunk(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Cut the corpus anew by meaning (equation 7) and make the k chunks nearest to the question the context C."""
    found = await _context(state["question"], context.rechunker, context, resources)
    return {**found, "rounds": [left(state)], "rechunked": True}


async def _context(question: str, chunker: str, context: DenseRagContext, resources: Resources) -> DenseRagState:
    chunks, total, warnings = await top_k(question, chunker, context, resources)
    return {
        "chunks": chunks,
        "chunking": chunker,
        "total": total,
        "visited": {chunk["id"]: chunk for chunk in chunks},
        "warnings": warnings,
    }


async def top_k(
    question: str, chunker: str, context: BaseContext, resources: Resources
) -> tuple[list[Chunk], int, list[str]]:
    """The k nearest chunks, how many there are in all, and what is to be said of them."""
    retriever = await resources.retriever(context.corpus, chunker, context.encoder, context.on_bad_record)
    pool = await retriever.pool(question, None)
    k, warnings = selectable(pool, context.k)
    return await asyncio.to_thread(_nearest_chunks, pool, k), len(pool), warnings


def _nearest_chunks(pool: Pool, k: int) -> list[Chunk]:
    return [scored_chunk(pool, row) for row in nearest(pool.vectors, pool.query, k)]
