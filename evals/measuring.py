"""Metrics measured after all answers are known: SePer of their evidence, and of each retrieval step."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..concurrency import worker_pool
from ..errors import ContextOverflow, UserFault
from ..presenters.presenter import retrieval_steps
from ..resources.resources import Resources
from ..state.records import Chunk
from ..state.seper import SePerContext
from ..traces.recording import assembled
from .run_folder import EvaluationRun, RunQuestion
from .seper import Piece, SePerResult, measure_pieces
from .seper_steps import StepScore, score_steps
from .store import Outcome, Store

SEPER, STEPS = "seper", "seper_steps"
"""The names of the measurements in the store."""

BATCH = 32
"""Answers that are sampled and judged together. A killed run loses one batch."""

OnProgress = Callable[[int, int], None]
"""Hears how many answers are measured, of how many."""


async def measure_seper(
    run: EvaluationRun,
    store: Store,
    contexts: Mapping[str, SePerContext],
    resources: Resources,
    on_progress: OnProgress,
) -> int:
    """Measure ΔSePer of the evidence of each answer: {"seper", "seper_without", "delta"}.

    contexts: by system. Failed questions, unanswerable questions and answers that have the measurement are left out.
    Returns the number of answers whose evidence does not fit the model's window; they get no measurement.
    """
    waiting = await asyncio.to_thread(_unmeasured, run, store, SEPER)
    done = too_long = 0
    for context in _distinct(contexts.values()):
        own = iter([item for item in waiting if contexts[item[0].system] == context])
        while batch := list(islice(own, BATCH)):
            pieces = [Piece(question.question, question.answers, _evidence(outcome)) for outcome, question in batch]
            for (outcome, _), result in zip(batch, await measure_pieces(pieces, context, resources), strict=True):
                if isinstance(result, ContextOverflow):
                    too_long += 1
                else:
                    await asyncio.to_thread(store.measured, outcome.system, outcome.question, SEPER, _figures(result))
            done += len(batch)
            on_progress(done, len(waiting))
    return too_long


async def measure_steps(
    run: EvaluationRun,
    store: Store,
    contexts: Mapping[str, SePerContext],
    resources: Resources,
    on_progress: OnProgress,
    *,
    at_once: int,
) -> None:
    """Measure ΔSePer of each retrieval step in each answer's trace: {"steps": [{"label", "what", "seper", ...}]}.

    contexts: by system; at_once: answers at a time. A run that retrieved nothing has no steps. Answers that have the
    measurement are left out. Raises `UserFault` if the run kept no traces.
    """
    waiting = await asyncio.to_thread(_unmeasured, run, store, STEPS)
    done = 0

    async def measure(item: tuple[Outcome, RunQuestion]) -> None:
        nonlocal done
        outcome, question = item
        lines = await asyncio.to_thread(store.trace, outcome.system, outcome.question)
        if lines is None:
            raise UserFault("The steps are read from traces, and this run has none: evaluate again with traces.")
        recording = assembled(Path(f"{outcome.system} {outcome.question}"), lines.splitlines(keepends=True))
        scores: Sequence[StepScore] = []
        if retrieval_steps(recording):
            scores = await score_steps(recording, question.answers, contexts[outcome.system], resources)
        steps = [
            {"label": score.label, "what": score.kind, "words": score.words, **_figures(score.result)}
            for score in scores
            if score.result is not None
        ]
        await asyncio.to_thread(store.measured, outcome.system, outcome.question, STEPS, {"steps": steps})
        done += 1
        on_progress(done, len(waiting))

    await worker_pool(waiting, measure, at_once)


def seper_contexts(run: EvaluationRun, settings: Mapping[str, Any]) -> dict[str, SePerContext]:
    """SePer's settings by system: the system's own chat model, and the given settings."""
    shared = ("preset", "llm", "encoder", "concurrency", "thinking")
    return {
        system.label: SePerContext.unchecked(
            {**{name: system.context[name] for name in shared if name in system.context}, **settings}
        )
        for system in run.systems
    }


def _distinct(contexts: Iterable[SePerContext]) -> list[SePerContext]:
    return list({context.model_dump_json(): context for context in contexts}.values())


def _unmeasured(run: EvaluationRun, store: Store, metric: str) -> list[tuple[Outcome, RunQuestion]]:
    """The answers that can be measured and are not, in the order of the questions."""
    measured = store.measurements(metric)
    questions = {question.id: question for question in run.questions if question.answerable and question.answers}
    places = {question_id: place for place, question_id in enumerate(questions)}
    waiting = [
        (outcome, questions[outcome.question])
        for outcome in store.outcomes()
        if outcome.output is not None
        and outcome.question in questions
        and (outcome.system, outcome.question) not in measured
    ]
    return sorted(waiting, key=lambda item: places[item[0].question])


def _evidence(outcome: Outcome) -> tuple[Chunk, ...]:
    return tuple((outcome.output or {}).get("evidence") or ())


def _figures(result: SePerResult) -> dict[str, float]:
    return {"seper": result.seper, "seper_without": result.seper_without, "delta": result.delta}
