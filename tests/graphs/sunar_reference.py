"""Neighbourhood-aware retrieval in a straight line: one loop over dicts and lists, no nodes and no states.

Written from what SUNAR (section 3.2, Algorithm 1) and graph-adaptive re-ranking (MacAvaney et al. 2022) say, not from
the graph's code, so that the two can check each other.

Readings the papers leave open, settled the same way for both:

- An empty pool is skipped; after a batch of one pool it is the other pool's turn.
- The penalty multiplies the scores of the whole batch.
- The frontier keeps the order in which documents were first offered; the highest offer stands, and on equal offers the
  first. A neighbour's source is the document whose offer stands.
- A document may wait in both pools until it is scored.
- Ties everywhere: first seen, first served.
- Early stopping is in no paper. As its settings say, the best documents have improved if their mean score, missing ones
  counting 0, grew by more than epsilon. A batch that also spends the budget or empties both pools ends it for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIRST_STAGE = "first_stage"
FRONTIER = "frontier"


@dataclass(frozen=True)
class Settings:
    """The numbers of the loop. `patience` 0: no early stop."""

    budget: int = 100
    batch: int = 16
    evidence: int = 10
    penalty: str = "1/s"
    fixed: float = 0.5
    patience: int = 0
    epsilon: float = 0.0


@dataclass(frozen=True)
class Scored:
    """One scored document. `batch` counts from 0."""

    id: str
    score: float
    raw: float
    pool: str
    via: str | None
    batch: int


@dataclass(frozen=True)
class Outcome:
    """What the loop did: documents in the order scored, the ids of each batch, the best documents, why it stopped."""

    scored: list[Scored]
    batches: list[list[str]]
    best: list[Scored]
    stopped: str


def factor(penalty: str, sets: int, fixed: float) -> float:
    """What the scores of a batch are multiplied by when the sampled answers fall into `sets` semantic sets."""
    if penalty == "none" or sets <= 1:
        return 1.0
    if penalty == "1/s":
        return 1.0 / sets
    if penalty == "1/sqrt(s)":
        return 1.0 / math.sqrt(sets)
    return fixed


def nar(
    ranked: Sequence[str],
    raw: Mapping[str, float],
    neighbours: Mapping[str, Sequence[str]],
    sets_of: Callable[[int, list[str]], int],
    settings: Settings,
) -> Outcome:
    """Explore the neighbourhood of the first stage's list.

    ranked: ids of the first stage, best first, maybe with repeats; raw: the re-ranker's score of an id, in (0, 1);
    sets_of: of a batch's number and ids, how many semantic sets the answers make (0 where all are empty).
    """
    scored: dict[str, Scored] = {}
    offers: dict[str, tuple[float, str]] = {}
    batches: list[list[str]] = []
    mean_before = 0.0
    still = 0
    turn = FIRST_STAGE
    while True:
        if len(scored) >= settings.budget:
            return _outcome(scored, batches, settings, "budget")
        waiting = {
            FIRST_STAGE: [one for one in dict.fromkeys(ranked) if one not in scored],
            FRONTIER: sorted((one for one in offers if one not in scored), key=lambda one: -offers[one][0]),
        }
        if not waiting[FIRST_STAGE] and not waiting[FRONTIER]:
            return _outcome(scored, batches, settings, "exhausted")
        if settings.patience and still >= settings.patience:
            return _outcome(scored, batches, settings, "converged")
        pool = turn if waiting[turn] else _other(turn)
        turn = _other(pool)
        size = min(settings.batch, settings.budget - len(scored))
        batch = waiting[pool][:size]

        number = len(batches)
        batches.append(batch)
        times = factor(settings.penalty, sets_of(number, batch), settings.fixed)
        for one in batch:
            via = offers[one][1] if pool == FRONTIER else None
            scored[one] = Scored(one, raw[one] * times, raw[one], pool, via, number)

        for source in sorted(batch, key=lambda one: -scored[one].score):
            offer = scored[source].score
            for one in neighbours.get(source, ()):
                if one not in scored and (one not in offers or offer > offers[one][0]):
                    offers[one] = (offer, source)

        mean_now = sum(one.score for one in _best(scored, settings.evidence)) / settings.evidence
        still = 0 if mean_now > mean_before + settings.epsilon else still + 1
        mean_before = mean_now


def _other(pool: str) -> str:
    return FRONTIER if pool == FIRST_STAGE else FIRST_STAGE


def _best(scored: Mapping[str, Scored], count: int) -> list[Scored]:
    return sorted(scored.values(), key=lambda one: -one.score)[:count]


def _outcome(scored: dict[str, Scored], batches: list[list[str]], settings: Settings, stopped: str) -> Outcome:
    return Outcome(list(scored.values()), batches, _best(scored, settings.evidence), stopped)
