"""begin_cascade, assess, conclude: the steps of a cascade around its rungs."""

import asyncio

from ..errors import ModelUnavailable
from ..models.answer_stream import show_answer
from ..resources.fitting import fitted
from ..resources.resources import Resources
from ..state.calibration import CascadeCalibration
from ..state.escalate import EscalateContext, EscalateState, Rung, rung_context
from ..state.records import Certificate
from .prepare import open_resources, void_because


async def begin_cascade(state: EscalateState, context: EscalateContext, resources: Resources) -> EscalateState:
    """The first rung, after a look at what all of them need: a fault of a later one comes before the first call."""
    calibration = await asyncio.to_thread(calibration_of, context)
    names = rungs_in_use(context, thresholds_of(context, calibration))
    for name in names:
        rung = await asyncio.to_thread(rung_context, name)
        await open_resources(await fitted(rung.unchecked(context.for_part(rung)), resources), resources)
    return {"next_rung": names[0]}


async def assess(state: EscalateState, context: EscalateContext, resources: Resources) -> EscalateState:
    """Record what the rung did, and whether it answers: its uncertainty is at most its threshold."""
    calibration = await asyncio.to_thread(calibration_of, context)
    thresholds = thresholds_of(context, calibration)
    tried = state["tried"]
    rungs = rungs_in_use(context, thresholds)
    name = rungs[len(tried)]
    usage, failure = state["usage"], state["failure"] or ""
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    uncertainty = None if failure else (state["uncertainty"] or {"value": None})["value"]
    signal = (state["uncertainty"] or {"signal": ""})["signal"]
    if calibration and name in calibration.combinations and not failure:
        uncertainty, signal = calibration.combinations[name].value(state["signals"]), calibration.signal
    rung: Rung = {
        "graph": name,
        "answer": "" if failure else state["answer"],
        "uncertainty": uncertainty,
        "signal": "" if failure else signal,
        "threshold": thresholds[name],
        "certain": bool(not failure and state["answer"].strip())
        and uncertainty is not None
        and uncertainty <= thresholds[name],
        "failure": failure,
        "calls": usage["calls"] - sum(earlier["calls"] for earlier in tried),
        "tokens": tokens - sum(earlier["tokens"] for earlier in tried),
    }
    warnings = [f"The rung {name} failed, and the next one is taken: {failure}"] if failure else []
    left = [] if rung["certain"] else rungs[len(tried) + 1 :]
    seconds = sum(node["seconds"] for node in usage["nodes"].values())
    limits = {
        "model calls": (usage["calls"], context.max_calls),
        "tokens": (tokens, context.max_tokens),
        "seconds": (seconds, context.max_seconds),
    }
    reached = [name for name, (spent, most) in limits.items() if 0 < most <= spent]
    if left and reached:
        warnings.append(f"The limit of {' and '.join(reached)} was reached, so {left[0]} was not tried.")
    following = left[0] if left and not reached else ""
    return {"tried": [rung], "failure": None, "warnings": warnings, "next_rung": following}


async def conclude(state: EscalateState, context: EscalateContext, resources: Resources) -> EscalateState:
    """Give the last rung's answer if it is certain enough; else withhold it.

    Raises `ModelUnavailable` if every rung failed.
    """
    tried = state["tried"]
    last = tried[-1]
    if all(rung["failure"] for rung in tried):
        raise ModelUnavailable(context.graph, len(tried), last["failure"].removesuffix("."))
    ended = next((rung for rung in reversed(tried) if rung["answer"].strip()), None) or next(
        rung for rung in reversed(tried) if not rung["failure"]
    )
    calibration = await asyncio.to_thread(calibration_of, context)
    void = await void_because(state, calibration, context, resources) if calibration else ""
    update: EscalateState = {
        "answer": last["answer"] if last["certain"] else "",
        "withheld_answer": "" if last["certain"] else ended["answer"],
        "abstained": not last["certain"],
        "certificate": _certificate(calibration, tried, void) if calibration else None,
        "uncertainty": {"signal": ended["signal"], "value": ended["uncertainty"], "threshold": ended["threshold"]}
        if ended["signal"]
        else None,
    }
    show_answer(update["answer"])
    return update


def calibration_of(context: EscalateContext) -> CascadeCalibration | None:
    """The calibration, read from its file, if there is one. Raises `UserFault` for a calibration of other settings."""
    return CascadeCalibration.load(context.calibration, "escalate", context) if context.calibration else None


def thresholds_of(context: EscalateContext, calibration: CascadeCalibration | None) -> dict[str, float]:
    """The highest uncertainty at which each rung answers; a rung that the calibration leaves out is missing."""
    if calibration is None:
        return dict.fromkeys(context.names, context.certain_up_to)
    return {name: value for name, value in calibration.thresholds.items() if value is not None}


def rungs_in_use(context: EscalateContext, thresholds: dict[str, float]) -> list[str]:
    """The rungs that are tried, the cheapest first."""
    return [name for name in context.names if name in thresholds]


def _certificate(calibration: CascadeCalibration, tried: list[Rung], void: str) -> Certificate:
    if failed := [rung["graph"] for rung in tried if rung["failure"]]:
        return calibration.certificate(
            f"{', '.join(failed)} failed, and the calibration knows no failures of this kind."
        )
    return {**calibration.certificate(void), "threshold": tried[-1]["threshold"]}
