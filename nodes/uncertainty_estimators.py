"""The model's next step, and its uncertainty U there (SeaKR section 3.4; the other estimators: section 5.1)."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CapabilityMissing, ContractFault
from ..models.interfaces import ChatModel, Completion, Message, Sampling, StatePlace
from ..prompts import unparsed
from ..resources.resources import Resources
from ..state.reasoning import ReasoningContext
from ..state.records import Chunk
from ..state.seakr import SeaKRContext
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
from .query_formulation import first_sentence, tokens_before

ONE_LINE = ("\n",)
"""Stop strings: the continuation ends with its line."""

ONE_SENTENCE = (".", "\n")
"""Stop strings of samples: they end with the sentence or the line (SeaKR, appendix D.1)."""

NOT_MEASURED = "The uncertainty of a step could not be measured; it counts as the highest."


class Estimate(NamedTuple):
    """U and the warnings of the estimator; U is null if there is too little to measure."""

    uncertainty: float | None
    warnings: list[str] = []  # noqa: RUF012 - never written to


@dataclass(frozen=True)
class Prompt:
    """A prompt and the parts it was made from. stop: stop strings of the samples; max_tokens: of the continuation."""

    question: str
    chunks: Sequence[Chunk]
    rationales: Sequence[str]
    messages: list[Message]
    stop: tuple[str, ...]
    max_tokens: int


async def continue_with_uncertainty(
    prompt: Prompt, context: SeaKRContext, resources: Resources
) -> tuple[Completion, Estimate]:
    """Continue a prompt greedily to the end of its line, then measure U of the prompt.

    The samples come second: the server's prefix cache holds the prompt by then.
    """
    completion = await greedy_continuation(prompt, context, await resources.llm(context))
    return completion, await uncertainty_of(prompt, completion, context, resources)


async def uncertainty_of(
    prompt: Prompt, completion: Completion, context: SeaKRContext, resources: Resources
) -> Estimate:
    """U of a prompt with this greedy continuation."""
    estimate = await ESTIMATORS[context.estimator](prompt, completion, context, resources)
    if estimate.uncertainty is None or not math.isfinite(estimate.uncertainty):
        # a token of probability 0 gives an infinite U, which JSON does not have
        return Estimate(None, [*estimate.warnings, NOT_MEASURED])
    return estimate


async def greedy_continuation(prompt: Prompt, context: ReasoningContext, llm: ChatModel) -> Completion:
    """The greedy continuation of a line, with log-probabilities if the model gives them.

    Some servers announce log-probabilities and refuse to give them. Such a server is asked again without, unless the
    settings need log-probabilities.
    """
    sampling = Sampling(max_tokens=prompt.max_tokens, stop=ONE_LINE, logprobs="logprobs" in llm.capabilities)
    try:
        return (await llm.complete(prompt.messages, sampling)).completions[0]
    except CapabilityMissing:
        if not sampling.logprobs or "logprobs" in context.needs():
            raise
        return (await llm.complete(prompt.messages, replace(sampling, logprobs=False))).completions[0]


async def _gram(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
    """The regularised Gram determinant of the hidden states at the ends of k samples (section 3.4)."""
    llm = await resources.llm(context)
    place = StatePlace(context.layer or None, *context.quantity())
    introspection = await llm.introspect(prompt.messages, _sampling(prompt, context), place)
    rows = [i for i, completion in enumerate(introspection.reply.completions) if completion.text.strip()]
    return Estimate(eigen_score(introspection.states[rows], context.alpha) if len(rows) > 1 else None)


async def _self_report(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
    """The probability that the model says it does not know enough; 1 if it answers neither yes nor no."""
    llm = await resources.llm(context)
    messages = unparsed.knows(prompt.question, prompt.chunks, prompt.rationales)
    try:
        return Estimate(float((await llm.choose(messages, (unparsed.YES, unparsed.NO))).probabilities[unparsed.NO]))
    except ContractFault:
        return Estimate(1.0, ["The model did not say whether it knows enough; it counts as not knowing."])


async def _perplexity(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
    """The perplexity of the greedy continuation; of its first sentence where that alone is the step."""
    is_step = ONE_SENTENCE[0] in prompt.stop
    tokens = tokens_before(greedy, first_sentence(greedy.text)[1]) if is_step else greedy.tokens
    return Estimate(perplexity([token.logprob for token in tokens]) if tokens else None)


async def _energy(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
    """The mean free energy of the greedy continuation's tokens."""
    llm = await resources.llm(context)
    sampling = Sampling(max_tokens=prompt.max_tokens, stop=prompt.stop, logprobs=True)
    introspection = await llm.introspect(prompt.messages, sampling, StatePlace(context.layer or None))
    return Estimate(introspection.energies[0] if introspection.energies and greedy.text.strip() else None)


EstimatorFunction = Callable[[Prompt, Completion, SeaKRContext, Resources], Awaitable[Estimate]]


def _from_logprobs(formula: Callable[[list[list[float]]], float]) -> EstimatorFunction:
    """The estimator with this formula over the log-probabilities of k samples."""

    async def estimate(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
        samples = await _samples(prompt, context, resources, logprobs=True)
        logprobs = [[token.logprob for token in sample.tokens] for sample in samples if sample.tokens]
        return Estimate(formula(logprobs) if logprobs else None)

    return estimate


def _from_entailment(formula: Callable[[NDArray[np.bool_]], float]) -> EstimatorFunction:
    """The estimator with this formula over [k, k], whether sample i entails sample j; in nats."""

    async def estimate(prompt: Prompt, greedy: Completion, context: SeaKRContext, resources: Resources) -> Estimate:
        samples = [sample.text for sample in await _samples(prompt, context, resources)]
        entails, warnings = await entailments(await resources.judge(context), prompt.question, samples)
        return Estimate(formula(entails) if len(entails) > 1 else None, warnings)

    return estimate


ESTIMATORS: Mapping[str, EstimatorFunction] = {
    "gram": _gram,
    "prompt": _self_report,
    "perplexity": _perplexity,
    "multi_perplexity": _from_logprobs(multi_perplexity),
    "ln_entropy": _from_logprobs(length_normalised_entropy),
    "energy": _energy,
    "semantic_entropy": _from_entailment(lambda entails: semantic_entropy(semantic_clusters(entails))),
    "degree_entropy": _from_entailment(lambda entails: degree_entropy((entails.astype(float) + entails.T) / 2)),
}


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
    """The samples that are not empty."""
    llm = await resources.llm(context)
    reply = await llm.complete(prompt.messages, replace(_sampling(prompt, context), logprobs=logprobs))
    return [completion for completion in reply.completions if completion.text.strip()]
