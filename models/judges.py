"""Entailment judges: a cross-encoder, the chat LLM itself, or the similarity of embeddings in their place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import ContractFault, UserFault
from ..prompts import entailment
from .interfaces import LABELS, ChatModel, Encoder, Judge, Judgements
from .judgement_cache import JudgementStore, RememberingJudge

JUDGE_NAMES = "embedded, similarity:T with a threshold 0 < T < 1, nli:folder-or-hub-name, llm"

# of all-MiniLM-L6-v2, found by benchmarks/judges.py on NLI data (docs/measurements/judges.md)
THRESHOLD = 0.61
"""The cosine from which on similar answers count as entailing each other: of the highest balanced accuracy."""

SLOPE = 5.0
"""How fast P(entailment) grows with the cosine at the threshold: of the highest likelihood."""

TOGETHER = 256
"""Pairs put to a cross-encoder in one call: what is finished is kept, and giving up takes effect in between."""


def open_judge(name: str, llm: ChatModel, encoder: Encoder, cache: Path) -> Judge:
    """Open a judge by name, with its memory; weights are loaded at the first judgement.

    llm, encoder: what `llm`, and `embedded` and `similarity:T`, judge with; cache: the folder where what a
    cross-encoder judged is kept. `UserFault` for an unknown name.
    """
    kind, _, rest = name.partition(":")
    if name == "llm":
        return RememberingJudge(LLMJudge(name, llm), group=1)
    if kind == "nli" and rest:
        from .cross_encoder import CrossEncoderJudge, weights_identity  # noqa: PLC0415 - backends load when first needed

        store = JudgementStore(cache / "judgements.sqlite", partial(weights_identity, rest))
        return RememberingJudge(CrossEncoderJudge(name, rest), TOGETHER, store)
    if name == "embedded":
        return RememberingJudge(SimilarityJudge(name, encoder), TOGETHER)
    if kind == "similarity" and (threshold := _number(rest)) is not None and 0 < threshold < 1:
        return RememberingJudge(SimilarityJudge(name, encoder, threshold), TOGETHER)
    raise UserFault(f"There is no judge named '{name}': use one of {JUDGE_NAMES}.")


class LLMJudge:
    """The chat LLM as a judge (DENSE section 4.2): it chooses one of the three labels for each pair."""

    def __init__(self, name: str, llm: ChatModel) -> None:
        """llm: bounds by itself how many of its calls are under way at once."""
        self._name = name
        self._llm = llm

    @property
    def name(self) -> str:
        """See `Judge.name`."""
        return self._name

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`; a row is NaN where the reply names no label, even when asked again."""
        tasks = [asyncio.create_task(self._row(question, first, second)) for first, second in pairs]
        try:
            rows = await asyncio.gather(*tasks)
        finally:
            # after a fault the others' answers would be thrown away
            for task in tasks:
                task.cancel()
        return np.array(rows, dtype=np.float64).reshape(-1, len(LABELS))

    async def _row(self, question: str, first: str, second: str) -> list[float]:
        try:
            choice = await self._llm.choose(entailment.messages(question, first, second), entailment.OPTIONS)
        except ContractFault:
            return [np.nan] * len(LABELS)
        return [choice.probabilities[label] for label in LABELS]


class SimilarityJudge:
    """The similarity of two answers' embeddings in place of entailment, where there is no better judge.

    P(entailment) = 1 / (1 + exp(-slope (cosine - threshold))), the rest is neutral, contradiction is 0: entailment is
    the likeliest label iff the cosine reaches the threshold. An approximation that cannot tell which of two answers
    says more, nor a statement from its denial. The answers are embedded without the question, which would make all
    pairs look alike.
    """

    def __init__(self, name: str, encoder: Encoder, threshold: float = THRESHOLD, slope: float = SLOPE) -> None:
        """threshold: a cosine; slope: how fast probability grows around it, per unit of cosine."""
        self._name = name
        self._encoder = encoder
        self._threshold = threshold
        self._slope = slope

    @property
    def name(self) -> str:
        """See `Judge.name`."""
        return self._name

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`."""
        if not pairs:
            return np.zeros((0, len(LABELS)))
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        place = {text: i for i, text in enumerate(texts)}
        vectors = (await self._encoder.embed(texts)).astype(np.float64)
        firsts, seconds = ([place[pair[side]] for pair in pairs] for side in (0, 1))
        cosines = np.einsum("nd,nd->n", vectors[firsts], vectors[seconds])
        entailed = 1 / (1 + np.exp(-self._slope * (cosines - self._threshold)))
        return np.stack([entailed, 1 - entailed, np.zeros_like(entailed)], axis=1)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
