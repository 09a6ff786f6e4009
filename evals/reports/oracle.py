"""DF-RAG's Oracle (Khan et al., section 4): for each question, the λ whose answer has the best F1."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..run_folder import System
from ..scores import ScoredOutcome, Scores


@dataclass(frozen=True)
class Oracle:
    """An upper bound: the scores if the best λ of each question were known.

    levels: the system of each λ; chosen: the best λ of each question; scored: the outcome with that λ, or a failure
    if all systems failed.
    """

    label: str
    graph: str
    levels: Mapping[float, str]
    chosen: Mapping[str, float]
    scored: Sequence[ScoredOutcome]


def oracles_of(systems: Iterable[System], scores: Scores, questions: Sequence[str]) -> list[Oracle]:
    """An Oracle for each group of systems that select by gMMR and differ only in their fixed λ."""
    groups: dict[tuple[str, str], dict[float, str]] = {}
    for system in systems:
        if system.context.get("selection") == "gmmr" and system.context.get("fixed_lambda") is not None:
            others = {name: value for name, value in system.context.items() if name != "fixed_lambda"}
            key = system.graph, json.dumps(others, sort_keys=True)
            groups.setdefault(key, {}).setdefault(float(system.context["fixed_lambda"]), system.label)
    groups = {key: dict(sorted(levels.items())) for key, levels in groups.items() if len(levels) > 1}
    oracles = [
        _oracle("oracle" if len(groups) == 1 else f"oracle {number}", graph, levels, scores, questions)
        for number, ((graph, _), levels) in enumerate(groups.items(), 1)
    ]
    return [oracle for oracle in oracles if oracle.chosen]


@dataclass(frozen=True)
class GapClosed:
    """How much of the gap in F1 from plain RAG to the Oracle a system closes (Khan et al., section 4.3).

    n: the questions that all three answered; plain, f1, best: the mean F1 of plain RAG, the system and the Oracle.
    """

    system: str
    oracle: str
    baseline: str
    n: int
    plain: float
    f1: float
    best: float

    @property
    def share(self) -> float | None:
        """(system - plain) / (Oracle - plain); below 0 where the system is worse than plain RAG, None without a gap."""
        return (self.f1 - self.plain) / (self.best - self.plain) if self.best > self.plain else None


def gaps_closed(oracle: Oracle, systems: Sequence[System], scores: Scores) -> list[GapClosed]:
    """For each system but the Oracle's own. Plain RAG is the system that takes the top k, or else gMMR with λ = 1."""
    plain = [one.label for one in systems if one.graph == "vanilla_rag" and one.context.get("selection") == "top_k"]
    baseline = plain[0] if len(plain) == 1 else oracle.levels.get(1.0)
    if baseline is None:
        return []
    best = {one.question: one.metrics["f1"] for one in oracle.scored if not one.failed}
    found = []
    for system in systems:
        if system.label == baseline or system.label in oracle.levels.values():
            continue
        rows = [
            (scores[baseline, question].metrics["f1"], scores[system.label, question].metrics["f1"], highest)
            for question, highest in best.items()
            if all((one, question) in scores and not scores[one, question].failed for one in (baseline, system.label))
        ]
        if rows:
            means = (fmean(column) for column in zip(*rows, strict=True))
            found.append(GapClosed(system.label, oracle.label, baseline, len(rows), *means))
    return found


def best_level(f1: Mapping[float, float]) -> float:
    """The λ with the highest F1; of equal ones the median, the upper one of an even number. f1: by λ, not empty."""
    tied = sorted(level for level, value in f1.items() if value == max(f1.values()))
    return tied[len(tied) // 2]


def _oracle(label: str, graph: str, levels: Mapping[float, str], scores: Scores, questions: Sequence[str]) -> Oracle:
    chosen, scored = {}, []
    for question in questions:
        outcomes = {level: scores[system, question] for level, system in levels.items() if (system, question) in scores}
        answered = {level: outcome for level, outcome in outcomes.items() if not outcome.failed}
        if answered:
            chosen[question] = best_level({level: outcome.metrics["f1"] for level, outcome in answered.items()})
            scored.append(replace(answered[chosen[question]], system=label))
        elif outcomes:
            scored.append(replace(next(iter(outcomes.values())), system=label))
    return Oracle(label, graph, levels, chosen, scored)
