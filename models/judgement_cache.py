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
from ..prompts import own_prompts
from .disk_cache import DiskCache
from .interfaces import Judge, Judgements

Probabilities = tuple[float, float, float]
"""Of entailment, neutral and contradiction; NaN where the judge could not say."""

Judged = dict[bytes, Probabilities]
"""Probabilities by pair key."""

Pair = tuple[str, str]

Claims = dict[bytes, Future[Probabilities | None]]
"""Pairs under judgement: the future holds the probabilities, or None if the caller gave up and others must judge."""

Known = OrderedDict[bytes, Probabilities | Future[Probabilities | None]]
"""Pairs that are judged or under judgement."""

REMEMBERED = 100_000
"""Judgements that a process keeps in memory, about 40 MB."""

_PACKING = struct.Struct("<3d")


class JudgementStore:
    """The judgements of one judge, in a cache file that several judges may share. It blocks: call it in a thread."""

    def __init__(self, path: Path, weights: Callable[[], str]) -> None:
        """weights: what tells the judge's weights from others; "" as long as nothing can, so nothing is stored."""
        self._cache = DiskCache(path, "judgement cache")
        self._weights = weights
        self._owner = b""

    def read(self, keys: Iterable[bytes]) -> Judged:
        """The stored judgements of these pairs."""
        if not (owner := self._known()):
            return {}
        stored = self._cache.read(owner, keys).items()
        return _finite({key: _PACKING.unpack(value) for key, value in stored if len(value) == _PACKING.size})

    def write(self, judgements: Judged) -> None:
        """Store judgements, except those that the judge could not make (NaN)."""
        if owner := self._known():
            self._cache.write(owner, {key: _PACKING.pack(*row) for key, row in _finite(judgements).items()})

    def _known(self) -> bytes:
        # asked until it is known, then kept: weights that are loaded stay, whatever becomes of their folder
        self._owner = self._owner or self._weights().encode()
        return self._owner


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
        prompt = own_prompts.get().get("entailment", "")  # another prompt of a judge that is a chat model judges anew
        keys = [pair_key(prompt + question, *pair) for pair in pairs]
        pair_of = dict(zip(keys, pairs, strict=True))
        judged: Judged = {}
        while missing := [key for key in pair_of if key not in judged]:
            known, claims = self._claim(missing)
            await self._judge_claimed(question, {key: pair_of[key] for key in claims}, claims)
            for key, row in known.items():
                probabilities = await asyncio.wrap_future(row) if isinstance(row, Future) else row
                if probabilities is not None:
                    judged[key] = probabilities
        return np.array([judged[key] for key in keys], dtype=np.float64).reshape(-1, 3)

    def _reset(self) -> None:
        # a forked child has none of the threads that judge, and its copy of the lock may be held for ever
        self._process, self._lock = os.getpid(), threading.Lock()
        self._known: Known = OrderedDict()

    def _claim(self, keys: Sequence[bytes]) -> tuple[Known, Claims]:
        """What is remembered of these keys or under judgement, and the claims of the caller, who judges the rest."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            claims: Claims = {key: Future() for key in keys if key not in self._known}
            for future in claims.values():
                # marked as running: a waiting caller that is cancelled must not cancel it for the others
                future.set_running_or_notify_cancel()
            self._known.update(claims)
            for key in keys:
                self._known.move_to_end(key)
            return Known({key: self._known[key] for key in keys}), claims

    async def _judge_claimed(self, question: str, pairs: Mapping[bytes, Pair], claims: Claims) -> None:
        if not pairs:
            return
        try:
            if self._store:
                self._settle(claims, await asyncio.to_thread(self._store.read, pairs))
            missing = list(claims)
            groups = [missing[start : start + self._group] for start in range(0, len(missing), self._group)]
            await gather_or_cancel(
                self._judge_group(question, {key: pairs[key] for key in group}, claims) for group in groups
            )
        finally:
            # after a failure or a cancellation, callers that wait for the other pairs judge them themselves
            self._settle(claims, dict.fromkeys(claims))

    async def _judge_group(self, question: str, group: Mapping[bytes, Pair], claims: Claims) -> None:
        try:
            rows = await self._judge.judge(question, list(group.values()))
        except Exception as fault:
            self._settle(claims, dict.fromkeys(group, fault))
            raise
        judged: Judged = {key: (a, b, c) for key, (a, b, c) in zip(group, rows.tolist(), strict=True)}
        self._settle(claims, judged)
        if self._store:
            await asyncio.to_thread(self._store.write, judged)

    def _settle(self, claims: Claims, results: Mapping[bytes, Probabilities | Exception | None]) -> None:
        """Take the claims on these keys out of `claims`: remember finite probabilities, hand the results on."""
        with self._lock:
            for key, result in results.items():
                future = claims.pop(key)
                self._known.pop(key, None)
                if isinstance(result, Exception):
                    future.set_exception(result)
                    continue
                self._known.update(_finite({key: result} if result else {}))
                future.set_result(result)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


def pair_key(question: str, first: str, second: str) -> bytes:
    """32 bytes that identify an ordered pair of answers to a question."""
    # a text that was read from a file may hold lone surrogates, which have no UTF-8
    texts = (text.encode("utf-8", "surrogatepass") for text in (question, first, second))
    # a hash of hashes does not depend on where one text ends and the next begins
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()


def _finite(judged: Mapping[bytes, Sequence[float]]) -> Judged:
    return {key: (a, b, c) for key, (a, b, c) in judged.items() if math.isfinite(a + b + c)}
