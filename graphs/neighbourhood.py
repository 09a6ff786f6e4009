"""Neighbourhood-aware retrieval: score batches of documents, explore the neighbours of good ones, answer from the best.

SUNAR sections 3.1.2 and 3.2, Algorithm 1.

prepare ─> search_first_stage ─> select_batch ─┬─> score_batch ─┬─> sample_answers ─> count_semantic_sets ─┐
                                     ^         │                └─────────── no penalty ───────────────────┤
                                     │         └─> intermediate_answer (nothing more to score)             │
                                     └──────────────────── update_frontier <───────────────────────────────┘
"""

from ..nodes.answer_uncertainty import count_semantic_sets, keep_scores, sample_answers
from ..nodes.neighbourhood_retrieval import intermediate_answer, score_batch, search_first_stage, take_sub_question
from ..nodes.select_batch import select_batch
from ..nodes.update_frontier import read_calibration_scores, update_frontier
from ..resources.resources import Resources
from ..state.neighbourhood import (
    NeighbourhoodContext,
    NeighbourhoodInput,
    NeighbourhoodOutput,
    NeighbourhoodState,
)
from .wiring import Machine


def build(
    resources: Resources | None = None, settings: type[NeighbourhoodContext] = NeighbourhoodContext
) -> Machine[NeighbourhoodState, NeighbourhoodContext, NeighbourhoodInput, NeighbourhoodOutput]:
    """Wire the machine. resources: live objects that replace the names in the context.

    settings: the parent graph's context type, if this is a subgraph.
    """
    graph = Machine(NeighbourhoodState, settings, NeighbourhoodInput, NeighbourhoodOutput, resources)
    graph.add_prepare(take_sub_question, read_calibration_scores)
    graph.add_steps(search_first_stage, select_batch, score_batch, sample_answers, update_frontier, intermediate_answer)
    graph.add_steps(count_semantic_sets, fallback=keep_scores)
    graph.add_path("prepare", "search_first_stage", "select_batch")
    graph.add_conditional_edges("select_batch", is_finished, ["score_batch", "intermediate_answer"])
    graph.add_conditional_edges("score_batch", graph.route(has_penalty), ["sample_answers", "update_frontier"])
    graph.add_path("sample_answers", "count_semantic_sets", "update_frontier", "select_batch")
    graph.add_end("intermediate_answer", is_part=settings is not NeighbourhoodContext)
    return graph


def is_finished(state: NeighbourhoodState) -> str:
    """Has the exploration ended?"""
    return "intermediate_answer" if state["stop_reason"] else "score_batch"


def has_penalty(state: NeighbourhoodState, context: NeighbourhoodContext) -> str:
    """Does answer semantic uncertainty lower scores?"""
    return "update_frontier" if context.penalty == "none" else "sample_answers"


graph = build().compile(name="neighbourhood")
