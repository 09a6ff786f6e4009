"""DENSE: rephrase each chunk and see whether the answer stays the same (section 4, Algorithm 1).

prepare ─┬───────────────────┬─> rephrase ─> contexts ─┬─> respond ─┬─> entail ─> measure_dse
         └─> retrieve_top_k ─┘  (one per               │ (one per   │
             (if no chunks      chunk)                 │  context)  │
             are given)                                └─> repeat ──┘ (once per model: is it deterministic?)
"""

from typing import Any

from langgraph.types import Send

from ..nodes.entail import entail
from ..nodes.given_chunks import take_context_chunks, take_given_chunks
from ..nodes.measure_dse import measure_dse
from ..nodes.rephrase import rephrase
from ..nodes.respond import check_determinism, context_of, contexts, repeat, respond
from ..nodes.retrieve_top_k import retrieve_top_k
from ..resources.resources import Resources
from ..state.dense import ORIGINAL, DenseContext, DenseInput, DenseOutput, DenseState, PartInput, PartState, text_key
from .wiring import Machine


def build(
    resources: Resources | None = None, settings: type[DenseContext] = DenseContext
) -> Machine[DenseState, DenseContext, DenseInput, DenseOutput]:
    """Wire the machine; `resources` holds live objects to use in place of what the context names.

    settings: the context class of the parent graph, if it has more settings.
    """
    is_part = settings is not DenseContext
    state: type[DenseState] = PartState if is_part else DenseState
    given: Any = PartInput if is_part else DenseInput
    graph: Machine[DenseState, DenseContext, DenseInput, DenseOutput] = Machine(
        state, settings, given, DenseOutput, resources
    )
    graph.add_prepare(take_context_chunks if is_part else take_given_chunks, check_determinism)
    graph.add_steps(retrieve_top_k, rephrase, contexts, respond, repeat, entail, measure_dse)
    graph.add_conditional_edges("prepare", retrieve_or_rephrase, ["retrieve_top_k", "rephrase", "contexts"])
    graph.add_conditional_edges("retrieve_top_k", rephrase_each, ["rephrase", "contexts"])
    graph.add_edge("rephrase", "contexts")
    graph.add_conditional_edges("contexts", respond_to_each, ["respond", "repeat"])
    graph.add_path("respond", "entail", "measure_dse")
    graph.add_end("measure_dse", is_part=is_part)
    graph.add_edge("repeat", "entail")
    return graph


def retrieve_or_rephrase(state: DenseState) -> list[Send] | str:
    """Were chunks given?"""
    return rephrase_each(state) if state["given"] else "retrieve_top_k"


def rephrase_each(state: DenseState) -> list[Send] | str:
    """Which distinct texts have no rephrasing yet? They are rephrased in parallel."""
    by_text = {text_key(chunk["text"]): chunk for chunk in state["evidence"] if "rephrasing" not in chunk}
    return [Send("rephrase", {"chunk": chunk}) for chunk in by_text.values()] or "contexts"


def respond_to_each(state: DenseState) -> list[Send]:
    """All contexts in parallel, and the original one twice if the model has not been checked yet."""
    responses = [Send("respond", context_of(key, state)) for key in state["context_keys"]]
    return [*responses, Send("repeat", context_of(ORIGINAL, state))] if state["repeat"] else responses


graph = build().compile(name="dense")
