"""Embeddings that were computed once, kept on disk and shared by every process of the machine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from .interfaces import Encoder, Vectors

T = TypeVar("T")

logger = logging.getLogger(__name__)

SLICE = 1024
"""Missing texts that are embedded before their vectors are written, so that an interrupted run keeps what it has."""

LOOKUP = 500
"""Keys in one SELECT."""

BUSY_S = 30.0
"""How long to wait for another process that is writing."""

PAGE = 16384
"""Bytes in a page of the file: a vector takes 1.5 KB and more, and must not spill over."""

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS encoders (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (
    encoder INTEGER NOT NULL, query INTEGER NOT NULL, text BLOB NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (encoder, query, text)
);
"""
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class CachedEncoder:
    """An encoder with a cache on disk: a text is embedded once for each side, by whichever process needs it first.

    A cache that cannot be used is done without, with one warning.
    """

    def __init__(self, encoder: Encoder, path: Path) -> None:
        """path: the cache file; it is made when first needed and may be shared by several encoders."""
        self._encoder = encoder
        self._path = path
        self._readable = self._writable = True
        self._warned = False
        self._database = _Database(path)

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
        return self._use(read, otherwise=nothing) if self._readable else nothing

    def _write(self, blobs: dict[bytes, bytes], query: bool, dimension: int) -> None:
        def write(database: sqlite3.Connection) -> None:
            with database:
                (encoder,) = database.execute(
                    "INSERT INTO encoders (name, dimension) VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET dimension = excluded.dimension RETURNING id",
                    (self.name, dimension),
                ).fetchone()
                database.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                    [(encoder, query, key, blob) for key, blob in blobs.items()],
                )

        if self._readable and self._writable:
            self._use(write, otherwise=None, writing=True)

    def _forget(self) -> None:
        def forget(database: sqlite3.Connection) -> None:
            with database:
                database.execute(
                    "DELETE FROM vectors WHERE encoder = (SELECT id FROM encoders WHERE name = ?)", (self.name,)
                )
                database.execute("DELETE FROM encoders WHERE name = ?", (self.name,))

        self._warn("holds vectors of another length under the same encoder name; they are computed anew")
        self._use(forget, otherwise=None, writing=True)
        # should that have failed, the old vectors must not come back
        self._readable = self._readable and self._writable

    def _use(self, work: Callable[[sqlite3.Connection], T], otherwise: T, *, writing: bool = False) -> T:
        try:
            return self._database.use(work)
        except (sqlite3.Error, OSError) as error:
            if _kind(error) not in _PASSING:
                # a full or read-only disk can still be read from
                self._writable = False
                self._readable = self._readable and writing
            self._warn(f"cannot be {'written' if writing else 'used'} ({error}); going on without it")
            return otherwise

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("The embedding cache %s %s.", self._path, what)


class _Database:
    """The cache file, opened when first used, by one thread at a time; a corrupt one is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forked()

    def use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the open file, and once more on a new one if it turns out to be corrupt."""
        if self._process != os.getpid():
            self._forked()
        with self._lock:
            try:
                return work(self._opened())
            except sqlite3.DatabaseError as error:
                if _kind(error) not in _CORRUPT:
                    raise
                self._move_aside(error)
                return work(self._opened())

    def _forked(self) -> None:
        # SQLite's connections must not be used, nor even closed, in a forked child
        self._process, self._lock = os.getpid(), threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
            try:
                self._inode = _inode(self._path)
                _prepare_in_turn(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            weakref.finalize(self, _close, connection, os.getpid())
        return self._connection

    def _move_aside(self, error: Exception) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if _inode(self._path) != self._inode:
            return  # another process has done it and begun a new one
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        aside = self._path.with_name(f"{self._path.name}.corrupt-{stamp}")
        self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        logger.warning(
            "The embedding cache %s is corrupt (%s); it is now %s, and a new one is begun.",
            self._path,
            error,
            aside.name,
        )


def _prepare_in_turn(connection: sqlite3.Connection) -> None:
    # switching to WAL does not wait for another process that is making the same new file, whatever the timeout
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return _prepare(connection)
        except sqlite3.OperationalError as error:
            if _kind(error) not in _PASSING or time.monotonic() > until:
                raise
            connection.rollback()
            time.sleep(0.02)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        raise sqlite3.OperationalError(f"it is of version {version}, not {_VERSION}")


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()


def _kind(error: Exception) -> int | None:
    """SQLite's primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _keys(texts: Sequence[str]) -> list[bytes]:
    # lone surrogates have no UTF-8 but may be in a text that was read from a file
    return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]


def _assemble(keys: list[bytes], known: dict[bytes, bytes]) -> Vectors:
    flat = np.frombuffer(b"".join(known[key] for key in keys), dtype="<f4")
    return flat.reshape(len(keys), -1).astype(np.float32)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
