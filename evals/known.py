"""What SeaKR's δ is found from: questions answered without looking anything up, and how uncertain the steps were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..errors import UserFault
from ..state.calibration import Calibration
from ..state.seakr import SeaKRContext
from .calibration import Separation, best_threshold
from .conformal import Right
from .questions import GoldQuestion

DEPENDS_ON = (
    "estimator",
    "samples",
    "temperature",
    "top_p",
    "top_k",
    "layer",
    "alpha",
    "max_step_tokens",
    "judge",
)
"""The settings on which U depends; the judge only where it is asked."""

BINS = 5
"""How many parts of the questions, from the least to the most uncertain, the share of wrong answers is told of."""


class Part(BaseModel):
    """Questions of like uncertainty: U from `low` to `high`, how many, and the share that was answered wrong."""

    model_config = ConfigDict(frozen=True)

    low: float
    high: float
    questions: int
    wrong: float


class SeaKRCalibration(Calibration):
    """δ for a model and an estimator (SeaKR sections 4.1.3 and 5.3).

    n: questions it was found from; failed: those left out; wrong: the share that was answered wrong without looking
    anything up; accuracy: the share of questions for which "look something up iff U > δ" is right, on these very
    questions; auroc: how well U tells wrong from right, 0.5 is chance; parts: the share of wrong answers by U.
    """

    technique: Literal["seakr"]
    right: str
    n: int
    failed: int
    wrong: float
    accuracy: float
    auroc: float
    parts: list[Part]


def unaided(context: SeaKRContext) -> SeaKRContext:
    """The same settings with which nothing is looked up."""
    return context.model_copy(update={"max_docs": 0, "threshold": "0", "calibration": "", "reasoning": "rationales"})


def found_of(output: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run: the answer, and U of its most uncertain step, null where one could not be measured.

    SeaKR looks something up for the question iff that is above δ; a U that is unknown counts as the highest.
    """
    measured = [step["uncertainty"] for step in output["steps"]]
    unknown = not measured or any(u is None for u in measured)
    return {"answer": output["answer"], "uncertainty": None if unknown else max(measured)}


def depends_on(context: SeaKRContext) -> tuple[str, ...]:
    """The settings that δ holds for."""
    judged = context.estimator in {"semantic_entropy", "degree_entropy"}
    return DEPENDS_ON if judged else DEPENDS_ON[:-1]


def separated(
    found: Sequence[Mapping[str, Any] | None], questions: Sequence[GoldQuestion], right: Right
) -> tuple[Separation, list[float], list[bool]]:
    """δ, the U's it comes from, and which answers were wrong. What failed, and U's that are unknown, are left out.

    Raises `UserFault` if nothing is left, or all that is left was right or wrong.
    """
    pairs = [
        (float(one["uncertainty"]), not right(one["answer"], question.answers))
        for one, question in zip(found, questions, strict=True)
        if one is not None and one["uncertainty"] is not None
    ]
    if not pairs:
        raise UserFault("The uncertainty of no question could be measured: give other questions or another estimator.")
    values, wrong = [u for u, _ in pairs], [is_wrong for _, is_wrong in pairs]
    return best_threshold(values, wrong), values, wrong


def parts_of(values: Sequence[float], wrong: Sequence[bool]) -> list[Part]:
    """The questions in `BINS` parts of about equal size, from the least to the most uncertain."""
    ordered = sorted(zip(values, wrong, strict=True))
    edges = [round(len(ordered) * place / BINS) for place in range(BINS + 1)]
    parts = [ordered[start:end] for start, end in pairwise(edges) if end > start]
    return [
        Part(low=part[0][0], high=part[-1][0], questions=len(part), wrong=sum(w for _, w in part) / len(part))
        for part in parts
    ]
