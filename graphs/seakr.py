"""SeaKR: retrieve only where the model's own hidden states disagree (Yao et al., section 3).

prepare ─> pseudo_generate ─┬─ U ≤ δ, or the step states the answer ─> append_rationale
                            └─ U > δ ─> formulate_query ─┬─> search_snippets ─> try_snippet (each)
                                                         │     ─> rerank_snippets ─> append_rationale
                                                         └─ repeated query, or nothing new: the end
append_rationale ─┬─ next step ─> pseudo_generate
                  └─ the end ─> reason_over_rationales, reason_over_knowledge ─> choose_strategy
"""

from langgraph.types import Send

from ..nodes.final_answer import choose_strategy, reason_over_knowledge, reason_over_rationales
from ..nodes.reasoning import append_rationale, may_retrieve, pseudo_generate
from ..nodes.snippets import formulate_query, rerank_snippets, search_snippets, try_snippet
from ..nodes.thresholds import set_threshold
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.reasoning import AttemptInput
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, SeaKROutput, SeaKRState
from .wiring import Machine

STRATEGIES = ["reason_over_rationales", "reason_over_knowledge"]


def build(resources: Resources | None = None) -> Machine[SeaKRState, SeaKRContext, Question, SeaKROutput]:
    """Wire the machine; `resources` holds live objects to use in place of the names in the context."""
    graph = Machine(SeaKRState, SeaKRContext, Question, SeaKROutput, resources)
    graph.add_prepare(set_threshold)
    graph.add_steps(
        *(pseudo_generate, formulate_query, search_snippets, try_snippet, rerank_snippets, append_rationale),
        *(reason_over_rationales, reason_over_knowledge, choose_strategy),
    )
    graph.add_edge("prepare", "pseudo_generate")
    graph.add_conditional_edges(
        "pseudo_generate", graph.route(needs_retrieval), ["formulate_query", "append_rationale"]
    )
    graph.add_conditional_edges("formulate_query", graph.route(is_new_query), ["search_snippets", *STRATEGIES])
    graph.add_conditional_edges(
        "search_snippets", graph.route(snippets_to_try), ["try_snippet", "rerank_snippets", *STRATEGIES]
    )
    graph.add_path("try_snippet", "rerank_snippets", "append_rationale")
    graph.add_conditional_edges("append_rationale", graph.route(has_next_step), ["pseudo_generate", *STRATEGIES])
    graph.add_edge("reason_over_rationales", "choose_strategy")
    graph.add_end("choose_strategy")
    graph.add_edge("reason_over_knowledge", "choose_strategy")
    return graph


def needs_retrieval(state: SeaKRState, context: SeaKRContext) -> str:
    """Is the model too uncertain to write the step without retrieval (section 3.1)?"""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    if not may_retrieve(draft, state, context):
        return "append_rationale"
    if not context.self_aware_retrieval or not draft["rationale"] or draft["uncertainty"] is None:
        return "formulate_query"
    return "formulate_query" if draft["uncertainty"] > state["threshold"] else "append_rationale"


def is_new_query(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """Is the query new? A repeated query ends the reasoning."""
    return strategies(state, context) if state["stop_reason"] else ["search_snippets"]


def snippets_to_try(state: SeaKRState, context: SeaKRContext) -> list[Send] | list[str] | str:
    """Try all snippets in parallel; without self-aware re-ranking only the first."""
    if state["stop_reason"]:
        return strategies(state, context)
    snippets = state["snippets"] if context.self_aware_reranking else state["snippets"][:1]
    return [Send("try_snippet", _attempt(snippet, state)) for snippet in snippets] or "rerank_snippets"


def has_next_step(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """Does the reasoning go on?"""
    return strategies(state, context) if state["stop_reason"] else ["pseudo_generate"]


def strategies(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """Does the answer come from the rationales, from the knowledge, or from the less uncertain one (section 3.3)?"""
    has_ending = state["knowledge"] or context.knowledge_ending == "always"
    if not has_ending or context.reasoning == "rationales" or context.mode == "one_pass":
        return ["reason_over_rationales"]
    if context.reasoning == "knowledge" or (context.mode == "simple" and state["knowledge"]):
        return ["reason_over_knowledge"]
    return STRATEGIES


def _attempt(snippet: Chunk, state: SeaKRState) -> AttemptInput:
    return {
        "question": state["question"],
        "rationales": state["rationales"],
        "knowledge": state["knowledge"],
        "snippet": snippet,
    }


graph = build().compile(name="seakr")
