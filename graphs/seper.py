"""SePer and ΔSePer: how much belief in the right answer chunks add (Dai et al., sections 3.3-3.4, Algorithm 1).

prepare ─┬─────────────┬─> sample ─────────────────> entail ─> measure
         └─> retrieve ─┘  (with the chunks, and
        (no chunks given)  without: both at once)
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from ..models.resources import Resources
from ..nodes.believe import entail_answers, measure_belief, sample_responses
from ..nodes.prepare_seper import prepare_seper
from ..nodes.retrieve import retrieve
from ..state.seper import WITH, WITHOUT, SampleInput, SePerContext, SePerInput, SePerOutput, SePerState, Side
from .wiring import RETRY, Steps


def build(resources: Resources | None = None) -> StateGraph[SePerState, SePerContext, SePerInput, SePerOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(SePerContext, resources)
    graph = StateGraph(SePerState, context_schema=SePerContext, input_schema=SePerInput, output_schema=SePerOutput)
    graph.add_node("prepare", steps(prepare_seper), retry_policy=RETRY)
    graph.add_node("retrieve", steps(retrieve), retry_policy=RETRY)
    graph.add_node("sample", steps(sample_responses), retry_policy=RETRY)
    graph.add_node("entail", steps(entail_answers), retry_policy=RETRY)
    graph.add_node("measure", steps(measure_belief), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("prepare", retrieve_or_sample, ["retrieve", "sample"])
    graph.add_conditional_edges("retrieve", sample_each, ["sample"])
    graph.add_edge("sample", "entail")
    graph.add_edge("entail", "measure")
    graph.add_edge("measure", END)
    return graph


def retrieve_or_sample(state: SePerState) -> list[Send] | str:
    """Were chunks given?"""
    return sample_each(state) if state["given"] else "retrieve"


def sample_each(state: SePerState) -> list[Send]:
    """The belief with the chunks and without; where there are none, only without."""

    def side(name: Side) -> Send:
        evidence = state["evidence"] if name == WITH else []
        return Send("sample", SampleInput(side=name, question=state["question"], evidence=evidence))

    return [side(WITH), side(WITHOUT)] if state["evidence"] else [side(WITHOUT)]


graph = build().compile(name="seper")
