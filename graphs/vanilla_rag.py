"""Vanilla RAG: the k most similar chunks, one answer (Lewis et al. 2020; the baseline of every technique here).

    prepare ──> retrieve ──> generate

`selection` also gives DF-RAG's other baselines: one fixed diversity level (Khan et al., section 3.2) and long context.
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.generate import generate
from ..nodes.prepare import prepare
from ..nodes.retrieve import retrieve
from ..state.flow import Question
from ..state.vanilla_rag import VanillaRagContext, VanillaRagOutput, VanillaRagState
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None,
) -> StateGraph[VanillaRagState, VanillaRagContext, Question, VanillaRagOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(VanillaRagContext, resources)
    graph = StateGraph(
        VanillaRagState, context_schema=VanillaRagContext, input_schema=Question, output_schema=VanillaRagOutput
    )
    graph.add_node("prepare", steps(prepare), retry_policy=RETRY)
    graph.add_node("retrieve", steps(retrieve), retry_policy=RETRY)
    graph.add_node("generate", steps(generate), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", END)
    return graph


graph = build().compile(name="vanilla_rag")
