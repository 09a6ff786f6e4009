"""check_certainty: how uncertain the answer is by the signal that the settings name, and whether it is given then."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

from ..errors import CapabilityMissing
from ..models.answer_stream import show_answer
from ..models.interfaces import ChatModel, Message, Sampling
from ..prompts import answer as prompt
from ..resources.resources import Resources
from ..state.calibration import AnswerCalibration
from ..state.flow import Flow
from ..state.mixins import UNSAMPLED, AnsweringContext
from ..state.records import Uncertainty
from ..uncertainty import semantic_clusters, semantic_entropy
from .entail import entailments
from .prepare import void_because

LIKELIHOOD, ENTROPY, DISAGREEMENT = "negative log-likelihood", "semantic entropy", "disagreement"
"""The names of the signals that any answer can have."""


async def check_certainty(state: Flow, context: AnsweringContext, resources: Resources) -> Flow:
    """Measure the uncertainty that the settings name, in place of the technique's own; withhold an uncertain answer.

    likelihood: −Σ log p over the tokens of the answer that the model writes from the evidence at temperature 0, in
    nats.
    semantic_entropy: the discrete entropy over the meanings of `answer_samples` answers sampled from the evidence, in
    nats (Farquhar et al., Nature 2024). disagreement: the share of these that mean something else than the answer.
    Two answers mean the same if each entails the other. combined: all of these, the likelihood only if the model gives
    log-probabilities; a calibration has the weights, and without one the uncertainty is the entropy. With a
    calibration, an answer is given iff its uncertainty is known and at most the calibration's threshold.
    """
    update: Flow = {}
    uncertainty = state.get("uncertainty")
    if context.uncertainty != "own":
        own: dict[str, float | None] = {uncertainty["signal"]: uncertainty["value"]} if uncertainty else {}
        update = await _measured(state, context, resources)
        uncertainty = _named(context, update["signals"])
        update |= {"signals": own | update["signals"], "uncertainty": uncertainty}
    if not context.calibration:
        return update
    calibration = await asyncio.to_thread(AnswerCalibration.load, context.calibration, context.graph, context)
    if calibration.combination is not None:
        value = calibration.combination.value(update["signals"])
        uncertainty = {"signal": calibration.signal, "value": value, "threshold": None}
    void = await void_because(state, calibration, context, resources)
    decided = decision(state["answer"], uncertainty, calibration, void)
    show_answer(decided["answer"])
    return {**update, **decided}


def decision(answer: str, uncertainty: Uncertainty | None, calibration: AnswerCalibration, void: str = "") -> Flow:
    """The part of the output that says whether the answer is given. void: why nothing is promised of it."""
    value = uncertainty["value"] if uncertainty else None
    given = bool(answer.strip()) and value is not None and value <= calibration.threshold
    return {
        "answer": answer if given else "",
        "withheld_answer": "" if given else answer,
        "abstained": not given,
        "uncertainty": {"signal": calibration.signal, "value": value, "threshold": calibration.threshold},
        "certificate": calibration.certificate(void),
    }


def _named(context: AnsweringContext, signals: dict[str, float | None]) -> Uncertainty:
    signal = {"likelihood": LIKELIHOOD, "disagreement": DISAGREEMENT}.get(context.uncertainty, ENTROPY)
    return {"signal": signal, "value": signals[signal], "threshold": None}


async def _measured(state: Flow, context: AnsweringContext, resources: Resources) -> Flow:
    llm = await resources.llm(context)
    notes = cast("Sequence[str]", state.get("incremental_context") or ())
    messages = prompt.messages(state["question"], state["evidence"], notes)
    if context.uncertainty in UNSAMPLED:
        return {"signals": {LIKELIHOOD: await _negative_log_likelihood(llm, messages, context)}}
    signals: dict[str, float | None] = {}
    if context.uncertainty == "combined" and "logprobs" in llm.capabilities:
        with contextlib.suppress(CapabilityMissing):  # some servers announce log-probabilities and refuse to give them
            signals[LIKELIHOOD] = await _negative_log_likelihood(llm, messages, context)
    answers = await _sampled(llm, messages, context)
    judge = await resources.judge(context)
    # the answer comes first: the first cluster is then the samples that mean the same
    entails, warnings = await entailments(judge, state["question"], [state["answer"], *answers])
    signals |= {ENTROPY: None, DISAGREEMENT: None}
    meanings: dict[int, list[str]] = {}
    if answers:
        clusters = semantic_clusters(entails[1:, 1:])
        for text, cluster in zip(answers, clusters, strict=True):
            meanings.setdefault(cluster, []).append(text)
        agreeing = sum(bool(entails[0, i] and entails[i, 0]) for i in range(1, len(entails)))
        signals |= {ENTROPY: semantic_entropy(clusters), DISAGREEMENT: 1 - agreeing / len(answers)}
    return {"signals": signals, "meanings": list(meanings.values()), "warnings": warnings}


async def _negative_log_likelihood(
    llm: ChatModel, messages: Sequence[Message], context: AnsweringContext
) -> float | None:
    sampling = Sampling(max_tokens=context.max_answer_tokens, logprobs=True, thinking=_thinks(context))
    tokens = (await llm.complete(messages, sampling)).completions[0].tokens
    return -sum(token.logprob for token in tokens) if tokens else None


async def _sampled(llm: ChatModel, messages: Sequence[Message], context: AnsweringContext) -> list[str]:
    """The sampled answers that are not empty."""
    sampling = Sampling(
        n=context.answer_samples,
        temperature=context.answer_temperature,
        max_tokens=context.max_answer_tokens,
        thinking=_thinks(context),
    )
    reply = await llm.complete(messages, sampling)
    return [text for completion in reply.completions if (text := prompt.parse_or_empty(completion.text))]


def _thinks(context: AnsweringContext) -> bool:
    return bool(getattr(context, "thinking", False))
