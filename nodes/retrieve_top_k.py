"""retrieve_top_k, retrieve_context: the k chunks that the context C begins with (DENSE section 6.1)."""

import asyncio

from ..resources.resources import Resources
from ..retrieval.pool import Pool, nearest
from ..state.dense import DenseContext, DenseState
from ..state.dense_rag import GIVEN, DenseRagContext, DenseRagState
from ..state.records import Chunk
from .evidence import scored_chunk, selectable
from .refine import rows_by_id
from .search import search


async def retrieve_top_k(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """Put the k best chunks into `evidence`, best first."""
    chunks, warnings = await _top_k(state["question"], context.chunker, context, resources)
    return {"evidence": chunks, "warnings": warnings}


async def retrieve_context(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Make the caller's chunks the context C, or else the k best fixed-size chunks."""
    if chunks := state["context_chunks"]:
        visited = {chunk["id"]: chunk for chunk in chunks}
        total = 0
        if state["needs_corpus"]:
            pool = await (await resources.retriever(context)).pool(state["question"], None)
            total = len(await asyncio.to_thread(rows_by_id, pool) | visited)
        return {"context_chunks": chunks, "chunking": GIVEN, "total": total, "visited": visited}
    return await top_k_context(state["question"], context.chunker, context, resources)


async def top_k_context(question: str, chunker: str, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """The context C of the k best chunks of a chunker, none of which has been refined yet."""
    chunks, warnings = await _top_k(question, chunker, context, resources)
    pool = await (await resources.retriever(context, chunker=chunker)).pool(question, None)
    visited = {chunk["id"]: chunk for chunk in chunks}
    return {"context_chunks": chunks, "chunking": chunker, "total": len(pool), "visited": visited, "warnings": warnings}


async def _top_k(
    question: str, chunker: str, context: DenseContext, resources: Resources
) -> tuple[list[Chunk], list[str]]:
    """The k best chunks, and warnings."""
    if context.first_stage != "dense" or context.rerank_n:
        found = await search(question, context, resources, chunker=chunker)
        return found.chunks, found.warnings
    retriever = await resources.retriever(context, chunker=chunker)
    pool = await retriever.pool(question, None)
    k, warnings = selectable(pool, context.k)
    return await asyncio.to_thread(_nearest_chunks, pool, k), warnings


def _nearest_chunks(pool: Pool, k: int) -> list[Chunk]:
    return [scored_chunk(pool, row) for row in nearest(pool.vectors, pool.query, k)]
