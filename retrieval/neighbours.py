"""Nearest neighbours among an array's rows by dot product, the same on every machine.

FAISS finds candidates in float32. There the order of summation, and so the last bits of a product, depend on a row's
place in a block. All rows that could be among the k best within that error are compared again in float64 and rounded
once to float32. So equal rows have equal scores, and extending a graph gives the same as building it.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from ..models.interfaces import Vectors

BLOCK = 65_536
"""Candidates searched together."""

SPARE = 8
"""Candidates fetched beyond the k best; if all of these are within the error, every candidate within it is compared."""

COMPARED = 4_096
"""Vectors compared in float64 at a time."""

CLUSTER = 250
"""Average number of rows per centre."""

NEAR = 8
"""Nearest centres of a row: rows that share one are compared."""

TRAINED = 64
"""Training rows per centre."""

ROUNDS = 10
"""Rounds of k-means."""

Rows = NDArray[np.int64]


class Neighbours(NamedTuple):
    """The best other rows of each of n rows, best first, equals by row.

    rows: int32 [n, k], filled up with -1; scores: float32 [n, k], dot products, filled up with -inf.
    """

    rows: NDArray[np.int32]
    scores: Vectors


def none_yet(n: int, k: int) -> Neighbours:
    """No neighbours of n rows, with room for k."""
    return Neighbours(np.full((n, k), -1, dtype=np.int32), np.full((n, k), -np.inf, dtype=np.float32))


def improved(vectors: Vectors, rows: Rows, candidates: Rows, known: Neighbours) -> Neighbours:
    """The best neighbours of n rows of `vectors` [N, d] among known ones and candidates, without the row itself.

    candidates: ascending; vectors: L2-normalised or zero.
    """
    for start in range(0, len(candidates), BLOCK):
        block = candidates[start : start + BLOCK]
        known = _merged(known, _best_in_block(vectors, rows, block, known.rows.shape[1]))
    return known


def _merged(first: Neighbours, second: Neighbours) -> Neighbours:
    k = first.rows.shape[1]
    rows = np.concatenate([first.rows, second.rows], axis=1)
    scores = np.concatenate([first.scores, second.scores], axis=1)
    order = np.lexsort((rows, -scores), axis=-1)
    rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
    repeated = rows[:, 1:] == rows[:, :-1]  # equal rows have equal scores, so they are adjacent
    if repeated.any():
        rows[:, 1:][repeated], scores[:, 1:][repeated] = -1, -np.inf
        order = np.argsort(-scores, axis=-1, kind="stable")
        rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
    return Neighbours(rows[:, :k], scores[:, :k])


def _best_in_block(vectors: Vectors, rows: Rows, block: Rows, k: int) -> Neighbours:
    """Candidates of each row, in any order, among them its k best others in the block."""
    queries, base = vectors[rows], _taken(vectors, block)
    fetched = min(k + 1 + SPARE, len(block))  # one may be the row itself
    rough, places = faiss.knn(queries, base, fetched, metric=faiss.METRIC_INNER_PRODUCT)
    found = Neighbours(block[places].astype(np.int32), _compared(queries, base, places))
    found.scores[found.rows == rows[:, None]] = -np.inf
    found.rows[np.isneginf(found.scores)] = -1
    if fetched == len(block):
        return found
    # the k + 1 best rough scores include k others: a candidate below them by twice the error cannot be among the k best
    least = rough[:, k] - 2 * _error(vectors.shape[1])
    for i in np.flatnonzero(rough[:, -1] >= least):
        others = np.flatnonzero((base @ queries[i] >= least[i]) & (block != rows[i]))
        places, scores = _best_of_many(queries[i], base, others, k)
        found.rows[i], found.scores[i] = -1, -np.inf
        found.rows[i, :k], found.scores[i, :k] = block[places], scores
    return found


def _best_of_many(query: Vectors, base: Vectors, places: Rows, k: int) -> tuple[Rows, Vectors]:
    """The k best of many places for one query, best first, and their scores."""
    parts = [places[start : start + COMPARED] for start in range(0, len(places), COMPARED)]
    scores = np.concatenate([_compared(query[None], base, part[None])[0] for part in parts])
    order = np.lexsort((places, -scores))[:k]
    return places[order], scores[order]


def _taken(vectors: Vectors, rows: Rows) -> Vectors:
    """These rows of the array; a view if they are consecutive."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return vectors[rows[0] : rows[-1] + 1]
    return vectors[rows]


def _compared(queries: Vectors, base: Vectors, places: Rows) -> Vectors:
    """The dot product of each query with the vectors at its places, [n, m], computed in float64."""
    scores = np.empty(places.shape, dtype=np.float32)
    step = max(1, COMPARED // places.shape[1])
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        exact = base[places[part]].astype(np.float64)
        scores[part] = np.einsum("nd,nmd->nm", queries[part].astype(np.float64), exact)
    return scores


def _error(d: int) -> float:
    """The largest error of a float32 dot product of unit vectors with d numbers, rounding included."""
    return (d + 4) * 2.0**-24


class Clusters:
    """Overlapping clusters of rows: a row belongs to the clusters of its nearest centres."""

    def __init__(self, nearest: Rows, count: int) -> None:
        """nearest: the clusters of each row, [N, m]; count: the number of clusters."""
        self._rows: Rows = np.argsort(nearest, axis=None, kind="stable") // nearest.shape[1]
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(nearest.ravel(), minlength=count))])

    @classmethod
    def of(cls, vectors: Vectors) -> Self:
        """Spherical k-means with a fixed seed."""
        n, d = vectors.shape
        count = max(1, n // CLUSTER)
        kmeans = faiss.Kmeans(
            d, count, niter=ROUNDS, seed=0, spherical=True, max_points_per_centroid=TRAINED, min_points_per_centroid=1
        )
        sample = np.sort(np.random.default_rng(0).permutation(n)[: count * TRAINED])
        kmeans.train(vectors[sample])
        centres = np.asarray(kmeans.centroids, dtype=np.float32)
        return cls(np.concatenate([_nearest(part, centres) for part in _parts(vectors)]), count)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def members(self, cluster: int) -> Rows:
        """A cluster's rows, ascending."""
        return self._rows[self._ends[cluster] : self._ends[cluster + 1]]


def _nearest(vectors: Vectors, centres: Vectors) -> Rows:
    _, nearest = faiss.knn(vectors, centres, min(NEAR, len(centres)), metric=faiss.METRIC_INNER_PRODUCT)
    rows: Rows = nearest
    return rows


def _parts(vectors: Vectors) -> Iterator[Vectors]:
    return (vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK))
