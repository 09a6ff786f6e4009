"""The chunks that a caller gives in place of a retrieval."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserFault
from ..resources.resources import Resources
from ..retrieval.metadata import metadata_of
from ..state.context import BaseContext
from ..state.dense import PartState
from ..state.dense_rag import DenseRagContext, DenseRagState
from ..state.records import Chunk


async def take_given_chunks(state: Mapping[str, Any], context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Put the caller's `chunks` into `evidence`; `given` says whether there were any.

    Raises `UserFault` for a chunk without text, and for two chunks with one id.
    """
    given = state.get("chunks")
    return {"given": given is not None, "evidence": [] if given is None else given_chunks(given)}


async def take_context_chunks(state: PartState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Put the context of the graph that the measurement is a part of into `evidence`."""
    return {"given": True, "evidence": given_chunks(state["context_chunks"])}


async def take_given_context(state: DenseRagState, context: DenseRagContext, resources: Resources) -> dict[str, Any]:
    """Make the caller's `chunks` the context C. The corpus is needed only to chunk it again and to add chunks.

    Raises `UserFault` as `take_given_chunks` does, and for an empty list.
    """
    if (given := state.get("chunks")) is None:
        return {}
    if not (chunks := given_chunks(given)):
        raise UserFault("The list of chunks is empty: give at least one, or leave chunks out to look some up.")
    return {"context_chunks": chunks, "given": True, "needs_corpus": context.adaptive or context.refinement == "full"}


def given_chunks(given: Sequence[str | Chunk]) -> list[Chunk]:
    """Texts or chunk records as chunks; texts get the ids `given#1`, `given#2`, ..."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserFault('The chunks are not a list: give "chunks": ["...", "..."].')
    chunks = [_chunk(chunk, number) for number, chunk in enumerate(given, 1)]
    ids = [chunk["id"] for chunk in chunks]
    if duplicate := next((name for name in ids if ids.count(name) > 1), None):
        raise UserFault(f"Two chunks have the id '{duplicate}': give every chunk its own id, or texts without ids.")
    return chunks


def _chunk(given: object, number: int) -> Chunk:
    record = {"text": given} if isinstance(given, str) else given
    if not isinstance(record, dict) or not isinstance(text := record.get("text"), str) or not text.strip():
        raise UserFault(f"Chunk {number} has no text: give a text that is not empty, or a record with a 'text'.")
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
    if isinstance(metadata := record.get("metadata"), Mapping) and (kept := metadata_of(metadata)):
        chunk["metadata"] = kept
    return chunk
