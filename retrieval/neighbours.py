"""Nearest neighbours among an array's rows by dot product, the same on every machine.

FAISS finds candidates in float32. There the order of summation, and so the last bits of a product, depend on a row's
place in a block. All rows that could be among the k best within that error are compared again in float64 and rounded
once to float32. So equal rows have equal scores, and extending a graph gives the same as building it. Among very many
rows `NearestByHnsw` finds the candidates.
"""

from typing import Any, NamedTuple

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

LINKS = 32
"""Links of a row in the HNSW graph."""

BREADTH = 128
"""Rows that a search of the HNSW graph keeps in view, at least."""

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


class NearestByHnsw:
    """Nearly all of the nearest rows, by a navigable small-world graph over 8-bit codes (Malkov and Yashunin, 2018).

    What it finds is compared again as above. Threads of FAISS build the graph in any order, so two graphs of the same
    rows may differ.
    """

    def __init__(self, vectors: Vectors) -> None:
        """vectors: [N, d], L2-normalised or zero; `add` makes their rows known."""
        self._vectors = vectors
        self._hnsw: Any = faiss.index_factory(vectors.shape[1], f"HNSW{LINKS}_SQ8", faiss.METRIC_INNER_PRODUCT)
        self._hnsw.train(vectors)

    def add(self, rows: Rows) -> None:
        """Add these rows, which follow those that were added before."""
        self._hnsw.add(_taken(self._vectors, rows))

    def nearest(self, rows: Rows, k: int) -> Neighbours:
        """The neighbours of these rows among all that were added."""
        fetched = k + 1 + SPARE  # one may be the row itself
        self._hnsw.hnsw.efSearch = max(BREADTH, 2 * fetched)
        queries = _taken(self._vectors, rows)
        _, places = self._hnsw.search(queries, fetched)
        found = Neighbours(places.astype(np.int32), _compared(queries, self._vectors, places))
        found.scores[(places == rows[:, None]) | (places < 0)] = -np.inf
        found.rows[np.isneginf(found.scores)] = -1
        return _merged(none_yet(len(rows), k), found)
