"""measure: degree-based semantic entropy of the responses (DENSE section 4.2, equation 6)."""

from __future__ import annotations

import numpy as np

from ..models.resources import Resources
from ..state.dense import ORIGINAL, REPEATED, DenseContext, DenseState
from ..uncertainty import degree_entropy, degree_terms
from .contexts import is_probed, rephrasing


async def measure(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """The DSE, each chunk's share in it, and whether the answer r_0 is certain."""
    link = np.array(state["link"])
    dse = degree_entropy(link)
    llm = await resources.llm(context.llm, context.concurrency)
    if REPEATED in state["replies"]:
        resources.repeats_itself[llm.name] = state["replies"][REPEATED] == state["replies"][ORIGINAL]
    responses = responses_of(state)
    warnings = [] if resources.repeats_itself.get(llm.name, True) else [_unsteady(llm.name)]
    if not state["evidence"]:
        warnings.append("Nothing was measured: there are no chunks to put in other words.")
    return {
        "answer": responses[0],
        "responses": responses,
        "rephrasings": [rephrasing(chunk, state) for chunk in state["evidence"]],
        "dse": dse,
        "shares": degree_terms(link)[1:].tolist(),
        "certain": dse <= context.threshold and any(is_probed(chunk, state) for chunk in state["evidence"]),
        "warnings": warnings,
    }


def responses_of(state: DenseState) -> list[str]:
    """r_0..r_k; where a chunk could not be rephrased, r_0 again."""
    replies = state["replies"]
    return [replies.get(key, replies[ORIGINAL]) for key in (ORIGINAL, *(chunk["id"] for chunk in state["evidence"]))]


def _unsteady(name: str) -> str:
    return (
        f"The model '{name}' answered one prompt in two ways at temperature 0, so part of this uncertainty is its own "
        "and not the context's; a vLLM server repeats itself when started with VLLM_BATCH_INVARIANT=1."
    )
