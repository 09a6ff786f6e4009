"""plan: the Planner of DF-RAG (section 3.4)."""

from __future__ import annotations

from ..errors import ContractFault
from ..models.interfaces import Sampling
from ..models.resources import Resources
from ..prompts import plan as prompt
from ..state.df_rag import DFRagContext, DFRagState
from .contract import ask

LONGEST_PLAN = 256
"""Tokens."""


async def plan(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Break the question into the ordered steps p_1..p_m whose facts together answer it.

    A planner that keeps breaking its contract leaves the question itself as the only step, and a warning.
    """
    question = state["question"]
    llm = await resources.llm(context.llm, context.concurrency)
    sampling = Sampling(max_tokens=LONGEST_PLAN, thinking=context.thinking)
    try:
        return {"plan": await ask(llm, prompt.messages(question), sampling, prompt.parse)}
    except ContractFault as fault:
        warning = f"The Planner's reply could not be read ({fault.problem}); the question itself is the only step."
        return {"plan": [question], "warnings": [warning]}
