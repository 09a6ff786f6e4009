"""Model calls that are made once: what a request was answered stands in a file, for whoever makes the same request.

An evaluation puts many graphs to the same questions, which often ask the same of a model; and one that was killed goes
on with the answers it had.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..state.calibration import identity
from .disk_cache import DiskCache, Layout
from .interfaces import (
    Capability,
    ChatModel,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    Token,
    Tokens,
)

Answer = TypeVar("Answer", Reply, Choice, Scores, Introspection)

_LAYOUT = Layout(
    what="memory of model calls",
    tables="CREATE TABLE IF NOT EXISTS calls (request BLOB PRIMARY KEY, seconds REAL NOT NULL, answer BLOB NOT NULL) "
    "WITHOUT ROWID;",
    version=1,
    page=16384,
)


class CallMemory:
    """A file of requests and what they were answered. All of it blocks: call it in a thread."""

    def __init__(self, path: Path) -> None:
        """path: made when it is first written to; a file that cannot be used is done without, with one warning."""
        self._cache = DiskCache(path, _LAYOUT)

    def read(self, request: bytes) -> tuple[float, dict[str, Any]] | None:
        """The seconds a request took, and what it was answered."""

        def read(database: sqlite3.Connection) -> tuple[float, bytes] | None:
            row: tuple[float, bytes] | None = database.execute(
                "SELECT seconds, answer FROM calls WHERE request = ?", (request,)
            ).fetchone()
            return row

        row = self._cache.read(read, otherwise=None)
        return None if row is None else (row[0], json.loads(zlib.decompress(row[1])))

    def write(self, request: bytes, seconds: float, answer: Mapping[str, Any]) -> None:
        """Keep an answer."""
        packed = zlib.compress(json.dumps(answer).encode())

        def write(database: sqlite3.Connection) -> None:
            database.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", (request, seconds, packed))

        self._cache.write(write)


@dataclass
class Remembered:
    """Of what was asked under `counting`: how many calls were answered from memory, and the seconds they once took."""

    calls: int = 0
    seconds: float = 0.0
    asked: Counter[bytes] = field(default_factory=Counter)


_counted: ContextVar[Remembered | None] = ContextVar("remembered", default=None)


@contextmanager
def counting() -> Iterator[Remembered]:
    """Count what is remembered here, and tell equal requests apart: the second one is another one than the first.

    A graph that samples twice wants two samples, and one that asks twice whether the model repeats itself an answer.
    """
    counted = Remembered()
    token = _counted.set(counted)
    try:
        yield counted
    finally:
        _counted.reset(token)


class RememberingChat:
    """A chat model that is asked the same once.

    The key is the whole request: the model's identity, the verb, the messages, every setting, and how often it was
    made before under `counting`. Sampling without a seed gets one drawn from the key, so that a server that heeds seeds
    gives the same samples in whatever order questions are asked.
    """

    def __init__(self, model: ChatModel, memory: CallMemory, seed: int = 0) -> None:
        """seed: another one gives other samples."""
        self.model = model
        self._memory = memory
        self._seed = seed

    @property
    def name(self) -> str:
        """See `ChatModel.name`."""
        return self.model.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """See `ChatModel.capabilities`."""
        return self.model.capabilities

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        key = self._key("complete", messages, asdict(sampling))
        seeded = self._seeded(sampling, key)
        return await self._once(key, lambda: self.model.complete(messages, seeded), _of_reply, _as_reply)

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        key = self._key("choose", messages, {"options": list(options)})
        return await self._once(key, lambda: self.model.choose(messages, options), _of_choice, _as_choice)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""
        key = self._key("score", messages, {"continuations": list(continuations)})
        return await self._once(key, lambda: self.model.score(messages, continuations), _of_scores, _as_scores)

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        key = self._key("introspect", messages, {**asdict(sampling), "layer": layer})
        seeded = self._seeded(sampling, key)
        return await self._once(
            key, lambda: self.model.introspect(messages, seeded, layer), _of_introspection, _as_introspection
        )

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return await self.model.window()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`."""
        return await self.model.count(texts)

    def _key(self, verb: str, messages: Sequence[Message], settings: Mapping[str, Any]) -> bytes:
        # the kind too: a server's choice is read from probabilities under one, and from a reply under the other
        model = [self.name.partition(":")[0], identity(self.name)]
        request = [self._seed, model, verb, [dict(message) for message in messages], settings]
        key = _digest(request)
        counted = _counted.get()
        if counted is None:
            return key
        counted.asked[key] += 1
        return _digest([key.hex(), counted.asked[key]])

    def _seeded(self, sampling: Sampling, key: bytes) -> Sampling:
        if sampling.seed is not None or not sampling.temperature:
            return sampling
        return replace(sampling, seed=int.from_bytes(key[:4], "big") >> 1)  # servers read a signed 32-bit number

    async def _once(
        self,
        key: bytes,
        ask: Callable[[], Awaitable[Answer]],
        pack: Callable[[Answer], dict[str, Any]],
        unpack: Callable[[dict[str, Any]], Answer],
    ) -> Answer:
        found = await asyncio.to_thread(self._memory.read, key)
        if found is not None:
            if (counted := _counted.get()) is not None:
                counted.calls += 1
                counted.seconds += found[0]
            return unpack(found[1])
        begun = time.perf_counter()
        answer = await ask()
        seconds = time.perf_counter() - begun
        await asyncio.to_thread(lambda: self._memory.write(key, seconds, pack(answer)))
        return answer


def _digest(request: Sequence[Any]) -> bytes:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()


def _of_reply(reply: Reply) -> dict[str, Any]:
    return asdict(reply)


def _as_reply(kept: Mapping[str, Any]) -> Reply:
    completions = [{**one, "tokens": _as_tokens(one["tokens"])} for one in kept["completions"]]
    return Reply(tuple(Completion(**one) for one in completions), Tokens(**kept["tokens"]))


def _of_choice(choice: Choice) -> dict[str, Any]:
    # as pairs, since the order of the options decides between equals
    return {"probabilities": list(choice.probabilities.items()), "tokens": asdict(choice.tokens)}


def _as_choice(kept: Mapping[str, Any]) -> Choice:
    return Choice(dict(kept["probabilities"]), Tokens(**kept["tokens"]))


def _of_scores(scores: Scores) -> dict[str, Any]:
    return asdict(scores)


def _as_scores(kept: Mapping[str, Any]) -> Scores:
    return Scores(tuple(_as_tokens(one) for one in kept["continuations"]), Tokens(**kept["tokens"]))


def _of_introspection(found: Introspection) -> dict[str, Any]:
    return {
        "reply": _of_reply(found.reply),
        "states": [found.states.shape, found.states.astype("<f4").tobytes().hex()],
        "layer": found.layer,
        "energies": found.energies,
    }


def _as_introspection(kept: Mapping[str, Any]) -> Introspection:
    shape, content = kept["states"]
    states = np.frombuffer(bytes.fromhex(content), "<f4").astype(np.float32).reshape(shape)
    energies = None if kept["energies"] is None else tuple(kept["energies"])
    return Introspection(_as_reply(kept["reply"]), states, kept["layer"], energies)


def _as_tokens(kept: Sequence[Mapping[str, Any]]) -> tuple[Token, ...]:
    return tuple(Token(**one) for one in kept)
