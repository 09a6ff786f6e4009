"""Nearest neighbours among an array's rows by dot product, the same on every machine.

FAISS finds candidates in float32. There the order of summation, and so the last bits of a product, depend on a row's
place in a block. All rows that could be among the k best within that error are compared again in float64 and rounded
once to float32. So equal rows have equal scores, and extending a graph gives the same as building it. Among very many
rows nearest-neighbour descent finds the candidates.
"""

from typing import NamedTuple

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

SAMPLED, REVERSED, POOL, ROUNDS = 12, 60, 40, 10
"""Of descent, a row: new candidates and rows that have it as theirs, looked at a round; candidates kept. The rounds."""

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


def nearly_nearest(vectors: Vectors, k: int) -> Rows:
    """Nearly all of the k nearest others of every row among its k + `SPARE`, [N, k + 1 + SPARE], in any order.

    By nearest-neighbour descent (Dong et al., 2011), of FAISS.
    """
    structure = faiss.IndexNNDescentFlat(vectors.shape[1], k + 1 + SPARE, faiss.METRIC_INNER_PRODUCT)
    descent = structure.nndescent
    descent.S, descent.R, descent.L, descent.iter = SAMPLED, REVERSED, max(POOL, k + 1 + SPARE), ROUNDS
    structure.add(vectors)
    return faiss.vector_to_array(descent.final_graph).reshape(len(vectors), -1).astype(np.int64)


def best_of(vectors: Vectors, rows: Rows, candidates: Rows, k: int) -> Neighbours:
    """The k best others of n rows among the candidates of each, [n, m], where -1 stands for none."""
    found = Neighbours(candidates.astype(np.int32), _compared(_taken(vectors, rows), vectors, candidates))
    found.scores[(candidates == rows[:, None]) | (candidates < 0)] = -np.inf
    found.rows[np.isneginf(found.scores)] = -1
    return _merged(none_yet(len(rows), k), found)
