"""What came out of each question under each system, in one SQLite file, written before the next question begins."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import UserFault

VERSION = 1
"""Of the file's form."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS outcomes (
    system TEXT NOT NULL, question TEXT NOT NULL, output TEXT, error TEXT, seconds REAL NOT NULL,
    remembered INTEGER NOT NULL, remembered_seconds REAL NOT NULL, trace BLOB, PRIMARY KEY (system, question)
);
CREATE TABLE IF NOT EXISTS measurements (
    system TEXT NOT NULL, question TEXT NOT NULL, metric TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (system, question, metric)
);
PRAGMA user_version = {VERSION};
COMMIT;
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A question's outcome under a system.

    output: the graph's, None if it failed; error: {"type", "message", "unavailable"} if it failed, unavailable where it
    was for want of a model, and what its model calls took until then as "spent": {"calls", "prompt_tokens",
    "completion_tokens"}, where that is known; seconds: how long it took; remembered: how many of its model calls were
    answered from memory, which once took remembered_seconds; trace: the lines of its trace, empty where none was kept.
    """

    system: str
    question: str
    output: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    seconds: float
    remembered: int = 0
    remembered_seconds: float = 0.0
    trace: bytes = b""

    @property
    def error_message(self) -> str:
        """Why it failed, in a sentence; empty if it did not."""
        return "" if self.error is None else str(self.error["message"])


class Store:
    """The outcomes of a run. All of it blocks: call it in a thread. Several threads may."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Open the file to read; new: to write, and made where it is missing.

        Raises `UserFault` for one that is missing, or another's.
        """
        self._path = path
        self._lock = threading.Lock()
        if not new and not path.is_file():
            raise UserFault(f"There are no results in '{path.parent}': give the folder of a run of dubito eval.")
        try:
            self._database = sqlite3.connect(path, timeout=30, check_same_thread=False) if new else _to_read(path)
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version != VERSION and (version or not new):
                self._database.close()
                raise UserFault(
                    f"'{path}' is in form {version}, and this dubito reads form {VERSION}: use the version of dubito "
                    "that run.json names, or give another folder."
                )
            if new:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.executescript(_TABLES)
        except sqlite3.Error as fault:
            raise _unusable(path, fault) from fault

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, in a transaction of its own; raises `UserFault` where it cannot be written."""
        row = (
            outcome.system,
            outcome.question,
            None if outcome.output is None else json.dumps(outcome.output),
            None if outcome.error is None else json.dumps(outcome.error),
            outcome.seconds,
            outcome.remembered,
            outcome.remembered_seconds,
            zlib.compress(outcome.trace) if outcome.trace else None,
        )
        self._write("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [row])

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Take outcomes away, so that their questions are asked again. keys: system and question."""
        self._write("DELETE FROM outcomes WHERE system = ? AND question = ?", list(keys))

    def measured(self, system: str, question: str, metric: str, value: Mapping[str, Any]) -> None:
        """Keep what a metric found, which is JSON."""
        row = (system, question, metric, json.dumps(value))
        self._write("INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?)", [row])

    def outcomes(self) -> Iterator[Outcome]:
        """All that were kept, without their traces, in the order of system and question."""
        columns = "system, question, output, error, seconds, remembered, remembered_seconds"
        for row in self._read(f"SELECT {columns} FROM outcomes ORDER BY system, question"):  # noqa: S608
            system, question, output, error, seconds, remembered, before = row
            yield Outcome(
                system=system,
                question=question,
                output=None if output is None else json.loads(output),
                error=None if error is None else json.loads(error),
                seconds=seconds,
                remembered=remembered,
                remembered_seconds=before,
            )

    def ended(self) -> dict[tuple[str, str], bool]:
        """For each system and question that has an outcome, whether it was answered."""
        rows = self._read("SELECT system, question, output IS NOT NULL FROM outcomes")
        return {(system, question): bool(answered) for system, question, answered in rows}

    def trace(self, system: str, question: str) -> bytes | None:
        """The lines of a question's trace; None where there is none."""
        rows = self._read("SELECT trace FROM outcomes WHERE system = ? AND question = ?", (system, question))
        return zlib.decompress(rows[0][0]) if rows and rows[0][0] is not None else None

    def measurements(self, metric: str) -> dict[tuple[str, str], dict[str, Any]]:
        """What a metric found, by system and question."""
        rows = self._read("SELECT system, question, value FROM measurements WHERE metric = ?", (metric,))
        return {(system, question): json.loads(value) for system, question, value in rows}

    def _read(self, query: str, values: tuple[str, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._database.execute(query, values).fetchall()
        except sqlite3.Error as fault:
            raise _unusable(self._path, fault) from fault

    def _write(self, command: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            with self._lock, self._database:
                self._database.executemany(command, rows)
        except sqlite3.Error as fault:
            raise _unusable(self._path, fault) from fault


def _unusable(path: Path, fault: sqlite3.Error) -> UserFault:
    if getattr(fault, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return UserFault(
            f"The disk is full: '{path}' keeps what was finished. Make room and go on with dubito eval --resume."
        )
    return UserFault(f"'{path}' cannot be used ({fault}): is it on a disk that can be written, and whole?")


def _to_read(path: Path) -> sqlite3.Connection:
    """A connection that leaves the file as it is; in a folder that cannot be written nobody else writes either."""
    for how in ("mode=ro", "immutable=1"):
        database = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=30, check_same_thread=False)
        try:
            database.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            database.close()
            continue
        return database
    return sqlite3.connect(path)
