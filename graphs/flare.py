"""FLARE: retrieve where the next sentence has an unlikely token (Jiang et al. 2023; a baseline of SeaKR).

prepare ─> draft_step ─┬─ likely ─> append_rationale
                       └─ unlikely ─> mask_unlikely_words ─> search_snippets ─┬─ nothing new ─> append_rationale
                                                                              └─> keep_snippets
                                                                                    ─> write_step ─> append_rationale
prepare ─ the paper searches for the question first ─> query_from_last_rationale ─> search_snippets
append_rationale ─┬─ next step ─> draft_step
                  └─ the end ─> answer_with_uncertainty
"""

from ..nodes.final_answer import answer_with_uncertainty
from ..nodes.reasoning import append_rationale, draft_step, write_step
from ..nodes.snippets import keep_snippets, mask_unlikely_words, query_from_last_rationale, search_snippets
from ..resources.resources import Resources
from ..state.baselines import FlareContext
from ..state.flow import Question
from ..state.reasoning import ReasoningOutput, ReasoningState
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[ReasoningState, FlareContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of the names in the context."""
    graph = Machine(ReasoningState, FlareContext, Question, ReasoningOutput, resources)
    graph.add_prepare()
    graph.add_steps(
        draft_step,
        mask_unlikely_words,
        query_from_last_rationale,
        search_snippets,
        keep_snippets,
        write_step,
        append_rationale,
        answer_with_uncertainty,
    )
    graph.add_conditional_edges("prepare", graph.route(first_node), ["draft_step", "query_from_last_rationale"])
    graph.add_conditional_edges("draft_step", graph.route(needs_retrieval), ["mask_unlikely_words", "append_rationale"])
    graph.add_path("query_from_last_rationale", "search_snippets")
    graph.add_edge("mask_unlikely_words", "search_snippets")
    graph.add_conditional_edges("search_snippets", has_snippets, ["keep_snippets", "append_rationale", "draft_step"])
    graph.add_path("keep_snippets", "write_step", "append_rationale")
    graph.add_conditional_edges("append_rationale", has_next_step, ["draft_step", "answer_with_uncertainty"])
    graph.add_end("answer_with_uncertainty")
    return graph


def first_node(state: ReasoningState, context: FlareContext) -> str:
    """Is the question searched for before the first step?"""
    return "query_from_last_rationale" if context.search_first and context.documents() else "draft_step"


def needs_retrieval(state: ReasoningState, context: FlareContext) -> str:
    """Is a word of the draft unlikely, or the draft empty, and may the step retrieve?"""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    if len(state["knowledge"]) >= context.documents():
        return "append_rationale"
    likely = [word["probability"] is None or word["probability"] >= context.likely_from for word in draft["words"]]
    return "append_rationale" if likely and all(likely) else "mask_unlikely_words"


def has_snippets(state: ReasoningState) -> str:
    """Did the search find a new snippet? If not, the draft stands; the search for the question has none."""
    if state["snippets"]:
        return "keep_snippets"
    return "append_rationale" if state["draft"] else "draft_step"


def has_next_step(state: ReasoningState) -> str:
    """Does the reasoning go on?"""
    return "answer_with_uncertainty" if state["stop_reason"] else "draft_step"


graph = build().compile(name="flare")
