"""FLARE: look something up where the next sentence has an unlikely token (Jiang et al. 2023; a baseline of SeaKR).

prepare ─> draft ─┬─ likely ─────────────────────────────────────────────┬─> append ─┬─ the next step ─> draft
                  └─ unlikely ─> query ─> search ─┬─> keep ─> write ─────┤           └─> conclude
                                                  └─ nothing was found ──┘
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.prepare_reasoning import prepare_reasoning
from ..nodes.reasoning import append, draft_step, write_step
from ..nodes.snippets import keep_first, query_by_doubt, search
from ..nodes.strategies import give_answer
from ..state.baselines import FlareContext
from ..state.flow import Question
from ..state.reasoning import ReasoningOutput, ReasoningState
from .wiring import RETRY, Steps


def build(resources: Resources | None = None) -> StateGraph[ReasoningState, FlareContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(FlareContext, resources)
    graph = StateGraph(
        ReasoningState, context_schema=FlareContext, input_schema=Question, output_schema=ReasoningOutput
    )
    nodes = {
        "prepare": prepare_reasoning,
        "draft": draft_step,
        "query": query_by_doubt,
        "search": search,
        "keep": keep_first,
        "write": write_step,
        "append": append,
        "conclude": give_answer,
    }
    for name, node in nodes.items():
        graph.add_node(name, steps(node), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "draft")
    graph.add_conditional_edges("draft", steps.route(needs_retrieval), ["query", "append"])
    graph.add_edge("query", "search")
    graph.add_conditional_edges("search", was_found, ["keep", "append"])
    graph.add_edge("keep", "write")
    graph.add_edge("write", "append")
    graph.add_conditional_edges("append", goes_on, ["draft", "conclude"])
    graph.add_edge("conclude", END)
    return graph


def needs_retrieval(state: ReasoningState, context: FlareContext) -> str:
    """Has the step no words, or one with an unlikely token, and may something be looked up?"""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    if len(state["knowledge"]) >= context.documents():
        return "append"
    likely = [word["probability"] is None or word["probability"] >= context.likely_from for word in draft["words"]]
    return "append" if likely and all(likely) else "query"


def was_found(state: ReasoningState) -> str:
    """Is there a snippet to keep?"""
    return "keep" if state["snippets"] else "append"


def goes_on(state: ReasoningState) -> str:
    """Is there another step?"""
    return "conclude" if state["ended"] else "draft"


graph = build().compile(name="flare")
