"""A reference implementation of DF-RAG's choice of λ, written from the paper without the package's code.

Vectors are lists of numbers of length 1. A chunk is its row; a chunk set is a frozenset of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = Sequence[float]
ChunkSet = frozenset[int]


@dataclass
class World:
    """A question's vector, the chunks' vectors, and the Evaluator's score of each step for a chunk set."""

    question: Vector
    chunks: Sequence[Vector]
    scores: Callable[[ChunkSet], Sequence[float]]

    def __post_init__(self) -> None:
        """All cosines."""
        self.relevance = [dot(self.question, chunk) for chunk in self.chunks]
        self.similarity = [[dot(one, other) for other in self.chunks] for one in self.chunks]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@dataclass
class Outcome:
    """The λ that was chosen, its chunk set, and the Retrieval Support of every set that was evaluated."""

    lambda_star: float
    chosen: ChunkSet
    supports: dict[ChunkSet, float]


class TooClose(Exception):
    """The rounding of float32 decides between two chunks."""


def score(world: World, row: int, chosen: Sequence[int], lam: float, diversity: str) -> float:
    """Equation 1, and appendix B.2 for the two forms of MMR. c_S has the direction of the sum of the chosen vectors."""
    relevance = lam * world.relevance[row]
    to_chosen = [world.similarity[row][other] for other in chosen]
    if diversity == "mmr":
        return relevance - (1 - lam) * max(to_chosen)
    length = math.sqrt(max(sum(world.similarity[a][b] for a in chosen for b in chosen), 0.0))
    closeness = sum(to_chosen) / length if length > 1e-6 else 0.0
    if diversity == "mmr_centroid":
        return relevance - (1 - lam) * closeness
    return relevance + (1 - lam) * math.sqrt(max(2 - 2 * closeness, 0.0))


def select(world: World, lam: float, k: int, diversity: str) -> list[int]:
    """Equation 3; equal scores go to the lower row. Raises `TooClose` for scores that differ by less than 1e-6."""
    chosen: list[int] = []
    while len(chosen) < min(k, len(world.chunks)):
        left = [row for row in range(len(world.chunks)) if row not in chosen]
        value = {row: score(world, row, chosen, lam, diversity) if chosen else world.relevance[row] for row in left}
        best = max(value.values())
        if any(1e-9 < best - one < 1e-6 for one in value.values()):
            raise TooClose
        chosen.append(next(row for row in left if value[row] >= best - 1e-9))
    return chosen


def grow(world: World, levels: Sequence[float], k: int, diversity: str) -> list[Outcome]:
    """Appendix A.2: each level adds one chunk to the set so far, and the set with the most support grows on.

    The outcome of each round. All levels begin with the nearest chunk, so the first round has sets of two.
    """
    chosen = select(world, levels[0], 1, diversity)
    rounds: list[Outcome] = []
    while not rounds or len(chosen) < min(k, len(world.chunks)):
        grown: dict[float, list[int]] = {}
        for lam in levels:
            left = [row for row in range(len(world.chunks)) if row not in chosen]
            if k == 1 or not left:
                grown[lam] = chosen
                continue
            value = {row: score(world, row, chosen, lam, diversity) for row in left}
            best = max(value.values())
            if any(1e-9 < best - one < 1e-6 for one in value.values()):
                raise TooClose
            grown[lam] = [*chosen, next(row for row in left if value[row] >= best - 1e-9)]
        supports = {frozenset(one): math.fsum(world.scores(frozenset(one))) for one in grown.values()}
        best = max(supports.values())
        tied = sorted(lam for lam in levels if supports[frozenset(grown[lam])] == best)
        lambda_star = tied[len(tied) // 2]
        chosen = grown[lambda_star]
        rounds.append(Outcome(lambda_star, frozenset(chosen), supports))
    return rounds


def choose(world: World, levels: Sequence[float], k: int, diversity: str, sampling: str) -> Outcome:
    """Section 3.4 with the Tie-Breaking Gate, and appendix B.3 over the distinct sets."""
    set_of = {lam: frozenset(select(world, lam, k, diversity)) for lam in levels}
    supports: dict[ChunkSet, float] = {}

    def support(chunk_set: ChunkSet) -> float:
        supports.setdefault(chunk_set, math.fsum(world.scores(chunk_set)))
        return supports[chunk_set]

    middle = sorted(levels)[len(levels) // 2]
    ordered = list(dict.fromkeys(set_of[lam] for lam in sorted(levels)))
    if sampling == "uniform":
        for chunk_set in ordered:
            support(chunk_set)
    else:
        left, right = 0, len(ordered) - 1
        support(ordered[0]) if left == right else None
        while left < right:
            half = (left + right) // 2
            difference = support(ordered[half + 1]) - support(ordered[half])
            if difference == 0:
                difference = 1 if half < ordered.index(set_of[middle]) else -1
            left, right = (half + 1, right) if difference > 0 else (left, half)

    best = max(supports.values())
    tied = sorted(lam for lam in levels if supports.get(set_of[lam]) == best)
    if sampling == "uniform" or len({set_of[lam] for lam in tied}) == 1:
        lambda_star = tied[len(tied) // 2]
    else:
        lambda_star = min(reversed(tied), key=lambda lam: round(abs(lam - middle), 9))
    return Outcome(lambda_star, set_of[lambda_star], supports)
