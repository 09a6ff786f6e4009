"""SUNAR: answer one sub-question at a time, each from its explored neighbourhood; then read all evidence again.

SUNAR sections 3.1 and 3.2.

prepare ─> decompose ─┬─ a sub-question ─> neighbourhood ─> record_hop ─> decompose
                      └─ an answer ─┬─> rerank_all_evidence ─> reason_over_all_evidence
                                    └─> keep_sequential_answer (without meta evidence)

With decomposition=searchain, chain_of_query stands in the place of decompose.
"""

from ..nodes.decompose import chain_of_query, decompose
from ..nodes.meta_evidence import keep_sequential_answer, reason_over_all_evidence, record_hop, rerank_all_evidence
from ..nodes.update_frontier import read_calibration_scores
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState
from . import neighbourhood
from .wiring import Machine, silent


def build(resources: Resources | None = None) -> Machine[SunarState, SunarContext, Question, SunarOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(SunarState, SunarContext, Question, SunarOutput, resources)
    graph.add_prepare(read_calibration_scores)  # a wrong file is refused before the first sub-question
    # it answers sub-questions
    graph.add_node("neighbourhood", silent(neighbourhood.build(resources, SunarContext).compile(name="neighbourhood")))
    graph.add_steps(
        decompose, chain_of_query, record_hop, rerank_all_evidence, reason_over_all_evidence, keep_sequential_answer
    )
    after_decompose = ["neighbourhood", "rerank_all_evidence", "keep_sequential_answer"]
    for before in ("prepare", "record_hop"):
        graph.add_conditional_edges(before, graph.route(is_chain), ["decompose", "chain_of_query"])
    for decomposition in ("decompose", "chain_of_query"):
        graph.add_conditional_edges(decomposition, graph.route(has_sub_question), after_decompose)
    graph.add_edge("neighbourhood", "record_hop")
    graph.add_edge("rerank_all_evidence", "reason_over_all_evidence")
    graph.add_end("reason_over_all_evidence", "keep_sequential_answer")
    return graph


def is_chain(state: SunarState, context: SunarContext) -> str:
    """Does the model write the whole chain of sub-questions?"""
    return "chain_of_query" if context.decomposition == "searchain" else "decompose"


def has_sub_question(state: SunarState, context: SunarContext) -> str:
    """Is there a sub-question to look up? If not: is all evidence read again?"""
    if state["query"]:
        return "neighbourhood"
    return "rerank_all_evidence" if context.meta_evidence else "keep_sequential_answer"


graph = build().compile(name="sunar")
