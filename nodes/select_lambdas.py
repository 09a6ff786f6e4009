"""select_lambdas: which chunk sets, and so which λ, the Evaluator scores next (DF-RAG section 3.4 and appendix B.3)."""

from collections.abc import Sequence

from ..errors import UserFault
from ..resources.resources import Resources
from ..state.df_rag import NO_CHUNKS, DFRagContext, DFRagState
from .choose_lambda import retrieval_supports, set_of_median


async def select_lambdas(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Write the candidate sets to evaluate next to `pending`. An empty list ends the sampling of λ.

    sampling uniform: every distinct set, once. sampling binary: the two neighbouring sets that the peak search compares
    next. The likelihood evaluator also scores the empty set, because its support is the gain over no chunks.
    """
    if state.get("candidates") is None:
        raise UserFault("There are no candidate chunk sets yet: go on from a checkpoint after the node `candidates`.")
    evaluated = {evaluation["candidate"] for evaluation in state.get("evaluations", [])}
    candidates = state["candidates"]
    selected = list(range(len(candidates))) if context.sampling == "uniform" else _binary_search(state)
    if context.evaluator == "likelihood" and candidates:
        selected = [NO_CHUNKS, *selected]
    return {"pending": [candidate for candidate in dict.fromkeys(selected) if candidate not in evaluated]}


def _binary_search(state: DFRagState) -> list[int]:
    """The candidates that the peak search needs next. Two λ that select one set are one point of the search."""
    candidates = state["candidates"]
    support = {entry["lambdas"][0]: entry["support"] for entry in retrieval_supports(state)}
    return next_sets([support.get(one["lambdas"][0]) for one in candidates], set_of_median(candidates))


def next_sets(support: Sequence[float | None], median: int) -> list[int]:
    """One step of the peak search: the distinct sets to evaluate next, empty when the search is over.

    support: Retrieval Support of each of the n sets in the order of λ, None where it is not known yet. median: the set
    of the median λ. The search compares the two sets in the middle of the range and continues in the half of the
    higher one; a tie moves toward the median. It needs O(log n) sets in all.
    """
    low, high = 0, len(support) - 1
    while low < high:
        middle = (low + high) // 2
        left, right = support[middle], support[middle + 1]
        if left is None or right is None:
            return [number for number in (middle, middle + 1) if support[number] is None]
        rises = right > left or (right == left and middle < median)
        low, high = (middle + 1, high) if rises else (low, middle)
    return [number for number in range(low, high + 1) if support[number] is None]
