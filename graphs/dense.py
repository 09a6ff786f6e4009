"""DENSE: rephrase each chunk, see whether the answer survives (section 4, Algorithm 1).

prepare ─┬─────────────┬─> rephrase ─> contexts ─┬─> answer ──┬─> entail ─> measure
         └─> retrieve ─┘  (one per               │ (one per   │
        (no chunks given)   chunk)               │  context)  │
                                                 └─> repeat ──┘ (once a model: does it repeat itself?)
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from ..models.resources import Resources
from ..nodes.answer import answer, repeat
from ..nodes.contexts import context_of, contexts
from ..nodes.entail import entail
from ..nodes.measure import measure
from ..nodes.prepare_dense import prepare_dense
from ..nodes.rechunk import retrieve_evidence
from ..nodes.rephrase import rephrase
from ..state.dense import ORIGINAL, DenseContext, DenseInput, DenseOutput, DenseState, text_key
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None, settings: type[DenseContext] = DenseContext
) -> StateGraph[DenseState, DenseContext, DenseInput, DenseOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names.

    settings: the context of the graph that this one is a part of, if it has more settings.
    """
    steps = Steps(settings, resources)
    graph = StateGraph(DenseState, context_schema=settings, input_schema=DenseInput, output_schema=DenseOutput)
    graph.add_node("prepare", steps(prepare_dense), retry_policy=RETRY)
    graph.add_node("retrieve", steps(retrieve_evidence), retry_policy=RETRY)
    for node in (rephrase, contexts, answer, repeat, entail, measure):
        graph.add_node(node.__name__, steps(node), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("prepare", retrieve_or_rephrase, ["retrieve", "rephrase", "contexts"])
    graph.add_conditional_edges("retrieve", rephrase_each, ["rephrase", "contexts"])
    graph.add_edge("rephrase", "contexts")
    graph.add_conditional_edges("contexts", answer_each, ["answer", "repeat"])
    graph.add_edge("answer", "entail")
    graph.add_edge("repeat", "entail")
    graph.add_edge("entail", "measure")
    graph.add_edge("measure", END)
    return graph


def retrieve_or_rephrase(state: DenseState) -> list[Send] | str:
    """Were chunks given?"""
    return rephrase_each(state) if state["given"] else "retrieve"


def rephrase_each(state: DenseState) -> list[Send] | str:
    """Which texts have no rephrasing yet? Each in parallel; else the contexts can be made."""
    unknown = {text_key(chunk["text"]): chunk for chunk in state["evidence"] if "rephrasing" not in chunk}
    return [Send("rephrase", {"chunk": chunk}) for chunk in unknown.values()] or "contexts"


def answer_each(state: DenseState) -> list[Send]:
    """Every context in parallel, and the original one again if the model is to be checked."""
    answers = [Send("answer", context_of(key, state)) for key in state["pending"]]
    return [*answers, Send("repeat", context_of(ORIGINAL, state))] if state["repeat"] else answers


graph = build().compile(name="dense")
