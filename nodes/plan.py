"""plan: the Planner of DF-RAG (section 3.4)."""

from ..errors import ContractFault
from ..models.interfaces import Sampling
from ..prompts import plan as prompt
from ..resources.resources import Resources
from ..state.df_rag import DFRagContext, DFRagState
from .structured_reply import ask_with_retry

MAX_PLAN_TOKENS = 256


async def plan(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Split the question into ordered steps p_1..p_m. Together, the facts they ask for answer the question.

    If the reply cannot be read twice, the question itself becomes the only step, with a warning.
    """
    question = state["question"]
    llm = await resources.llm(context)
    sampling = Sampling(max_tokens=MAX_PLAN_TOKENS, thinking=context.thinking)
    try:
        return {"plan": await ask_with_retry(llm, prompt.messages(question), sampling, prompt.parse)}
    except ContractFault as fault:
        warning = f"The Planner's reply could not be read ({fault.problem}); the question itself is the only step."
        return {"plan": [question], "warnings": [warning]}
