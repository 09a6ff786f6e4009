"""IRCoT: the last sentence is searched for before every next one (Trivedi et al. 2023; a baseline of SeaKR).

          ┌─ documents left ─> query ─> search ─> keep ─> write ─┐
prepare ──┤                                                      ├─> append ─┬─ the next step, as at first
          └─ none left ─> draft ─────────────────────────────────┘           └─> conclude
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.prepare_reasoning import prepare_reasoning
from ..nodes.reasoning import append, draft_step, write_step
from ..nodes.snippets import keep_first, query_by_rationale, search
from ..nodes.strategies import give_answer
from ..state.baselines import IRCoTContext
from ..state.flow import Question
from ..state.reasoning import ReasoningOutput, ReasoningState
from .wiring import RETRY, Steps


def build(resources: Resources | None = None) -> StateGraph[ReasoningState, IRCoTContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(IRCoTContext, resources)
    graph = StateGraph(
        ReasoningState, context_schema=IRCoTContext, input_schema=Question, output_schema=ReasoningOutput
    )
    nodes = {
        "prepare": prepare_reasoning,
        "query": query_by_rationale,
        "search": search,
        "keep": keep_first,
        "write": write_step,
        "draft": draft_step,
        "append": append,
        "conclude": give_answer,
    }
    for name, node in nodes.items():
        graph.add_node(name, steps(node), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("prepare", steps.route(what_is_next), ["query", "draft", "conclude"])
    graph.add_edge("query", "search")
    graph.add_edge("search", "keep")
    graph.add_edge("keep", "write")
    graph.add_edge("write", "append")
    graph.add_edge("draft", "append")
    graph.add_conditional_edges("append", steps.route(what_is_next), ["query", "draft", "conclude"])
    graph.add_edge("conclude", END)
    return graph


def what_is_next(state: ReasoningState, context: IRCoTContext) -> str:
    """Is there another step, and may something be looked up for it?"""
    if state["ended"]:
        return "conclude"
    return "query" if len(state["knowledge"]) < context.documents() else "draft"


graph = build().compile(name="ircot")
