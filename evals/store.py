"""The outcomes of questions and what was measured of them, in one SQLite file."""

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
"""Version of the file's form."""

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
    """The outcome of a question for a system.

    output: the graph's output, None after a failure;
    error: None after an answer; else {"type", "message", "unavailable"}, unavailable if the model did not answer, and
    "spent": {"calls", "prompt_tokens", "completion_tokens"} of the failed run, if known;
    seconds: duration; remembered: model calls that were served from the cache; remembered_seconds: how long those calls
    took when they were made; trace: the lines of the trace, empty if none was kept.
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
        """The failure in a sentence; empty after an answer."""
        return "" if self.error is None else str(self.error["message"])


class Store:
    """The outcomes of a run. Its methods block, so call them in a thread; several threads may share a store."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Open a file to read it. new: open it to write, and create it if it is missing.

        Raises `UserFault` if the file is missing, is not a store, or has another version.
        """
        self._path = path
        self._lock = threading.Lock()
        if not new and not path.is_file():
            raise UserFault(f"There are no results in '{path.parent}': give the folder of an evaluation.")
        try:
            self._database = sqlite3.connect(path, timeout=30, check_same_thread=False) if new else _to_read(path)
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version != VERSION and (version or not new):
                self._database.close()
                raise UserFault(
                    f"'{path}' has version {version}, and this dubito reads version {VERSION}: use the dubito that "
                    "wrote it, or choose another place."
                )
            if new:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.executescript(_TABLES)
        except sqlite3.Error as fault:
            raise _unusable(path, fault) from fault

    def __enter__(self) -> Self:
        """The store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def add(self, outcome: Outcome) -> None:
        """Write an outcome in a transaction of its own; `UserFault` if it cannot be written."""
        values = (
            outcome.system,
            outcome.question,
            None if outcome.output is None else json.dumps(outcome.output),
            None if outcome.error is None else json.dumps(outcome.error),
            outcome.seconds,
            outcome.remembered,
            outcome.remembered_seconds,
            zlib.compress(outcome.trace) if outcome.trace else None,
        )
        self._write("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [values])

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove outcomes, so that their questions are asked again. keys: system and question."""
        self._write("DELETE FROM outcomes WHERE system = ? AND question = ?", list(keys))

    def measured(self, system: str, question: str, metric: str, value: Mapping[str, Any]) -> None:
        """Write the value of a metric, which is JSON."""
        values = (system, question, metric, json.dumps(value))
        self._write("INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?)", [values])

    def outcomes(self) -> Iterator[Outcome]:
        """All outcomes without their traces, ordered by system and question."""
        columns = "system, question, output, error, seconds, remembered, remembered_seconds"
        rows = self._read(f"SELECT {columns} FROM outcomes ORDER BY system, question")  # noqa: S608
        for system, question, output, error, seconds, remembered, remembered_seconds in rows:
            yield Outcome(
                system=system,
                question=question,
                output=None if output is None else json.loads(output),
                error=None if error is None else json.loads(error),
                seconds=seconds,
                remembered=remembered,
                remembered_seconds=remembered_seconds,
            )

    def ended(self) -> dict[tuple[str, str], bool]:
        """For each system and question with an outcome: was it answered?"""
        rows = self._read("SELECT system, question, output IS NOT NULL FROM outcomes")
        return {(system, question): bool(answered) for system, question, answered in rows}

    def trace(self, system: str, question: str) -> bytes | None:
        """The lines of a question's trace, or None."""
        rows = self._read("SELECT trace FROM outcomes WHERE system = ? AND question = ?", (system, question))
        return zlib.decompress(rows[0][0]) if rows and rows[0][0] is not None else None

    def measurements(self, metric: str) -> dict[tuple[str, str], dict[str, Any]]:
        """The values of a metric, by system and question."""
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
        return UserFault(f"The disk is full: make room and resume the run. '{path}' keeps what was finished.")
    return UserFault(f"'{path}' cannot be used ({fault}): check that it is whole and that its folder can be written.")


def _to_read(path: Path) -> sqlite3.Connection:
    """A connection that does not change the file. The second mode is for folders that cannot be written."""
    for mode in ("mode=ro", "immutable=1"):
        database = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=30, check_same_thread=False)
        try:
            database.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            database.close()
            continue
        return database
    return sqlite3.connect(path)
