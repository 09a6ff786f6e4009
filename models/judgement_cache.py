"""Judgements that were made once: remembered by the process, and on disk where the judge will always say the same."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sqlite3
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from .disk_cache import DiskCache, Layout
from .interfaces import Judge, Judgements

Row = tuple[float, float, float]
Pair = tuple[str, str]
Claims = dict[bytes, Future[Row | None]]
"""What somebody is judging: its row in the end, or None if it is left to others."""

REMEMBERED = 100_000
"""Judgements that a process keeps; some 40 MB."""

LOOKUP = 500
"""Keys in one SELECT."""

_ROW = struct.Struct("<3d")

_LAYOUT = Layout(
    what="judgement cache",
    tables="CREATE TABLE IF NOT EXISTS judgements (pair BLOB PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;",
    version=1,
    page=4096,
)


class JudgementStore:
    """The judgements of one judge in a cache file that several share. All of it blocks: call it in a thread."""

    def __init__(self, path: Path, identity: Callable[[], str | None]) -> None:
        """identity: names the judge's weights so that others have another; None as long as there is none to name."""
        self._cache = DiskCache(path, _LAYOUT)
        self._identity = identity

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """The judgements that are stored under these keys."""
        if (identity := self._identity()) is None:
            return {}
        names = {_digest(identity.encode(), key): key for key in keys}

        def read(database: sqlite3.Connection) -> dict[bytes, Row]:
            found: dict[bytes, Row] = {}
            listed = list(names)
            for start in range(0, len(listed), LOOKUP):
                some = listed[start : start + LOOKUP]
                marks = ",".join("?" * len(some))
                rows = database.execute(f"SELECT pair, row FROM judgements WHERE pair IN ({marks})", some)  # noqa: S608 - only question marks
                found.update({names[name]: row for name, blob in rows if (row := _unpacked(blob)) is not None})
            return found

        return self._cache.read(read, otherwise={})

    def write(self, rows: Mapping[bytes, Row]) -> None:
        """Store judgements; those it could not make are left out."""
        if (identity := self._identity()) is None:
            return
        blobs = [(_digest(identity.encode(), key), _ROW.pack(*row)) for key, row in rows.items() if _said(row)]
        self._cache.write(lambda database: _insert(database, blobs))


class RememberingJudge:
    """A judge that is asked about a pair once: by the first caller, for whom others who want to know it wait.

    It serves callers in any number of event loops and threads. What the judge could not say (NaN) is not remembered.
    """

    def __init__(self, judge: Judge, group: int, store: JudgementStore | None = None) -> None:
        """group: how many pairs to put to the judge in one call; the groups of a call are judged concurrently.

        Finished groups are remembered even if another one fails or the caller gives up.
        """
        self._judge = judge
        self._group = group
        self._store = store
        self._forked()

    @property
    def name(self) -> str:
        """See `Judge.name`."""
        return self._judge.name

    async def judge(self, question: str, pairs: Sequence[Pair]) -> Judgements:
        """See `Judge.judge`."""
        keys = [pair_key(question, *pair) for pair in pairs]
        wanted = dict(zip(keys, pairs, strict=True))
        rows: dict[bytes, Row] = {}
        while left := [key for key in wanted if key not in rows]:
            known, mine, others = self._claim(left)
            rows |= known
            rows |= await self._judge_claimed(question, {key: wanted[key] for key in mine}, mine)
            for key, judged in others.items():
                if (row := await asyncio.wrap_future(judged)) is not None:
                    rows[key] = row
        return np.array([rows[key] for key in keys], dtype=np.float64).reshape(-1, 3)

    def _forked(self) -> None:
        # a forked child has none of the threads that judge, nor perhaps an open lock
        self._process, self._lock = os.getpid(), threading.Lock()
        self._remembered: OrderedDict[bytes, Row] = OrderedDict()
        self._under_way: Claims = {}

    def _claim(self, keys: Sequence[bytes]) -> tuple[dict[bytes, Row], Claims, Claims]:
        """Divide keys into those that are known, those for the caller to judge, and those that others are judging."""
        if self._process != os.getpid():
            self._forked()
        known: dict[bytes, Row] = {}
        mine: Claims = {}
        others: Claims = {}
        with self._lock:
            for key in keys:
                if key in self._remembered:
                    self._remembered.move_to_end(key)
                    known[key] = self._remembered[key]
                elif key in self._under_way:
                    others[key] = self._under_way[key]
                else:
                    mine[key] = self._under_way[key] = Future()
                    # as running, so that one who waits and gives up does not cancel it for the others
                    mine[key].set_running_or_notify_cancel()
        return known, mine, others

    async def _judge_claimed(self, question: str, pairs: Mapping[bytes, Pair], claims: Claims) -> dict[bytes, Row]:
        if not pairs:
            return {}
        tasks: list[asyncio.Task[dict[bytes, Row]]] = []
        try:
            rows = await asyncio.to_thread(self._store.read, pairs) if self._store else {}
            self._settle(rows, claims)
            missing = [key for key in pairs if key not in rows]
            for start in range(0, len(missing), self._group):
                group = {key: pairs[key] for key in missing[start : start + self._group]}
                tasks.append(asyncio.create_task(self._judge_group(question, group, claims)))
            for judged in await asyncio.gather(*tasks):
                rows |= judged
        finally:
            # after a fault, or if the caller gives up, nobody waits for the rest; others judge it themselves
            for task in tasks:
                task.cancel()
            self._release(list(claims), claims, None)
        return rows

    async def _judge_group(self, question: str, group: Mapping[bytes, Pair], claims: Claims) -> dict[bytes, Row]:
        try:
            judged = await self._judge.judge(question, list(group.values()))
        except Exception as fault:
            self._release(list(group), claims, fault)
            raise
        rows: dict[bytes, Row] = {key: (a, b, c) for key, (a, b, c) in zip(group, judged.tolist(), strict=True)}
        self._settle(rows, claims)
        if self._store:
            await asyncio.to_thread(self._store.write, rows)
        return rows

    def _settle(self, rows: Mapping[bytes, Row], claims: Claims) -> None:
        """Remember rows, and give them to those who wait."""
        with self._lock:
            self._remembered.update((key, row) for key, row in rows.items() if _said(row))
            while len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
            settled = self._taken(rows, claims)
        for key, future in settled.items():
            future.set_result(rows[key])

    def _release(self, keys: Sequence[bytes], claims: Claims, fault: Exception | None) -> None:
        """Give up claims; those who wait get the fault or, without one, have to judge the pair themselves."""
        with self._lock:
            released = self._taken(keys, claims)
        for future in released.values():
            if fault is None:
                future.set_result(None)
            else:
                future.set_exception(fault)

    def _taken(self, keys: Iterable[bytes], claims: Claims) -> Claims:
        """Those claims that are still open, each only once; the lock is held."""
        taken = {key: claims.pop(key) for key in keys if key in claims}
        for key in taken:
            self._under_way.pop(key, None)
        return taken


def pair_key(question: str, first: str, second: str) -> bytes:
    """32 bytes that stand for an ordered pair of answers to a question."""
    # lone surrogates have no UTF-8 but may be in a text that was read from a file
    return _digest(*(text.encode("utf-8", "surrogatepass") for text in (question, first, second)))


def _digest(*parts: bytes) -> bytes:
    # of digests, so that nothing depends on where one part ends and the next begins
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _insert(database: sqlite3.Connection, blobs: Sequence[tuple[bytes, bytes]]) -> None:
    database.executemany("INSERT OR REPLACE INTO judgements VALUES (?, ?)", blobs)


def _said(row: Row) -> bool:
    return all(map(math.isfinite, row))


def _unpacked(blob: object) -> Row | None:
    if not isinstance(blob, bytes) or len(blob) != _ROW.size:
        return None
    a, b, c = _ROW.unpack(blob)
    return (a, b, c) if _said((a, b, c)) else None
