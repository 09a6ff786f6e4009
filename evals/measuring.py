"""What is measured of a run's answers when all are there: SePer of their evidence, and of each retrieval step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ContextOverflow, UserFault
from ..models.resources import Resources
from ..state.records import Chunk
from ..state.seper import SePerContext
from ..traces.recording import assembled
from .bench import Asked, Bench
from .in_turn import in_turn
from .retrieval_steps import retrieval_steps
from .seper import Piece, Worth, beliefs
from .seper_steps import StepWorth, worth_of_steps
from .store import Outcome, Store

SEPER, STEPS = "seper", "seper_steps"
"""The names that measurements are kept under."""

TOGETHER = 32
"""Answers whose responses are sampled, and judged, together; what a killed run loses."""

Measured = Callable[[int, int], None]
"""Hears how many answers are measured, of how many."""


async def measure_seper(
    run: Bench, store: Store, contexts: Mapping[str, SePerContext], resources: Resources, on_progress: Measured
) -> int:
    """ΔSePer of each answer's evidence: {"seper", "seper_without", "delta"}. Returns how many could not be measured.

    contexts: by system. What was measured before is not measured again. Left out are failed and unanswerable questions,
    and evidence that does not fit the model's window, which is counted.
    """
    waiting = await asyncio.to_thread(_waiting, run, store, SEPER)
    done = unmeasured = 0
    for context in _distinct(contexts.values()):
        some = iter([(one, asked) for one, asked in waiting if contexts[one.system] == context])
        while batch := list(islice(some, TOGETHER)):
            pieces = [Piece(asked.question, asked.answers, _evidence(one)) for one, asked in batch]
            for (outcome, _), worth in zip(batch, await beliefs(pieces, context, resources), strict=True):
                if isinstance(worth, ContextOverflow):
                    unmeasured += 1
                else:
                    await asyncio.to_thread(store.measured, outcome.system, outcome.question, SEPER, _figures(worth))
            done += len(batch)
            on_progress(done, len(waiting))
    return unmeasured


async def measure_steps(
    run: Bench,
    store: Store,
    contexts: Mapping[str, SePerContext],
    resources: Resources,
    on_progress: Measured,
    *,
    at_once: int,
) -> None:
    """ΔSePer of each retrieval step of each answer's trace: {"steps": [{"label", "what", "seper", ..., "words"}]}.

    contexts: by system; at_once: answers under way at a time. A run that looked nothing up has no steps. What was
    measured before is not measured again.
    """
    waiting = await asyncio.to_thread(_waiting, run, store, STEPS)
    done = 0

    async def measure(item: tuple[Outcome, Asked]) -> None:
        nonlocal done
        outcome, asked = item
        lines = await asyncio.to_thread(store.trace, outcome.system, outcome.question)
        if lines is None:
            raise UserFault("The steps are read from traces, and this run kept none: run it anew with --traces.")
        recording = assembled(Path(f"{outcome.system} {outcome.question}"), lines.splitlines(keepends=True))
        found: Sequence[StepWorth] = []
        if retrieval_steps(recording):
            found = await worth_of_steps(recording, asked.answers, contexts[outcome.system], resources)
        steps = [
            {"label": one.label, "what": one.what, "words": one.words, **_figures(one.worth)}
            for one in found
            if one.worth is not None
        ]
        await asyncio.to_thread(store.measured, outcome.system, outcome.question, STEPS, {"steps": steps})
        done += 1
        on_progress(done, len(waiting))

    await in_turn(waiting, measure, at_once)


def seper_contexts(run: Bench, settings: Mapping[str, Any]) -> dict[str, SePerContext]:
    """By system, SePer's settings: the system's own chat model believes, the rest is as given."""
    shared = ("preset", "llm", "encoder", "concurrency", "thinking")
    return {
        system.label: SePerContext.model_validate(
            {**{name: system.context[name] for name in shared if name in system.context}, **settings}
        )
        for system in run.systems
    }


def _distinct(contexts: Iterable[SePerContext]) -> list[SePerContext]:
    return list({context.model_dump_json(): context for context in contexts}.values())


def _waiting(run: Bench, store: Store, metric: str) -> list[tuple[Outcome, Asked]]:
    """Answers that can be measured and were not, question by question."""
    there = store.measurements(metric)
    asked = {one.id: one for one in run.questions if one.answerable and one.answers}
    places = {name: place for place, name in enumerate(asked)}
    waiting = [
        (one, asked[one.question])
        for one in store.outcomes()
        if one.output is not None and one.question in asked and (one.system, one.question) not in there
    ]
    return sorted(waiting, key=lambda item: places[item[0].question])


def _evidence(outcome: Outcome) -> tuple[Chunk, ...]:
    return tuple((outcome.output or {}).get("evidence") or ())


def _figures(worth: Worth) -> dict[str, float]:
    return {"seper": worth.seper, "seper_without": worth.seper_without, "delta": worth.delta}
