"""Thresholds of the graph `escalate`, found at once for all rungs from the answers that each of them gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault, either
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import counted
from ..state.calibration import CascadeCalibration, Combination, identity, settings_of
from ..state.context import BaseContext
from ..state.escalate import EscalateContext
from ..state.mixins import AnsweringContext
from ..uncertainty.risk_control import certified_cascade, learning_part, looks_alike, questions_needed
from .answer_calibration import (
    ALL_CALIBRATED_ON,
    COMBINED,
    LEAST_P,
    AnswerOptions,
    JudgedAnswer,
    Part,
    answers_of,
    check_comparable,
    context_with,
    learned_combination,
    left_out,
    measured,
    nothing_certified,
    planned,
    risk_of,
    signal_of,
    split,
    verdict_of,
)
from .calibration import CalibrationReport, Judged
from .statistics import holm

Numbers = NDArray[np.float64]

NOT_SHARED = frozenset({"calibration", "cite", "corpus", "concurrency", "on_bad_record", "preset"})
"""Settings of a rung that are no settings of its own in a cascade, or change no answer."""


class RungAnswers(NamedTuple):
    """What one rung answered to each question. judged: see `Judged`; tokens: that each answer cost."""

    graph: str
    context: BaseContext
    judged: Sequence[Judged]
    tokens: Sequence[float]


class _Tables(NamedTuple):
    """The answers of each rung; their uncertainties, errors and tokens, [questions, rungs] each."""

    answers: Sequence[Sequence[JudgedAnswer]]
    u: Numbers
    wrong: NDArray[np.bool_]
    tokens: Numbers


class Outcome(NamedTuple):
    """What thresholds do with some questions. errors: answers given that are wrong; tokens: the mean of a question."""

    questions: int
    answered: int
    errors: int
    tokens: float


def calibrate_cascade(
    rungs: Sequence[RungAnswers],
    given: AnswerOptions,
    hashes: Sequence[str],
    *,
    right: str,
    made_with: Mapping[str, Any],
    out: Path,
    corpus: str | None,
) -> CalibrationReport:
    """Find the thresholds of a cascade of these rungs, the cheapest first, and save the file.

    hashes: of the questions; corpus: the hash of its chunks, if it is known. Where a rung failed, it counts as giving a
    wrong answer: the certificate is for runs without a failure, and those that fail may be the harder ones or the
    easier. Each rung alone is certified too, for comparison. With `given.plan` nothing is saved: the report says how
    many questions it takes. Raises `UserFault` if nothing can be certified, for rungs that cannot be one cascade, for
    options that a cascade does not have, and with `given.beyond` or `given.tokens` if a question failed.
    """
    risk = _risk_of(given)
    context = cascade_context(rungs)
    contexts = [rung.context for rung in rungs if isinstance(rung.context, AnsweringContext)]
    used, held = (np.array(part, dtype=int) for part in split(range(len(rungs[0].judged)), given.holdout, given.seed))
    combinations = {
        rung.graph: learned_combination([rung.judged[place] for place in used], given.seed)
        for rung in rungs
        if context.uncertainty == "combined"
    }
    unlearned = used[learning_part(len(used), given.seed)[1]] if combinations else used
    tables = _tables(rungs, combinations)
    answers, u, wrong, tokens = tables
    if given.plan is not None:
        rows = np.concatenate([unlearned, held])
        return _planned(tables, rows, given, risk, given.plan)
    limits = {"--beyond": given.beyond, "--tokens": given.tokens}
    limited = [option for option, limit in limits.items() if limit is not None]
    if limited and (failed := sum(any(one.failed for one in row) for row in zip(*answers, strict=True))):
        # counted as answered by its rung it would seem cheaper than a run that does not fail
        raise UserFault(
            f"{counted(failed, 'question')} failed, and {' and '.join(limited)} can be promised of evaluations without "
            "failures only: ask them again with dubito eval --resume and --retry-failed."
        )
    certify = partial(certified_cascade, alpha=risk, confidence=given.confidence, seed=given.seed)
    certified = certify(u[used], wrong[used], tokens[used], beyond=given.beyond, mean_cost=given.tokens)
    if certified is None:
        if limited and certify(u[used], wrong[used], tokens[used]) is not None:
            words = {
                "--beyond": f"leave at most {given.beyond} of the questions to the rungs after {rungs[0].graph}",
                "--tokens": f"cost at most {given.tokens or 0:,g} tokens a question on average",
            }
            raise UserFault(
                f"No thresholds can be certified that {' and '.join(words[option] for option in limited)}: give a "
                f"larger {either(limited)}, more questions or a larger --risk."
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
        tokens=given.tokens,
        tokens_counted=certified.most_cost,
        signal=COMBINED if combinations else ", ".join(dict.fromkeys(signal_of(rung.judged) for rung in rungs)),
        alpha=risk,
        confidence=given.confidence,
        right=right,
        n=certified.n,
        answered=certified.answered,
        errors=certified.errors,
        failed=sum(answer.failed for rung in answers for answer in rung),
        rung_uncertainties={
            rung.graph: [_known(column[place]) for place in unlearned]
            for rung, column in zip(rungs, answers, strict=True)
        },
        hashes=[hashes[place] for place in used],
        corpus=corpus,
        context=context_with(context, corpus),
        made_with={**made_with, "holdout": given.holdout, "seed": given.seed},
    )
    found.save(out)
    systems = {"escalate": outcome_of(certified.thresholds, u[held], wrong[held], tokens[held])}
    for place, rung in enumerate(rungs):
        column = slice(place, place + 1)
        alone = certify(u[used, column], wrong[used, column], tokens[used, column])
        threshold = alone.thresholds if alone else (-np.inf,)
        systems[f"{rung.graph} alone"] = outcome_of(
            threshold, u[held, column], wrong[held, column], tokens[held, column]
        )
    figures = {"held_back": {name: one._asdict() for name, one in systems.items()}}
    return CalibrationReport(found, _blocks(found, systems, context), figures)


def check_cascade(
    rungs: Sequence[RungAnswers], given: AnswerOptions, hashes: Sequence[str], *, right: str, corpus: str | None
) -> CalibrationReport:
    """Do new answers of the rungs look like those of the calibration `given.check`, and how many given are wrong?

    The uncertainties of each rung that is run are compared, and p is corrected for their number by Holm. Questions that
    were calibrated on are left out. Raises `UserFault` for a calibration of another cascade, corpus or rule.
    """
    file = given.check
    assert file is not None  # noqa: S101 - the caller has asked
    guarantees = (given.risk, given.keep, given.average, given.plan, given.beyond, given.tokens)
    if any(value is not None for value in guarantees):
        raise UserFault("--check tests a calibration by its own guarantee: leave the other options of a guarantee out.")
    old = CascadeCalibration.load(file, "escalate", cascade_context(rungs))
    check_comparable(old, file, right, corpus)
    if not old.rung_uncertainties:
        raise UserFault(f"The calibration '{file}' does not hold its rungs' uncertainties: calibrate again.")
    answers, u, wrong, tokens = _tables(rungs, old.combinations)
    known = set(old.hashes)
    new = [place for place, hashed in enumerate(hashes) if hashed not in known]
    if not new:
        raise UserFault(ALL_CALIBRATED_ON)
    thresholds: list[float] = [-np.inf if (limit := old.thresholds[rung.graph]) is None else limit for rung in rungs]
    p_values = {}
    for rung, column, threshold in zip(rungs, answers, thresholds, strict=True):
        before = [np.inf if value is None else value for value in old.rung_uncertainties[rung.graph]]
        if np.isfinite(threshold):
            after = [measured(column[place]) for place in new]
            p_values[rung.graph] = looks_alike(before, after, given.seed).p_value
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    found = outcome_of(thresholds, u[new], wrong[new], tokens[new])
    now = Part(found.questions, int((~wrong[new]).any(axis=1).sum()), found.answered, found.errors)
    alike = min(corrected.values()) > LEAST_P
    verdict, figures = verdict_of(old, now, alike=alike)
    by_rung = ", ".join(f"{graph} p = {p:.3g}" for graph, p in corrected.items())
    blocks = [*verdict, Words(f"Compared with the uncertainties of the calibration, corrected by Holm: {by_rung}.")]
    blocks += left_out(len(hashes) - len(new)) + risk_of(now, "to these questions")
    repeated = {"calibrated_on": len(hashes) - len(new), "p_values": corrected}
    return CalibrationReport(None, blocks, {**figures, **repeated, **found._asdict(), "risk": now.risk_interval()})


def _risk_of(given: AnswerOptions) -> float:
    """The risk to certify. Raises `UserFault` for a guarantee that a cascade does not have."""
    if given.risk is None or (given.keep, given.average) != (None, None):
        raise UserFault(
            "A cascade is calibrated for a risk alone: give --risk, such as --risk 0.2, and no --keep or --average."
        )
    if given.plan is not None and (given.beyond, given.tokens) != (None, None):
        raise UserFault("--plan is for the risk alone: leave --beyond and --tokens out.")
    return given.risk


def _planned(
    rungs: _Tables, rows: NDArray[np.int_], given: AnswerOptions, risk: float, coverage: float
) -> CalibrationReport:
    """How many questions certify the risk for this coverage, judged by those so far? rows: those not learned from."""
    plan = questions_needed(
        rungs.u[rows],
        rungs.wrong[rows],
        rungs.tokens[rows],
        np.array([[answer.failed for answer in rung] for rung in rungs.answers]).T[rows],
        alpha=risk,
        coverage=coverage,
        confidence=given.confidence,
        seed=given.seed,
    )
    blocks, figures = planned(plan, given)
    right = 1 - rungs.wrong[rows].mean(axis=0)
    seen = f"Of {counted(len(rows), 'question')} the rungs answer {', '.join(f'{share:.0%}' for share in right)} right."
    return CalibrationReport(None, [*blocks, Words(seen, "dim")], figures)


def _tables(rungs: Sequence[RungAnswers], combinations: Mapping[str, Combination]) -> _Tables:
    answers = [answers_of(rung.judged, combinations.get(rung.graph)) for rung in rungs]
    u = np.array([[answer.uncertainty for answer in rung] for rung in answers]).T
    wrong = np.array([[not answer.right for answer in rung] for rung in answers]).T
    return _Tables(answers, u, wrong, np.array([rung.tokens for rung in rungs], dtype=np.float64).T)


def _known(answer: JudgedAnswer) -> float | None:
    value = measured(answer)
    return value if np.isfinite(value) else None


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


def outcome_of(thresholds: Sequence[float], u: Numbers, wrong: NDArray[np.bool_], tokens: Numbers) -> Outcome:
    """What these thresholds do with questions: one rung after the other is asked, until one is sure enough.

    thresholds: one a rung, −inf for a rung that is not run. u, wrong, tokens: [questions, rungs].
    """
    limits = np.asarray(thresholds)
    gives = (u <= limits) & np.isfinite(u)
    given, first = gives.any(axis=1), gives.argmax(axis=1)
    asked = np.arange(len(limits)) <= np.where(given, first, len(limits))[:, None]
    spent = np.where(asked & (limits > -np.inf), tokens, 0).sum()
    return Outcome(len(u), int(given.sum()), int(wrong[given, first[given]].sum()), float(spent) / max(len(u), 1))


def _blocks(found: CascadeCalibration, systems: Mapping[str, Outcome], context: EscalateContext) -> list[Block]:
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
