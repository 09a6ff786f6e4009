"""What a model would say next, and how uncertain it is there: U(c) (SeaKR section 3.4 and its alternatives, 5.1)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CapabilityMissing, ContractFault
from ..models.interfaces import ChatModel, Completion, Message, Sampling
from ..models.resources import Resources
from ..prompts import knows
from ..state.reasoning import ReasoningContext
from ..state.records import Chunk
from ..state.seakr import Estimator, SeaKRContext
from ..uncertainty import (
    degree_entropy,
    eigen_score,
    length_normalised_entropy,
    multi_perplexity,
    perplexity,
    semantic_clusters,
    semantic_entropy,
)
from .entail import entailments

ONE_LINE = ("\n",)
ONE_SENTENCE = (".", "\n")
"""Where samples stop: at the end of a line, or of a sentence as in appendix D.1."""

UNMEASURED = "The uncertainty of a step could not be measured; it counts as the highest."


class Measured(NamedTuple):
    """U, null where there is too little to measure, and what the judge could not say."""

    uncertainty: float | None
    warnings: list[str] = []  # noqa: RUF012 - never written to


@dataclass(frozen=True)
class Thought:
    """The model's greedy continuation, U of the prompt (null where it could not be measured), and what went wrong."""

    said: Completion
    uncertainty: float | None
    warnings: list[str]


@dataclass(frozen=True)
class Prompt:
    """A prompt to be continued, what it is made from, where samples stop, and the longest continuation in tokens."""

    question: str
    chunks: Sequence[Chunk]
    rationales: Sequence[str]
    messages: list[Message]
    stop: tuple[str, ...]
    longest: int


async def think(prompt: Prompt, context: SeaKRContext, resources: Resources, *, measured: bool = True) -> Thought:
    """Continue a prompt greedily, to the end of its line, and measure U of it.

    The samples come after the greedy continuation, so that a server has read the prompt by then. A model that gives no
    log-probabilities is not asked for them. measured: False where U is not needed, and null.
    """
    llm = await resources.llm(context.llm, context.concurrency)
    said = await say(prompt, context, llm)
    if not measured:
        return Thought(said, None, [])
    found, warnings = await ESTIMATORS[context.estimator](prompt, said, context, resources)
    if found is None or not math.isfinite(found):  # of a token without any probability; and JSON has no infinity
        return Thought(said, None, [*warnings, UNMEASURED])
    return Thought(said, found, warnings)


async def say(prompt: Prompt, context: ReasoningContext, llm: ChatModel) -> Completion:
    """The greedy continuation of a line, with log-probabilities where the model gives them.

    A server that claims to and does not is asked without them, unless the settings need them.
    """
    sampling = Sampling(max_tokens=prompt.longest, stop=ONE_LINE, logprobs="logprobs" in llm.capabilities)
    try:
        return (await llm.complete(prompt.messages, sampling)).completions[0]
    except CapabilityMissing:
        if not sampling.logprobs or "logprobs" in context.needs():
            raise
        return (await llm.complete(prompt.messages, replace(sampling, logprobs=False))).completions[0]


async def _gram(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The regularised Gram determinant of the hidden states at the ends of k samples (section 3.4)."""
    llm = await resources.llm(context.llm, context.concurrency)
    seen = await llm.introspect(prompt.messages, _sampling(prompt, context), context.layer or None)
    kept = [row for row, one in enumerate(seen.reply.completions) if one.text.strip()]
    return Measured(eigen_score(seen.states[kept], context.alpha) if len(kept) > 1 else None)


async def _self_report(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The probability that the model says it does not know enough; 1 if it says neither."""
    llm = await resources.llm(context.llm, context.concurrency)
    messages = knows.messages(prompt.question, prompt.chunks, prompt.rationales)
    try:
        return Measured(float((await llm.choose(messages, (knows.YES, knows.NO))).probabilities[knows.NO]))
    except ContractFault:
        return Measured(1.0, ["The model did not say whether it knows enough; it counts as not knowing."])


async def _perplexity(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The perplexity of the greedy continuation."""
    return Measured(perplexity([token.logprob for token in said.tokens]) if said.tokens else None)


async def _multi_perplexity(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The mean perplexity of k samples."""
    logprobs = _logprobs(await _samples(prompt, context, resources, logprobs=True))
    return Measured(multi_perplexity(logprobs) if logprobs else None)


async def _ln_entropy(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The length-normalised entropy of k samples."""
    logprobs = _logprobs(await _samples(prompt, context, resources, logprobs=True))
    return Measured(length_normalised_entropy(logprobs) if logprobs else None)


async def _energy(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The mean free energy of the greedy continuation's tokens."""
    llm = await resources.llm(context.llm, context.concurrency)
    greedy = Sampling(max_tokens=context.max_step_tokens, stop=prompt.stop, logprobs=True)
    seen = await llm.introspect(prompt.messages, greedy, context.layer or None)
    return Measured(seen.energies[0] if seen.energies and said.text.strip() else None)


async def _semantic_entropy(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The entropy over the meanings of k samples, in nats."""
    entails, warnings = await _entailed(prompt, context, resources)
    return Measured(semantic_entropy(semantic_clusters(entails)) if len(entails) > 1 else None, warnings)


async def _degree_entropy(prompt: Prompt, said: Completion, context: SeaKRContext, resources: Resources) -> Measured:
    """The degree entropy of k samples, in nats."""
    entails, warnings = await _entailed(prompt, context, resources)
    links = (entails.astype(np.float64) + entails.T) / 2
    return Measured(degree_entropy(links) if len(links) > 1 else None, warnings)


Measure = Callable[[Prompt, Completion, SeaKRContext, Resources], Awaitable[Measured]]

ESTIMATORS: Mapping[Estimator, Measure] = {
    "gram": _gram,
    "prompt": _self_report,
    "perplexity": _perplexity,
    "multi_perplexity": _multi_perplexity,
    "ln_entropy": _ln_entropy,
    "energy": _energy,
    "semantic_entropy": _semantic_entropy,
    "degree_entropy": _degree_entropy,
}
"""How each one measures U."""


def _sampling(prompt: Prompt, context: SeaKRContext) -> Sampling:
    return Sampling(
        n=context.samples,
        temperature=context.temperature,
        top_p=context.top_p,
        top_k=context.top_k,
        max_tokens=context.max_step_tokens,
        stop=prompt.stop,
    )


async def _samples(
    prompt: Prompt, context: SeaKRContext, resources: Resources, *, logprobs: bool = False
) -> list[Completion]:
    """The samples that hold any text."""
    llm: ChatModel = await resources.llm(context.llm, context.concurrency)
    reply = await llm.complete(prompt.messages, replace(_sampling(prompt, context), logprobs=logprobs))
    return [one for one in reply.completions if one.text.strip()]


def _logprobs(sampled: Sequence[Completion]) -> list[list[float]]:
    return [[token.logprob for token in one.tokens] for one in sampled if one.tokens]


async def _entailed(prompt: Prompt, context: SeaKRContext, resources: Resources) -> tuple[NDArray[np.bool_], list[str]]:
    """Which of the samples that hold any text entail which, and what the judge could not say."""
    sampled = await _samples(prompt, context, resources)
    judge = await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
    return await entailments(judge, prompt.question, [one.text for one in sampled])
