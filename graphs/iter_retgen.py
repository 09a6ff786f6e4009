"""ITER-RETGEN: retrieve and generate in turn, for a fixed number of iterations (Shao et al. 2023, section 3).

prepare ─> generation_augmented_retrieval ─> retrieval_augmented_generation ─┬─ next iteration: as after prepare
                                                                             └─> END
"""

from ..nodes.iter_retgen import generation_augmented_retrieval, retrieval_augmented_generation
from ..resources.resources import Resources
from ..state.baselines import IterRetgenContext, IterRetgenOutput, IterRetgenState
from ..state.flow import Question
from .wiring import Machine, after_answer


def build(
    resources: Resources | None = None,
) -> Machine[IterRetgenState, IterRetgenContext, Question, IterRetgenOutput]:
    """Wire the machine; `resources` holds live objects to use in place of the names in the context."""
    graph = Machine(IterRetgenState, IterRetgenContext, Question, IterRetgenOutput, resources)
    graph.add_prepare()
    graph.add_steps(generation_augmented_retrieval, retrieval_augmented_generation)
    graph.add_path("prepare", "generation_augmented_retrieval", "retrieval_augmented_generation")
    after_iteration = ["generation_augmented_retrieval", *graph.add_last_steps()]
    graph.add_conditional_edges("retrieval_augmented_generation", graph.route(has_next_iteration), after_iteration)
    return graph


def has_next_iteration(state: IterRetgenState, context: IterRetgenContext) -> str:
    """Is an iteration left?"""
    more = len(state["iterations"]) < context.max_iterations
    return "generation_augmented_retrieval" if more else after_answer(state, context)


graph = build().compile(name="iter_retgen")
