"""Entailment judges: a cross-encoder, the chat LLM itself, or the similarity of embeddings as an approximation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..concurrency import gather_or_cancel
from ..errors import ContractFault, UserFault
from ..prompts import unparsed
from .interfaces import LABELS, ChatModel, Encoder, Judge, Judgements
from .judgement_cache import JudgementStore, RememberingJudge
from .local_weights import fingerprint, snapshot

JUDGE_NAMES = "embedded, similarity:T with a threshold 0 < T < 1, nli:folder-or-hub-name, llm, llm:calibrated"

# for all-MiniLM-L6-v2, measured by benchmarks/judges.py on NLI data (docs/measurements/judges.md)
THRESHOLD = 0.61
"""The cosine at which two answers count as entailing each other: it has the highest balanced accuracy."""

SLOPE = 5.0
"""The slope of P(entailment) in the cosine, in log-odds per unit: it has the highest likelihood."""

NOTHING = "N/A"
"""A question and an answer that say nothing."""

_LEAST = 1e-6

GROUP = 256
"""Pairs in one call of a judge: finished calls are remembered, and cancellation takes effect between calls."""


def open_judge(name: str, llm: ChatModel, encoder: Encoder | None, cache: Path) -> Judge:
    """Open a judge by name, with its memory; weights are loaded at the first judgement.

    llm: for `llm` and `llm:calibrated`; encoder: for `embedded` and `similarity:T`; cache: the folder for a
    cross-encoder's judgements.
    `UserFault` for an unknown name.
    """
    kind, _, rest = name.partition(":")
    if is_chat_model(name):
        judge = RememberingJudge(LLMJudge("llm", llm), group=1)
        return judge if name == "llm" else CalibratedJudge(name, judge)
    if kind == "nli" and rest:
        from .cross_encoder import CrossEncoderJudge  # noqa: PLC0415 - backends load when first needed

        store = JudgementStore(cache / "judgements.sqlite", lambda: fingerprint(snapshot(rest)))
        return RememberingJudge(CrossEncoderJudge(name, rest), GROUP, store)
    if name == "embedded" and encoder is not None:
        return RememberingJudge(SimilarityJudge(name, encoder), GROUP)
    if kind == "similarity" and encoder is not None and (threshold := _number(rest)) is not None and 0 < threshold < 1:
        return RememberingJudge(SimilarityJudge(name, encoder, threshold), GROUP)
    raise UserFault(f"There is no judge named '{name}': use one of {JUDGE_NAMES}.")


def is_similarity(name: str) -> bool:
    """Does the judge of this name only compare embeddings? Then it cannot say that a passage supports a sentence."""
    return name == "embedded" or name.startswith("similarity:")


def is_chat_model(name: str) -> bool:
    """Is the judge of this name the chat model?"""
    return name in ("llm", "llm:calibrated")


class LLMJudge:
    """The chat LLM as a judge (DENSE, section 4.2): it chooses one of the three labels for each pair."""

    def __init__(self, name: str, llm: ChatModel) -> None:
        """llm: limits its own concurrency."""
        self.name = name
        self._llm = llm

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`; a row is NaN if the reply names no label, also after a second request."""
        rows = await gather_or_cancel(self._row(question, first, second) for first, second in pairs)
        return np.array(rows, dtype=np.float64).reshape(-1, len(LABELS))

    async def _row(self, question: str, first: str, second: str) -> list[float]:
        try:
            choice = await self._llm.choose(unparsed.entailment(question, first, second), LABELS)
        except ContractFault:
            return [np.nan] * len(LABELS)
        return [choice.probabilities[label] for label in LABELS]


class CalibratedJudge:
    """A judge without its preference for some labels, by contextual calibration (Zhao et al., ICML 2021).

    Each probability is divided by the label's probability for a pair that says nothing, and the row summed to 1 again.
    Without it a small chat model may choose one label for every pair, although its probabilities tell the pairs apart
    (docs/measurements/judges.md).
    """

    def __init__(self, name: str, judge: Judge) -> None:
        """judge: gives probabilities, and remembers what it judged."""
        self.name = name
        self._judge = judge

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`."""
        judged = await self._judge.judge(question, pairs)
        preference = await self._judge.judge(NOTHING, [(NOTHING, NOTHING)])
        calibrated = judged / np.maximum(preference, _LEAST)
        return np.asarray(calibrated / calibrated.sum(axis=1, keepdims=True))


class SimilarityJudge:
    """The similarity of two answers' embeddings, as an approximation of entailment without a judge model.

    P(entailment) = 1 / (1 + exp(-slope (cosine - threshold))), P(neutral) is the rest, P(contradiction) = 0. So
    entailment is the likeliest label iff the cosine reaches the threshold. The approximation is symmetric, and does not
    recognise negation. The answers are embedded without the question, which would make all pairs similar.
    """

    def __init__(self, name: str, encoder: Encoder, threshold: float = THRESHOLD, slope: float = SLOPE) -> None:
        """threshold: a cosine; slope: in log-odds per unit of cosine."""
        self.name = name
        self._encoder = encoder
        self._threshold = threshold
        self._slope = slope

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`."""
        if not pairs:
            return np.zeros((0, len(LABELS)))
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        index = {text: i for i, text in enumerate(texts)}
        vectors = (await self._encoder.embed(texts)).astype(np.float64)
        firsts, seconds = ([index[pair[side]] for pair in pairs] for side in (0, 1))
        cosines = np.einsum("nd,nd->n", vectors[firsts], vectors[seconds])
        entailed = 1 / (1 + np.exp(-self._slope * (cosines - self._threshold)))
        return np.stack([entailed, 1 - entailed, np.zeros_like(entailed)], axis=1)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
