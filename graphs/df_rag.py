"""DF-RAG: choose, per question, how diverse the retrieved chunks should be (Khan et al., sections 3.1-3.4).

          ┌─> plan ────────────────┐                    ┌── until none is left ──┐
prepare ──┤                        ├──> select_lambdas ─┴─> evaluate ────────────┘ (one per distinct chunk set)
          └─> candidates (per λ) ──┘          └──> choose_lambda ──> generate
                    ^                                    │
                    └── the set grows on (appendix A.2) ─┘
"""

from langgraph.types import Send

from ..nodes.candidates import candidates
from ..nodes.choose_lambda import choose_lambda
from ..nodes.evaluate import evaluate
from ..nodes.generate import generate
from ..nodes.plan import plan
from ..nodes.select_lambdas import select_lambdas
from ..resources.resources import Resources
from ..state.df_rag import NO_CHUNKS, DFRagContext, DFRagOutput, DFRagState, EvaluateInput
from ..state.flow import Question
from .wiring import Machine


def build(resources: Resources | None = None) -> Machine[DFRagState, DFRagContext, Question, DFRagOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(DFRagState, DFRagContext, Question, DFRagOutput, resources)
    graph.add_prepare()
    graph.add_steps(plan, candidates, select_lambdas, evaluate, choose_lambda, generate)
    graph.add_edge("prepare", "plan")
    graph.add_edge("prepare", "candidates")
    # Both run in one superstep, so these two edges join. A list edge would join too, but behind it the dev server
    # shows no next node.
    graph.add_edge("plan", "select_lambdas")
    graph.add_edge("candidates", "select_lambdas")
    graph.add_conditional_edges("select_lambdas", next_evaluations, ["evaluate", "choose_lambda"])
    graph.add_edge("evaluate", "select_lambdas")
    graph.add_conditional_edges("choose_lambda", grow_or_generate, ["candidates", "generate"])
    graph.add_end("generate")
    return graph


def next_evaluations(state: DFRagState) -> list[Send] | str:
    """Is a chunk set left to evaluate? All pending sets are evaluated in parallel; then λ* is chosen."""
    return [Send("evaluate", _evaluate_input(candidate, state)) for candidate in state["pending"]] or "choose_lambda"


def grow_or_generate(state: DFRagState) -> str:
    """Is a chunk set that grows chunk by chunk still to grow?"""
    return "candidates" if state["incomplete"] else "generate"


def _evaluate_input(candidate: int, state: DFRagState) -> EvaluateInput:
    ids = [] if candidate == NO_CHUNKS else state["candidates"][candidate]["chunk_ids"]
    return {"plan": state["plan"], "candidate": candidate, "chunks": [state["chunks_by_id"][i] for i in ids]}


graph = build().compile(name="df_rag")
