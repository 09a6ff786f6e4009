"""gMMR and classical MMR for many λ at once: the result of greedy selection, with fewer passes over the chunks.

Both score a chunk c by λ·cos(q,c) + (1−λ)·novelty. The novelty of a chunk falls with its closeness to the chosen set S:

    gMMR (DF-RAG, eq. 1-3)   closeness = cos(c, mean of S)          novelty = sqrt(2 − 2·closeness)
    MMR, DF-RAG's B.2        closeness = cos(c, mean of S)          novelty = −closeness
    MMR                      closeness = max over S of cos(c, s)    novelty = −closeness

*One pass per step.* All λ share one pass over the chunks, and λ with the same chosen set share one column. The pass
goes slab by slab: scores stay in the processor's cache and are never held for all chunks.

*No pass where a bound decides.* A chunk at angle α from q is at most α+β from a vector at angle β from q (the
triangle inequality on the sphere), so a chunk with cos(q,c) = a scores at most λ·a + (1−λ)·novelty(cos(α+β)). Where
that is below the best score in the head (the 2 % of chunks nearest to q) for every a outside the head, the winner is in
the head. This decides λ near 1. For λ near 0 nearly every chunk can win, and the pass is made.

*Exact.* A float32 product has an error of at most d·2⁻²⁴ in any order of summation. So each score has an upper and a
lower bound. Chunks whose bounds overlap are scored again in float64, row by row: the result does not depend on blocks
or threads, duplicates have equal scores, and the lowest row wins a tie.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserFault

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Rows = NDArray[np.int64]

SLAB = 16384  # chunks scored at a time
TILE = 32  # chunks multiplied at a time: OpenBLAS copies larger tiles before it multiplies
HEAD = 256  # the least number of chunks in the head
UNIT = 1e-3  # largest deviation of a vector's length from 1
SLACK = 3 * UNIT  # largest error of such vectors' dot product as a cosine, rounding included
LOWEST = -2.0  # below every score


def gmmr_sweep(query: ArrayLike, chunks: F32, lambdas: ArrayLike, k: int, begun: Sequence[int] = ()) -> Rows:
    """Rows of the k chunks that gMMR selects for each λ (DF-RAG, section 3.1), in the order of selection.

    query: [d], rounded to float32; chunks: [N, d] float32, never copied; lambdas: [L] in [0, 1]; begun: rows that are
    selected already, the first of the k. Returns [L, k]. λ = 1 is plain top-k. Vectors must be L2-normalised, so that
    dot products are cosines; only the query and the selected chunks are checked. `UserFault` for other arguments, and
    if k is more than N.
    """
    return _sweep(_GMMR, query, chunks, lambdas, k=k, begun=begun)


def mmr_centroid_sweep(query: ArrayLike, chunks: F32, lambdas: ArrayLike, k: int, begun: Sequence[int] = ()) -> Rows:
    """Like `gmmr_sweep`, with a cosine in place of the distance: λ·cos(q,c) − (1−λ)·cos(c, mean of the selected)."""
    return _sweep(_MMR_CENTROID, query, chunks, lambdas, k=k, begun=begun)


def mmr_sweep(query: ArrayLike, chunks: F32, lambdas: ArrayLike, k: int, begun: Sequence[int] = ()) -> Rows:
    """Like `gmmr_sweep`, with classical MMR: λ·cos(q,c) − (1−λ)·max over the selected s of cos(c,s)."""
    return _sweep(_MMR, query, chunks, lambdas, k=k, begun=begun)


class _Rule(NamedTuple):
    """The difference between gMMR and the two forms of MMR.

    anchors: chosen vectors [t, d] → [m, d]; a chunk's closeness is its largest cosine to an anchor;
    novelty: a function of closeness that never increases.
    """

    anchors: Callable[[F64], F64]
    novelty: Callable[[NDArray[np.floating]], NDArray[np.floating]]


def _centroid(chosen: F64) -> F64:
    mean: F64 = chosen.mean(axis=0, keepdims=True)
    length = float(np.linalg.norm(mean))
    return np.divide(mean, length or 1.0)  # every cosine to a zero mean is 0


_GMMR = _Rule(_centroid, lambda closeness: np.sqrt(np.maximum(2 - 2 * closeness, 0)))
_MMR_CENTROID = _Rule(_centroid, np.negative)
_MMR = _Rule(lambda chosen: chosen, np.negative)


class _Set(NamedTuple):
    """A chosen set: its rows, its anchors [m, d], and the indices of the λ that chose it."""

    chosen: Rows
    anchors: F64
    levels: list[int]


class _Slab(NamedTuple):
    """A part of the chunks: their rows, ascending, their vectors [n, d] and their cosines to the query [n]."""

    rows: Rows
    vectors: F32
    relevance: F32


def _sweep(rule: _Rule, query: ArrayLike, chunks: F32, lambdas: ArrayLike, *, k: int, begun: Sequence[int]) -> Rows:
    q, lams = _checked(query, chunks, lambdas, k)
    error = (chunks.shape[1] + 64) * 2.0**-24  # of a float32 cosine and of the operations from it to the score
    relevance = _products(q[None], chunks)[0]
    if len(bad := np.flatnonzero(~np.isfinite(relevance))):
        raise UserFault(f"The vector of chunk {bad[0]} has a number that is not finite: embed that chunk again.")
    head, outside = _head(chunks, relevance)
    picks = np.empty((len(lams), k), dtype=np.int64)
    picks[:, : len(begun)] = begun
    if not len(begun):
        nearest = np.flatnonzero(relevance >= relevance.max() - 2 * error)
        picks[:, 0] = _best(nearest, chunks, q, q[None].astype(np.float64), lam=1.0, rule=rule)
    for step in range(max(1, len(begun)), k):
        sets = [
            _Set(np.array(chosen), rule.anchors(chunks[list(chosen)].astype(np.float64)), levels)
            for chosen, levels in _same_sets(picks[:, :step]).items()
        ]
        floors, contenders = _scan([head], sets, lams, rule, error)
        unsettled = []
        for chosen_set in sets:
            to_query = float((chosen_set.anchors @ q).max())
            levels = [i for i in chosen_set.levels if _reach(outside, to_query, lams[i], rule) >= floors[i]]
            if levels:
                unsettled.append(chosen_set._replace(levels=levels))
        if unsettled:
            contenders |= _scan(_slabs(chunks, relevance), unsettled, lams, rule, error)[1]
        for chosen_set in sets:
            for i in chosen_set.levels:
                picks[i, step] = _best(contenders[i], chunks, q, chosen_set.anchors, lam=lams[i], rule=rule)
    _require_unit(np.unique(picks), chunks)
    return picks


def _same_sets(picks: Rows) -> dict[tuple[int, ...], list[int]]:
    sets: dict[tuple[int, ...], list[int]] = {}
    for level, chosen in enumerate(picks.tolist()):
        sets.setdefault(tuple(sorted(chosen)), []).append(level)
    return sets


def _head(chunks: F32, relevance: F32) -> tuple[_Slab, F64]:
    """The chunks nearest to the query, and 257 limits over the range of the others' cosines (empty: no others)."""
    others = len(chunks) - max(HEAD, len(chunks) // 50)
    if others <= 0:
        return _Slab(np.arange(len(chunks)), chunks, relevance), np.empty(0)
    order = np.argpartition(relevance, others)
    rows, rest = np.sort(order[others:]), relevance[order[:others]]
    outside = np.linspace(float(rest.min()) - SLACK, float(rest.max()) + SLACK, 257)
    return _Slab(rows, chunks[rows], relevance[rows]), outside


def _reach(outside: F64, to_query: float, lam: float, rule: _Rule) -> float:
    """An upper bound on scores outside the head; to_query: the cosine of the anchor nearest to the query."""
    if not len(outside):
        return LOWEST
    angles = np.arccos(np.clip(outside[:-1], -1, 1)) + math.acos(max(-1.0, min(1.0, to_query - SLACK)))
    novelty = rule.novelty(np.cos(np.minimum(angles, math.pi)) - SLACK)
    return float((lam * outside[1:] + (1 - lam) * novelty).max())


def _slabs(chunks: F32, relevance: F32) -> Iterator[_Slab]:
    for start in range(0, len(chunks), SLAB):
        rows = np.arange(start, min(start + SLAB, len(chunks)))
        yield _Slab(rows, chunks[start : start + SLAB], relevance[start : start + SLAB])


def _scan(
    slabs: Iterable[_Slab], sets: Sequence[_Set], lams: Sequence[float], rule: _Rule, error: float
) -> tuple[dict[int, float], dict[int, Rows]]:
    """For every λ of the sets: a lower bound on the best score, and the rows, ascending, that can be best."""
    floors = {i: LOWEST for chosen_set in sets for i in chosen_set.levels}
    contenders = {i: [np.empty(0, dtype=np.int64)] for i in floors}
    anchors = np.concatenate([chosen_set.anchors for chosen_set in sets]).astype(np.float32)
    ends = np.cumsum([len(chosen_set.anchors) for chosen_set in sets])
    for slab in slabs:
        products = _products(anchors, slab.vectors)
        relevance = slab.relevance + error
        for chosen_set, end in zip(sets, ends, strict=True):
            closeness = products[end - len(chosen_set.anchors) : end].max(axis=0)
            novelty = rule.novelty(closeness - error)
            at = np.minimum(np.searchsorted(slab.rows, chosen_set.chosen), len(slab.rows) - 1)
            gone = at[slab.rows[at] == chosen_set.chosen]
            for i in chosen_set.levels:
                lam = lams[i]
                upper = lam * relevance + (1 - lam) * novelty
                upper[gone] = -np.inf
                top = upper.argmax()
                if upper[top] >= floors[i]:
                    lower = lam * (slab.relevance[top] - error) + (1 - lam) * rule.novelty(closeness[top] + error)
                    floors[i] = max(floors[i], float(lower))
                    contenders[i].append(slab.rows[upper >= floors[i]])
    return floors, {i: np.concatenate(rows) for i, rows in contenders.items()}


@np.errstate(all="ignore")  # OpenBLAS sometimes reads memory beside a small matrix and warns about it
def _products(anchors: F32, vectors: F32) -> F32:
    """anchors @ vectors.T, [m, n]."""
    if len(anchors) == 1:
        return np.reshape(vectors @ anchors[0], (1, -1))
    products = np.empty((len(anchors), len(vectors)), dtype=np.float32)
    whole = len(vectors) // TILE * TILE
    tiles = vectors[:whole].reshape(-1, TILE, vectors.shape[1]).transpose(0, 2, 1)
    np.matmul(anchors, tiles, out=products[:, :whole].reshape(len(anchors), -1, TILE).transpose(1, 0, 2))
    np.matmul(anchors, vectors[whole:].T, out=products[:, whole:])
    return products


def _best(rows: Rows, chunks: F32, q: F32, anchors: F64, *, lam: float, rule: _Rule) -> int:
    """The row with the highest score in float64 among these rows (ascending); the lowest row among equals."""
    best, winner = -np.inf, rows[0]
    for start in range(0, len(rows) if len(rows) > 1 else 0, 256):
        part = rows[start : start + 256]
        vectors = chunks[part].astype(np.float64)
        closeness = np.max([dots(vectors, anchor) for anchor in anchors], axis=0)
        scores = lam * dots(vectors, q) + (1 - lam) * rule.novelty(closeness)
        top = scores.argmax()
        if scores[top] > best:
            best, winner = scores[top], part[top]
    return int(winner)


def dots(vectors: F64, vector: NDArray[np.floating]) -> F64:
    """The dot products of vectors [n, d] with a vector [d], [n]. Unlike in BLAS, equal rows give equal values."""
    return np.asarray((vectors * vector).sum(axis=1))


def _checked(query: ArrayLike, chunks: F32, lambdas: ArrayLike, k: int) -> tuple[F32, list[float]]:
    if not isinstance(chunks, np.ndarray) or chunks.dtype != np.float32:
        raise UserFault("The chunks' vectors are not a float32 array: convert them with .astype(np.float32).")
    if chunks.ndim != 2 or not chunks.size:
        raise UserFault(f"The chunks' vectors have shape {chunks.shape}: give at least one chunk, as [N, d].")
    n, d = chunks.shape
    q = np.asarray(query, dtype=np.float32)
    if q.shape != (d,):
        raise UserFault(f"The query has shape {q.shape} but the chunks {chunks.shape}: embed both with one encoder.")
    if not abs((length := float(np.linalg.norm(q))) - 1) <= UNIT:
        raise UserFault(f"The query's vector has length {length:.4g}, not 1: normalise it.")
    lams = np.asarray(lambdas, dtype=np.float64)
    if lams.ndim != 1 or not lams.size or not ((lams >= 0) & (lams <= 1)).all():
        raise UserFault(f"The diversity levels are {lams.tolist()}: give a list of at least one λ from 0 to 1.")
    if k < 1:
        raise UserFault(f"k is {k}: select at least 1 chunk.")
    if k > n:
        raise UserFault(f"k is {k} but there are only {n} chunks: ask for at most {n}.")
    return q, lams.tolist()


def _require_unit(rows: Rows, chunks: F32) -> None:
    lengths = np.linalg.norm(chunks[rows], axis=1)
    for row, length in zip(rows, lengths, strict=True):
        if abs(length - 1) > UNIT:
            raise UserFault(f"The vector of chunk {row} has length {length:.4g}, not 1: normalise all chunks.")
