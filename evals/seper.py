"""SePer and ΔSePer of many questions, or of many pieces of evidence for one, at once (Dai et al., Algorithm 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ContextOverflow, ModelFault, ModelUnavailable
from ..graphs import wiring
from ..models.interfaces import ChatModel, Judge
from ..models.resources import Resources
from ..nodes.belief import belief_of, judged_of, pairs_of, right_answers, sampled, unsaid
from ..nodes.believe import seper_judge
from ..nodes.prepare import check_capabilities, check_question
from ..nodes.relations import relations_of
from ..state.records import Chunk
from ..state.seper import Belief, Sampled, SePerContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to measure: the evidence a question is answered from, none or more chunks, and the right answers."""

    question: str
    answers: tuple[str, ...]
    evidence: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Worth:
    """What a piece of evidence is worth: the belief in the right answer with it and without."""

    with_context: Belief
    without_context: Belief
    warnings: tuple[str, ...] = ()

    @property
    def seper(self) -> float:
        """The belief with the evidence, 0 to 1."""
        return self.with_context["seper"]

    @property
    def seper_without(self) -> float:
        """The belief without it, 0 to 1."""
        return self.without_context["seper"]

    @property
    def delta(self) -> float:
        """ΔSePer, −1 to 1."""
        return self.seper - self.seper_without


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What is sampled once: a question with the titles and texts of its chunks, and nothing else, in the prompt."""

    question: str
    shown: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """What is judged once: the responses to a prompt, and right answers."""

    prompt: _Prompt
    golds: tuple[str, ...]


async def beliefs(
    pieces: Sequence[Piece], context: SePerContext, resources: Resources
) -> list[Worth | ContextOverflow]:
    """What each piece is worth, in their order; each by itself is what the graph `seper` says of it.

    All prompts are sampled at once, as far as the context's `concurrency` lets them, equal ones once: so the belief
    without evidence once a question. Then the judge is asked of all questions at once; an NLI cross-encoder puts their
    pairs together in its batches. Model faults are tried again as in the graphs.
    Evidence that does not fit the model's window has the fault in its place. Raises `UserFault` for a question or right
    answers that cannot be used, `CapabilityMissing` for a chat model without log-probabilities, and `ModelUnavailable`.
    """
    for piece in pieces:
        check_question(piece.question)
    golds = [tuple(right_answers(piece.answers)) for piece in pieces]
    llm = await resources.llm(context.llm, context.concurrency)
    check_capabilities(llm, context)
    judge = await seper_judge(context, resources)
    prompts = {_prompt(piece): piece.evidence for piece in pieces}
    prompts |= {_Prompt(piece.question, ()): () for piece in pieces}
    found = await together(_sample(prompt, chunks, context, llm) for prompt, chunks in prompts.items())
    samples = dict(zip(prompts, found, strict=True))
    wanted = dict.fromkeys(
        _Side(prompt, own)
        for piece, own in zip(pieces, golds, strict=True)
        for prompt in (_prompt(piece), _Prompt(piece.question, ()))
    )
    believed = await _judge(wanted, samples, context, judge)
    return [_worth(piece, own, believed) for piece, own in zip(pieces, golds, strict=True)]


_Samples = tuple[list[Sampled], list[str]] | ContextOverflow


async def _sample(prompt: _Prompt, chunks: Sequence[Chunk], context: SePerContext, llm: ChatModel) -> _Samples:
    try:
        return await patiently(lambda: sampled(prompt.question, chunks, context, llm))
    except ContextOverflow as fault:
        return fault


_Believed = dict[_Side, tuple[Belief, list[str]] | ContextOverflow]


async def _judge(
    wanted: Iterable[_Side], samples: dict[_Prompt, _Samples], context: SePerContext, judge: Judge
) -> _Believed:
    believed: _Believed = {}
    by_question: dict[str, list[_Side]] = {}
    for side in wanted:
        responses = samples[side.prompt]
        if isinstance(responses, ContextOverflow):
            believed[side] = responses
        else:
            by_question.setdefault(side.prompt.question, []).append(side)

    async def of_question(sides: Sequence[_Side]) -> list[tuple[_Side, tuple[Belief, list[str]]]]:
        given = [(side, samples[side.prompt]) for side in sides]
        texts = [(side, *some) for side, some in given if not isinstance(some, ContextOverflow)]
        pairs = [pairs_of(responses, side.golds, context) for side, responses, _ in texts]
        relations = await patiently(lambda: relations_of(judge, sides[0].prompt.question, pairs))
        found = []
        for (side, responses, warnings), relation in zip(texts, relations, strict=True):
            judged = judged_of(responses, side.golds, relation, context)
            belief = belief_of(responses, judged, context)
            found.append((side, (belief, [*warnings, *unsaid(judge, [judged])])))
        return found

    for found in await together(of_question(sides) for sides in by_question.values()):
        believed.update(found)
    return believed


def _worth(piece: Piece, golds: tuple[str, ...], believed: _Believed) -> Worth | ContextOverflow:
    there, without = (believed[_Side(one, golds)] for one in (_prompt(piece), _Prompt(piece.question, ())))
    if isinstance(there, ContextOverflow):
        return there
    if isinstance(without, ContextOverflow):
        return without
    return Worth(there[0], without[0], tuple(dict.fromkeys([*there[1], *without[1]])))


def _prompt(piece: Piece) -> _Prompt:
    return _Prompt(piece.question, tuple((chunk["title"], chunk["text"]) for chunk in piece.evidence))


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What comes of each, at once; after a fault of one the others are given up."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask, and after a model fault again, as often and after as long as a graph does; then `ModelUnavailable`."""
    policy = wiring.RETRY
    wait = policy.initial_interval
    for _ in range(policy.max_attempts - 1):
        try:
            return await ask()
        except ModelFault:
            await asyncio.sleep(wait)
            wait = min(wait * policy.backoff_factor, policy.max_interval)
    try:
        return await ask()
    except ModelFault as fault:
        raise ModelUnavailable(fault.endpoint, policy.max_attempts, fault.reason) from fault
