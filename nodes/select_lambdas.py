"""select_lambdas: which chunk sets, and so which λ, the Evaluator scores next (DF-RAG section 3.4 and appendix B.3)."""

from collections.abc import Sequence

from ..errors import UserFault
from ..resources.resources import Resources
from ..state.df_rag import NO_CHUNKS, DFRagContext, DFRagState
from .choose_lambda import retrieval_supports


async def select_lambdas(state: DFRagState, context: DFRagContext, resources: Resources) -> DFRagState:
    """Write the candidate sets to evaluate next to `pending`. An empty list ends the sampling of λ.

    sampling uniform: every distinct set, once. sampling binary: the two neighbouring λ that the peak search compares
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
    """The candidates of the λ levels that the peak search needs next."""
    candidate_by_lambda = sorted(
        (lam, number) for number, candidate in enumerate(state["candidates"]) for lam in candidate["lambdas"]
    )
    support_by_lambda = {lam: entry["support"] for entry in retrieval_supports(state) for lam in entry["lambdas"]}
    levels = next_levels([support_by_lambda.get(lam) for lam, _ in candidate_by_lambda])
    return [candidate_by_lambda[level][1] for level in levels]


def next_levels(support: Sequence[float | None]) -> list[int]:
    """One step of the peak search: the levels to evaluate next, empty when the search is over.

    support: Retrieval Support of each of the n levels, None where it is not known yet. The search compares the two
    levels in the middle of the range and continues in the half of the higher one; a tie moves toward the median level.
    It needs O(log n) levels in all.
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
