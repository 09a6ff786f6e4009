"""retrieve, rerank, and the evidence, of neighbourhood-aware retrieval (SUNAR section 3.2)."""

from __future__ import annotations

from ..models.resources import Resources
from ..prompts import answer as prompt
from ..retrieval.chunking import embedding_text
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState
from ..state.records import Chunk
from .generate import answer_to
from .promote import ranked
from .sources import first_stage_of


async def look_up(state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources) -> NeighbourhoodState:
    """R: the first stage's best documents for what is asked."""
    stage = await first_stage_of(context, resources)
    found = await stage.search(state["asked"], context.first_stage_n)
    warnings = [] if found else ["The first stage found no documents; the answer is made without evidence."]
    return {
        "documents": {chunk["id"]: chunk for chunk in found},
        "source": stage.name,
        "first_stage": list(dict.fromkeys(chunk["id"] for chunk in found)),
        "frontier": [],
        "iteration": 0,
        "turn": "first_stage",
        "stale": 0,
        "sets": None,
        "scored": None,  # type: ignore[typeddict-item]
        "warnings": warnings,
    }


async def rerank(state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources) -> NeighbourhoodState:
    """Score the batch against what is asked, each document in (0, 1)."""
    reranker = await resources.reranker(context.reranker, context.llm, context.encoder, context.concurrency)
    texts = [embedding_text(state["documents"][one]) for one in state["batch"]]
    return {"raw": await reranker.scores(state["asked"], texts), "sets": None}


async def conclude_lookup(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Answer what is asked from the k best documents."""
    llm = await resources.llm(context.llm, context.concurrency)
    evidence: list[Chunk] = [
        {**state["documents"][one["chunk_id"]], "score": one["score"]} for one in ranked(state["scored"])[: context.k]
    ]
    text, warnings = await answer_to(prompt.messages(state["asked"], evidence), context, llm)
    return {"answer": text, "evidence": evidence, "warnings": warnings}
