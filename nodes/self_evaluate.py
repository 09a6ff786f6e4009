"""self_evaluate: does the model find the context sufficient? (DENSE section 5.2, Algorithm 3 line 6)."""

from __future__ import annotations

from ..errors import ContractFault
from ..models.resources import Resources
from ..prompts import sufficient as prompt
from ..state.dense_rag import DenseRagContext, DenseRagState


async def self_evaluate(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Ask the model, yes or no, whether the context C suffices; a reply that is neither counts as no."""
    llm = await resources.llm(context.llm, context.concurrency)
    try:
        choice = await llm.choose(prompt.messages(state["question"], state["chunks"]), (prompt.YES, prompt.NO))
    except ContractFault:
        warning = "The model's self-evaluation was neither yes nor no; the context counts as insufficient."
        return {"sufficient": False, "warnings": [warning]}
    return {"sufficient": choice.best == prompt.YES}
