"""evaluate: the Evaluator of DF-RAG on one chunk set (section 3.4), in three forms."""

from __future__ import annotations

import asyncio

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Sampling
from ..models.resources import Resources
from ..prompts import choice, likelihood, report
from ..state.df_rag import DFRagContext, DFRagState, EvaluateInput, Evaluation
from .contract import ask

LONGEST_REPORT = 512
"""Tokens."""


async def evaluate(state: EvaluateInput, context: DFRagContext, resources: Resources) -> DFRagState:
    """Score one chunk set against every step of the plan.

    A set whose evaluation keeps breaking its contract scores 0 on every step, and a warning says so.
    """
    llm = await resources.llm(context.llm, context.concurrency)
    try:
        scores, answers = await EVALUATORS[context.evaluator](state, context, llm)
    except ContractFault as fault:
        warning = (
            f"The Evaluator's reply on chunk set {state['candidate']} could not be read ({fault.problem}); it scores 0."
        )
        return {"evaluations": [_evaluation(state, [0.0] * len(state["plan"]), [])], "warnings": [warning]}
    return {"evaluations": [_evaluation(state, scores, answers)]}


async def by_report(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> tuple[list[float], list[str]]:
    """The paper's: one written report with a score in 0..5 and a short answer per step."""
    steps = state["plan"]
    sampling = Sampling(max_tokens=LONGEST_REPORT, thinking=context.thinking)
    messages = report.messages(steps, state["chunks"])
    scores, answers = await ask(llm, messages, sampling, lambda reply: report.parse(reply, len(steps)))
    return [float(score) for score in scores], answers


async def by_choice(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> tuple[list[float], list[str]]:
    """A choice from 0 to 5 per step, all steps at once."""
    chats = [choice.messages(step, state["chunks"]) for step in state["plan"]]
    chosen = await asyncio.gather(*(llm.choose(chat, choice.OPTIONS) for chat in chats))
    return [float(one.best) for one in chosen], []


async def by_likelihood(state: EvaluateInput, context: DFRagContext, llm: ChatModel) -> tuple[list[float], list[str]]:
    """The mean log-probability of every step as a reply to the chunk set, in nats."""
    scored = await llm.score(likelihood.messages(state["chunks"]), state["plan"])
    return scored.means, []


EVALUATORS = {"report": by_report, "choice": by_choice, "likelihood": by_likelihood}


def _evaluation(state: EvaluateInput, scores: list[float], answers: list[str]) -> Evaluation:
    return {"candidate": state["candidate"], "scores": scores, "answers": answers}
