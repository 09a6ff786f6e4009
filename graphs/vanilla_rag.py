"""Vanilla RAG: the k most similar chunks, one answer (Lewis et al. 2020; the baseline of every technique here).

    prepare ──> retrieve ──> generate

`selection` also gives DF-RAG's other baselines: one fixed diversity level (Khan et al., section 3.2) and long context.
"""

from langgraph.graph import END

from ..nodes.generate import generate
from ..nodes.retrieve import retrieve
from ..resources.resources import Resources
from ..state.flow import Answered, Flow, Question
from ..state.vanilla_rag import VanillaRagContext
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[Flow, VanillaRagContext, Question, Answered]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(Flow, VanillaRagContext, Question, Answered, resources)
    graph.add_prepare()
    graph.add_steps(retrieve, generate)
    graph.add_path("prepare", "retrieve", "generate", END)
    return graph


graph = build().compile(name="vanilla_rag")
