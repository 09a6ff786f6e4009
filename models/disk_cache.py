"""A cache in one SQLite file, shared by every process of the machine; whatever befalls it, work goes on without it."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

BUSY_S = 30.0
"""How long to wait for another process that is writing."""

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


@dataclass(frozen=True)
class Layout:
    """What a cache file holds.

    what: its name in warnings; tables: SQL that makes them where they are missing; version: a file of another one is
    left alone; page: bytes in a page of the file, so large that a row does not spill over.
    """

    what: str
    tables: str
    version: int
    page: int


class DiskCache:
    """A cache file, made when first needed, used by one thread at a time; a corrupt one is replaced.

    What cannot be used is done without, with one warning. All of it blocks: call it in a thread.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        """path: the file; its folder is made too."""
        self._path = path
        self._layout = layout
        self._readable = self._writable = True
        self._warned = False
        self._database = _Database(path, layout)

    def read(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """What `work` reads, or `otherwise` if the file cannot be used."""
        return self._use(work, otherwise, writing=False) if self._readable else otherwise

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Have `work` write, in a transaction, if the file can be written."""

        def in_transaction(database: sqlite3.Connection) -> None:
            with database:
                work(database)

        if self._readable and self._writable:
            self._use(in_transaction, None, writing=True)

    def forget(self, work: Callable[[sqlite3.Connection], None], why: str) -> None:
        """Have `work` delete what must not be read again, with a warning that says why."""
        self._warn(why)
        self.write(work)
        # should that have failed, what is old must not come back
        self._readable = self._readable and self._writable

    def _use(self, work: Callable[[sqlite3.Connection], T], otherwise: T, *, writing: bool) -> T:
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
            logger.warning("The %s %s %s.", self._layout.what, self._path, what)


class _Database:
    """The file, opened when first used, by one thread at a time; a corrupt one is replaced."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._layout = layout
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
                _prepare_in_turn(connection, self._layout)
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
            "The %s %s is corrupt (%s); it is now %s, and a new one is begun.",
            self._layout.what,
            self._path,
            error,
            aside.name,
        )


def _prepare_in_turn(connection: sqlite3.Connection, layout: Layout) -> None:
    # switching to WAL does not wait for another process that is making the same new file, whatever the timeout
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return _prepare(connection, layout)
        except sqlite3.OperationalError as error:
            if _kind(error) not in _PASSING or time.monotonic() > until:
                raise
            connection.rollback()
            time.sleep(0.02)


def _prepare(connection: sqlite3.Connection, layout: Layout) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.execute(f"PRAGMA page_size = {layout.page}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {layout.tables} PRAGMA user_version = {layout.version}; COMMIT;")
    elif version != layout.version:
        raise sqlite3.OperationalError(f"it is of version {version}, not {layout.version}")


def _close(connection: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        connection.close()


def _kind(error: Exception) -> int | None:
    """SQLite's primary result code."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
