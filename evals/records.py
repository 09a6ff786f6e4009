"""What was found for each question of a long run, on disk as soon as it is found, so that the run can go on later."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from ..errors import DubitoError, UserFault
from .in_turn import in_turn

MOST_FAILURES = 5
"""Questions that may fail in a row for want of a model; a later run will do better than the rest of this one."""


class Record(TypedDict):
    """One question's outcome.

    key: of the question and all that the outcome depends on; found: what came out, null if it failed; error: why;
    seconds: how long it took.
    """

    key: str
    question: str
    found: dict[str, Any] | None
    error: str | None
    seconds: float


class Records:
    """A JSONL file of records, one a question. Of several with one key the last one counts."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a last line that was cut off when its run was killed is taken away.

        Raises `UserFault` for a file of something else, and where the file can be neither read nor made.
        """
        self.path = path
        try:
            with path.open("a+b") as file:
                file.seek(0)
                content = file.read()
                whole = content.rfind(b"\n") + 1
                self._by_key = {record["key"]: record for record in _read(path, content[:whole])}
                file.truncate(whole)
        except OSError as fault:
            raise UserFault(
                f"'{path}' cannot be written, where each question's outcome is kept: {fault.strerror}."
            ) from fault

    def get(self, key: str) -> Record | None:
        """The outcome under this key, if there is one."""
        return self._by_key.get(key)

    def found(self, key: str) -> dict[str, Any] | None:
        """What came out under this key; None if it failed or was not asked."""
        record = self._by_key.get(key)
        return record["found"] if record else None

    def add(self, record: Record) -> None:
        """Keep an outcome, at once."""
        self._by_key[record["key"]] = record
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")


def key_of(technique: str, settings: Mapping[str, Any], question: str) -> str:
    """The key of a question under a technique with these settings, which are JSON."""
    return hashlib.sha256(json.dumps([technique, settings, question], sort_keys=True).encode()).hexdigest()[:32]


async def ask_all(
    questions: Mapping[str, str],
    ask: Callable[[str], Awaitable[dict[str, Any]]],
    records: Records,
    *,
    at_once: int,
    on_end: Callable[[Record], None],
) -> None:
    """Ask every question that has no outcome yet, or had failed, and keep what comes out.

    questions: by key; ask: gives what is to be kept of a question; at_once: how many are under way at a time, which is
    all that a killed run loses; on_end: hears of each that ends.
    A question that fails is kept with its reason. Raises `DubitoError` if `MOST_FAILURES` fail in a row, those not
    counted that cannot be answered as they are (a `UserFault`).
    """
    waiting = [(key, text) for key, text in questions.items() if records.found(key) is None]
    row: list[DubitoError] = []

    async def put(question: tuple[str, str]) -> None:
        key, text = question
        begun = time.monotonic()
        found, fault = await _attempt(ask, text)
        seconds = time.monotonic() - begun
        record: Record = {
            "key": key,
            "question": text,
            "found": found,
            "error": None if fault is None else str(fault),
            "seconds": seconds,
        }
        records.add(record)
        on_end(record)
        if fault is None:
            row.clear()
        elif not isinstance(fault, UserFault):
            row.append(fault)
        if len(row) >= MOST_FAILURES:
            raise DubitoError(
                f"{len(row)} questions in a row failed, the last one so: {row[-1]} What is done is kept: mend that "
                "and run the same again."
            ) from row[-1]

    await in_turn(waiting, put, at_once)


async def _attempt(
    ask: Callable[[str], Awaitable[dict[str, Any]]], question: str
) -> tuple[dict[str, Any] | None, DubitoError | None]:
    try:
        return await ask(question), None
    except DubitoError as fault:
        return None, fault


def _read(path: Path, content: bytes) -> Iterator[Record]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or set(record) != Record.__required_keys__:
            raise UserFault(
                f"'{path}' is to keep what is found, and line {number} is something else: give another --out, or "
                "delete that file."
            )
        yield record  # type: ignore[misc]
