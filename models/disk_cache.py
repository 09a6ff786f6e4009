"""A cache of bytes in one SQLite file, shared by every process of the machine."""

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

BUSY_S = 30.0
"""Seconds to wait for another process that is writing."""

PAGE = 16384
"""Bytes in a page of the file: a vector of 1.5 KB and more fits into one."""

VERSION = 2

_TABLE = """
DROP TABLE IF EXISTS encoders; DROP TABLE IF EXISTS vectors;
DROP TABLE IF EXISTS judgements; DROP TABLE IF EXISTS calls;
CREATE TABLE IF NOT EXISTS entries (owner BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
                                    PRIMARY KEY (owner, key));
"""
"""The four dropped tables are those of version 1."""

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class DiskCache:
    """Values by owner and key. The owner identifies the source of the values, such as an encoder.

    The file and its folder are made at the first use. A failing cache never stops the work: a file that cannot be used
    is ignored with one warning, and a corrupt one is renamed and a new one begun. Every method blocks: call it in a
    thread. Any number of threads and forked children may use one `DiskCache`.
    """

    def __init__(self, path: Path, name: str) -> None:
        """name: what warnings call the cache."""
        self._path = path
        self._name = name
        self._readable = self._writable = True
        self._warned = False
        self._reset()

    def read(self, owner: bytes, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that the cache holds."""

        def select(database: sqlite3.Connection) -> dict[bytes, bytes]:
            # a value that another program has written may be of another type
            statement = "SELECT value FROM entries WHERE owner = ? AND key = ? AND typeof(value) = 'blob'"
            rows = ((key, database.execute(statement, (owner, key)).fetchone()) for key in keys)
            return {key: row[0] for key, row in rows if row is not None}

        return self._use(select, {}, writing=False) if self._readable else {}

    def write(self, owner: bytes, values: Mapping[bytes, bytes]) -> None:
        """Add values, or replace those that are there."""
        rows = [(owner, key, value) for key, value in values.items()]
        self._change(lambda database: database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows))

    def forget(self, owner: bytes, why: str) -> None:
        """Delete all values of an owner, with a warning that says why."""
        self.warn(why)
        self._change(lambda database: database.execute("DELETE FROM entries WHERE owner = ?", (owner,)))
        # if the deletion failed, the old values must not be read again
        self._readable = self._readable and self._writable

    def _change(self, work: Callable[[sqlite3.Connection], object]) -> None:
        def in_transaction(database: sqlite3.Connection) -> None:
            with database:
                work(database)

        if self._readable and self._writable:
            self._use(in_transaction, None, writing=True)

    def _use(self, work: Callable[[sqlite3.Connection], T], otherwise: T, *, writing: bool) -> T:
        """Run `work` on the file, again on a new file if it is corrupt; return `otherwise` if it cannot be used."""
        if self._process != os.getpid():
            self._reset()
        try:
            with self._lock:
                try:
                    return work(self._opened())
                except sqlite3.DatabaseError as error:
                    if _code(error) not in _CORRUPT:
                        raise
                    self._move_aside(error)
                    return work(self._opened())
        except (sqlite3.Error, OSError) as error:
            if _code(error) not in _BUSY:
                # a full or read-only disk can still be read from
                self._writable = False
                self._readable = self._readable and writing
            self.warn(f"cannot be {'written' if writing else 'used'} ({error}); going on without it")
            return otherwise

    def _reset(self) -> None:
        # a forked child must neither use nor close its parent's connection
        self._process, self._lock = os.getpid(), threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
            try:
                self._inode = _inode(self._path)
                _prepare_when_free(connection)
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
            return  # another process has moved it and begun a new one
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        aside = self._path.with_name(f"{self._path.name}.corrupt-{stamp}")
        self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        message = "The %s %s is corrupt (%s); it is now %s, and a new one is begun."
        logger.warning(message, self._name, self._path, error, aside.name)

    def warn(self, problem: str) -> None:
        """Log a warning about the file, the first of this cache."""
        if not self._warned:
            self._warned = True
            logger.warning("The %s %s %s.", self._name, self._path, problem)


def _prepare_when_free(connection: sqlite3.Connection) -> None:
    # SQLite's timeout does not cover the switch to WAL while another process makes the same new file
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return _prepare(connection)
        except sqlite3.OperationalError as error:
            if _code(error) not in _BUSY or time.monotonic() > until:
                raise
            connection.rollback()
            time.sleep(0.02)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < VERSION:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLE} PRAGMA user_version = {VERSION}; COMMIT;")
    elif version > VERSION:
        raise sqlite3.OperationalError(f"it has version {version}, not {VERSION}")


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()


def _code(error: Exception) -> int | None:
    """SQLite's primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
