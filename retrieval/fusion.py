"""Rankings of an index's rows: the best of many scores, and several rankings fused to one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

RRF_K = 60
"""How little the first ranks stand out (Cormack, Clarke and Büttcher 2009 found 60 to serve)."""

DEPTH = 1000
"""How deep rankings are fused: what two of them hold further down can beat what only one holds."""


class Ranking(NamedTuple):
    """Rows of an index, best first and equals by row, with their scores: [m] int64, [m] floats, all finite."""

    rows: NDArray[np.int64]
    scores: NDArray[np.floating]


class Ranker(Protocol):
    """A way to rank an index's rows for a query."""

    async def rank(self, query: str, n: int) -> Ranking:
        """The n best rows, or fewer where the others have nothing in common with the query."""
        ...


def best(scores: NDArray[np.floating], n: int) -> Ranking:
    """The n highest of the rows' scores [N] that are above 0, equals by row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > n:
        least = np.partition(scores, -n)[-n]
        rows = np.flatnonzero(scores >= least)
    order = np.lexsort((rows, -scores[rows]))[:n]
    return Ranking(rows[order].astype(np.int64), scores[rows[order]])


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], k: int = RRF_K) -> list[tuple[int, float]]:
    """Every row that is in a ranking with Σ 1/(k + rank), best first, equals by row (Cormack et al. 2009).

    rankings: rows, best first; ranks count from 1, and a ranking that does not hold a row adds nothing. Scores are in
    (0, number of rankings / (k + 1)].
    """
    shares: dict[int, list[float]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            shares.setdefault(row, []).append(1 / (k + rank))
    # fsum: the same ranks give the same sum in whatever order the rankings come
    fused = [(row, math.fsum(parts)) for row, parts in shares.items()]
    return sorted(fused, key=lambda pair: (-pair[1], pair[0]))


class Fused:
    """Several rankings of the same rows by reciprocal-rank fusion."""

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        """rankers: asked at the same time."""
        self._rankers = rankers

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`; each ranking is read to the 1000th row at least."""
        rankings = await asyncio.gather(*(ranker.rank(query, max(n, DEPTH)) for ranker in self._rankers))
        fused = reciprocal_rank_fusion([ranking.rows.tolist() for ranking in rankings])[:n]
        rows = np.array([row for row, _ in fused], dtype=np.int64)
        return Ranking(rows, np.array([score for _, score in fused], dtype=np.float64))
