"""CRAG: answers a question from the retrieved chunks that the model itself grades as relevant (Yan et al. 2024).

prepare ──> retrieve ──> grade (one per chunk) ──> keep_relevant ──> generate
"""

from __future__ import annotations

from langgraph.types import Send

from ..nodes.generate import generate
from ..nodes.grade import grade, keep_relevant
from ..nodes.retrieve import retrieve
from ..resources.resources import Resources
from ..state.crag import CragContext, CragOutput, CragState
from ..state.flow import Question
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[CragState, CragContext, Question, CragOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(CragState, CragContext, Question, CragOutput, resources)
    graph.add_prepare()
    graph.add_steps(retrieve, grade, keep_relevant, generate)
    graph.add_edge("prepare", "retrieve")
    graph.add_conditional_edges("retrieve", chunks_to_grade, ["grade", "keep_relevant"])
    graph.add_path("grade", "keep_relevant", "generate")
    graph.add_end("generate")
    return graph


def chunks_to_grade(state: CragState) -> list[Send] | str:
    """Was any chunk found? All are graded in parallel."""
    question = state["question"]
    return [Send("grade", {"question": question, "chunk": chunk}) for chunk in state["evidence"]] or "keep_relevant"


graph = build().compile(name="crag")
