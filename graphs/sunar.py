"""SUNAR: one sub-question at a time, each explored in its neighbourhood; in the end all evidence is read again.

prepare ─> decompose ─┬─ the next sub-question ─> neighbourhood ─> note ─┐
               ^      │                                                  │
               │      └─ an answer ─┬─> gather ─> reason                 │
               │                    └─> conclude (without meta evidence) │
               └─────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.decompose import decompose
from ..nodes.meta_evidence import gather, note, reason, take_sequential
from ..nodes.prepare_sunar import prepare_sunar
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState
from . import neighbourhood
from .wiring import RETRY, Steps


def build(resources: Resources | None = None) -> StateGraph[SunarState, SunarContext, Question, SunarOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(SunarContext, resources)
    graph = StateGraph(SunarState, context_schema=SunarContext, input_schema=Question, output_schema=SunarOutput)
    graph.add_node("prepare", steps(prepare_sunar), retry_policy=RETRY)
    graph.add_node("neighbourhood", neighbourhood.build(resources, SunarContext).compile(name="neighbourhood"))
    for node in (decompose, note, gather, reason):
        graph.add_node(node.__name__, steps(node), retry_policy=RETRY)
    graph.add_node("conclude", steps(take_sequential), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "decompose")
    graph.add_conditional_edges("decompose", steps.route(what_is_next), ["neighbourhood", "gather", "conclude"])
    graph.add_edge("neighbourhood", "note")
    graph.add_edge("note", "decompose")
    graph.add_edge("gather", "reason")
    graph.add_edge("reason", END)
    graph.add_edge("conclude", END)
    return graph


def what_is_next(state: SunarState, context: SunarContext) -> str:
    """Is there a sub-question to look up? Else, is the evidence read again?"""
    if state["query"]:
        return "neighbourhood"
    return "gather" if context.meta_evidence else "conclude"


graph = build().compile(name="sunar")
