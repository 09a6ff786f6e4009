"""Embeddings kept on disk, shared by every process of the machine."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .disk_cache import DiskCache
from .interfaces import Encoder, Vectors, weights_of

BATCH = 1024
"""New texts embedded before their vectors are written: an interrupted run keeps them."""


LENGTH = b"length"
"""The key of the length of an encoder's vectors, in bytes."""


class CachedEncoder:
    """An encoder with a cache on disk: each text is embedded once per side, by the first process that needs it.

    Without a usable cache it embeds every text; see `DiskCache`.
    """

    def __init__(self, encoder: Encoder, path: Path) -> None:
        """path: the cache file, made when first needed; several encoders may share it."""
        self._encoder = encoder
        self.name, self.weights = encoder.name, weights_of(encoder)
        self._owner = _digest(encoder.name + self.weights)
        self._path = path
        self._cache = DiskCache(path, "embedding cache")

    async def dimension(self) -> int:
        """See `Encoder.dimension`; of the cached vectors, so that weights load only for a text that is new."""
        length = await asyncio.to_thread(self._cached_length)
        return int(length) // 4 if length else await self._encoder.dimension()  # in bytes of float32

    async def max_tokens(self) -> int | None:
        """See `Encoder.max_tokens`."""
        return await self._encoder.max_tokens()

    async def token_counter(self) -> Callable[[str], int] | None:
        """See `Encoder.token_counter`."""
        return await self._encoder.token_counter()

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`; only texts that the cache lacks are embedded."""
        if not texts:
            return await self._encoder.embed(texts, query=query)
        side = b"query" if query else b"passage"
        keys = await asyncio.to_thread(lambda: [side + _digest(text) for text in texts])
        vectors = await asyncio.to_thread(self._read, keys)
        await self._embed_missing(vectors, dict(zip(keys, texts, strict=True)), query)
        return await asyncio.to_thread(_stacked, [vectors[key] for key in keys])

    def _cached_length(self) -> bytes | None:
        return self._cache.read(self._owner, [LENGTH]).get(LENGTH) if self._path.exists() else None

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The cached vectors and their length; vectors of another length or that are not finite are left out."""
        entries = self._cache.read(self._owner, [LENGTH, *dict.fromkeys(keys)])
        length = entries.get(LENGTH)
        return {
            key: value
            for key, value in entries.items()
            if key == LENGTH or (b"%d" % len(value) == length and np.isfinite(np.frombuffer(value, "<f4")).all())
        }

    async def _embed_missing(self, vectors: dict[bytes, bytes], texts: dict[bytes, str], query: bool) -> None:
        """Add the vectors of all other texts to `vectors` and to the cache."""
        missing = [key for key in texts if key not in vectors]
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            rows = (await self._encoder.embed([texts[key] for key in batch], query=query)).astype("<f4", copy=False)
            new = {key: row.tobytes() for key, row in zip(batch, rows, strict=True)}
            new[LENGTH] = b"%d" % len(new[batch[0]])
            if vectors.get(LENGTH, new[LENGTH]) != new[LENGTH]:
                # another model has the name now: the cached vectors are the old model's
                why = "holds vectors of another length under the same encoder name; they are computed again"
                await asyncio.to_thread(self._cache.forget, self._owner, why)
                vectors.clear()
                return await self._embed_missing(vectors, texts, query)
            await asyncio.to_thread(self._cache.write, self._owner, new)
            vectors |= new
        return None


def _digest(text: str) -> bytes:
    # a text that was read from a file may hold lone surrogates, which have no UTF-8
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _stacked(vectors: Sequence[bytes]) -> Vectors:
    return np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1).astype(np.float32)
