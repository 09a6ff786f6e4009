"""SUNAR: answer one sub-question at a time, each from its explored neighbourhood; then read all evidence again.

SUNAR sections 3.1 and 3.2.

prepare ─> decompose ─┬─ a sub-question ─> neighbourhood ─> record_hop ─> decompose
                      └─ an answer ─┬─> rerank_all_evidence ─> reason_over_all_evidence
                                    └─> keep_sequential_answer (without meta evidence)
"""

from langgraph.graph import END

from ..nodes.decompose import decompose
from ..nodes.meta_evidence import keep_sequential_answer, reason_over_all_evidence, record_hop, rerank_all_evidence
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState
from . import neighbourhood
from .wiring import Machine, silent


def build(resources: Resources | None = None) -> Machine[SunarState, SunarContext, Question, SunarOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(SunarState, SunarContext, Question, SunarOutput, resources)
    graph.add_prepare()
    # it answers sub-questions
    graph.add_node("neighbourhood", silent(neighbourhood.build(resources, SunarContext).compile(name="neighbourhood")))
    graph.add_steps(decompose, record_hop, rerank_all_evidence, reason_over_all_evidence, keep_sequential_answer)
    graph.add_edge("prepare", "decompose")
    after_decompose = ["neighbourhood", "rerank_all_evidence", "keep_sequential_answer"]
    graph.add_conditional_edges("decompose", graph.route(has_sub_question), after_decompose)
    graph.add_path("neighbourhood", "record_hop", "decompose")
    graph.add_path("rerank_all_evidence", "reason_over_all_evidence", END)
    graph.add_edge("keep_sequential_answer", END)
    return graph


def has_sub_question(state: SunarState, context: SunarContext) -> str:
    """Is there a sub-question to look up? If not: is all evidence read again?"""
    if state["query"]:
        return "neighbourhood"
    return "rerank_all_evidence" if context.meta_evidence else "keep_sequential_answer"


graph = build().compile(name="sunar")
