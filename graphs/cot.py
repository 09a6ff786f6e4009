"""Chain of thought: one sentence after the other, without retrieval (Wei et al. 2022; a baseline of SeaKR).

prepare ─> draft_step ─> append_rationale ─┬─ next step ─> draft_step
                                           └─> answer_from_rationales
"""

from ..nodes.final_answer import answer_from_rationales
from ..nodes.reasoning import append_rationale, draft_step
from ..resources.resources import Resources
from ..state.flow import Question
from ..state.reasoning import ReasoningContext, ReasoningOutput, ReasoningState
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[ReasoningState, ReasoningContext, Question, ReasoningOutput]:
    """Wire the machine; `resources` holds live objects to use in place of the names in the context."""
    graph = Machine(ReasoningState, ReasoningContext, Question, ReasoningOutput, resources)
    graph.add_prepare()
    graph.add_steps(draft_step, append_rationale, answer_from_rationales)
    graph.add_path("prepare", "draft_step", "append_rationale")
    graph.add_conditional_edges("append_rationale", has_next_step, ["draft_step", "answer_from_rationales"])
    graph.add_end("answer_from_rationales")
    return graph


def has_next_step(state: ReasoningState) -> str:
    """Does the reasoning go on?"""
    return "answer_from_rationales" if state["stop_reason"] else "draft_step"


graph = build().compile(name="cot")
