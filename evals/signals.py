"""Which figure of a technique's output says how unsure it is of its answer; higher is less certain in all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Output = Mapping[str, Any]


def _no_threshold(output: Output, context: Mapping[str, Any]) -> float | None:
    return None


@dataclass(frozen=True)
class Signal:
    """name: what the figure is called, for people; doubt: the figure, None where it could not be measured;
    threshold: from the output and the system's settings, above which the technique itself calls the answer uncertain
    or looks something up; None where it has none.
    """

    name: str
    doubt: Callable[[Output], float | None]
    threshold: Callable[[Output, Mapping[str, Any]], float | None] = _no_threshold


def _dse(output: Output) -> float | None:
    """DSE. It is 0 and yet not certain where no chunk could be put in other words: then it says nothing."""
    dse = _finite(output.get("dse"))
    return dse if dse or output.get("certain") else None


def _highest_u(output: Output) -> float | None:
    """U of the most uncertain step; unknown where one could not be measured, as it could be the highest."""
    found = [_finite(step.get("uncertainty")) for step in output.get("steps") or []]
    known = [u for u in found if u is not None]
    return max(known) if known and len(known) == len(found) else None


def _delta(output: Output, context: Mapping[str, Any]) -> float | None:
    return _finite(output.get("threshold"))


def _mean_sets(output: Output) -> float | None:
    """The mean number of semantic sets over the batches of all look-ups."""
    looked_up = output.get("hops", [output])
    batches = {
        (number, one["iteration"]): one["sets"]
        for number, hop in enumerate(looked_up)
        for one in hop.get("scored") or []
        if one["sets"] is not None
    }
    return sum(batches.values()) / len(batches) if batches else None


def _unlikeliest_word(output: Output) -> float | None:
    """1 − the lowest probability of a word in what would have been written without looking anything up."""
    drafts = [step["draft"] for step in output.get("steps") or [] if step.get("draft")]
    known = [word["probability"] for draft in drafts for word in draft["words"] if word["probability"] is not None]
    return 1.0 - min(known) if known else None


def _unlikely(output: Output, context: Mapping[str, Any]) -> float | None:
    likely = _finite(context.get("likely_from"))
    return None if likely is None else 1.0 - likely


def _dse_limit(output: Output, context: Mapping[str, Any]) -> float | None:
    return _finite(context.get("threshold"))


SIGNALS: Mapping[str, Signal] = {
    "dense": Signal("DSE", _dse, _dse_limit),
    "dense_rag": Signal("DSE", _dse, _dse_limit),
    "seakr": Signal("highest U", _highest_u, _delta),
    "sunar": Signal("mean number of semantic sets", _mean_sets),
    "neighbourhood": Signal("mean number of semantic sets", _mean_sets),
    "flare": Signal("1 − lowest probability of a word", _unlikeliest_word, _unlikely),
}
"""By graph. The others do not say how unsure they are: DF-RAG's support grows with the length of the plan."""


def _finite(value: object) -> float | None:
    """The number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
