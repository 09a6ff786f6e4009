"""evaluate: the Evaluator of DF-RAG scores one chunk set (section 3.4), in one of three ways."""

from ..concurrency import gather_or_cancel
from ..errors import ContractFault
from ..models.interfaces import ChatModel
from ..prompts import report, unparsed
from ..resources.resources import Resources
from ..state.df_rag import DFRagContext, DFRagState, EvaluateInput, Evaluation
from .structured_reply import ask_with_retry, reply_within

MAX_REPORT_TOKENS = 512
"""For a plan of 8 steps or fewer; longer plans get as much for each step."""

StepScores = tuple[list[float], list[str]]
"""A score per step of the plan, and a short answer per step (none for evaluators that write no answers)."""


async def evaluate(state: EvaluateInput, context: DFRagContext, resources: Resources) -> DFRagState:
    """Score one chunk set against every step of the plan.

    If the Evaluator's reply cannot be read twice, the set scores 0 on every step, with a warning.
    """
    llm = await resources.llm(context)
    warnings = []
    try:
        scores, answers = await EVALUATORS[context.evaluator](state, context, llm)
    except ContractFault as fault:
        scores, answers = [0.0] * len(state["plan"]), []
        warnings = [
            f"The Evaluator's reply on chunk set {state['candidate']} could not be read ({fault.problem}); it scores 0."
        ]
    evaluation: Evaluation = {"candidate": state["candidate"], "scores": scores, "answers": answers}
    return {"evaluations": [evaluation], "warnings": warnings}


async def score_by_report(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> StepScores:
    """The paper's Evaluator: one written report with a score in 0..5 and a short answer per step."""
    steps = state["plan"]
    sampling = reply_within(max(MAX_REPORT_TOKENS, MAX_REPORT_TOKENS * len(steps) // 8), context)
    messages = report.messages(steps, state["chunks"], examples=context.report_examples)
    scores, answers = await ask_with_retry(
        llm, messages, sampling, lambda reply: report.parse(reply, len(steps)), pattern=report.pattern(len(steps))
    )
    return [float(score) for score in scores], answers


async def score_by_choice(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> StepScores:
    """The model chooses a number from 0 to 5 for each step, all steps in parallel."""
    prompts = [unparsed.choice(step, state["chunks"]) for step in state["plan"]]
    choices = await gather_or_cancel(llm.choose(messages, unparsed.SCORES) for messages in prompts)
    return [float(chosen.best) for chosen in choices], []


async def score_by_likelihood(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> StepScores:
    """The mean log-probability of each step as a reply to the chunk set, in nats."""
    scored = await llm.score(unparsed.likelihood(state["chunks"]), state["plan"])
    return scored.means, []


EVALUATORS = {"report": score_by_report, "choice": score_by_choice, "likelihood": score_by_likelihood}
