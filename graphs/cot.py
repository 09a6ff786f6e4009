"""Chain of thought: one sentence after the other, nothing looked up (Wei et al. 2022; a baseline of SeaKR).

prepare ─> draft ─> append ─┬─ the next step ─> draft
                            └─> conclude
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.prepare_reasoning import prepare_reasoning
from ..nodes.reasoning import append, draft_step
from ..nodes.strategies import give_answer
from ..state.flow import Question
from ..state.reasoning import ReasoningContext, ReasoningOutput, ReasoningState
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None,
) -> StateGraph[ReasoningState, ReasoningContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(ReasoningContext, resources)
    graph = StateGraph(
        ReasoningState, context_schema=ReasoningContext, input_schema=Question, output_schema=ReasoningOutput
    )
    graph.add_node("prepare", steps(prepare_reasoning), retry_policy=RETRY)
    graph.add_node("draft", steps(draft_step), retry_policy=RETRY)
    graph.add_node("append", steps(append), retry_policy=RETRY)
    graph.add_node("conclude", steps(give_answer), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "draft")
    graph.add_edge("draft", "append")
    graph.add_conditional_edges("append", goes_on, ["draft", "conclude"])
    graph.add_edge("conclude", END)
    return graph


def goes_on(state: ReasoningState) -> str:
    """Is there another step?"""
    return "conclude" if state["ended"] else "draft"


graph = build().compile(name="cot")
