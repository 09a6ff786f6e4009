"""Metrics measured after all answers are known: SePer of their evidence and of each retrieval step, and ratings."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..concurrency import worker_pool
from ..errors import ContextOverflow, ContractFault, UserFault
from ..models.bert_score import BertScorer
from ..presenters.presenter import retrieval_steps
from ..resources.resources import Resources
from ..state.records import Chunk
from ..state.seper import SePerContext
from ..traces.recording import assembled
from .llm_judge import LlmJudgeContext, judge_answer
from .run_folder import EvaluationRun, RunQuestion
from .seper import Piece, SePerResult, measure_pieces
from .seper_steps import StepScore, score_steps
from .store import Outcome, Store

SEPER, STEPS, RATINGS, BERTSCORE = "seper", "seper_steps", "llm_judge", "bertscore"
"""The names of the measurements in the store."""

BATCH = 32
"""Answers that are sampled and judged together. A killed run loses two batches."""

BATCHES_AT_ONCE = 2
"""While one batch waits for its longest samples and for the judge, the chat model has another."""

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

    async def measure(work: tuple[SePerContext, Sequence[tuple[Outcome, RunQuestion]]]) -> None:
        nonlocal done, too_long
        context, batch = work
        pieces = [Piece(question.question, question.answers, _evidence(outcome)) for outcome, question in batch]
        for (outcome, _), result in zip(batch, await measure_pieces(pieces, context, resources), strict=True):
            if isinstance(result, ContextOverflow):
                too_long += 1
            else:
                await asyncio.to_thread(store.measured, outcome.system, outcome.question, SEPER, _figures(result))
        done += len(batch)
        on_progress(done, len(waiting))

    batches = []
    for context in _distinct(contexts.values()):
        own = [item for item in waiting if contexts[item[0].system] == context]
        batches += [(context, own[start : start + BATCH]) for start in range(0, len(own), BATCH)]
    await worker_pool(batches, measure, BATCHES_AT_ONCE)
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


async def measure_ratings(
    run: EvaluationRun,
    store: Store,
    contexts: Mapping[str, LlmJudgeContext],
    resources: Resources,
    on_progress: OnProgress,
    *,
    at_once: int,
) -> int:
    """Have a language model rate each answer and its evidence; see `judge_answer`.

    contexts: by system; at_once: answers at a time. The answers that `measure_seper` leaves out are left out here too.
    Returns the number of answers without a rating: the judge names none, or the evidence does not fit its window.
    """
    waiting = await asyncio.to_thread(_unmeasured, run, store, RATINGS)
    done = unrated = 0

    async def measure(item: tuple[Outcome, RunQuestion]) -> None:
        nonlocal done, unrated
        outcome, question = item
        context = contexts[outcome.system]
        answer = str((outcome.output or {}).get("answer") or "").strip()
        llm = await resources.llm(context)
        try:
            ratings = await judge_answer(question.question, answer, _evidence(outcome), context, llm)
        except (ContextOverflow, ContractFault):
            unrated += 1
        else:
            await asyncio.to_thread(store.measured, outcome.system, outcome.question, RATINGS, ratings)
        done += 1
        on_progress(done, len(waiting))

    await worker_pool(waiting, measure, at_once)
    return unrated


async def measure_bertscore(run: EvaluationRun, store: Store, scorer: BertScorer, on_progress: OnProgress) -> None:
    """Measure BERTScore's F1 of each answer with the best gold answer: {"bertscore"}; 0 for an empty answer.

    The answers that `measure_seper` leaves out are left out here too.
    """
    waiting = await asyncio.to_thread(_unmeasured, run, store, BERTSCORE)
    left = iter(waiting)
    done = 0
    while batch := list(islice(left, BATCH)):
        answers = [str((outcome.output or {}).get("answer") or "").strip() for outcome, _ in batch]
        pairs = [
            (answer, gold) for answer, (_, question) in zip(answers, batch, strict=True) for gold in question.answers
        ]
        found = iter(await scorer.f1(pairs))
        for outcome, question in batch:
            best = max(islice(found, len(question.answers)))
            await asyncio.to_thread(store.measured, outcome.system, outcome.question, BERTSCORE, {"bertscore": best})
        done += len(batch)
        on_progress(done, len(waiting))


def judge_contexts(run: EvaluationRun, settings: Mapping[str, Any]) -> dict[str, LlmJudgeContext]:
    """The settings of the metric `llm-judge` by system: the system's own chat model, and the given settings."""
    shared = ("llm", "concurrency")
    return {
        system.label: LlmJudgeContext(**{name: system.context[name] for name in shared} | dict(settings))
        for system in run.systems
    }


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
