"""The Oracle of DF-RAG (Khan et al., section 4): of each question the level of diversity that answers it best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..bench import System
from ..scores import Scored, Scores


@dataclass(frozen=True)
class Oracle:
    """What could be reached if the best λ were known. levels: the systems it chooses from, by λ; chosen: λ by
    question; scored: what the system of that λ made of it, or a failure where every level failed.
    """

    label: str
    levels: Mapping[float, str]
    chosen: Mapping[str, float]
    scored: Sequence[Scored]


def oracles_of(systems: Iterable[System], scores: Scores, questions: Sequence[str]) -> list[Oracle]:
    """One for each group of `vanilla_rag` systems with gMMR that differ in nothing but λ.

    A question's level is the one of the best F1; of several the median, the upper one of an even number. Levels that
    failed on a question are passed over.
    """
    groups: dict[str, dict[float, str]] = {}
    for system in systems:
        if system.graph == "vanilla_rag" and system.context.get("selection") == "gmmr":
            rest = {name: value for name, value in system.context.items() if name != "fixed_lambda"}
            key = json.dumps(rest, sort_keys=True)
            groups.setdefault(key, {}).setdefault(float(system.context["fixed_lambda"]), system.label)
    levels = [dict(sorted(found.items())) for found in groups.values() if len(found) > 1]
    names = ["oracle"] if len(levels) == 1 else [f"oracle {i}" for i in range(1, len(levels) + 1)]
    found = [_oracle(name, some, scores, questions) for name, some in zip(names, levels, strict=True)]
    return [one for one in found if one.chosen]


def best_level(f1: Mapping[float, float]) -> float:
    """The λ of the highest F1; of several the median, the upper one of an even number. f1: by λ, at least one."""
    tied = sorted(level for level, value in f1.items() if value == max(f1.values()))
    return tied[len(tied) // 2]


def _oracle(label: str, levels: Mapping[float, str], scores: Scores, questions: Sequence[str]) -> Oracle:
    chosen, scored = {}, []
    for question in questions:
        outcomes = {level: scores.get((system, question)) for level, system in levels.items()}
        answered = {level: one for level, one in outcomes.items() if one is not None and not one.failed}
        if answered:
            chosen[question] = best_level({level: one.metrics["f1"] for level, one in answered.items()})
        best = answered[chosen[question]] if answered else next((one for one in outcomes.values() if one), None)
        if best is not None:
            scored.append(replace(best, system=label))
    return Oracle(label, levels, chosen, scored)
