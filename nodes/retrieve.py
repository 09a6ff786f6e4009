"""retrieve: one chunk set for the question, by plain similarity or by one of DF-RAG's fixed baselines."""

from __future__ import annotations

import asyncio

import numpy as np

from ..errors import UserFault
from ..models.interfaces import ChatModel
from ..models.resources import Resources
from ..prompts import answer
from ..retrieval.gmmr import gmmr_sweep, mmr_sweep
from ..retrieval.pool import Pool
from ..state.records import Chunk
from ..state.vanilla_rag import VanillaRagContext, VanillaRagState
from .evidence import by_similarity, scored_chunk, selectable

SWEEPS = {"gmmr": gmmr_sweep, "mmr": mmr_sweep}

NONE_FITS = "Not one chunk fits the model's context window; the answer is made without evidence."


async def retrieve(state: VanillaRagState, context: VanillaRagContext, resources: Resources) -> VanillaRagState:
    """Put the selected chunks into `evidence`, most similar first; for long context in the order of the corpus."""
    retriever = await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    pool = await retriever.pool(state["question"], context.k if context.selection == "top_k" else None)
    k, warnings = selectable(pool, 1 if context.selection == "long_context" else context.k)
    if not k:
        return {"evidence": [], "warnings": warnings}
    if context.selection == "long_context":
        llm = await resources.llm(context.llm, context.concurrency)
        fitting = await what_fits(state["question"], pool, context.max_answer_tokens, llm)
        return {"evidence": fitting, "warnings": warnings if fitting else [*warnings, NONE_FITS]}
    rows = await asyncio.to_thread(_rows, pool, context, k)
    return {"evidence": [scored_chunk(pool, row) for row in by_similarity(rows, pool)], "warnings": warnings}


def _rows(pool: Pool, context: VanillaRagContext, k: int) -> list[int]:
    if context.selection == "top_k":
        return list(range(k))
    level = np.array([context.fixed_lambda], dtype=np.float32)
    rows: list[int] = SWEEPS[context.selection](pool.query, pool.vectors, level, k)[0].tolist()
    return rows


async def what_fits(question: str, pool: Pool, answer_tokens: int, llm: ChatModel) -> list[Chunk]:
    """The most similar chunks that fit the model's window together, in the order of the corpus (DF-RAG section 3.5)."""
    window = await llm.window()
    if window is None:
        raise UserFault(
            f"long_context needs to know the context window and '{llm.name}' does not tell it: use a vllm:, hf:, gguf: "
            "or embedded model, or selection top_k."
        )
    room = window - answer_tokens - sum(await llm.count([m["content"] for m in answer.messages(question, [])])) - 64
    order = np.argsort(-(pool.vectors @ pool.query), kind="stable").tolist()
    kept: list[int] = []
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        for row, tokens in zip(batch, await llm.count([as_prompted(pool.chunk(row)) for row in batch]), strict=True):
            if tokens > room:
                return [scored_chunk(pool, one) for one in sorted(kept)]
            room -= tokens
            kept.append(row)
    return [scored_chunk(pool, row) for row in sorted(kept)]


BATCH = 64
"""Chunks counted at a time."""


def as_prompted(chunk: Chunk) -> str:
    """A chunk as it stands in a prompt, for counting its tokens."""
    return f'<passage number="1000">\n{chunk["title"]}\n{chunk["text"]}\n</passage>\n'
