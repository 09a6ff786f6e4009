"""Re-rankers: a cross-encoder, the similarity of embeddings, or the query's likelihood under the chat LLM."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..concurrency import gather_or_cancel
from ..errors import CapabilityMissing, UserFault
from ..prompts import unparsed
from .interfaces import ChatModel, Encoder, Scores

RERANKER_NAMES = "embedded, cross:folder-or-hub-name, likelihood"

LOWEST = float(np.finfo(np.float64).tiny)
HIGHEST = float(np.nextafter(1.0, 0.0))
"""The smallest and largest score; scores beyond are clipped to them."""

Relevance = Callable[[str, list[str]], Awaitable[NDArray[np.float64]]]
"""A backend: a query and n ≥ 1 different texts to scores [n] in [0, 1], up to rounding."""


class Reranker(Protocol):
    """Scores documents for a query."""

    @property
    def name(self) -> str:
        """The name it was opened by, such as `cross:/path/to/folder`."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """The relevance of each document to the query, in the caller's order; higher is better.

        texts: each document's title and text. Scores are inside the open interval (0, 1), so that a factor below 1
        lowers each of them. Scores of different re-rankers are not comparable. `UserFault` if the model's scores are
        not finite.
        """
        ...


def open_reranker(name: str, llm: ChatModel, encoder: Encoder | None) -> Reranker:
    """Open a re-ranker by name; weights are loaded at the first call.

    llm: for `likelihood`; encoder: for `embedded`. `UserFault` for an unknown name, `CapabilityMissing` for
    `likelihood` with a chat model that cannot score given replies.
    """
    kind, _, rest = name.partition(":")
    if name == "embedded" and encoder is not None:
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
    """A re-ranker over a backend: scores each different text once and clips scores into (0, 1)."""

    def __init__(self, name: str, relevance: Relevance) -> None:
        self.name = name
        self._relevance = relevance

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.scores`."""
        if not texts:
            return []
        distinct = list(dict.fromkeys(texts))
        scores = await self._relevance(query, distinct)
        if not np.isfinite(scores).all():
            raise UserFault(
                f"The re-ranker '{self.name}' gives no numbers for {np.sum(~np.isfinite(scores))} of {len(distinct)} "
                f"documents (NaN or infinite), so its weights are broken: choose another of {RERANKER_NAMES}."
            )
        clipped = dict(zip(distinct, np.clip(scores, LOWEST, HIGHEST).tolist(), strict=True))
        return [clipped[text] for text in texts]


async def similarity(encoder: Encoder, query: str, texts: list[str]) -> NDArray[np.float64]:
    """The cosine of query and text, mapped to [0, 1]: (1 + cos) / 2."""
    question, documents = await gather_or_cancel([encoder.embed([query], query=True), encoder.embed(texts)])
    cosines: NDArray[np.float64] = documents.astype(np.float64) @ question[0].astype(np.float64)
    return (1 + cosines) / 2


async def query_likelihoods(llm: ChatModel, query: str, texts: list[str]) -> NDArray[np.float64]:
    """The geometric mean of the query's token probabilities as a reply to each text: exp(mean log-probability).

    All texts are scored concurrently: the chat model limits its own concurrency. The scores of different queries are
    not comparable.
    """

    async def score(text: str) -> Scores:
        return await llm.score(unparsed.query_likelihood(text), [query])

    scored = await gather_or_cancel(score(text) for text in texts)
    return np.exp([scores.means[0] for scores in scored])
