"""grade, keep_relevant: CRAG's retrieval evaluator and its decision (Yan et al. 2024, section 4.2)."""

from __future__ import annotations

from ..errors import ContractFault
from ..prompts import grade as prompt
from ..resources.resources import Resources
from ..state.crag import CragContext, CragState, GradeInput

NOTHING_RELEVANT = "The model graded no retrieved chunk as relevant; the answer is made without evidence."


async def grade(state: GradeInput, context: CragContext, resources: Resources) -> CragState:
    """Ask whether one chunk helps to answer the question; a reply that is neither yes nor no counts as no."""
    llm = await resources.llm(context)
    chunk_id = state["chunk"]["id"]
    try:
        choice = await llm.choose(prompt.messages(state["question"], state["chunk"]), (prompt.YES, prompt.NO))
    except ContractFault:
        return {"grades": {chunk_id: False}, "warnings": [f"The grade of chunk {chunk_id} was neither yes nor no."]}
    return {"grades": {chunk_id: choice.best == prompt.YES}}


async def keep_relevant(state: CragState, context: CragContext, resources: Resources) -> CragState:
    """Keep the relevant chunks. The uncertainty is the share of chunks that are not."""
    relevant = [chunk for chunk in state["evidence"] if state["grades"][chunk["id"]]]
    irrelevant = len(state["evidence"]) - len(relevant)
    share = irrelevant / len(state["evidence"]) if state["evidence"] else None
    return {
        "evidence": relevant,
        "uncertainty": {"signal": "share of irrelevant chunks", "value": share, "threshold": context.most_irrelevant},
        "warnings": [] if relevant else [NOTHING_RELEVANT],
    }
