"""Neighbourhood-aware retrieval as one loop over dicts and lists, to check the graph against.

Written from SUNAR (sections 3.1.2 and 3.2, Algorithm 1) and graph-adaptive re-ranking (MacAvaney et al. 2022), not from
the graph's code.

The papers leave these points open; this loop and the graph settle them alike:

- An empty pool is skipped; after a batch from one pool it is the other pool's turn.
- The penalty multiplies the scores of the whole batch.
- The frontier keeps the order in which documents entered it. A document has the score of its best parent so far; of
  parents with equal scores the first one counts.
- A document may be in both pools until it is scored.
- Of equal scores the document that was there first comes first.
- Early stopping is in neither paper. The best documents have improved if their mean score grew by more than epsilon;
  missing documents count as 0. A batch that also spends the budget or empties both pools ends the loop for that reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIRST_STAGE = "first_stage"
FRONTIER = "frontier"


@dataclass(frozen=True)
class Settings:
    """The settings of the loop. `patience` 0: no early stop."""

    budget: int = 100
    batch: int = 16
    evidence: int = 10
    penalty: str = "1/s"
    fixed: float = 0.5
    patience: int = 0
    epsilon: float = 0.0


@dataclass(frozen=True)
class Scored:
    """A scored document. `batch` counts from 0."""

    id: str
    score: float
    raw_score: float
    pool: str
    parent: str | None
    batch: int


@dataclass(frozen=True)
class Outcome:
    """Documents in the order of scoring, the ids of each batch, the best documents, and why the loop stopped."""

    scored: list[Scored]
    batches: list[list[str]]
    best: list[Scored]
    stop_reason: str


def factor(penalty: str, sets: int, fixed: float) -> float:
    """The factor of a batch's scores if the sampled answers make `sets` semantic sets."""
    if penalty == "none" or sets <= 1:
        return 1.0
    if penalty == "1/s":
        return 1.0 / sets
    if penalty == "1/sqrt(s)":
        return 1.0 / math.sqrt(sets)
    return fixed


def nar(
    ranked: Sequence[str],
    raw_scores: Mapping[str, float],
    neighbours: Mapping[str, Sequence[str]],
    sets_of: Callable[[int, list[str]], int],
    settings: Settings,
) -> Outcome:
    """Explore the neighbourhood of the first stage's list.

    ranked: ids of the first stage, best first, repeats allowed; raw_scores: the re-ranker's, in (0, 1); sets_of: the
    number of semantic sets of a batch with this number and these ids, 0 if all answers are empty.
    """
    scored: dict[str, Scored] = {}
    entries: dict[str, tuple[float, str]] = {}
    batches: list[list[str]] = []
    mean_before = 0.0
    without_improvement = 0
    turn = FIRST_STAGE
    while True:
        if len(scored) >= settings.budget:
            return _outcome(scored, batches, settings, "budget")
        pools = {
            FIRST_STAGE: [name for name in dict.fromkeys(ranked) if name not in scored],
            FRONTIER: sorted((name for name in entries if name not in scored), key=lambda name: -entries[name][0]),
        }
        if not pools[FIRST_STAGE] and not pools[FRONTIER]:
            return _outcome(scored, batches, settings, "exhausted")
        if settings.patience and without_improvement >= settings.patience:
            return _outcome(scored, batches, settings, "converged")
        pool = turn if pools[turn] else _other(turn)
        turn = _other(pool)
        size = min(settings.batch, settings.budget - len(scored))
        batch = pools[pool][:size]

        number = len(batches)
        batches.append(batch)
        times = factor(settings.penalty, sets_of(number, batch), settings.fixed)
        for name in batch:
            parent = entries[name][1] if pool == FRONTIER else None
            scored[name] = Scored(name, raw_scores[name] * times, raw_scores[name], pool, parent, number)

        for source in sorted(batch, key=lambda name: -scored[name].score):
            score = scored[source].score
            for name in neighbours.get(source, ()):
                if name not in scored and (name not in entries or score > entries[name][0]):
                    entries[name] = (score, source)

        mean_now = sum(document.score for document in _best(scored, settings.evidence)) / settings.evidence
        without_improvement = 0 if mean_now > mean_before + settings.epsilon else without_improvement + 1
        mean_before = mean_now


def _other(pool: str) -> str:
    return FRONTIER if pool == FIRST_STAGE else FIRST_STAGE


def _best(scored: Mapping[str, Scored], count: int) -> list[Scored]:
    return sorted(scored.values(), key=lambda document: -document.score)[:count]


def _outcome(scored: dict[str, Scored], batches: list[list[str]], settings: Settings, reason: str) -> Outcome:
    return Outcome(list(scored.values()), batches, _best(scored, settings.evidence), reason)
