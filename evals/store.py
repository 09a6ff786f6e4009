"""The outcomes of questions and what was measured of them, in one SQLite file."""

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from ..errors import UserFault
from ..json_files import BrokenJson, content_of, parsed
from ..presenters.words import counted
from .run_folder import RESULTS

OUTCOMES = "outcomes.jsonl"
"""The same as text, without traces, in a run that was kept (see `kept_run`), until `RESULTS` is made from it."""

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
"""
"""The tables, in a transaction that stays open."""


LONGEST_TRACE = 2**28
"""Bytes of a trace that are unpacked; a longer one is damaged."""

COLUMNS = {
    "outcomes": "system, question, output, error, seconds, remembered, remembered_seconds, trace",
    "measurements": "system, question, metric, value",
}

_INSERT = {
    table: f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({columns.count(',') * '?, '}?)"  # noqa: S608
    for table, columns in COLUMNS.items()
}

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class _Checked(BaseModel):
    """The part of a row that reports read. Other keys are the technique's own."""

    model_config = ConfigDict(strict=True)


class _Cost(_Checked):
    calls: int = Field(default=0, ge=0, le=2**53)
    prompt_tokens: int = Field(default=0, ge=0, le=2**53)
    completion_tokens: int = Field(default=0, ge=0, le=2**53)


class _NodeCost(_Cost):
    seconds: FiniteFloat


class _Usage(_Cost):
    nodes: dict[str, _NodeCost] | None = None


class _Uncertainty(_Checked):
    signal: str
    value: FiniteFloat | None
    threshold: FiniteFloat | None


class _Certificate(_Checked):
    sentence: str
    holds: bool
    right: str | None = None


class _Output(_Checked):
    answer: str | None = None
    abstained: bool = False
    withheld_answer: str | None = None
    certificate: _Certificate | None = None
    evidence: list[Any] | None = None
    uncertainty: _Uncertainty | None = None
    usage: _Usage | None = None
    warnings: list[str] | None = None


class _Error(_Checked):
    type: str
    message: str
    unavailable: bool
    spent: _Cost | None = None


class _Row(_Checked):
    system: str
    question: str
    output: _Output | None
    error: _Error | None
    seconds: FiniteFloat
    remembered: int = Field(ge=0, le=2**53)
    remembered_seconds: FiniteFloat


class _SePer(_Checked):
    seper: FiniteFloat | None = None
    seper_without: FiniteFloat | None = None
    delta: FiniteFloat | None = None


class _Step(_Checked):
    what: str
    delta: FiniteFloat


class _Steps(_Checked):
    steps: list[_Step]


class _Scores(_Checked):
    contribution: FiniteFloat | None = None
    correctness: FiniteFloat | None = None
    correctness_without: FiniteFloat | None = None
    delta_correctness: FiniteFloat | None = None
    bertscore: FiniteFloat | None = None


_SHAPES: Mapping[str, type[_Checked]] = {
    "seper": _SePer,
    "seper_steps": _Steps,
    "llm_judge": _Scores,
    "bertscore": _Scores,
}
"""The shapes of the measurements that reports read, by metric."""


class Repaired(NamedTuple):
    """What was kept of a damaged file. aside: the new name of the damaged file."""

    outcomes: int
    unreadable: int
    aside: Path

    def __str__(self) -> str:
        """The result in a sentence."""
        left_out = f", {counted(self.unreadable, 'unreadable row')} left out" if self.unreadable else ""
        return f"{counted(self.outcomes, 'outcome')} kept{left_out}; the damaged file is now '{self.aside}'."


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

    def __init__(self, path: Path, *, new: bool = False, repair_with: str = "") -> None:
        """Open a file to read it. new: open it to write, and create it if it is missing.

        repair_with: the command that keeps the readable rows, for messages; by default that of an evaluation.
        Raises `UserFault` if the file is missing, is not a store, or has another version. Its methods raise it for rows
        that cannot be read.
        """
        self._path = path
        self._repair = repair_with or f"dubito eval --resume {path.parent} --repair"
        self._lock = threading.Lock()
        if path.exists() and not path.is_file():
            raise UserFault(f"'{path}' is not a file, so no results can be kept in it: remove it.")
        kept = path.with_name(OUTCOMES)
        try:
            from_text = path.name == RESULTS and kept.is_file() and not _version(path)
            rows = _rows_of_text(kept) if from_text else {}
            if not new and not from_text and not path.is_file():
                raise UserFault(f"There are no results in '{path.parent}': give the folder of an evaluation.")
            self._database = _to_read(path) if not (new or from_text) else _to_write(path if new else Path(":memory:"))
            self._database.text_factory = _text
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version != VERSION and (version or not (new or from_text)):
                self._database.close()
                raise UserFault(
                    f"'{path}' has version {version}, and this dubito reads version {VERSION}: use the dubito that "
                    "wrote it, or choose another place."
                )
            if new or from_text:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                # a file that has its tables has the rows of the text, too: another process reads both or neither
                with self._database:
                    self._database.executescript(_TABLES)
                    for table, values in rows.items():
                        self._database.executemany(_INSERT[table], values)
        except sqlite3.Error as fault:
            raise self._unusable(fault) from fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
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
        self.insert("outcomes", [values])

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove outcomes, so that their questions are asked again. keys: system and question."""
        self._write("DELETE FROM outcomes WHERE system = ? AND question = ?", list(keys))

    def measured(self, system: str, question: str, metric: str, value: Mapping[str, Any]) -> None:
        """Write the value of a metric, which is JSON."""
        self.insert("measurements", [(system, question, metric, json.dumps(value))])

    def outcomes(self) -> Iterator[Outcome]:
        """All outcomes without their traces, ordered by system and question."""
        columns = COLUMNS["outcomes"].removesuffix(", trace")
        for row in self._read(f"SELECT {columns} FROM outcomes ORDER BY system, question"):  # noqa: S608
            try:
                yield _outcome(row)
            except ValueError as fault:
                raise self._damaged(f"the outcome of '{row[1]}' for '{row[0]}'", fault) from fault

    def check(self) -> None:
        """Raise `UserFault` if a row cannot be read."""
        for _ in self.outcomes():
            pass
        for metric in _SHAPES:
            self.measurements(metric)

    def ended(self) -> dict[tuple[str, str], bool]:
        """For each system and question with an outcome: was it answered?"""
        rows = self._read("SELECT system, question, output IS NOT NULL FROM outcomes")
        return {(system, question): bool(answered) for system, question, answered in rows}

    def trace(self, system: str, question: str) -> bytes | None:
        """The lines of a question's trace, or None. `UserFault` if it is damaged."""
        rows = self._read("SELECT trace FROM outcomes WHERE system = ? AND question = ?", (system, question))
        if not rows or rows[0][0] is None:
            return None
        unpacking = zlib.decompressobj()
        try:
            lines = unpacking.decompress(rows[0][0], LONGEST_TRACE)
        except (TypeError, zlib.error):
            lines = b""
        if not unpacking.eof:
            raise UserFault(f"The trace of '{question}' for {system} is damaged, so its steps are unknown.")
        return lines

    def measurements(self, metric: str) -> dict[tuple[str, str], dict[str, Any]]:
        """The values of a metric, by system and question."""
        values = {}
        query = "SELECT system, question, metric, value FROM measurements WHERE metric = ?"
        for row in self._read(query, (metric,)):
            try:
                values[row[0], row[1]] = _measurement(row)
            except ValueError as fault:
                raise self._damaged(f"the {metric} of '{row[1]}' for '{row[0]}'", fault) from fault
        return values

    def metrics(self) -> list[str]:
        """The names of what was measured."""
        return [metric for (metric,) in self._read("SELECT DISTINCT metric FROM measurements ORDER BY metric")]

    def _read(self, query: str, values: tuple[str, ...] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._database.execute(query, values).fetchall()
        except sqlite3.Error as fault:
            raise self._unusable(fault) from fault

    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write rows with the columns of `COLUMNS`, in one transaction, in place of rows with the same key."""
        self._write(_INSERT[table], rows)

    def _write(self, command: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            with self._lock, self._database:
                self._database.executemany(command, rows)
        except sqlite3.Error as fault:
            raise self._unusable(fault) from fault

    def _damaged(self, what: str, fault: ValueError) -> UserFault:
        reason = str(fault)
        if isinstance(fault, ValidationError):
            first = fault.errors(include_url=False, include_input=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        return UserFault(
            f"'{self._path}' is damaged: {what} cannot be read ({reason}). Keep the readable rows with {self._repair}."
        )

    def _unusable(self, fault: sqlite3.Error) -> UserFault:
        code = getattr(fault, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return UserFault(f"The disk is full: make room and resume the run. '{self._path}' keeps what was finished.")
        if code in _CORRUPT:
            return UserFault(f"'{self._path}' is damaged ({fault}): keep its readable rows with {self._repair}.")
        return UserFault(f"'{self._path}' cannot be used ({fault}): check that its folder can be written and has room.")


def repair(path: Path) -> Repaired | None:
    """Copy the readable rows of a damaged file into a new one in its place, and move the damaged file aside.

    Returns None for a file that is missing or undamaged, which stays as it is.
    """
    if not path.is_file() or _is_new(path):
        return None
    rows, damaged = {table: list[Sequence[Any]]() for table in COLUMNS}, 0
    with closing(sqlite3.connect(path)) as database:
        database.text_factory = _text
        whole = True
        for table, readable in rows.items():
            found, complete = _rows(database, table)
            whole = whole and complete
            for row in found:
                try:
                    _outcome(row) if table == "outcomes" else _measurement(row)
                except ValueError:
                    damaged += 1
                else:
                    readable.append(row)
    if whole and not damaged:
        return None
    new = path.with_name(f"{path.name}.repaired")
    new.unlink(missing_ok=True)
    with Store(new, new=True) as store:
        for table, readable in rows.items():
            store.insert(table, readable)
    aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    new.replace(path)
    return Repaired(len(rows["outcomes"]), damaged, aside)


def _rows_of_text(path: Path) -> dict[str, list[Sequence[Any]]]:
    """The rows of `OUTCOMES` by table; `UserFault` if the file cannot be read or a line is damaged."""
    rows: dict[str, list[Sequence[Any]]] = {table: [] for table in COLUMNS}
    try:
        content = content_of(path)
    except OSError as fault:
        raise UserFault(f"'{path}' cannot be read: {fault.strerror}.") from fault
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = {"output": None, "error": None, **parsed(line), "trace": None}
            for name in ("output", "error", "value"):
                row[name] = None if row.get(name) is None else json.dumps(row[name])
            table = "measurements" if "metric" in row else "outcomes"
            values = tuple(row[name] for name in COLUMNS[table].split(", "))
            _measurement(values) if table == "measurements" else _outcome(values)
            "".join([row["system"], row["question"], row.get("metric", "")]).encode()  # SQLite's keys are UTF-8
        except (ValueError, LookupError, TypeError) as fault:
            raise UserFault(f"Line {number} of '{path}' is no outcome of a run: fetch the file anew.") from fault
        rows[table].append(values)
    return rows


def _rows(database: sqlite3.Connection, table: str) -> tuple[list[Sequence[Any]], bool]:
    """The rows of a table that SQLite can read, and whether these are all."""
    select = f"SELECT {COLUMNS[table]} FROM {table}"  # noqa: S608
    try:
        return database.execute(select).fetchall(), True
    except sqlite3.Error:
        pass
    try:
        (last,) = database.execute(f"SELECT max(rowid) FROM {table}").fetchone()  # noqa: S608
    except sqlite3.OperationalError:  # no such table or column
        last = 0
    except sqlite3.Error:
        last = 1_000_000 if _has(database, table) else 0
    found: list[Sequence[Any]] = []
    for rowid in range(1, (last or 0) + 1):  # each row by itself: only those on damaged pages are lost
        try:
            found += database.execute(f"{select} WHERE rowid = ?", (rowid,)).fetchall()
        except sqlite3.Error:
            continue
    return found, False


def _has(database: sqlite3.Connection, table: str) -> bool:
    try:
        return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())
    except sqlite3.Error:
        return False


def _outcome(row: Sequence[Any]) -> Outcome:
    """The outcome in a row, whose trace may be missing; ValueError if it cannot be read."""
    system, question, output, error, seconds, remembered, remembered_seconds, *_ = row
    outcome = Outcome(
        system=system,
        question=question,
        output=None if output is None else _json(output),
        error=None if error is None else _json(error),
        seconds=seconds,
        remembered=remembered,
        remembered_seconds=remembered_seconds,
    )
    _Row.model_validate(vars(outcome))
    if (outcome.output is None) == (outcome.error is None):
        raise BrokenJson("it has neither an output nor an error, or both")
    return outcome


def _measurement(row: Sequence[Any]) -> dict[str, Any]:
    """The value in a row; ValueError if it cannot be read."""
    system, question, metric, value = row
    if not isinstance(system, str) or not isinstance(question, str):
        raise BrokenJson("its key is not text")
    read: dict[str, Any] = _json(value)
    _SHAPES.get(metric, _Checked).model_validate(read)
    return read


def _json(text: object) -> Any:  # noqa: ANN401
    if not isinstance(text, str):
        raise BrokenJson("it is not text")
    return parsed(text)


def _text(content: bytes) -> str:
    """Text of a database; bytes that are not UTF-8 are found when the row is checked."""
    return content.decode(errors="surrogateescape")


def _version(path: Path) -> int:
    """The version of a file; 0 if it is missing, and if the process that made it ended before it had tables."""
    if not path.exists():
        return 0
    with closing(_to_read(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(version)


def _is_new(path: Path) -> bool:
    """Did the process that made the file end before it had tables?"""
    try:
        with closing(_to_read(path)) as database:
            return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))
    except sqlite3.Error:
        return False


def _to_write(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, check_same_thread=False)


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
