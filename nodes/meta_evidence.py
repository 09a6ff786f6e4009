"""note, gather, reason: what the path found, read again as a whole (SUNAR section 3.2, meta evidence reasoner)."""

from __future__ import annotations

from ..models.answer_text import normalised
from ..models.resources import Resources
from ..prompts import meta_evidence as prompt
from ..retrieval.chunking import embedding_text
from ..state.records import Chunk
from ..state.sunar import SunarContext, SunarState
from .generate import answer_to


async def note(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Add the look-up to the path."""
    assert state["query"] is not None  # noqa: S101 - there was one to look up
    best = state["evidence"][: context.documents_per_hop]
    return {
        "hops": [
            {
                "question": state["query"],
                "answer": state["answer"],
                "evidence_ids": [chunk["id"] for chunk in state["evidence"]],
                "scored": state["scored"],
                "stopped": state["stopped"],
            }
        ],
        "library": {**state["library"], **{chunk["id"]: chunk for chunk in best}},
    }


async def gather(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Rank the best documents of all sub-questions for the question itself and keep `meta_documents`."""
    chunks = list(state["library"].values())
    if not chunks:
        return {"meta_evidence": []}
    reranker = await resources.reranker(context.reranker, context.llm, context.encoder, context.concurrency)
    scores = await reranker.scores(state["question"], [embedding_text(chunk) for chunk in chunks])
    scored: list[Chunk] = [{**chunk, "score": score} for chunk, score in zip(chunks, scores, strict=True)]
    return {"meta_evidence": sorted(scored, key=lambda chunk: -chunk["score"])[: context.meta_documents]}


async def reason(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Answer from all reasoning paths and the meta evidence; an empty answer leaves the sequential one."""
    llm = await resources.llm(context.llm, context.concurrency)
    sequential = state["sequential_answer"]
    messages = prompt.messages(state["question"], state["hops"], sequential, state["meta_evidence"])
    text, warnings = await answer_to(messages, context, llm)
    answer = text or sequential
    return {
        "answer": answer,
        "evidence": state["meta_evidence"],
        "changed": normalised(answer) != normalised(sequential),
        "warnings": warnings,
    }


async def take_sequential(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Without the meta evidence reasoner: the sequential answer, from the last sub-question's evidence."""
    return {"answer": state["sequential_answer"], "changed": False}
