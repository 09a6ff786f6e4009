"""prepare, for the graphs that measure: refuse what cannot be measured, before any model is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UserFault
from ..models.resources import Resources
from ..state.dense import DenseContext, DenseState
from ..state.dense_rag import DenseRagContext, DenseRagState
from ..state.records import Chunk
from .entail import judge_of
from .prepare import check_question


async def prepare_dense(state: DenseState, context: DenseContext, resources: Resources) -> dict[str, Any]:
    """Open what the measurement needs, take the chunks that were given, begin usage and warnings anew.

    Raises `UserFault` for an empty or overlong question, for chunks that have no text or are not told apart by their
    ids, for an unknown model, and for a corpus that cannot be read where no chunks were given.
    """
    check_question(state.get("question"))
    given = state.get("chunks")
    evidence = [] if given is None else given_chunks(given)
    llm = await resources.llm(context.llm, context.concurrency)
    await judge_of(context, resources)
    if given is None:
        await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    return {
        "evidence": evidence,
        "given": given is not None,
        "rephrased": None,
        "repeat": context.check_determinism and llm.name not in resources.repeats_itself,
        "usage": None,
        "warnings": None,
    }


async def prepare_dense_rag(state: DenseRagState, context: DenseRagContext, resources: Resources) -> dict[str, Any]:
    """Open what the run needs and begin anew whatever an earlier question of the thread left.

    Raises `UserFault` as `prepare_dense`, and for a semantic chunker that is none.
    """
    check_question(state.get("question"))
    if context.adaptive:
        await check_rechunker(context, resources)
    await resources.llm(context.llm, context.concurrency)
    await judge_of(context, resources)
    await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    return {
        "round": 0,
        "rechunked": False,
        "sufficient": None,
        "best": None,
        "ablations": None,
        "classified": [],
        "stopped": None,
        "rounds": None,
        "settings": context.model_dump(mode="json"),
        "usage": None,
        "warnings": None,
    }


async def check_rechunker(context: DenseRagContext, resources: Resources) -> None:
    """Refuse a semantic chunker that is none, or that this encoder cannot serve."""
    from ..retrieval.index import chunker_for  # noqa: PLC0415 - faiss loads when first needed

    if not context.rechunker.strip().startswith("semantic:"):
        raise UserFault(
            f"The semantic chunker '{context.rechunker}' is none: set rechunker to semantic:0.6/512 or the like, or "
            "adaptive to false."
        )
    try:
        await chunker_for(context.rechunker, await resources.encoder(context.encoder))
    except UserFault as fault:
        raise UserFault(f"{fault} Without semantic chunks: set adaptive to false.") from fault


def given_chunks(given: Sequence[str | Chunk]) -> list[Chunk]:
    """Texts or chunk records as chunks; texts get the ids `given#1`, `given#2`, ..."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserFault('The chunks are no list: give "chunks": ["...", "..."].')
    chunks = [_chunk(one, number) for number, one in enumerate(given, 1)]
    ids = [chunk["id"] for chunk in chunks]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise UserFault(f"Two chunks have the id '{twice}': give every chunk an id of its own, or texts without ids.")
    return chunks


def _chunk(given: object, number: int) -> Chunk:
    record = {"text": given} if isinstance(given, str) else given
    if not isinstance(record, dict) or not isinstance(text := record.get("text"), str) or not text.strip():
        raise UserFault(f"Chunk {number} has no text: give a text that is not empty, or a record with such a 'text'.")
    name = str(record.get("id") or f"given#{number}")
    chunk: Chunk = {
        "id": name,
        "doc_id": str(record.get("doc_id") or name),
        "title": str(record.get("title") or ""),
        "text": text,
    }
    if isinstance(rephrasing := record.get("rephrasing"), str):
        chunk["rephrasing"] = rephrasing
    if isinstance(score := record.get("score"), int | float):
        chunk["score"] = float(score)
    return chunk
