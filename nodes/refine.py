"""refine: prune unnecessary chunks, refill near the necessary ones (DENSE section 5.2, Algorithm 3 lines 27-38)."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..models.interfaces import ChatModel, Vectors
from ..prompts import answer, passage
from ..resources.resources import Resources
from ..retrieval.chunking import embedding_text
from ..retrieval.pool import Pool, cosines, nearest
from ..state.dense_rag import GIVEN, DenseRagContext, DenseRagState, Refill, RefinementRound, StopReason
from ..state.records import Chunk
from .evidence import scored_chunk

MARGIN = 64
"""Tokens of the window that stay free beside the prompt and the longest answer."""


async def refine(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Drop the unnecessary chunks and add, for each necessary chunk, the nearest chunk that was not visited yet.

    The remaining chunks keep their order; the added chunks follow. A chunk is not added if the context would then
    exceed `max_chunks` or the model's window.
    """
    pruned = [chunk["chunk_id"] for chunk in state["classified"] if chunk["kind"] == "unnecessary"]
    remaining = [chunk for chunk in _with_rephrasings(state) if chunk["id"] not in pruned]
    refills, added, warnings = await refill(state, remaining, context, resources)
    chunks = [*remaining, *added]
    stop_reason: StopReason | None = None if chunks else "nothing_left"
    if not pruned and not added:
        stop_reason = "unchanged"
    update: DenseRagState = {
        "rounds": [round_record(state, pruned, refills)],
        "stop_reason": stop_reason,
        "warnings": warnings,
    }
    if stop_reason is not None:
        return update
    return {
        **update,
        "context_chunks": chunks,
        "visited": {**state["visited"], **{chunk["id"]: chunk for chunk in added}},
        "round": state["round"] + 1,
        "sufficient": None,
        "ablations": None,  # type: ignore[typeddict-item]
        "classified": [],
    }


def round_record(state: DenseRagState, pruned: Sequence[str] = (), refilled: Sequence[Refill] = ()) -> RefinementRound:
    """The record of the context that was measured last."""
    return {
        "number": state["round"],
        "chunking": state["chunking"],
        "chunk_ids": [chunk["id"] for chunk in state["context_chunks"]],
        "responses": state["responses"],
        "link": state["link"],
        "dse": state["dse"],
        "sufficient": state["sufficient"],
        "classified": state["classified"],
        "pruned": list(pruned),
        "refilled": list(refilled),
    }


def _with_rephrasings(state: DenseRagState) -> list[Chunk]:
    """The chunks of the context with their rephrasings, so that the next measurement can reuse them."""
    rephrased = zip(state["context_chunks"], state["rephrasings"], strict=True)
    return [{**chunk, "rephrasing": rephrasing} for chunk, rephrasing in rephrased]


async def refill(
    state: DenseRagState, remaining: Sequence[Chunk], context: DenseRagContext, resources: Resources
) -> tuple[list[Refill], list[Chunk], list[str]]:
    """The records of the added chunks, the chunks themselves, and warnings."""
    near = [chunk["chunk_id"] for chunk in state["classified"] if chunk["kind"] == context.refill_near]
    if context.refinement != "full" or not near:
        return [], [], []
    retriever = await resources.retriever(context, chunker=None if state["chunking"] == GIVEN else state["chunking"])
    pool = await retriever.pool(state["question"], None)
    rows = await asyncio.to_thread(rows_by_id, pool)
    # chunks that the caller gave, or that a vector store has lost
    strange = [chunk_id for chunk_id in near if chunk_id not in rows]
    texts = [embedding_text(state["visited"][chunk_id]) for chunk_id in strange]
    embedded = await (await resources.encoder(context)).embed(texts) if texts else ()
    vectors = dict(zip(strange, embedded, strict=True))
    refills, chunks = await asyncio.to_thread(_nearest_unvisited, pool, rows, vectors, near, state["visited"])
    warnings = []
    if above := min(len(chunks), max(0, len(remaining) + len(chunks) - context.max_chunks)):
        refills, chunks = refills[:-above], chunks[:-above]
        warnings.append(
            f"Chunks that were not added: {above}, because the context has at most max_chunks = {context.max_chunks} "
            "chunks; raise max_chunks to add them."
        )
    fitting = await how_many_fit(state["question"], remaining, chunks, context, await resources.llm(context))
    if fitting < len(chunks):
        warnings.append(f"{len(chunks) - fitting} chunks were not added: the model's window is full.")
    return refills[:fitting], chunks[:fitting], warnings


def rows_by_id(pool: Pool) -> dict[str, int]:
    """The row of each chunk of a pool by its id."""
    return {pool.chunk(row)["id"]: row for row in range(len(pool))}


def _nearest_unvisited(
    pool: Pool, rows: Mapping[str, int], vectors: Mapping[str, Vectors], near: Sequence[str], visited: Collection[str]
) -> tuple[list[Refill], list[Chunk]]:
    """For each chunk id in turn, the nearest chunk that is neither visited nor taken for an earlier id.

    vectors: by id, of the chunks that are not in the pool.
    """
    taken = {rows[chunk_id] for chunk_id in visited if chunk_id in rows}
    refills: list[Refill] = []
    chunks: list[Chunk] = []
    for chunk_id in near:
        if len(taken) == len(pool):
            break
        vector = pool.vectors[rows[chunk_id]] if chunk_id in rows else vectors[chunk_id]
        row = next(row for row in nearest(pool.vectors, vector, len(taken) + 1) if row not in taken)
        taken.add(row)
        chunks.append(scored_chunk(pool, row))
        cosine = float(np.clip(cosines(pool.vectors, [row], vector)[0], -1, 1))
        refills.append({"chunk_id": chunks[-1]["id"], "near": chunk_id, "similarity": cosine})
    return refills, chunks


async def how_many_fit(
    question: str, remaining: Sequence[Chunk], added: Sequence[Chunk], context: DenseRagContext, llm: ChatModel
) -> int:
    """How many of the added chunks, in order, fit the model's window beside the remaining ones.

    Each single-edit context has one rephrased chunk, which may be half as long again as the chunk itself: half of the
    longest chunk stays free for it.
    """
    window = await llm.window()
    if window is None or not added:
        return len(added)
    prompt = answer.around_passages(question)
    texts = [passage(chunk) for chunk in [*remaining, *added]]
    free = window - context.max_answer_tokens - MARGIN
    lengths = [len(text.encode("utf-8", "surrogatepass")) + 1 for text in [*prompt, *texts]]
    if sum(lengths) + max(lengths) // 2 <= free:  # a text has hardly more tokens than bytes
        return len(added)
    counts = await llm.count([*prompt, *texts])
    sizes = counts[len(prompt) :]
    free -= sum(counts[: len(prompt)]) + sum(sizes[: len(remaining)]) + max(sizes) // 2
    return int(np.count_nonzero(np.cumsum(sizes[len(remaining) :]) <= free))
