"""plan: the Planner of DF-RAG (section 3.4)."""

from ..errors import ContractFault
from ..prompts import plan as prompt
from ..resources.resources import Resources
from ..state.df_rag import DFRagContext, DFRagState
from .structured_reply import ask_with_retry, reply_within

MAX_PLAN_TOKENS = 256

CUT = "The plan has {steps} steps and was cut to {longest}: raise max_plan_steps to keep them all."


async def plan(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Split the question into ordered steps p_1..p_m. Together, the facts they ask for answer the question.

    A plan of more than `max_plan_steps` steps is cut, with a warning. If the reply cannot be read twice, the question
    itself becomes the only step, with a warning.
    """
    question = state["question"]
    llm = await resources.llm(context)
    messages, sampling = prompt.messages(question), reply_within(MAX_PLAN_TOKENS, context)
    try:
        pattern = prompt.pattern(context.max_plan_steps + 1)  # a step too many says that the plan is longer
        steps = await ask_with_retry(llm, messages, sampling, prompt.parse, pattern=pattern)
    except ContractFault as fault:
        warning = f"The Planner's reply could not be read ({fault.problem}); the question itself is the only step."
        return {"plan": [question], "warnings": [warning]}
    longest = context.max_plan_steps
    if len(steps) <= longest:
        return {"plan": steps}
    return {"plan": steps[:longest], "warnings": [CUT.format(steps=len(steps), longest=longest)]}
