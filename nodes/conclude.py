"""conclude: the answer to give, from the context that is kept (DENSE section 5.2)."""

from __future__ import annotations

from ..models.resources import Resources
from ..state.dense_rag import DenseRagContext, DenseRagState, Stop
from .keep import candidate
from .refine import left

RECORDED: frozenset[Stop] = frozenset({"unchanged", "nothing_left"})
"""Where `refine` ended the run, it has recorded the last context."""


async def conclude(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Answer from the kept context, or, where nothing was refined, from the one that was measured last."""
    stopped: Stop = state["stopped"] or ("certain" if state["certain"] else "not_refined")
    best = state["best"] or candidate(state)
    return {
        "answer": best["answer"],
        "evidence": [state["visited"][one] for one in best["chunk_ids"]],
        "dse": best["dse"],
        "certain": best["dse"] <= context.threshold and best["probed"],
        "sufficient": best["sufficient"],
        "stopped": stopped,
        "rounds": [] if stopped in RECORDED else [left(state)],
    }
