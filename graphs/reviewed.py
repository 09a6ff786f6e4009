"""A graph with a person in the loop: an answer that cannot be relied on is shown before it is given.

    begin ──> GRAPH ─┬─ certain ────────────────────────────────────> end
                     └─ uncertain ─> review ─┬─ accept, or stop ───────^
                            ^                └─ other chunks ─> measure ┤
                            └────────────── uncertain ─────────────────┘

GRAPH is one that says how certain it is: `dense` or `dense_rag`. The run stops at `review` (a LangGraph interrupt, so
compile with a checkpointer) and goes on with `Command(resume={"action": "accept"})`, `{"action": "stop"}` or
`{"action": "answer", "chunks": [...]}`; `measure` is `dense` on those chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langgraph.graph import END, START, StateGraph

from ..errors import UserFault
from ..models.resources import Resources
from ..nodes.review import begin_review, review
from ..state.flow import Question
from ..state.reviewed import ReviewedOutput, ReviewedState
from . import dense
from .registry import graph_named
from .wiring import Steps

if TYPE_CHECKING:
    from ..state.context import BaseContext


def build(graph: str, resources: Resources | None = None) -> StateGraph[ReviewedState, Any, Question, ReviewedOutput]:
    """Wire a graph with a review behind it; it has the context of the graph, and `measure` the settings they share.

    Raises `UserFault` for an unknown graph, and for one that does not say how certain its answer is.
    """
    technique = graph_named(graph, resources)
    if "certain" not in technique.output_channels:
        raise UserFault(f"{graph} does not say how certain its answer is: review dense or dense_rag.")
    settings = cast("type[BaseContext]", technique.builder.context_schema)
    steps = Steps(settings, resources)
    reviewed = StateGraph(ReviewedState, context_schema=settings, input_schema=Question, output_schema=ReviewedOutput)
    reviewed.add_node("begin", steps(begin_review))
    reviewed.add_node(graph, technique)
    reviewed.add_node("measure", dense.build(resources).compile(name="measure"))
    reviewed.add_node("review", steps(review))
    reviewed.add_edge(START, "begin")
    reviewed.add_edge("begin", graph)
    reviewed.add_conditional_edges(graph, certain_or_not, ["review", END])
    reviewed.add_conditional_edges("measure", certain_or_not, ["review", END])
    reviewed.add_conditional_edges("review", what_was_decided, ["measure", END])
    return reviewed


def certain_or_not(state: ReviewedState) -> str:
    """Is there anything to show?"""
    return END if state.get("certain") else "review"


def what_was_decided(state: ReviewedState) -> str:
    """Is there to be another answer?"""
    return "measure" if state["decisions"][-1]["action"] == "answer" else END


dense_rag = build("dense_rag").compile(name="dense_rag_reviewed")
