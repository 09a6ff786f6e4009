"""SUNAR as loops over dicts and lists, to check the graphs against: `nar` is a look-up, `sunar` the whole technique.

Written from SUNAR (sections 3.1 and 3.2, Algorithm 1), graph-adaptive re-ranking (MacAvaney et al. 2022) and SearChain
(Xu et al. 2024), not from the graphs' code.

The papers leave these points open; this loop and the graph settle them alike:

- An empty pool is skipped; after a batch from one pool it is the other pool's turn.
- The penalty multiplies the scores of the whole batch.
- The frontier keeps the order in which documents entered it. A document has the score of its best parent so far; of
  parents with equal scores the first one counts.
- A document may be in both pools until it is scored.
- Of equal scores the document that was there first comes first.
- The path ends with a last request for the answer if its sub-questions are used up, or one is asked again. An answer
  before the first look-up is not taken: the question itself is looked up.
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
    """The settings of the loop. `patience` 0: no early stop; calibration: numbers of sets, for penalty conformal."""

    budget: int = 100
    batch: int = 16
    evidence: int = 10
    penalty: str = "1/s"
    fixed: float = 0.5
    patience: int = 0
    epsilon: float = 0.0
    frontier_score: str = "penalised"
    calibration: tuple[int, ...] = ()


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


def factor(settings: Settings, sets: int) -> float:
    """The factor of a batch's scores if the sampled answers make `sets` semantic sets."""
    if settings.penalty == "none" or sets <= 1:
        return 1.0
    if settings.penalty == "1/s":
        return 1.0 / sets
    if settings.penalty == "1/sqrt(s)":
        return 1.0 / math.sqrt(sets)
    if settings.penalty == "conformal":  # the batch counts among those that are at least as inconsistent
        return len([other for other in (*settings.calibration, sets) if other >= sets]) / (
            len(settings.calibration) + 1
        )
    return settings.fixed


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
        times = factor(settings, sets_of(number, batch))
        for name in batch:
            parent = entries[name][1] if pool == FRONTIER else None
            scored[name] = Scored(name, raw_scores[name] * times, raw_scores[name], pool, parent, number)

        for source in sorted(batch, key=lambda name: -scored[name].score):
            score = raw_scores[source] if settings.frontier_score == "raw" else scored[source].score
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


Line = tuple[str, str]
"""A sub-question and its intermediate answer."""


@dataclass(frozen=True)
class Models:
    """What the models say, each as a function of what they are shown.

    step: the next sub-question, or the answer, by whether it is the answer; chain: nodes, each with the model's own
    answer or none, and the final answer or none; last: the answer when no sub-question may follow; look_up: the look-up
    of a sub-question; answer: to a sub-question from documents; relevance: of a document to the question; reason: from
    the path, the first answer and documents.
    """

    step: Callable[[Sequence[Line]], tuple[bool, str]]
    chain: Callable[[Sequence[Line]], tuple[list[tuple[str, str | None]], str | None]]
    last: Callable[[Sequence[Line]], str]
    look_up: Callable[[str], Outcome]
    answer: Callable[[str, Sequence[str]], str]
    relevance: Callable[[str], float]
    reason: Callable[[Sequence[Line], str, Sequence[str]], str]


@dataclass(frozen=True)
class Path:
    """The reasoning path with its look-ups, its answer, the meta evidence and the final answer."""

    lines: list[Line]
    look_ups: list[Outcome]
    sequential: str
    meta_evidence: list[str]
    answer: str


def sunar(question: str, models: Models, *, searchain: bool, max_hops: int, per_hop: int, meta_documents: int) -> Path:
    """Answer a question. Sub-questions and answers must be equal as texts to count as the same."""
    lines: list[Line] = []
    look_ups: list[Outcome] = []

    def look_up(sub_question: str) -> str:
        look_ups.append(models.look_up(sub_question))
        found = models.answer(sub_question, [document.id for document in look_ups[-1].best])
        lines.append((sub_question, found))
        return found

    decomposed = _by_searchain if searchain else _by_self_ask
    sequential = decomposed(question, models, lines, look_up, max_hops)
    kept = dict.fromkeys(document.id for outcome in look_ups for document in outcome.best[:per_hop])
    meta_evidence = sorted(kept, key=lambda name: -models.relevance(name))[:meta_documents]
    answer = models.reason(lines, sequential, meta_evidence) or sequential
    return Path(lines, look_ups, sequential, meta_evidence, answer)


def _by_self_ask(question: str, models: Models, lines: list[Line], look_up: Callable[[str], str], max_hops: int) -> str:
    while len(lines) < max_hops:
        is_answer, text = models.step(lines)
        if is_answer and lines:
            return text
        sub_question = question if is_answer else text
        if sub_question in dict(lines):
            break
        look_up(sub_question)
    return models.last(lines) or lines[-1][1]


def _by_searchain(
    question: str, models: Models, lines: list[Line], look_up: Callable[[str], str], max_hops: int
) -> str:
    """SearChain, section 3: verification and completion of each node, and a new chain after a correction."""
    while len(lines) < max_hops:
        nodes, final = models.chain(lines)
        new = [node for node in nodes if node[0] not in dict(lines)]
        if not nodes and not lines:
            look_up(question)
            continue
        if not new and final is None:
            break
        for sub_question, own_answer in new:
            if sub_question in dict(lines):  # twice in one chain: nothing is left to look up
                continue
            if len(lines) == max_hops:
                return models.last(lines) or lines[-1][1]
            found = look_up(sub_question)
            if own_answer is None or (found and found not in own_answer):
                break
        else:
            if final is not None:
                return final
    return models.last(lines) or lines[-1][1]
