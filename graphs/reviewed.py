"""A graph with a person in the loop: a person reviews an uncertain answer before it is given.

    begin_review ──> GRAPH ─┬─ certain ───────────────────────────────────────────> end
                            └─ uncertain ─> review ─┬─ accept, or stop ──────────────^
                                   ^                └─ answer ─> measure_given_chunks ┤
                                   └────────────────────── uncertain ─────────────────┘

GRAPH is `dense` or `dense_rag`; `measure_given_chunks` is `dense` with the chunks that the person gave. The run stops
at `review` with a LangGraph interrupt, so compile with a checkpointer. It goes on with
`Command(resume={"action": "accept"})`, `{"action": "stop"}` or `{"action": "answer", "chunks": [...]}`.
"""

from typing import Any

from langgraph.graph import END, START

from ..errors import UserFault
from ..nodes.review import begin_review, review
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.reviewed import ReviewedOutput, ReviewedState
from . import dense
from .registry import context_type, graph_named
from .wiring import Machine, silent


def build(graph: str, resources: Resources | None = None) -> Machine[ReviewedState, Any, Question, ReviewedOutput]:
    """Wire a graph with a review after it. The context is that of the graph; `dense` reads the settings that it shares.

    Raises `UserFault` for an unknown graph, and for a graph whose output has no `certain`.
    """
    technique = graph_named(graph, resources)
    if "certain" not in technique.output_channels:
        raise UserFault(f"{graph} does not say whether its answer is certain: review dense or dense_rag.")
    reviewed = Machine(ReviewedState, context_type(technique), Question, ReviewedOutput, resources)
    reviewed.add_steps(begin_review, review)
    # an answer is given once it is reviewed
    reviewed.add_node(graph, silent(technique))
    reviewed.add_node("measure_given_chunks", silent(dense.build(resources).compile(name="dense")))
    reviewed.add_path(START, "begin_review", graph)
    for measured in (graph, "measure_given_chunks"):
        reviewed.add_conditional_edges(measured, is_certain, {True: END, False: "review"})
    reviewed.add_conditional_edges("review", is_answered_again, {True: "measure_given_chunks", False: END})
    return reviewed


def is_certain(state: ReviewedState) -> bool:
    """Is the latest answer certain?"""
    return state["certain"]


def is_answered_again(state: ReviewedState) -> bool:
    """Did the person ask for another answer?"""
    return state["decisions"][-1]["action"] == "answer"


dense_rag = build("dense_rag").compile(name="dense_rag_reviewed")
