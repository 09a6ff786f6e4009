"""DENSE-RAG: where the answer wavers, cut the corpus anew and refine the context (section 5, Algorithms 2 and 3).

prepare ─> retrieve ─> dense ─┬─ certain ───────────────────────────────────────────────────────────> conclude
                              │                                                                          ^
                              └─ uncertain ─> rechunk ─┬─> dense ─────────┬─> keep ─┬─ accepted, or ─────┤
                                                       └─> self_evaluate ─┘    ^    │  nothing to try    │
                                                                               │    └─> ablate ─> classify ─> refine
                                                                               │      (uncertain chunks)    │
                                                                               └── dense, self_evaluate <───┘
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from ..models.resources import Resources
from ..nodes.answer import ablate
from ..nodes.classify import classify, uncertain_ids
from ..nodes.conclude import conclude
from ..nodes.keep import keep
from ..nodes.prepare_dense import prepare_dense_rag
from ..nodes.rechunk import rechunk, retrieve_context
from ..nodes.refine import refine
from ..nodes.self_evaluate import self_evaluate
from ..state.dense import AnswerInput
from ..state.dense_rag import DenseRagContext, DenseRagOutput, DenseRagState
from ..state.flow import Question
from . import dense
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None,
) -> StateGraph[DenseRagState, DenseRagContext, Question, DenseRagOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(DenseRagContext, resources)
    graph = StateGraph(
        DenseRagState, context_schema=DenseRagContext, input_schema=Question, output_schema=DenseRagOutput
    )
    graph.add_node("prepare", steps(prepare_dense_rag), retry_policy=RETRY)
    graph.add_node("retrieve", steps(retrieve_context), retry_policy=RETRY)
    graph.add_node("dense", dense.build(resources, DenseRagContext).compile(name="dense"))
    for node in (rechunk, self_evaluate, keep, ablate, classify, refine, conclude):
        graph.add_node(node.__name__, steps(node), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "retrieve")
    graph.add_edge("retrieve", "dense")
    graph.add_conditional_edges(
        "dense", steps.route(what_was_measured), ["conclude", "rechunk", "self_evaluate", "keep"]
    )
    graph.add_conditional_edges("rechunk", steps.route(measure_anew), ["dense", "self_evaluate"])
    # where both run they run in one step, and so lead to `keep` once
    graph.add_edge("self_evaluate", "keep")
    graph.add_conditional_edges("keep", conclude_or_ablate, ["conclude", "ablate", "classify"])
    graph.add_edge("ablate", "classify")
    graph.add_edge("classify", "refine")
    graph.add_conditional_edges("refine", steps.route(conclude_or_measure), ["conclude", "dense", "self_evaluate"])
    graph.add_edge("conclude", END)
    return graph


def what_was_measured(state: DenseRagState, context: DenseRagContext) -> str:
    """Is the answer certain at once, are the chunks to be cut anew, or is this a context of the refinement?"""
    is_first = not state["rechunked"] and state["round"] == 0
    if is_first and state["certain"]:
        return "conclude"
    if is_first and context.adaptive:
        return "rechunk"
    if context.refinement == "off":
        return "conclude"
    return "self_evaluate" if is_first and context.self_evaluation else "keep"


def measure_anew(state: DenseRagState, context: DenseRagContext) -> list[str]:
    """Is the new context to be judged by the model while it is measured?"""
    judged = context.self_evaluation and context.refinement != "off"
    return ["dense", "self_evaluate"] if judged else ["dense"]


def conclude_or_ablate(state: DenseRagState) -> list[Send] | str:
    """Is it over? Else the answer without each uncertain chunk, in parallel."""
    if state["stopped"]:
        return "conclude"
    return [Send("ablate", _without(one, state)) for one in uncertain_ids(state)] or "classify"


def _without(chunk_id: str, state: DenseRagState) -> AnswerInput:
    rest = [chunk for chunk in state["chunks"] if chunk["id"] != chunk_id]
    return {"key": chunk_id, "question": state["question"], "evidence": rest}


def conclude_or_measure(state: DenseRagState, context: DenseRagContext) -> list[str]:
    """Did the refinement change anything?"""
    return ["conclude"] if state["stopped"] else measure_anew(state, context)


graph = build().compile(name="dense_rag")
