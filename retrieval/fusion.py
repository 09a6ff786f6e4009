"""Rankings of an index's rows: top-n by score, and reciprocal-rank fusion."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..concurrency import gather_or_cancel

RRF_K = 60
"""The rank constant; larger values weaken the first ranks (Cormack, Clarke and Büttcher 2009 use 60)."""

DEPTH = 1000
"""The depth of fused rankings: a row deep in two rankings can beat a row high in one."""


class Ranking(NamedTuple):
    """Rows of an index, best first and equals by row, with their scores: [m] int64, [m] floats, all finite."""

    rows: NDArray[np.int64]
    scores: NDArray[np.floating]


class Ranker(Protocol):
    """Ranks an index's rows for a query."""

    async def rank(self, query: str, n: int) -> Ranking:
        """The n best rows; fewer if the others have nothing in common with the query."""
        ...


def best(scores: NDArray[np.floating], n: int) -> Ranking:
    """The n highest scores above 0 among the rows' scores [N], equals by row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > n:
        least = np.partition(scores, -n)[-n]
        rows = np.flatnonzero(scores >= least)
    order = np.lexsort((rows, -scores[rows]))[:n]
    return Ranking(rows[order].astype(np.int64), scores[rows[order]])


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], k: int = RRF_K) -> list[tuple[int, float]]:
    """Each row of the rankings with its score Σ 1/(k + rank), best first, equals by row (Cormack et al. 2009).

    rankings: rows, best first. Ranks count from 1; a ranking without the row adds 0. Scores are in
    (0, number of rankings / (k + 1)].
    """
    shares: dict[int, list[float]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            shares.setdefault(row, []).append(1 / (k + rank))
    # fsum: the sum does not depend on the order of the rankings
    fused = [(row, math.fsum(parts)) for row, parts in shares.items()]
    return sorted(fused, key=lambda pair: (-pair[1], pair[0]))


class Fused:
    """Several rankings of the same rows by reciprocal-rank fusion."""

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        self._rankers = rankers

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`; each ranking is read down to rank 1000 at least."""
        rankings = await gather_or_cancel(ranker.rank(query, max(n, DEPTH)) for ranker in self._rankers)
        fused = reciprocal_rank_fusion([ranking.rows.tolist() for ranking in rankings])[:n]
        rows = np.array([row for row, _ in fused], dtype=np.int64)
        return Ranking(rows, np.array([score for _, score in fused], dtype=np.float64))
