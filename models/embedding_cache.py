"""Embeddings that were computed once, kept on disk and shared by every process of the machine."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .disk_cache import DiskCache, Layout
from .interfaces import Encoder, Vectors

SLICE = 1024
"""Missing texts that are embedded before their vectors are written, so that an interrupted run keeps what it has."""

LOOKUP = 500
"""Keys in one SELECT."""

PAGE = 16384
"""Bytes in a page of the file: a vector takes 1.5 KB and more, and must not spill over."""

_LAYOUT = Layout(
    what="embedding cache",
    tables="""
CREATE TABLE IF NOT EXISTS encoders (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (
    encoder INTEGER NOT NULL, query INTEGER NOT NULL, text BLOB NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (encoder, query, text)
);
""",
    version=1,
    page=PAGE,
)


class CachedEncoder:
    """An encoder with a cache on disk: a text is embedded once for each side, by whichever process needs it first.

    A cache that cannot be used is done without, with one warning.
    """

    def __init__(self, encoder: Encoder, path: Path) -> None:
        """path: the cache file; it is made when first needed and may be shared by several encoders."""
        self._encoder = encoder
        self._cache = DiskCache(path, _LAYOUT)

    @property
    def name(self) -> str:
        """See `Encoder.name`."""
        return self._encoder.name

    async def dimension(self) -> int:
        """See `Encoder.dimension`."""
        return await self._encoder.dimension()

    async def max_tokens(self) -> int | None:
        """See `Encoder.max_tokens`."""
        return await self._encoder.max_tokens()

    async def token_counter(self) -> Callable[[str], int] | None:
        """See `Encoder.token_counter`."""
        return await self._encoder.token_counter()

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """See `Encoder.embed`; only texts that are not in the cache are embedded."""
        if not texts:
            return await self._encoder.embed(texts, query=query)
        keys = await asyncio.to_thread(_keys, texts)
        known, dimension = await asyncio.to_thread(self._read, list(dict.fromkeys(keys)), query)
        await self._fill(known, dimension, dict(zip(keys, texts, strict=True)), query)
        return await asyncio.to_thread(_assemble, keys, known)

    async def _fill(
        self, known: dict[bytes, bytes], dimension: int | None, texts: dict[bytes, str], query: bool
    ) -> None:
        """Embed what is not known, write it, and add it to `known`; dimension: the length of the cached vectors."""
        missing = [key for key in texts if key not in known]
        for start in range(0, len(missing), SLICE):
            some = missing[start : start + SLICE]
            fresh = await self._encoder.embed([texts[key] for key in some], query=query)
            if known and fresh.shape[1] != dimension:
                # another model under the same name: what the cache holds is the old one's
                await asyncio.to_thread(self._forget)
                known.clear()
                return await self._fill(known, None, texts, query)
            dimension = fresh.shape[1]
            blobs = {key: row.tobytes() for key, row in zip(some, fresh.astype("<f4", copy=False), strict=True)}
            await asyncio.to_thread(self._write, blobs, query, dimension)
            known |= blobs
        return None

    def _read(self, keys: list[bytes], query: bool) -> tuple[dict[bytes, bytes], int | None]:
        """The cached vectors of these keys, and the length of this encoder's vectors where it is known."""

        def read(database: sqlite3.Connection) -> tuple[dict[bytes, bytes], int | None]:
            row = database.execute("SELECT id, dimension FROM encoders WHERE name = ?", (self.name,)).fetchone()
            if row is None:
                return {}, None
            encoder, dimension = row
            found: dict[bytes, bytes] = {}
            for start in range(0, len(keys), LOOKUP):
                some = keys[start : start + LOOKUP]
                marks = ",".join("?" * len(some))
                found.update(
                    database.execute(
                        f"SELECT text, vector FROM vectors WHERE encoder = ? AND query = ? AND text IN ({marks})",  # noqa: S608 - only question marks
                        (encoder, query, *some),
                    )
                )
            return {k: v for k, v in found.items() if isinstance(v, bytes) and len(v) == 4 * dimension}, dimension

        nothing: tuple[dict[bytes, bytes], int | None] = ({}, None)
        return self._cache.read(read, otherwise=nothing)

    def _write(self, blobs: dict[bytes, bytes], query: bool, dimension: int) -> None:
        def write(database: sqlite3.Connection) -> None:
            (encoder,) = database.execute(
                "INSERT INTO encoders (name, dimension) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET dimension = excluded.dimension RETURNING id",
                (self.name, dimension),
            ).fetchone()
            database.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                [(encoder, query, key, blob) for key, blob in blobs.items()],
            )

        self._cache.write(write)

    def _forget(self) -> None:
        def forget(database: sqlite3.Connection) -> None:
            database.execute(
                "DELETE FROM vectors WHERE encoder = (SELECT id FROM encoders WHERE name = ?)", (self.name,)
            )
            database.execute("DELETE FROM encoders WHERE name = ?", (self.name,))

        self._cache.forget(
            forget, "holds vectors of another length under the same encoder name; they are computed anew"
        )


def _keys(texts: Sequence[str]) -> list[bytes]:
    # lone surrogates have no UTF-8 but may be in a text that was read from a file
    return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]


def _assemble(keys: list[bytes], known: dict[bytes, bytes]) -> Vectors:
    flat = np.frombuffer(b"".join(known[key] for key in keys), dtype="<f4")
    return flat.reshape(len(keys), -1).astype(np.float32)
