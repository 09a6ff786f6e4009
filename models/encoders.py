"""Text encoders: sentence-transformers on this machine, an OpenAI-compatible server, any LangChain embeddings."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..concurrency import map_or_cancel
from ..errors import ModelFault, UserFault
from .interfaces import Vectors
from .local_weights import UNLIMITED, OneThread, fingerprint, load_weights, local_extra
from .provider_faults import langchain_name, provider_fault
from .replicas import open_servers

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from sentence_transformers import SentenceTransformer

PROBE = "dimension"
"""Embedded to learn the length of an encoder's vectors."""

BATCH = 256
"""Texts embedded in one go; in between, other questions get a turn and cancellation takes effect."""

SERVER_BATCH = 32
"""Texts in one request: the smallest default limit among OpenAI-compatible servers."""

SERVER_REQUESTS = 8
"""Concurrent requests of one `embed` call."""


class _CheckedEncoder(ABC):
    """An encoder over a source whose vectors it checks and scales to length 1."""

    name: str
    _dimension: int | None = None

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        return self._dimension or (await self.embed([PROBE])).shape[1]

    async def max_tokens(self) -> int | None:
        """None: the source does not say."""
        return None

    async def token_counter(self) -> Callable[[str], int] | None:
        """None: the source has no tokenizer."""
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`."""
        if not texts:
            return np.zeros((0, await self.dimension()), dtype=np.float32)
        rows = await self._rows(list(texts), query=query)
        vectors = await asyncio.to_thread(unit_rows, rows, len(texts), self.name)
        if vectors.shape[1] != self._dimension:
            await self._agree_on(vectors.shape[1])
        return vectors

    async def _agree_on(self, length: int) -> None:
        """Note the length of the vectors; `UserFault` if it changed."""
        if self._dimension not in {None, length}:
            raise UserFault(
                f"The encoder {self.name} gave vectors of length {length} after vectors of length {self._dimension}."
            )
        self._dimension = length

    @abstractmethod
    async def _rows(self, texts: list[str], *, query: bool) -> Any: ...  # noqa: ANN401 - see `unit_rows`


class SentenceTransformersEncoder(_CheckedEncoder):
    """A sentence-transformers model on this machine, loaded at the first call."""

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub. A folder is looked at: in a thread."""
        self.name, self.weights = name, fingerprint(source)
        self._model = OneThread(partial(_load, source), "dubito-encoder")

    async def max_tokens(self) -> int | None:
        """See `Encoder.max_tokens`."""
        limit = await self._model.run(lambda model: model.max_seq_length)
        return None if limit is None or limit > UNLIMITED else int(limit)

    async def token_counter(self) -> Callable[[str], int] | None:
        """See `Encoder.token_counter`."""
        # a copy, because a tokenizer cannot be used by two threads at once
        tokenizer: Any = await self._model.run(lambda model: copy.deepcopy(model.tokenizer))
        return lambda text: len(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    async def _rows(self, texts: list[str], *, query: bool) -> Vectors:
        def encode(batch: list[str], model: SentenceTransformer) -> Any:  # noqa: ANN401 - an array or a tensor
            # these apply an asymmetric encoder's prompts
            of_side = model.encode_query if query else model.encode_document
            return of_side(batch, show_progress_bar=False, convert_to_numpy=True)

        batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
        return np.concatenate([await self._model.run(partial(encode, batch)) for batch in batches])


class LangChainEncoder(_CheckedEncoder):
    """Any LangChain embeddings as an encoder; their errors become dubito's."""

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        """name: in index manifests and messages; by default the class and the model."""
        self._embeddings = embeddings
        self.name = name or langchain_name(embeddings)

    async def _rows(self, texts: list[str], *, query: bool) -> list[list[float]]:
        try:
            if query:
                return [await self._embeddings.aembed_query(text) for text in texts]
            return await self._embeddings.aembed_documents(texts)
        except Exception as error:
            raise provider_fault(self.name, error) from error


class ServerEncoder(_CheckedEncoder):
    """The encoder behind an OpenAI-compatible `/embeddings` endpoint."""

    def __init__(self, name: str, base_url: str, model: str) -> None:
        """base_url: as in `https://host/v1`, several of them between commas.

        Raises `UserFault` for another form, and without a model.
        """
        if not model:
            raise UserFault(f"'{name}' does not name a server and a model: write it as openai:https://host/v1#model.")
        self.name = name
        self._server = open_servers(base_url)
        self._model = model

    async def _agree_on(self, length: int) -> None:
        """Ask the server once more: a single reply may be wrong. `ModelFault` if it gives another length now."""
        said = len((await self._rows([PROBE], query=False))[0])
        if said != length:
            raise ModelFault(self.name, f"it gave vectors of length {length} and of length {said}")
        await super()._agree_on(length)

    async def _rows(self, texts: list[str], *, query: bool) -> list[list[float]]:
        async def request(batch: list[str]) -> list[list[float]]:
            # every compatible server can send plain numbers
            body = {"model": self._model, "input": batch, "encoding_format": "float"}
            return await self._server.request("/embeddings", body, partial(_embeddings, count=len(batch)))

        batches = (texts[start : start + SERVER_BATCH] for start in range(0, len(texts), SERVER_BATCH))
        return [row for rows in await map_or_cancel(request, batches, SERVER_REQUESTS) for row in rows]


def _embeddings(reply: Mapping[str, Any], count: int) -> list[list[float]]:
    """The vectors in a reply, in order; ValueError unless they are `count` equally long ones of finite numbers."""
    rows = [row["embedding"] for row in sorted(reply["data"], key=lambda row: row.get("index") or 0)]
    vectors = np.asarray(rows, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != count or vectors.size == 0 or not np.isfinite(vectors).all():
        raise ValueError(f"it has no {count} equally long vectors of finite numbers")
    return rows


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


def _load(source: str) -> SentenceTransformer:
    with local_extra("encoder", source):
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds of import, an extra
    return load_weights(SentenceTransformer, source, "encoder", "local sentence-transformers folder works too: st:")
