"""DF-RAG: choose, per question, how diverse the retrieved chunks should be (Khan et al., sections 3.1-3.4).

          ┌─> plan ────────────────┐            ┌── the next sets ──┐
prepare ──┤                        ├──> sample ─┴─> evaluate ───────┘ (one per distinct chunk set)
          └─> candidates (per λ) ──┘       └──> choose ──> generate
"""

from __future__ import annotations

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from ..models.resources import Resources
from ..nodes.candidates import candidates
from ..nodes.choose import choose
from ..nodes.evaluate import evaluate
from ..nodes.generate import generate
from ..nodes.plan import plan
from ..nodes.prepare import prepare
from ..nodes.sample import sample
from ..state.df_rag import NOTHING, DFRagContext, DFRagOutput, DFRagState, EvaluateInput
from ..state.flow import Question
from .wiring import RETRY, Steps


def build(resources: Resources | None = None) -> StateGraph[DFRagState, DFRagContext, Question, DFRagOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names."""
    steps = Steps(DFRagContext, resources)
    graph = StateGraph(DFRagState, context_schema=DFRagContext, input_schema=Question, output_schema=DFRagOutput)
    for node in (prepare, plan, candidates, sample, evaluate, choose, generate):
        graph.add_node(node.__name__, steps(node), retry_policy=RETRY)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "plan")
    graph.add_edge("prepare", "candidates")
    # both run in one step, so these two join by themselves; of a list edge's barrier the dev server shows no next node
    graph.add_edge("plan", "sample")
    graph.add_edge("candidates", "sample")
    graph.add_conditional_edges("sample", evaluate_or_choose, ["evaluate", "choose"])
    graph.add_edge("evaluate", "sample")
    graph.add_edge("choose", "generate")
    graph.add_edge("generate", END)
    return graph


def evaluate_or_choose(state: DFRagState) -> list[Send] | str:
    """Is there a chunk set to evaluate? Each in parallel; else the choice can be made."""
    return [Send("evaluate", _evaluation_of(candidate, state)) for candidate in state["pending"]] or "choose"


def _evaluation_of(candidate: int, state: DFRagState) -> EvaluateInput:
    ids = [] if candidate == NOTHING else state["candidates"][candidate]["chunk_ids"]
    return {"plan": state["plan"], "candidate": candidate, "chunks": [state["chunks"][i] for i in ids]}


graph = build().compile(name="df_rag")
