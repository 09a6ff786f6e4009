"""Text encoders: sentence-transformers on this machine, an OpenAI-compatible server, any LangChain embeddings."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from langchain_core.embeddings import Embeddings
from pydantic import SecretStr

from ..errors import ModelFault, UserFault
from ..settings import settings
from .background import await_in_background
from .interfaces import Vectors
from .provider_faults import provider_fault

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

T = TypeVar("T")

PROBE = "dimension"
"""What is embedded to learn how long an encoder's vectors are."""

SLICE = 256
"""Texts embedded without a pause: a question need not wait for a whole corpus, and giving up takes effect."""

UNLIMITED = 1_000_000
"""Tokenizers that know no limit give a number above this."""

SERVER_BATCH = 32
"""Texts in one request: the smallest default limit among the servers that speak OpenAI's protocol."""

SERVER_REQUESTS = 8
"""Requests of one `embed` call that are under way at once."""


class SentenceTransformersEncoder:
    """A sentence-transformers model on this machine, loaded at the first call."""

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self._name = name
        self._source = source
        self._model: SentenceTransformer | None = None
        # the model's one thread: torch uses every core for one batch, and loading happens once
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dubito-encoder")

    @property
    def name(self) -> str:
        """See `Encoder.name`."""
        return self._name

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        return len((await self._embed([PROBE], query=False))[0])

    async def max_tokens(self) -> int | None:
        """See `Encoder.max_tokens`."""
        limit = await self._run(lambda model: model.max_seq_length)
        return None if limit is None or limit > UNLIMITED else int(limit)

    async def token_counter(self) -> Callable[[str], int] | None:
        """See `Encoder.token_counter`."""
        # a copy, as a tokenizer in use by the model's thread refuses another
        tokenizer: Any = await self._run(lambda model: copy.deepcopy(model.tokenizer))
        return lambda text: len(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`; prompts of asymmetric encoders apply by side."""
        if not texts:
            return np.zeros((0, await self.dimension()), dtype=np.float32)
        slices = [list(texts[start : start + SLICE]) for start in range(0, len(texts), SLICE)]
        return np.concatenate([await self._embed(some, query=query) for some in slices])

    async def _embed(self, texts: list[str], *, query: bool) -> Vectors:
        return await self._run(lambda model: self._encode(model, texts, query=query))

    def _encode(self, model: SentenceTransformer, texts: list[str], *, query: bool) -> Vectors:
        encode = model.encode_query if query else model.encode_document
        return unit_rows(encode(texts, show_progress_bar=False, convert_to_numpy=True), len(texts), self._name)

    async def _run(self, work: Callable[[SentenceTransformer], T]) -> T:
        def on_worker() -> T:
            if self._model is None:
                self._model = _load(self._source)
            return work(self._model)

        return await asyncio.get_running_loop().run_in_executor(self._worker, on_worker)


class LangChainEncoder:
    """Any LangChain embeddings as an encoder; its errors become ours."""

    def __init__(self, embeddings: Embeddings, name: str | None = None) -> None:
        """name: what it is called in index manifests and messages; by default its class and model."""
        self._embeddings = embeddings
        self._name = name or _default_name(embeddings)
        self._dimension: int | None = None

    @property
    def name(self) -> str:
        """See `Encoder.name`."""
        return self._name

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        if self._dimension is None:
            await self.embed([PROBE])
        assert self._dimension is not None  # noqa: S101 - for the type checker; `embed` sets it
        return self._dimension

    async def max_tokens(self) -> int | None:
        """LangChain embeddings do not tell."""
        return None

    async def token_counter(self) -> Callable[[str], int] | None:
        """LangChain embeddings have no tokenizer to lend."""
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`."""
        if not texts:
            return np.zeros((0, await self.dimension()), dtype=np.float32)
        try:
            if query:
                rows = [await self._embeddings.aembed_query(text) for text in texts]
            else:
                rows = await self._embeddings.aembed_documents(list(texts))
        except Exception as error:
            raise provider_fault(self._name, error) from error
        vectors = unit_rows(rows, len(texts), self._name)
        if self._dimension is None:
            self._dimension = vectors.shape[1]
        elif vectors.shape[1] != self._dimension:
            raise UserFault(
                f"The encoder {self._name} gave vectors of length {vectors.shape[1]} after vectors of length "
                f"{self._dimension}."
            )
        return vectors


def openai_encoder(name: str, base_url: str, model: str) -> LangChainEncoder:
    """The encoder behind an OpenAI-compatible `/embeddings` endpoint.

    The key is the settings' one, else OPENAI_API_KEY; there is no retry here, the graph's nodes retry.
    """
    from langchain_openai import OpenAIEmbeddings  # noqa: PLC0415 - slow to import

    if not base_url.startswith(("http://", "https://")) or not model:
        raise UserFault(f"'{name}' names no server and model: write it as openai:https://host/v1#model.")
    key = settings().api_key
    embeddings = OpenAIEmbeddings(
        model=model,
        openai_api_base=base_url,
        openai_api_key=SecretStr((key.get_secret_value() if key else os.environ.get("OPENAI_API_KEY")) or "none"),
        request_timeout=settings().timeout_s,
        max_retries=0,
        # send texts, not the token ids of OpenAI's own tokenizer
        check_embedding_ctx_length=False,
        chunk_size=SERVER_BATCH,
        # plain numbers are what every such server can send
        model_kwargs={"encoding_format": "float"},
        openai_api_type=None,
    )
    return LangChainEncoder(_OnOneLoop(embeddings, name), name)


class _OnOneLoop(Embeddings):
    """Embeddings whose connections belong to an event loop, used from any: they all run on the background loop."""

    def __init__(self, embeddings: Embeddings, endpoint: str) -> None:
        self._embeddings = embeddings
        self._endpoint = endpoint

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._embeddings.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._embeddings.embed_query(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return await await_in_background(self._in_batches(texts))

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.aembed_documents([text]))[0]

    async def _in_batches(self, texts: list[str]) -> list[list[float]]:
        gate = asyncio.Semaphore(SERVER_REQUESTS)

        async def request(batch: list[str]) -> list[list[float]]:
            async with gate:
                try:
                    return await self._embeddings.aembed_documents(batch)
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    # no check stands between the server's reply and the code that reads it
                    reason = f"the reply is malformed ({type(error).__name__}: {error})"
                    raise ModelFault(self._endpoint, reason) from error

        requests = [
            asyncio.create_task(request(texts[start : start + SERVER_BATCH]))
            for start in range(0, len(texts), SERVER_BATCH)
        ]
        try:
            return [row for rows in await asyncio.gather(*requests) for row in rows]
        finally:
            # after a fault the others' answers would be thrown away
            for task in requests:
                task.cancel()


def unit_rows(rows: Any, count: int, name: str) -> Vectors:  # noqa: ANN401 - whatever an encoder returned
    """Check that an encoder gave `count` vectors of one length, all finite, and scale them to length 1 as float32.

    A vector of length 0 stays as it is.
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
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds of import, an extra
    except ImportError as error:
        raise UserFault(f"The encoder '{source}' needs a package: pip install \"dubito[local]\".") from error
    return load_weights(SentenceTransformer, source, "encoder", "local sentence-transformers folder works too: st:")


def load_weights(load: Callable[..., T], source: str, what: str, instead: str) -> T:
    """Load what is in a local folder, or on the Hugging Face hub, without a word on the terminal.

    load: takes the folder or name, and `local_files_only`; what, instead: for the `UserFault` of what cannot be loaded,
    the kind of model and the local folder that would do, with the beginning of its name.
    """
    check_folder(source, what)
    folder = Path(source).expanduser()
    try:
        with _quietly():
            if folder.is_dir():
                return load(str(folder), local_files_only=True)
            return _load_from_hub(load, source)
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserFault(f"The {what} '{source}' cannot be loaded ({reason}); a {instead}/path/to/folder.") from error


def check_folder(source: str, what: str) -> None:
    """`UserFault` for what can only be a folder, not a hub name, and is none; what: the kind of model."""
    if not Path(source).expanduser().is_dir() and (source.startswith(("/", "~", ".")) or source.count("/") > 1):
        raise UserFault(f"There is no {what} folder '{source}'.")


def _load_from_hub(load: Callable[..., T], source: str) -> T:
    try:
        return load(source, local_files_only=True)
    except Exception:
        from huggingface_hub import constants, get_session  # noqa: PLC0415

        if constants.HF_HUB_OFFLINE:
            raise
        # asked once: the library would try a hub that is out of reach for a minute
        get_session().head(constants.ENDPOINT, timeout=10)
        return load(source)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the libraries' progress bars and remarks about weights off the terminal while a model loads."""
    from huggingface_hub import utils  # noqa: PLC0415
    from transformers.utils import logging as messages  # noqa: PLC0415

    hub, transformers = cast("Any", utils), cast("Any", messages)
    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars, downloads = transformers.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    transformers.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers.enable_progress_bar()
        if downloads:
            hub.enable_progress_bars()
