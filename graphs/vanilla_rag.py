"""Vanilla RAG: the k most similar chunks, one answer (Lewis et al. 2020; the baseline of every technique here).

    prepare ──> retrieve ──> generate

`selection` also gives DF-RAG's other baselines: one fixed diversity level (Khan et al., section 3.2) and long context.
`rerank_n` re-ranks the chunks that were found (Dai et al., SePer, section 5.5).
"""

from ..nodes.generate import generate
from ..nodes.retrieve import retrieve
from ..resources.resources import Resources
from ..state.flow import Answered, Question
from ..state.vanilla_rag import SelectionState, VanillaRagContext
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[SelectionState, VanillaRagContext, Question, Answered]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(SelectionState, VanillaRagContext, Question, Answered, resources)
    graph.add_prepare()
    graph.add_steps(retrieve, generate)
    graph.add_path("prepare", "retrieve", "generate")
    graph.add_end("generate")
    return graph


graph = build().compile(name="vanilla_rag")
