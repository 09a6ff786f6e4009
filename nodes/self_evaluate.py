"""self_evaluate: whether the model finds the context sufficient (DENSE section 5.2, Algorithm 3 line 6)."""

from ..errors import ContractFault
from ..prompts import unparsed as prompt
from ..resources.resources import Resources
from ..state.dense_rag import DenseRagContext, DenseRagState


async def self_evaluate(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Ask the model whether the context C suffices, yes or no; any other reply counts as no."""
    llm = await resources.llm(context)
    try:
        choice = await llm.choose(
            prompt.sufficient(state["question"], state["context_chunks"]), (prompt.YES, prompt.NO)
        )
    except ContractFault:
        warning = "The model's self-evaluation was neither yes nor no; the context counts as insufficient."
        return {"sufficient": False, "warnings": [warning]}
    return {"sufficient": choice.best == prompt.YES}
