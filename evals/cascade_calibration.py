"""Thresholds of the graph `escalate`, found at once for all rungs from the answers that each of them gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..state.calibration import CascadeCalibration, identity, settings_of
from ..state.context import BaseContext
from ..state.escalate import EscalateContext
from ..state.mixins import AnsweringContext
from ..uncertainty.risk_control import certified_cascade
from .answer_calibration import (
    COMBINED,
    AnswerOptions,
    answer_of,
    context_with,
    learned_combination,
    nothing_certified,
    signal_of,
    split,
)
from .calibration import CalibrationReport, Judged

Numbers = NDArray[np.float64]

NOT_SHARED = frozenset({"calibration", "corpus", "concurrency", "on_bad_record", "preset"})
"""Settings of a rung that are no settings of its own in a cascade, or change no answer."""


class RungAnswers(NamedTuple):
    """What one rung answered to each question. judged: see `Judged`; tokens: that each answer cost."""

    graph: str
    context: BaseContext
    judged: Sequence[Judged]
    tokens: Sequence[float]


class _Outcome(NamedTuple):
    """What thresholds do with some questions: shares of all, tokens a question."""

    questions: int
    answered: int
    errors: int
    tokens: float


def calibrate_cascade(
    rungs: Sequence[RungAnswers],
    given: AnswerOptions,
    *,
    right: str,
    made_with: Mapping[str, Any],
    out: Path,
    corpus: str | None,
) -> CalibrationReport:
    """Find the thresholds of a cascade of these rungs, the cheapest first, and save the file.

    corpus: the hash of its chunks, if it is known. A rung that failed passes the question on, as in a run. Each rung
    alone is certified too, for comparison. Raises `UserFault` if nothing can be certified, for rungs that cannot be one
    cascade, and for options that a cascade does not have.
    """
    others = (given.keep, given.average, given.plan, given.check)
    if given.risk is None or any(value is not None for value in others):
        raise UserFault(
            "A cascade is calibrated for a risk alone: give --risk, such as --risk 0.2, and no --keep, --average, "
            "--plan or --check."
        )
    context = cascade_context(rungs)
    contexts = [rung.context for rung in rungs if isinstance(rung.context, AnsweringContext)]
    used, held = (np.array(part, dtype=int) for part in split(range(len(rungs[0].judged)), given.holdout, given.seed))
    combinations = {
        rung.graph: learned_combination([rung.judged[place] for place in used], given.seed)
        for rung in rungs
        if context.uncertainty == "combined"
    }
    answers = [[answer_of(judged, combinations.get(rung.graph)) for judged in rung.judged] for rung in rungs]
    u = np.array([[answer.uncertainty for answer in rung] for rung in answers]).T
    wrong = np.array([[not answer.right for answer in rung] for rung in answers]).T
    tokens = np.array([rung.tokens for rung in rungs], dtype=np.float64).T
    certify = partial(certified_cascade, alpha=given.risk, confidence=given.confidence, seed=given.seed)
    certified = certify(u[used], wrong[used], tokens[used], beyond=given.beyond)
    if certified is None:
        if given.beyond is not None and certify(u[used], wrong[used], tokens[used]) is not None:
            raise UserFault(
                f"No thresholds can be certified that leave at most {given.beyond:g} of the questions to the rungs "
                f"after {rungs[0].graph}: give a larger --beyond, more questions or a larger --risk."
            )
        raise UserFault(nothing_certified(u[used], wrong[used], given, contexts))
    thresholds = dict(zip(context.names, certified.thresholds, strict=True))
    found = CascadeCalibration(
        technique="escalate",
        model=identity(context.llm),
        settings=settings_of(context),
        threshold=max(certified.thresholds),
        thresholds={name: value if np.isfinite(value) else None for name, value in thresholds.items()},
        guarantee="risk",
        combinations=combinations,
        beyond=given.beyond,
        signal=COMBINED if combinations else ", ".join(dict.fromkeys(signal_of(rung.judged) for rung in rungs)),
        alpha=given.risk,
        confidence=given.confidence,
        right=right,
        n=certified.n,
        answered=certified.answered,
        errors=certified.errors,
        failed=sum(answer.failed for rung in answers for answer in rung),
        corpus=corpus,
        context=context_with(context, corpus),
        made_with={**made_with, "holdout": given.holdout, "seed": given.seed},
    )
    found.save(out)
    systems = {"escalate": _outcome(certified.thresholds, u[held], wrong[held], tokens[held])}
    for place, rung in enumerate(rungs):
        column = slice(place, place + 1)
        alone = certify(u[used, column], wrong[used, column], tokens[used, column])
        threshold = alone.thresholds if alone else (-np.inf,)
        systems[f"{rung.graph} alone"] = _outcome(threshold, u[held, column], wrong[held, column], tokens[held, column])
    figures = {"held_back": {name: outcome._asdict() for name, outcome in systems.items()}}
    return CalibrationReport(found, _blocks(found, systems, context), figures)


def cascade_context(rungs: Sequence[RungAnswers]) -> EscalateContext:
    """The settings of the cascade whose rungs have these contexts; what a rung has otherwise is its own setting."""
    models = {rung.context.llm for rung in rungs}
    if len(models) > 1 or len({rung.graph for rung in rungs}) < len(rungs):
        raise UserFault(
            "The rungs of a cascade are different graphs with one chat model: name others with --set rungs."
        )
    shared: dict[str, Any] = {}
    for rung in rungs:
        values = rung.context.model_dump()
        shared = {**{name: values[name] for name in values if name in EscalateContext.model_fields}, **shared}
    base = EscalateContext.unchecked({**shared, "calibration": "", "rungs": ",".join(rung.graph for rung in rungs)})
    own = {}
    for rung in rungs:
        expected = type(rung.context).unchecked(base.for_part(type(rung.context))).model_dump(mode="json")
        given = rung.context.model_dump(mode="json")
        own[rung.graph] = {
            name: value for name, value in given.items() if value != expected[name] and name not in NOT_SHARED
        }
    return EscalateContext.unchecked(
        {**base.model_dump(), "rung_settings": {name: settings for name, settings in own.items() if settings}}
    )


def rung_answers(graph: str, context: BaseContext, judged: Sequence[Judged]) -> RungAnswers:
    """The answers of a rung with what they cost; `UserFault` for a graph that measured no uncertainty."""
    if not isinstance(context, AnsweringContext) or not signal_of(judged):
        raise UserFault(f"{graph} measured no uncertainty: evaluate it with uncertainty=semantic_entropy.")
    usages = [(one[0].get("usage") or {}) if one is not None else {} for one in judged]
    tokens = [float(usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)) for usage in usages]
    return RungAnswers(graph, context, judged, tokens)


def _outcome(thresholds: Sequence[float], u: Numbers, wrong: NDArray[np.bool_], tokens: Numbers) -> _Outcome:
    answered = errors = 0
    spent = 0.0
    for uncertainties, is_wrong, costs in zip(u, wrong, tokens, strict=True):
        for threshold, value, error, cost in zip(thresholds, uncertainties, is_wrong, costs, strict=True):
            if threshold == -np.inf:
                continue
            spent += cost
            if value <= threshold:
                answered, errors = answered + 1, errors + int(error)
                break
    return _Outcome(len(u), answered, errors, spent / max(len(u), 1))


def _blocks(found: CascadeCalibration, systems: Mapping[str, _Outcome], context: EscalateContext) -> list[Block]:
    rows = [
        Row([Cell(name), Cell("not run", tone="dim") if value is None else num(value)])
        for name, value in found.thresholds.items()
    ]
    held = [
        Row([Cell(name), num(one.questions), num(one.answered), num(one.errors), num(one.tokens, f"{one.tokens:,.0f}")])
        for name, one in systems.items()
    ]
    sets = [f"--set rungs={context.rungs}"]
    if context.rung_settings:
        sets.append(f"--set rung_settings='{context.rung_settings}'")
    return [
        Words("Each rung answers up to this uncertainty.", "strong"),
        Table(["rung", found.signal], rows),
        Words(found.promise()),
        Table(["questions held back", "questions", "given", "of these wrong", "tokens a question"], held),
        Words("Use it with " + " ".join(sets), "dim"),
    ]
