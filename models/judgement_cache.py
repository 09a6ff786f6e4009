"""Judgements kept in memory, and on disk for judges that always give the same answer."""

import asyncio
import hashlib
import math
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from ..concurrency import gather_or_cancel
from .disk_cache import DiskCache
from .interfaces import Judge, Judgements

Probabilities = tuple[float, float, float]
"""Of entailment, neutral and contradiction; NaN where the judge could not say."""

Judged = dict[bytes, Probabilities]
"""Probabilities by pair key."""

Pair = tuple[str, str]

Claims = dict[bytes, Future[Probabilities | None]]
"""Pairs under judgement: the future holds the probabilities, or None if the caller gave up and others must judge."""

REMEMBERED = 100_000
"""Judgements that a process keeps in memory, about 40 MB."""

_PACKING = struct.Struct("<3d")


class JudgementStore:
    """The judgements of one judge, in a cache file that several judges may share. It blocks: call it in a thread."""

    def __init__(self, path: Path, identity: Callable[[], str | None]) -> None:
        """identity: identifies the judge's weights; None as long as they cannot be identified, so nothing is stored."""
        self._cache = DiskCache(path, "judgement cache")
        self._identity = identity

    def read(self, keys: Iterable[bytes]) -> Judged:
        """The stored judgements of these pairs."""
        if (identity := self._identity()) is None:
            return {}
        stored = self._cache.read(hashlib.sha256(identity.encode()).digest(), keys).items()
        return _finite({key: _PACKING.unpack(value) for key, value in stored if len(value) == _PACKING.size})

    def write(self, judgements: Judged) -> None:
        """Store judgements, except those that the judge could not make (NaN)."""
        if (identity := self._identity()) is not None:
            values = {key: _PACKING.pack(*row) for key, row in _finite(judgements).items()}
            self._cache.write(hashlib.sha256(identity.encode()).digest(), values)


class RememberingJudge:
    """A judge that judges each pair once, for the first caller; later callers wait for that judgement.

    Callers may be in any number of event loops and threads. Judgements of NaN are not remembered.
    """

    def __init__(self, judge: Judge, group: int, store: JudgementStore | None = None) -> None:
        """group: pairs in one call of the judge; the groups of a `judge` call are judged concurrently.

        Finished groups are remembered even if another group fails or the caller is cancelled.
        """
        self._judge = judge
        self.name = judge.name
        self._group = group
        self._store = store
        self._reset()

    async def judge(self, question: str, pairs: Sequence[Pair]) -> Judgements:
        """See `Judge.judge`."""
        keys = [pair_key(question, *pair) for pair in pairs]
        pair_of = dict(zip(keys, pairs, strict=True))
        judged: Judged = {}
        while missing := [key for key in pair_of if key not in judged]:
            remembered, mine, others = self._claim(missing)
            judged |= remembered
            judged |= await self._judge_claimed(question, {key: pair_of[key] for key in mine}, mine)
            for key, future in others.items():
                if (probabilities := await asyncio.wrap_future(future)) is not None:
                    judged[key] = probabilities
        return np.array([judged[key] for key in keys], dtype=np.float64).reshape(-1, 3)

    def _reset(self) -> None:
        # a forked child has none of the threads that judge, and its copy of the lock may be held for ever
        self._process, self._lock = os.getpid(), threading.Lock()
        self._remembered: OrderedDict[bytes, Probabilities] = OrderedDict()
        self._under_way: Claims = {}

    def _claim(self, keys: Sequence[bytes]) -> tuple[Judged, Claims, Claims]:
        """Divide keys into those remembered, those for the caller to judge, and those that others are judging."""
        if self._process != os.getpid():
            self._reset()
        remembered: Judged = {}
        mine: Claims = {}
        others: Claims = {}
        with self._lock:
            for key in keys:
                if key in self._remembered:
                    self._remembered.move_to_end(key)
                    remembered[key] = self._remembered[key]
                elif key in self._under_way:
                    others[key] = self._under_way[key]
                else:
                    mine[key] = self._under_way[key] = Future()
                    # marked as running: a waiting caller that is cancelled must not cancel it for the others
                    mine[key].set_running_or_notify_cancel()
        return remembered, mine, others

    async def _judge_claimed(self, question: str, pairs: Mapping[bytes, Pair], claims: Claims) -> Judged:
        if not pairs:
            return {}
        try:
            judged = await asyncio.to_thread(self._store.read, pairs) if self._store else {}
            self._settle(judged, claims)
            missing = [key for key in pairs if key not in judged]
            groups = [missing[start : start + self._group] for start in range(0, len(missing), self._group)]
            for part in await gather_or_cancel(
                self._judge_group(question, {key: pairs[key] for key in group}, claims) for group in groups
            ):
                judged |= part
        finally:
            # after a failure or a cancellation, callers that wait for the other pairs judge them themselves
            self._release(list(claims), claims, None)
        return judged

    async def _judge_group(self, question: str, group: Mapping[bytes, Pair], claims: Claims) -> Judged:
        try:
            rows = await self._judge.judge(question, list(group.values()))
        except Exception as fault:
            self._release(list(group), claims, fault)
            raise
        judged: Judged = {key: (a, b, c) for key, (a, b, c) in zip(group, rows.tolist(), strict=True)}
        self._settle(judged, claims)
        if self._store:
            await asyncio.to_thread(self._store.write, judged)
        return judged

    def _settle(self, judged: Judged, claims: Claims) -> None:
        """Remember judgements and hand them to the callers that wait for them."""
        with self._lock:
            self._remembered.update(_finite(judged))
            while len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
            settled = self._close(judged, claims)
        for key, future in settled.items():
            future.set_result(judged[key])

    def _release(self, keys: Sequence[bytes], claims: Claims, fault: Exception | None) -> None:
        """Give up claims. Callers that wait get the fault; without a fault they judge the pairs themselves."""
        with self._lock:
            released = self._close(keys, claims)
        for future in released.values():
            if fault is None:
                future.set_result(None)
            else:
                future.set_exception(fault)

    def _close(self, keys: Iterable[bytes], claims: Claims) -> Claims:
        """Take the open claims on these keys out of `claims`; the caller holds the lock."""
        closed = {key: claims.pop(key) for key in keys if key in claims}
        for key in closed:
            self._under_way.pop(key, None)
        return closed


def pair_key(question: str, first: str, second: str) -> bytes:
    """32 bytes that identify an ordered pair of answers to a question."""
    # a text that was read from a file may hold lone surrogates, which have no UTF-8
    texts = (text.encode("utf-8", "surrogatepass") for text in (question, first, second))
    # a hash of hashes does not depend on where one text ends and the next begins
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()


def _finite(judged: Mapping[bytes, Sequence[float]]) -> Judged:
    return {key: (a, b, c) for key, (a, b, c) in judged.items() if math.isfinite(a + b + c)}
