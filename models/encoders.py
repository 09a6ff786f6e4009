"""Text encoders: sentence-transformers on this machine, an OpenAI-compatible server, any LangChain embeddings."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.embeddings import Embeddings
from pydantic import SecretStr

from ..concurrency import gather_or_cancel
from ..errors import ModelFault, UserFault
from ..settings import settings
from .background import await_in_background
from .interfaces import Vectors
from .local_weights import UNLIMITED, OneThread, load_weights, local_extra
from .provider_faults import api_key, provider_fault

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROBE = "dimension"
"""Embedded to learn the length of an encoder's vectors."""

BATCH = 256
"""Texts embedded in one go; in between, other questions get a turn and cancellation takes effect."""

SERVER_BATCH = 32
"""Texts in one request: the smallest default limit among OpenAI-compatible servers."""

SERVER_REQUESTS = 8
"""Concurrent requests of one `embed` call."""


class SentenceTransformersEncoder:
    """A sentence-transformers model on this machine, loaded at the first call."""

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self.name = name
        self._model = OneThread(partial(_load, source), "dubito-encoder")

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        return len((await self._embed([PROBE], query=False))[0])

    async def max_tokens(self) -> int | None:
        """See `Encoder.max_tokens`."""
        limit = await self._model.run(lambda model: model.max_seq_length)
        return None if limit is None or limit > UNLIMITED else int(limit)

    async def token_counter(self) -> Callable[[str], int] | None:
        """See `Encoder.token_counter`."""
        # a copy, because a tokenizer cannot be used by two threads at once
        tokenizer: Any = await self._model.run(lambda model: copy.deepcopy(model.tokenizer))
        return lambda text: len(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`; an asymmetric encoder's prompts are applied."""
        if not texts:
            return np.zeros((0, await self.dimension()), dtype=np.float32)
        batches = [list(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.concatenate([await self._embed(batch, query=query) for batch in batches])

    async def _embed(self, texts: list[str], *, query: bool) -> Vectors:
        return await self._model.run(lambda model: self._encode(model, texts, query=query))

    def _encode(self, model: SentenceTransformer, texts: list[str], *, query: bool) -> Vectors:
        encode = model.encode_query if query else model.encode_document
        return unit_rows(encode(texts, show_progress_bar=False, convert_to_numpy=True), len(texts), self.name)


class LangChainEncoder:
    """Any LangChain embeddings as an encoder; their errors become dubito's."""

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        """name: in index manifests and messages; by default the class and the model."""
        self._embeddings = embeddings
        self.name = name or _default_name(embeddings)
        self._dimension: int | None = None

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        if self._dimension is None:
            await self.embed([PROBE])
        assert self._dimension is not None  # noqa: S101 - for the type checker; `embed` sets it
        return self._dimension

    async def max_tokens(self) -> int | None:
        """None: LangChain embeddings do not say."""
        return None

    async def token_counter(self) -> Callable[[str], int] | None:
        """None: LangChain embeddings have no tokenizer."""
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`."""
        if not texts:
            return np.zeros((0, await self.dimension()), dtype=np.float32)
        try:
            rows = await self._rows(list(texts), query=query)
        except Exception as error:
            raise provider_fault(self.name, error) from error
        vectors = unit_rows(rows, len(texts), self.name)
        if self._dimension is None:
            self._dimension = vectors.shape[1]
        elif vectors.shape[1] != self._dimension:
            raise UserFault(
                f"The encoder {self.name} gave vectors of length {vectors.shape[1]} after vectors of length "
                f"{self._dimension}."
            )
        return vectors

    async def _rows(self, texts: list[str], *, query: bool) -> list[list[float]]:
        if query:
            return [await self._embeddings.aembed_query(text) for text in texts]
        return await self._embeddings.aembed_documents(texts)


def openai_encoder(name: str, base_url: str, model: str) -> LangChainEncoder:
    """The encoder behind an OpenAI-compatible `/embeddings` endpoint.

    It uses `api_key()`. It does not retry: the graph's nodes do.
    """
    from langchain_openai import OpenAIEmbeddings  # noqa: PLC0415 - slow to import

    if not base_url.startswith(("http://", "https://")) or not model:
        raise UserFault(f"'{name}' does not name a server and a model: write it as openai:https://host/v1#model.")
    embeddings = OpenAIEmbeddings(
        model=model,
        openai_api_base=base_url,
        openai_api_key=SecretStr(api_key() or "none"),
        request_timeout=settings().timeout_s,
        max_retries=0,
        # sends texts instead of token ids of OpenAI's tokenizer
        check_embedding_ctx_length=False,
        chunk_size=SERVER_BATCH,
        # every compatible server can send plain numbers
        model_kwargs={"encoding_format": "float"},
        openai_api_type=None,
    )
    return _ServerEncoder(embeddings, name)


class _ServerEncoder(LangChainEncoder):
    """Embeddings from a server, on the background loop, because their connections belong to one event loop."""

    async def _rows(self, texts: list[str], *, query: bool) -> list[list[float]]:
        return await await_in_background(self._in_batches(texts))

    async def _in_batches(self, texts: list[str]) -> list[list[float]]:
        gate = asyncio.Semaphore(SERVER_REQUESTS)

        async def request(batch: list[str]) -> list[list[float]]:
            async with gate:
                try:
                    return await self._embeddings.aembed_documents(batch)
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    # the client reads the reply without checking it
                    reason = f"the reply is malformed ({type(error).__name__}: {error})"
                    raise ModelFault(self.name, reason) from error

        batches = (texts[start : start + SERVER_BATCH] for start in range(0, len(texts), SERVER_BATCH))
        return [row for rows in await gather_or_cancel(map(request, batches)) for row in rows]


def unit_rows(rows: Any, count: int, name: str) -> Vectors:  # noqa: ANN401 - any value an encoder returns
    """Check that an encoder gave `count` finite vectors of one dimension, and scale them to length 1 as float32.

    Zero vectors are left unchanged.
    """
    try:
        vectors = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserFault(f"The encoder {name} gave vectors that are not equally long lists of numbers.") from error
    if vectors.ndim != 2 or len(vectors) != count or vectors.shape[1] == 0:
        raise UserFault(
            f"The encoder {name} gave an array of shape {list(vectors.shape)} where {count} vectors were expected."
        )
    if not np.isfinite(vectors).all():
        raise UserFault(f"The encoder {name} gave vectors with numbers that are not finite.")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0).astype(np.float32)
    return unit


def _default_name(embeddings: Embeddings) -> str:
    model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
    kind = f"langchain:{type(embeddings).__name__}"
    return f"{kind}#{model}" if isinstance(model, str) else kind


def _load(source: str) -> SentenceTransformer:
    with local_extra("encoder", source):
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds of import, an extra
    return load_weights(SentenceTransformer, source, "encoder", "local sentence-transformers folder works too: st:")
