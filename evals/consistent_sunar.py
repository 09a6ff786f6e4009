"""SUNAR, and how consistent its answer is: the score that `dubito calibrate sunar` finds a threshold for.

begin ─> sunar ─> consistency
"""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph

from ..graphs import sunar
from ..graphs.wiring import RETRY, Steps
from ..models.resources import Resources
from ..nodes.consistency import consistency
from ..nodes.prepare_sunar import open_all
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState


class ConsistentState(SunarState, total=False):
    """What flows through SUNAR, the share of resampled answers that mean the same as the final one, and these."""

    consistency: float
    resampled: list[str]


class ConsistentOutput(SunarOutput):
    """SUNAR's output and its answer's consistency, in [0, 1], beside the samples it is the share of."""

    consistency: float
    resampled: list[str]


def build(resources: Resources | None = None) -> StateGraph[ConsistentState, SunarContext, Question, ConsistentOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(SunarContext, resources)
    graph = StateGraph(
        ConsistentState, context_schema=SunarContext, input_schema=Question, output_schema=ConsistentOutput
    )
    graph.add_node("begin", steps(begin), retry_policy=RETRY)
    graph.add_node("sunar", sunar.build(resources).compile(name="sunar"))
    graph.add_node("consistency", steps(consistency), retry_policy=RETRY)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "sunar")
    graph.add_edge("sunar", "consistency")
    graph.add_edge("consistency", END)
    return graph


async def begin(state: ConsistentState, context: SunarContext, resources: Resources) -> dict[str, Any]:
    """Open the judge, which SUNAR may do without, and begin anew what an earlier question of the thread left."""
    await open_everything(context, resources)
    return {"hops": None, "usage": None, "warnings": None}


async def open_everything(context: SunarContext, resources: Resources) -> None:
    """Open all that a question will need; raises `UserFault` for an unknown model, stage or corpus."""
    await open_all(context, resources)
    await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)


graph = build().compile(name="consistent_sunar")
