"""measure_dse: degree-based semantic entropy of the responses (DENSE section 4.2, equation 6)."""

from collections.abc import Sequence

import numpy as np

from ..resources.resources import Resources
from ..state.dense import ORIGINAL, REPEATED, DenseContext, DenseState
from ..state.records import Chunk, Uncertainty
from ..uncertainty import degree_entropy, degree_terms
from .respond import rephrasing_of


async def measure_dse(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """The DSE, each response's share of it, and whether the answer r_0 is certain."""
    link = np.array(state["link"])
    dse = degree_entropy(link)
    rephrasings = [rephrasing_of(chunk, state) for chunk in state["evidence"]]
    probed = is_probed(state["responses"][0], rephrasings, state["evidence"])
    llm, by_key = await resources.llm(context), state["response_by_key"]
    if REPEATED in by_key:
        resources.is_deterministic[llm.name] = by_key[REPEATED] == by_key[ORIGINAL]
    warnings = [] if resources.is_deterministic.get(llm.name, True) else [_not_deterministic(llm.name)]
    if not state["evidence"]:
        warnings.append("Nothing was measured: there are no chunks to rephrase.")
    return {
        "answer": state["responses"][0],
        "rephrasings": rephrasings,
        "dse": dse,
        "shares": degree_terms(link)[1:].tolist(),
        "certain": dse <= context.dse_threshold and probed,
        "uncertainty": dse_uncertainty(dse, context, probed=probed),
        "warnings": warnings,
    }


def is_probed(answer: str, rephrasings: Sequence[str], chunks: Sequence[Chunk]) -> bool:
    """Does the DSE say something about r_0? Without a rephrased chunk it is always 0, and an empty r_0 is no answer."""
    rephrased = any(rephrasing != chunk["text"] for rephrasing, chunk in zip(rephrasings, chunks, strict=True))
    return rephrased and bool(answer.strip())


def dse_uncertainty(dse: float, context: DenseContext, *, probed: bool) -> Uncertainty:
    """DSE as the uncertainty of an answer; unknown if it was not probed (`is_probed`)."""
    return {"signal": "DSE", "value": dse if probed else None, "threshold": context.dse_threshold}


def _not_deterministic(model: str) -> str:
    return (
        f"The model '{model}' gave two answers to one prompt at temperature 0, so part of this uncertainty comes from "
        "the model and not from the context. A vLLM server is deterministic if it is started with "
        "VLLM_BATCH_INVARIANT=1."
    )
