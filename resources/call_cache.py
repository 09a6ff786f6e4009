"""A cache of model calls on disk: an equal request is answered from the file.

An evaluation runs many graphs on the same questions, and they often make equal requests. An evaluation that was killed
continues with the replies it already has.
"""

import asyncio
import hashlib
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from ..models.disk_cache import DiskCache
from ..models.interfaces import ChatModel, Choice, Introspection, Reply, Scores
from ..models.wrapped_chat import Result, WrappedChat
from ..state.calibration import identity_in_calls

T = TypeVar("T")

LONGEST_REPLY = 2**29
"""Bytes of a reply that are unpacked."""

_OWNER = b"calls, format 2"


class CallMemory:
    """A file of requests and their replies. Its methods block: call them in a thread."""

    def __init__(self, path: Path) -> None:
        """path: made at the first write; a file that cannot be used is ignored with one warning."""
        self._cache = DiskCache(path, "memory of model calls")

    def read(self, request: bytes, unpack: Callable[[Any], T]) -> tuple[float, T] | None:
        """The seconds that a request took, and its reply. unpack: makes the reply from its JSON.

        An entry that cannot be read is ignored with one warning.
        """
        packed = self._cache.read(_OWNER, [request]).get(request)
        if packed is None:
            return None
        faults = (zlib.error, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
        with suppress(*faults):
            content = zlib.decompressobj().decompress(packed, LONGEST_REPLY)
            seconds, reply = json.loads(content)  # with infinities: log-probabilities have them
            if 0 <= seconds < math.inf:
                return float(seconds), unpack(reply)
        self._cache.warn("holds calls that cannot be read; they are made again")
        return None

    def write(self, request: bytes, seconds: float, reply: Mapping[str, Any]) -> None:
        """Keep a reply."""
        self._cache.write(_OWNER, {request: zlib.compress(json.dumps([seconds, reply]).encode())})


@dataclass
class CachedCalls:
    """The calls under `counting` that were answered from the cache: their number and the seconds they once took.

    requests: how often each request was made, cached or not.
    """

    calls: int = 0
    seconds: float = 0.0
    requests: Counter[bytes] = field(default_factory=Counter)


_counted: ContextVar[CachedCalls | None] = ContextVar("cached_calls", default=None)


@contextmanager
def counting() -> Iterator[CachedCalls]:
    """Count the cached calls of one question, and number its equal requests.

    Numbered, a second sample is not served from the first one's cache entry.
    """
    counted = CachedCalls()
    token = _counted.set(counted)
    try:
        yield counted
    finally:
        _counted.reset(token)


class RememberingChat(WrappedChat):
    """A chat model with a cache of its calls.

    The key is the whole request: the model's identity, the verb, the messages, every setting, and the request's number
    among equal requests under `counting`. A sampling request without a seed gets a seed derived from the key, so that a
    server that honours seeds gives the same samples in any order of questions.
    """

    def __init__(self, model: ChatModel, memory: CallMemory, seed: int = 0) -> None:
        """seed: part of every key; another seed gives other samples."""
        super().__init__(model)
        self._memory = memory
        self._seed = seed

    async def _call(self, verb: str, request: dict[str, Any], ask: Callable[[int | None], Awaitable[Result]]) -> Result:
        key = self._key(verb, request)
        cached = await asyncio.to_thread(self._memory.read, key, _UNPACK[verb])
        if cached is not None:
            if (counted := _counted.get()) is not None:
                counted.calls += 1
                counted.seconds += cached[0]
            result: Result = cached[1]
            return result
        seed = request.get("seed")
        if seed is None and request.get("temperature"):
            seed = int.from_bytes(key[:4], "big") >> 1  # 31 bits: servers read a signed 32-bit number
        begun = time.perf_counter()
        result = await ask(seed)
        seconds = time.perf_counter() - begun
        await asyncio.to_thread(lambda: self._memory.write(key, seconds, _packed(result)))
        return result

    def _key(self, verb: str, request: Mapping[str, Any]) -> bytes:
        # with the kind: `choose` reads probabilities on a vllm: server and the reply's text on an openai: server
        identity = identity_in_calls(self.name, states=verb == "introspect")
        model = [self.name.partition(":")[0], identity]
        key = _digest([self._seed, model, verb, request])
        counted = _counted.get()
        if counted is None:
            return key
        counted.requests[key] += 1
        return _digest([key.hex(), counted.requests[key]])


def _digest(request: Sequence[Any]) -> bytes:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()


def _packed(result: Reply | Choice | Scores | Introspection) -> dict[str, Any]:
    if not isinstance(result, Introspection):
        return asdict(result)
    return {
        "reply": asdict(result.reply),
        "states": [result.states.shape, result.states.astype("<f4").tobytes().hex()],
        "layer": result.layer,
        "energies": result.energies,
    }


def _introspection(packed: Mapping[str, Any]) -> Introspection:
    shape, content = packed["states"]
    states = np.frombuffer(bytes.fromhex(content), "<f4").astype(np.float32).reshape(shape)
    energies = None if packed["energies"] is None else tuple(packed["energies"])
    return Introspection(_UNPACK["complete"](packed["reply"]), states, packed["layer"], energies)


_UNPACK: Mapping[str, Callable[[Any], Any]] = {
    "complete": TypeAdapter(Reply).validate_python,
    "choose": TypeAdapter(Choice).validate_python,
    "score": TypeAdapter(Scores).validate_python,
    "introspect": _introspection,
}
