"""refine: prune unnecessary chunks, refill near the necessary ones (DENSE section 5.2, Algorithm 3 lines 27-38)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import numpy as np

from ..models.interfaces import ChatModel
from ..models.resources import Resources
from ..prompts import answer
from ..retrieval.pool import Pool
from ..state.dense_rag import DenseRagContext, DenseRagState, Refill, Round, Stop
from ..state.records import Chunk
from .evidence import scored_chunk
from .retrieve import as_prompted

SPARE = 64
"""Tokens of the window left free, beyond the longest answer, when chunks are added."""


async def refine(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Drop the unnecessary chunks and add, for each necessary one, the nearest chunk that was not visited yet.

    The rest keep their order and the added ones follow. Chunks that would not fit the model's window, or would make
    the context larger than `max_chunks`, are not added.
    """
    pruned = [one["chunk_id"] for one in state["classified"] if one["kind"] == "unnecessary"]
    rest = [chunk for chunk in with_rephrasings(state) if chunk["id"] not in pruned]
    refilled, added, warnings = await refill(state, rest, context, resources)
    chunks = [*rest, *added]
    stopped: Stop | None = None if chunks else "nothing_left"
    if not pruned and not added:
        stopped = "unchanged"
    record: DenseRagState = {"rounds": [left(state, pruned, refilled)], "stopped": stopped, "warnings": warnings}
    if stopped is not None:
        return record
    return {
        **record,
        "chunks": chunks,
        "visited": {**state["visited"], **{chunk["id"]: chunk for chunk in added}},
        "round": state["round"] + 1,
        "sufficient": None,
        "ablations": None,  # type: ignore[typeddict-item]
        "classified": [],
    }


def with_rephrasings(state: DenseRagState) -> list[Chunk]:
    """The chunks of the context with what they were rephrased to, which need not be asked for again."""
    return [{**chunk, "rephrasing": r} for chunk, r in zip(state["chunks"], state["rephrasings"], strict=True)]


def left(state: DenseRagState, pruned: Sequence[str] = (), refilled: Sequence[Refill] = ()) -> Round:
    """The record of a context that was measured and is now left."""
    return {
        "number": state["round"],
        "chunking": state["chunking"],
        "chunk_ids": [chunk["id"] for chunk in state["chunks"]],
        "responses": state["responses"],
        "link": state["link"],
        "dse": state["dse"],
        "sufficient": state["sufficient"],
        "classified": state["classified"],
        "pruned": list(pruned),
        "refilled": list(refilled),
    }


async def refill(
    state: DenseRagState, rest: Sequence[Chunk], context: DenseRagContext, resources: Resources
) -> tuple[list[Refill], list[Chunk], list[str]]:
    """The chunks to add, and for the sake of which ones."""
    near = [one["chunk_id"] for one in state["classified"] if one["kind"] == context.refill_near]
    near = near[: max(0, context.max_chunks - len(rest))]
    if context.refinement != "full" or not near:
        return [], [], []
    retriever = await resources.retriever(context.corpus, state["chunking"], context.encoder, context.on_bad_record)
    pool = await retriever.pool(state["question"], None)
    found = await asyncio.to_thread(_unvisited, pool, near, state["visited"])
    llm = await resources.llm(context.llm, context.concurrency)
    fitting = await how_many_fit(state["question"], rest, [chunk for _, chunk in found], context, llm)
    full = f"{len(found) - fitting} chunks were not added: the model's window is full."
    warnings = [full] if fitting < len(found) else []
    return [one for one, _ in found[:fitting]], [chunk for _, chunk in found[:fitting]], warnings


def _unvisited(pool: Pool, near: Sequence[str], visited: Collection[str]) -> list[tuple[Refill, Chunk]]:
    """For each chunk in turn the nearest one that is not visited and was not found for an earlier one."""
    rows = {pool.chunk(row)["id"]: row for row in range(len(pool))}
    free = np.ones(len(pool), dtype=bool)
    free[[rows[one] for one in visited if one in rows]] = False
    found: list[tuple[Refill, Chunk]] = []
    for one in near:
        if one not in rows or not free.any():  # a retriever that is not ours may have lost it
            continue
        similarity = np.where(free, pool.vectors @ pool.vectors[rows[one]], -np.inf)
        row = int(similarity.argmax())
        free[row] = False
        chunk = scored_chunk(pool, row)
        refill: Refill = {"chunk_id": chunk["id"], "near": one, "similarity": float(np.clip(similarity[row], -1, 1))}
        found.append((refill, chunk))
    return found


async def how_many_fit(
    question: str, rest: Sequence[Chunk], added: Sequence[Chunk], context: DenseRagContext, llm: ChatModel
) -> int:
    """How many of the added chunks, in their order, fit the window together with the rest and a rephrasing."""
    window = await llm.window()
    if window is None or not added:
        return len(added)
    asked = await llm.count([message["content"] for message in answer.messages(question, [])])
    sizes = await llm.count([as_prompted(chunk) for chunk in [*rest, *added]])
    room = window - context.max_answer_tokens - SPARE - sum(asked) - sum(sizes[: len(rest)])
    totals = np.cumsum(sizes[len(rest) :]) + max(sizes) // 2  # a rephrasing may be half as long again
    return int(np.count_nonzero(totals <= room))
