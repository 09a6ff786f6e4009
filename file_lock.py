"""A lock that one process holds at a time, and that ends with its process."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from .errors import UserFault


@contextmanager
def exclusive_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing; `UserFault` if another process holds it.

    busy: the sentence about that process.
    """
    # SQLite releases its lock when the process ends, in whatever way, on every operating system
    try:
        lock = sqlite3.connect(path, timeout=0, isolation_level=None)
    except sqlite3.Error as fault:
        raise _unusable(path, fault) from fault
    with closing(lock):
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as fault:
            if getattr(fault, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise UserFault(busy) from fault
            raise _unusable(path, fault) from fault
        yield


def _unusable(path: Path, fault: sqlite3.Error) -> UserFault:
    return UserFault(
        f"'{path}' cannot be used ({fault}): remove it, for it holds no results, and check that its folder can be "
        "written."
    )
