"""SePer and ΔSePer of many pieces of evidence in one batch (Dai et al., Algorithm 1)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..concurrency import gather_or_cancel
from ..errors import ContextOverflow, ModelFault, ModelUnavailable
from ..graphs import wiring
from ..nodes.prepare import check_capabilities, check_question
from ..nodes.seper_scoring import belief_of, distinct_answers, judge_sides, sample_side, unlabelled_warnings
from ..resources.fitting import fitted
from ..resources.resources import Resources
from ..state.records import Chunk
from ..state.seper import Belief, SampledResponse, SePerContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of evidence to measure: a question, its right answers, and the chunks, if any."""

    question: str
    answers: tuple[str, ...]
    evidence: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class SePerResult:
    """The belief in the right answer with a piece of evidence and without it."""

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
    """What the prompt shows: a question, and the titles and texts of its chunks. Equal prompts are sampled once."""

    question: str
    passages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    """A prompt and the right answers its responses are judged against. Equal sides are judged once."""

    prompt: _Prompt
    answers: tuple[str, ...]


async def measure_pieces(
    pieces: Sequence[Piece], context: SePerContext, resources: Resources
) -> list[SePerResult | ContextOverflow]:
    """The result of each piece, in their order; each equals the result of the graph `seper` for that piece alone.

    All distinct prompts are sampled concurrently, within the context's `concurrency`; the prompt without evidence is
    sampled once per question. The judge then gets one call per question, all concurrently, and an NLI cross-encoder
    shares its batches between them. Model faults are retried as in the graphs. If a piece's prompt does not fit the
    model's window, the fault is its result.
    Raises `UserFault` for a bad question or bad right answers, `CapabilityMissing` for a chat model without
    log-probabilities, and `ModelUnavailable`.
    """
    for piece in pieces:
        check_question(piece.question)
    sides = [_sides(piece) for piece in pieces]
    context = await fitted(context, resources)
    await check_capabilities(context, resources)
    llm = await resources.llm(context)
    judge = await resources.judge(context)
    chunks_of: dict[_Prompt, Sequence[Chunk]] = {_Prompt(piece.question): () for piece in pieces}
    chunks_of |= {with_evidence.prompt: piece.evidence for piece, (with_evidence, _) in zip(pieces, sides, strict=True)}

    async def sample(prompt: _Prompt) -> tuple[list[SampledResponse], list[str]] | ContextOverflow:
        try:
            return await with_retries(lambda: sample_side(prompt.question, chunks_of[prompt], context, llm))
        except ContextOverflow as fault:
            return fault

    async def judge_question(sides: Sequence[_Side]) -> dict[_Side, tuple[Belief, list[str]]]:
        sampled = [(samples[side.prompt][0], side.answers) for side in sides]
        judgements = await with_retries(lambda: judge_sides(judge, sides[0].prompt.question, sampled, context))
        return {
            side: (
                belief_of(responses, judged, context),
                [*samples[side.prompt][1], *unlabelled_warnings(judge, [judged])],
            )
            for side, (responses, _), judged in zip(sides, sampled, judgements, strict=True)
        }

    outcomes = dict(zip(chunks_of, await gather_or_cancel(sample(prompt) for prompt in chunks_of), strict=True))
    overflows = {prompt: fault for prompt, fault in outcomes.items() if isinstance(fault, ContextOverflow)}
    samples = {prompt: sampled for prompt, sampled in outcomes.items() if not isinstance(sampled, ContextOverflow)}
    by_question: dict[str, list[_Side]] = {}
    for side in dict.fromkeys(side for both in sides for side in both if side.prompt in samples):
        by_question.setdefault(side.prompt.question, []).append(side)
    beliefs: dict[_Side, tuple[Belief, list[str]]] = {}
    for judged in await gather_or_cancel(judge_question(sides) for sides in by_question.values()):
        beliefs |= judged
    return [
        next((overflows[side.prompt] for side in both if side.prompt in overflows), None)
        or _result(*(beliefs[side] for side in both))
        for both in sides
    ]


def _sides(piece: Piece) -> tuple[_Side, _Side]:
    """With the evidence, and without."""
    answers = tuple(distinct_answers(piece.answers))
    passages = tuple((chunk["title"], chunk["text"]) for chunk in piece.evidence)
    return _Side(_Prompt(piece.question, passages), answers), _Side(_Prompt(piece.question), answers)


def _result(with_evidence: tuple[Belief, list[str]], without: tuple[Belief, list[str]]) -> SePerResult:
    return SePerResult(with_evidence[0], without[0], tuple(dict.fromkeys([*with_evidence[1], *without[1]])))


async def with_retries(call: Callable[[], Awaitable[T]]) -> T:
    """Await a call; after a model fault retry it as the graphs do, then raise `ModelUnavailable`."""
    policy = wiring.RETRY
    wait = policy.initial_interval
    for _ in range(policy.max_attempts - 1):
        try:
            return await call()
        except ModelFault:
            await asyncio.sleep(wait)
            wait = min(wait * policy.backoff_factor, policy.max_interval)
    try:
        return await call()
    except ModelFault as fault:
        raise ModelUnavailable(fault.endpoint, policy.max_attempts, fault.reason) from fault
