"""Neighbourhood-aware retrieval: explore what lies near good documents (SUNAR section 3.2, Algorithm 1).

prepare ─> retrieve ─> explore ─┬─> rerank ─┬─> sample ─> cluster ─┬─> promote ─┐
                          ^     │           └──── no penalty ──────┘            │
                          │     └─> answer (nothing more to score)              │
                          └───────────────────── the next batch ────────────────┘
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.explore import explore
from ..nodes.look_up import conclude_lookup, look_up, rerank
from ..nodes.prepare_sunar import prepare_neighbourhood
from ..nodes.promote import promote
from ..nodes.waver import cluster, keep_scores, sample_answers
from ..state.neighbourhood import (
    NeighbourhoodContext,
    NeighbourhoodInput,
    NeighbourhoodOutput,
    NeighbourhoodState,
)
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None, settings: type[NeighbourhoodContext] = NeighbourhoodContext
) -> StateGraph[NeighbourhoodState, NeighbourhoodContext, NeighbourhoodInput, NeighbourhoodOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names.

    settings: the context of the graph that this one is a part of, if it has more settings.
    """
    steps = Steps(settings, resources)
    graph = StateGraph(
        NeighbourhoodState,
        context_schema=settings,
        input_schema=NeighbourhoodInput,
        output_schema=NeighbourhoodOutput,
    )
    nodes = {
        "prepare": steps(prepare_neighbourhood),
        "retrieve": steps(look_up),
        "explore": steps(explore),
        "rerank": steps(rerank),
        "sample": steps(sample_answers),
        "cluster": steps(cluster, fallback=keep_scores),
        "promote": steps(promote),
        "answer": steps(conclude_lookup),
    }
    for name, step in nodes.items():
        graph.add_node(name, step, retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "retrieve")
    graph.add_edge("retrieve", "explore")
    graph.add_conditional_edges("explore", is_over, ["rerank", "answer"])
    graph.add_conditional_edges("rerank", steps.route(is_penalised), ["sample", "promote"])
    graph.add_edge("sample", "cluster")
    graph.add_edge("cluster", "promote")
    graph.add_edge("promote", "explore")
    graph.add_edge("answer", END)
    return graph


def is_over(state: NeighbourhoodState) -> str:
    """Is there a batch to score?"""
    return "answer" if state["stopped"] else "rerank"


def is_penalised(state: NeighbourhoodState, context: NeighbourhoodContext) -> str:
    """Does the answers' wavering count?"""
    return "promote" if context.penalty == "none" else "sample"


graph = build().compile(name="neighbourhood")
