"""SePer and ΔSePer: how much belief in the right answer chunks add (Dai et al., sections 3.3-3.4, Algorithm 1).

prepare ─┬─────────────┬─> sample_responses ─────────> judge_responses ─> measure_seper
         └─> retrieve ─┘  (with the chunks and
        (no chunks given)  without, in parallel)
"""

from langgraph.graph import END
from langgraph.types import Send

from ..nodes.given_chunks import take_given_chunks
from ..nodes.retrieve import retrieve
from ..nodes.seper import judge_responses, measure_seper, sample_responses, take_gold_answers
from ..resources.resources import Resources
from ..state.records import Chunk
from ..state.seper import WITH, WITHOUT, SampleInput, SePerContext, SePerInput, SePerOutput, SePerState, Side
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[SePerState, SePerContext, SePerInput, SePerOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(SePerState, SePerContext, SePerInput, SePerOutput, resources)
    graph.add_prepare(take_gold_answers, take_given_chunks)
    graph.add_steps(retrieve, sample_responses, judge_responses, measure_seper)
    graph.add_conditional_edges("prepare", retrieve_or_sample, ["retrieve", "sample_responses"])
    graph.add_conditional_edges("retrieve", sample_each_side, ["sample_responses"])
    graph.add_path("sample_responses", "judge_responses", "measure_seper", END)
    return graph


def retrieve_or_sample(state: SePerState) -> list[Send] | str:
    """Did the caller give chunks?"""
    return sample_each_side(state) if state["given"] else "retrieve"


def sample_each_side(state: SePerState) -> list[Send]:
    """With the chunks and without, in parallel; only without if there are no chunks."""

    def send(side: Side, evidence: list[Chunk]) -> Send:
        return Send("sample_responses", SampleInput(side=side, question=state["question"], evidence=evidence))

    without = send(WITHOUT, [])
    return [send(WITH, state["evidence"]), without] if state["evidence"] else [without]


graph = build().compile(name="seper")
