"""sample: which candidate sets the Evaluator looks at next (DF-RAG section 3.4 and appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserFault
from ..models.resources import Resources
from ..state.df_rag import NOTHING, DFRagContext, DFRagState
from .choose import supports


async def sample(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Put the sets to evaluate next into `pending`; nothing there means that sampling is over.

    uniform: every distinct set, once. binary: the neighbouring λ that a search for the peak compares next.
    The likelihood evaluator also looks at no chunks at all, which its gain is measured against.
    """
    if "candidates" not in state:
        raise UserFault(
            "There are no chunk sets to sample yet: go on from a checkpoint that `candidates` has written to."
        )
    done = {evaluation["candidate"] for evaluation in state.get("evaluations", [])}
    sets = state["candidates"]
    wanted = list(range(len(sets))) if context.sampling == "uniform" else _binary(state)
    if context.evaluator == "likelihood" and sets:
        wanted = [NOTHING, *wanted]
    return {"pending": [candidate for candidate in dict.fromkeys(wanted) if candidate not in done]}


def _binary(state: DFRagState) -> list[int]:
    """The candidate sets of the λ levels that the search wants to see."""
    by_level = sorted((lam, i) for i, found in enumerate(state["candidates"]) for lam in found["lambdas"])
    known = {lam: s["support"] for s in supports(state) for lam in s["lambdas"]}
    return [by_level[level][1] for level in next_levels([known.get(lam) for lam, _ in by_level])]


def next_levels(support: Sequence[float | None]) -> list[int]:
    """One step of the search for the peak of `support` over its n levels, None where it is not known yet.

    Compares the two levels in the middle of what is left and goes on in the half of the higher one; a tie moves
    toward the median level. Returns the levels it must know to go on, none when it is done; O(log n) levels in all.
    """
    low, high = 0, len(support) - 1
    while low < high:
        middle = (low + high) // 2
        left, right = support[middle], support[middle + 1]
        if left is None or right is None:
            return [level for level in (middle, middle + 1) if support[level] is None]
        rises = right > left or (right == left and middle < len(support) // 2)
        low, high = (middle + 1, high) if rises else (low, middle)
    return [level for level in range(low, high + 1) if support[level] is None]
