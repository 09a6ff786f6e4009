"""DENSE-RAG: if the answer is uncertain, rechunk the corpus and refine the context (section 5, Algorithms 2 and 3).

prepare ─> retrieve_context ─> dense ─┬─ certain ─────────────────────────────────────────────> give_best_answer
                                      │                                                                ^
    ┌────────────── uncertain ────────┘                                                                │
    └─> rechunk ─┬─> dense ─────────┬─> update_best ─┬─ accepted, or the budget is exhausted ──────────┤
                 └─> self_evaluate ─┘        ^       └─> ablate (each uncertain chunk) ─> classify     │
                                             │                                               v         │
                                             └─────────── dense, self_evaluate <────────── refine ─────┘
                                                                                              (no change)
"""

from langgraph.types import Send

from ..nodes.best_answer import give_best_answer, update_best
from ..nodes.classify import classify, uncertain_ids
from ..nodes.given_chunks import take_given_context
from ..nodes.rechunk import check_rechunker, rechunk
from ..nodes.refine import refine
from ..nodes.respond import ablate
from ..nodes.retrieve_top_k import retrieve_context
from ..nodes.self_evaluate import self_evaluate
from ..resources.resources import Resources
from ..state.dense import ResponseInput
from ..state.dense_rag import DenseRagContext, DenseRagInput, DenseRagOutput, DenseRagState
from . import dense
from .wiring import Machine, silent


def build(resources: Resources | None = None) -> Machine[DenseRagState, DenseRagContext, DenseRagInput, DenseRagOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    graph = Machine(DenseRagState, DenseRagContext, DenseRagInput, DenseRagOutput, resources)
    graph.add_prepare(check_rechunker, take_given_context)
    # its answers are drafts
    graph.add_node("dense", silent(dense.build(resources, DenseRagContext).compile(name="dense")))
    graph.add_steps(retrieve_context, rechunk, self_evaluate, update_best, ablate, classify, refine, give_best_answer)
    graph.add_path("prepare", "retrieve_context", "dense")
    graph.add_conditional_edges(
        "dense", graph.route(after_measurement), ["give_best_answer", "rechunk", "self_evaluate", "update_best"]
    )
    graph.add_conditional_edges("rechunk", graph.route(measure_context), ["dense", "self_evaluate"])
    # dense and self_evaluate run in the same superstep, so update_best runs once after both
    graph.add_edge("self_evaluate", "update_best")
    graph.add_conditional_edges("update_best", ablate_each, ["give_best_answer", "ablate", "classify"])
    graph.add_path("ablate", "classify", "refine")
    graph.add_conditional_edges("refine", graph.route(measure_or_stop), ["give_best_answer", "dense", "self_evaluate"])
    graph.add_end("give_best_answer")
    return graph


def after_measurement(state: DenseRagState, context: DenseRagContext) -> str:
    """Is the first answer certain, is the corpus to be rechunked, or is refinement under way?"""
    is_first = not state["rechunked"] and state["round"] == 0
    if is_first and state["certain"]:
        return "give_best_answer"
    if is_first and context.adaptive:
        return "rechunk"
    if context.refinement == "off":
        return "give_best_answer"
    return "self_evaluate" if is_first and context.self_evaluation else "update_best"


def measure_context(state: DenseRagState, context: DenseRagContext) -> list[str]:
    """Does the model evaluate the new context while it is measured?"""
    evaluated = context.self_evaluation and context.refinement != "off"
    return ["dense", "self_evaluate"] if evaluated else ["dense"]


def ablate_each(state: DenseRagState) -> list[Send] | str:
    """Is it time to stop? Otherwise all uncertain chunks are ablated in parallel."""
    if state["stop_reason"]:
        return "give_best_answer"
    return [Send("ablate", _without(chunk_id, state)) for chunk_id in uncertain_ids(state)] or "classify"


def _without(chunk_id: str, state: DenseRagState) -> ResponseInput:
    remaining = [chunk for chunk in state["context_chunks"] if chunk["id"] != chunk_id]
    return {"key": chunk_id, "question": state["question"], "evidence": remaining}


def measure_or_stop(state: DenseRagState, context: DenseRagContext) -> list[str]:
    """Did the refinement change the context?"""
    return ["give_best_answer"] if state["stop_reason"] else measure_context(state, context)


graph = build().compile(name="dense_rag")
