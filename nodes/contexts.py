"""contexts: the k + 1 contexts to answer (DENSE section 4.1, equation 4)."""

from __future__ import annotations

from ..models.resources import Resources
from ..state.dense import ORIGINAL, AnswerInput, DenseContext, DenseState, text_key
from ..state.records import Chunk


async def contexts(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """List the original context C_0 and, for each chunk that was rephrased, C_i with that chunk's rephrasing.

    The context of a chunk that could not be rephrased is the original, and so is the model's response to it.
    """
    probed = [chunk["id"] for chunk in state["evidence"] if is_probed(chunk, state)]
    return {"pending": [ORIGINAL, *probed], "replies": None}  # type: ignore[typeddict-item]


def is_probed(chunk: Chunk, state: DenseState) -> bool:
    """Was this chunk rephrased?"""
    return rephrasing(chunk, state) != chunk["text"]


def rephrasing(chunk: Chunk, state: DenseState) -> str:
    """c'_i, or the chunk's own text where there is none."""
    known = chunk.get("rephrasing", chunk["text"])
    return state["rephrased"].get(text_key(chunk["text"]), known)


def context_of(key: str, state: DenseState) -> AnswerInput:
    """The context that goes by a key of `pending`."""
    return {
        "key": key,
        "question": state["question"],
        "evidence": [_rephrased(chunk, state) if chunk["id"] == key else chunk for chunk in state["evidence"]],
    }


def _rephrased(chunk: Chunk, state: DenseState) -> Chunk:
    return {**chunk, "text": rephrasing(chunk, state)}
