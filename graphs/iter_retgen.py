"""ITER-RETGEN: search again with what was made of the last search, a fixed number of rounds (Shao et al. 2023).

prepare ─> retrieve ─> generate ─┬─ the next round ─> retrieve
                                 └─ the rounds are spent ─> END
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.prepare_reasoning import prepare_rounds
from ..nodes.rounds import generate_round, retrieve_round
from ..state.baselines import IterRetgenContext, IterRetgenOutput, IterRetgenState
from ..state.flow import Question
from .wiring import RETRY, Steps


def build(
    resources: Resources | None = None,
) -> StateGraph[IterRetgenState, IterRetgenContext, Question, IterRetgenOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(IterRetgenContext, resources)
    graph = StateGraph(
        IterRetgenState, context_schema=IterRetgenContext, input_schema=Question, output_schema=IterRetgenOutput
    )
    graph.add_node("prepare", steps(prepare_rounds), retry_policy=RETRY)
    graph.add_node("retrieve", steps(retrieve_round), retry_policy=RETRY)
    graph.add_node("generate", steps(generate_round), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "retrieve")
    graph.add_edge("retrieve", "generate")
    graph.add_conditional_edges("generate", steps.route(goes_on), ["retrieve", END])
    return graph


def goes_on(state: IterRetgenState, context: IterRetgenContext) -> str:
    """Is a round left?"""
    return "retrieve" if len(state["rounds"]) < context.rounds else END


graph = build().compile(name="iter_retgen")
