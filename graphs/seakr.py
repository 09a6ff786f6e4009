"""SeaKR: look something up only where the model's own hidden states disagree (Yao et al., section 3).

prepare ─> pseudo_generate ─┬─ U ≤ δ ────────────────────────────────────────────────────────┬─> append ─┐
                 ^          └─ U > δ ─> query ─> search ─> try_snippet (each) ─> rerank ─────┘           │
                 │                        └─ searched for before ─┐                                      │
                 └──────────────── the next step ─────────────────┼──────────────────────────────────────┤
                         ┌─> conclude ──────────────┐             │                                      │
                         ┤                          ├─> choose <──┴──────────────── the end ─────────────┘
                         └─> reason_over_knowledge ─┘
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from ..models.resources import Resources
from ..nodes.prepare_reasoning import prepare_seakr
from ..nodes.reasoning import append, pseudo_generate
from ..nodes.snippets import query, rerank, search, try_snippet
from ..nodes.strategies import choose_strategy, conclude, reason_over_knowledge
from ..state.flow import Question
from ..state.reasoning import AttemptInput
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, SeaKROutput, SeaKRState
from .wiring import RETRY, Steps

STRATEGIES = ["conclude", "reason_over_knowledge"]


def build(resources: Resources | None = None) -> StateGraph[SeaKRState, SeaKRContext, Question, SeaKROutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(SeaKRContext, resources)
    graph = StateGraph(SeaKRState, context_schema=SeaKRContext, input_schema=Question, output_schema=SeaKROutput)
    graph.add_node("prepare", steps(prepare_seakr), retry_policy=RETRY)
    for node in (pseudo_generate, query, search, try_snippet, rerank, append, conclude, reason_over_knowledge):
        graph.add_node(node.__name__, steps(node), retry_policy=RETRY)
    graph.add_node("choose", steps(choose_strategy), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "pseudo_generate")
    graph.add_conditional_edges("pseudo_generate", steps.route(needs_retrieval), ["query", "append"])
    graph.add_conditional_edges("query", steps.route(is_new), ["search", *STRATEGIES])
    graph.add_conditional_edges("search", steps.route(what_to_try), ["try_snippet", "rerank"])
    graph.add_edge("try_snippet", "rerank")
    graph.add_edge("rerank", "append")
    graph.add_conditional_edges("append", steps.route(goes_on), ["pseudo_generate", *STRATEGIES])
    graph.add_edge("conclude", "choose")
    graph.add_edge("reason_over_knowledge", "choose")
    graph.add_edge("choose", END)
    return graph


def needs_retrieval(state: SeaKRState, context: SeaKRContext) -> str:
    """Is the model too uncertain to write the step by itself? (Section 3.1.)"""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    if len(state["knowledge"]) >= context.documents():
        return "append"
    if not context.self_aware_retrieval or not draft["rationale"] or draft["uncertainty"] is None:
        return "query"
    return "query" if draft["uncertainty"] > state["threshold"] else "append"


def is_new(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """Has this not been searched for? Else the reasoning ends."""
    return strategies(state, context) if state["ended"] else ["search"]


def what_to_try(state: SeaKRState, context: SeaKRContext) -> list[Send] | str:
    """What was found, each in parallel; without self-aware re-ranking only the first."""
    found = state["snippets"] if context.self_aware_reranking else state["snippets"][:1]
    return [Send("try_snippet", _attempt(snippet, state)) for snippet in found] or "rerank"


def goes_on(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """Is there another step?"""
    return strategies(state, context) if state["ended"] else ["pseudo_generate"]


def strategies(state: SeaKRState, context: SeaKRContext) -> list[str]:
    """What the answer is to come from: rationales, knowledge if any was kept, or the better of both (section 3.3)."""
    if not state["knowledge"] or context.reasoning == "rationales":
        return ["conclude"]
    if context.reasoning == "knowledge" or context.mode == "simple":
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
