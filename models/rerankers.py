"""Re-rankers: a cross-encoder, the similarity of embeddings, or how likely the chat LLM finds the query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import CapabilityMissing, UserFault
from ..prompts import query_likelihood
from .interfaces import ChatModel, Encoder

RERANKER_NAMES = "embedded, cross:folder-or-hub-name, likelihood"

LOWEST = float(np.finfo(np.float64).tiny)
HIGHEST = float(np.nextafter(1.0, 0.0))
"""The scores nearest to 0 and 1 that are given: those beyond are moved here."""

Relevance = Callable[[str, list[str]], Awaitable[NDArray[np.float64]]]
"""A backend: of a query and n ≥ 1 distinct texts, [n] numbers in [0, 1], or a hair beyond by rounding."""


class Reranker(Protocol):
    """Tells how relevant documents are to a query."""

    @property
    def name(self) -> str:
        """The name it was opened by, such as `cross:/path/to/folder`."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """The relevance of each document to the query, in the caller's order, higher is better.

        texts: each document's title and text. Scores are finite and inside the open interval (0, 1), so that a factor
        below 1 lowers every one of them; scores of different re-rankers are not comparable. Raises `UserFault` where
        the model gives no numbers.
        """
        ...


def open_reranker(name: str, llm: ChatModel, encoder: Encoder) -> Reranker:
    """Open a re-ranker by name; weights are loaded at the first call.

    llm, encoder: what `likelihood` and `embedded` score with. Raises `UserFault` for an unknown name, and
    `CapabilityMissing` for `likelihood` with a chat model that cannot score given replies.
    """
    kind, _, rest = name.partition(":")
    if name == "embedded":
        return BoundedReranker(name, partial(similarity, encoder))
    if kind == "cross" and rest:
        from .cross_encoder import CrossEncoderRelevance  # noqa: PLC0415 - backends load when first needed

        return BoundedReranker(name, CrossEncoderRelevance(name, rest).relevance)
    if name == "likelihood":
        if "score" not in llm.capabilities:
            raise CapabilityMissing(
                f"The re-ranker 'likelihood' needs a chat model that scores given replies, which '{llm.name}' cannot: "
                "use a vllm:, hf:, gguf: or embedded model, or the re-ranker embedded or cross:folder-or-hub-name."
            )
        return BoundedReranker(name, partial(query_likelihoods, llm))
    raise UserFault(f"There is no re-ranker named '{name}': use one of {RERANKER_NAMES}.")


class BoundedReranker:
    """A backend's numbers as a re-ranker's scores: each distinct text is scored once, inside (0, 1)."""

    def __init__(self, name: str, relevance: Relevance) -> None:
        """name: what it is called in messages; relevance: the backend."""
        self._name = name
        self._relevance = relevance

    @property
    def name(self) -> str:
        """See `Reranker.name`."""
        return self._name

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.scores`."""
        if not texts:
            return []
        distinct = list(dict.fromkeys(texts))
        found = await self._relevance(query, distinct)
        if not np.isfinite(found).all():
            raise UserFault(
                f"The re-ranker '{self._name}' gives no numbers for {np.sum(~np.isfinite(found))} of {len(distinct)} "
                f"documents (NaN or infinite): its weights are broken, so choose another one of {RERANKER_NAMES}."
            )
        inside = dict(zip(distinct, np.clip(found, LOWEST, HIGHEST).tolist(), strict=True))
        return [inside[text] for text in texts]


async def similarity(encoder: Encoder, query: str, texts: list[str]) -> NDArray[np.float64]:
    """The cosine of query and text, moved from [-1, 1] to [0, 1]: (1 + cos) / 2."""
    question, documents = await asyncio.gather(encoder.embed([query], query=True), encoder.embed(texts))
    cosines: NDArray[np.float64] = documents.astype(np.float64) @ question[0].astype(np.float64)
    return (1 + cosines) / 2


async def query_likelihoods(llm: ChatModel, query: str, texts: list[str]) -> NDArray[np.float64]:
    """The geometric mean of the query's token probabilities as a reply to each text: exp(mean log-probability).

    All texts at once, since the chat model bounds by itself how many of its calls are under way. Comparable between
    texts for one query only.
    """
    tasks = [asyncio.create_task(llm.score(query_likelihood.messages(text), [query])) for text in texts]
    try:
        scored = await asyncio.gather(*tasks)
    finally:
        # after a fault the others' answers would be thrown away
        for task in tasks:
            task.cancel()
    return np.exp([scores.means[0] for scores in scored])
