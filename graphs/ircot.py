"""IRCoT: before every sentence, search for the sentence before (Trivedi et al. 2023; a baseline of SeaKR).

prepare, append_rationale ─┬─ documents left ─> query_from_last_rationale ─> search_snippets
                           │                      ─> keep_snippets ─> write_step ─> append_rationale
                           ├─ no documents left ─> draft_step ─> append_rationale
                           └─ the end ─> answer_from_rationales
"""

from ..nodes.final_answer import answer_from_rationales
from ..nodes.reasoning import append_rationale, draft_step, write_step
from ..nodes.snippets import keep_snippets, query_from_last_rationale, search_snippets
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.reasoning import ReasoningOutput, ReasoningState, SearchingContext
from .wiring import Machine

NEXT = ["query_from_last_rationale", "draft_step", "answer_from_rationales"]


def build(resources: Resources | None = None) -> Machine[ReasoningState, SearchingContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of the names in the context."""
    graph = Machine(ReasoningState, SearchingContext, Question, ReasoningOutput, resources)
    graph.add_prepare()
    graph.add_steps(
        query_from_last_rationale,
        search_snippets,
        keep_snippets,
        write_step,
        draft_step,
        append_rationale,
        answer_from_rationales,
    )
    graph.add_conditional_edges("prepare", graph.route(next_node), NEXT)
    graph.add_path("query_from_last_rationale", "search_snippets", "keep_snippets", "write_step", "append_rationale")
    graph.add_edge("draft_step", "append_rationale")
    graph.add_conditional_edges("append_rationale", graph.route(next_node), NEXT)
    graph.add_end("answer_from_rationales")
    return graph


def next_node(state: ReasoningState, context: SearchingContext) -> str:
    """Does the reasoning go on, and may the next step retrieve?"""
    if state["stop_reason"]:
        return "answer_from_rationales"
    return "query_from_last_rationale" if len(state["knowledge"]) < context.documents() else "draft_step"


graph = build().compile(name="ircot")
