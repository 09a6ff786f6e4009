"""Counts and reports every model call of the node that is running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from .interfaces import Capability, ChatModel, Choice, Introspection, Message, Reply, Sampling, Scores

Answer = TypeVar("Answer", Reply, Choice, Scores, Introspection)


@dataclass(frozen=True)
class Call:
    """One finished model call, all JSON: what was asked, what came back, what it cost."""

    verb: str
    model: str
    request: dict[str, Any]
    reply: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass
class Meter:
    """The calls made while one node runs; `on_call` hears of each as it ends, `on_progress` of long preparations."""

    on_call: Callable[[Call], None] | None = None
    on_progress: Callable[[str, int, int], None] | None = None
    calls: list[Call] = field(default_factory=list)

    def record(self, call: Call) -> None:
        """Add a finished call."""
        self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)


current_meter: ContextVar[Meter | None] = ContextVar("current_meter", default=None)


@dataclass
class Watchers:
    """Who else watches the nodes of all graphs of this process; nobody, unless spans are exported.

    call: gets verb, model and request; what it gives is entered while the model is asked, and told the finished call.
    evidence: hears what a node was given, the chunks it ended with as evidence, and its seconds.
    """

    call: Callable[[str, str, Mapping[str, Any]], AbstractContextManager[Callable[[Call], None]]] | None = None
    evidence: Callable[[Any, Sequence[Mapping[str, Any]], float], None] | None = None


watchers = Watchers()


def report_progress(what: str, done: int, total: int) -> None:
    """Tell whoever watches the running node how far a long preparation is."""
    if (meter := current_meter.get()) is not None and meter.on_progress is not None:
        meter.on_progress(what, done, total)


class Metered:
    """A chat model whose calls are bounded in number at a time and reported to the running node's meter."""

    def __init__(self, model: ChatModel, concurrency: int) -> None:
        """concurrency: how many calls may be under way at once in one event loop."""
        self.model = model
        self._concurrency = concurrency
        # a semaphore belongs to the event loop it was first waited on in
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The model's capabilities."""
        return self.model.capabilities

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        request = {"messages": list(messages), **asdict(sampling), "stop": list(sampling.stop)}
        return await self._call("complete", request, lambda: self.model.complete(messages, sampling))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        request = {"messages": list(messages), "options": list(options)}
        return await self._call("choose", request, lambda: self.model.choose(messages, options))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""
        request = {"messages": list(messages), "continuations": list(continuations)}
        return await self._call("score", request, lambda: self.model.score(messages, continuations))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        request = {"messages": list(messages), **asdict(sampling), "stop": list(sampling.stop), "layer": layer}
        return await self._call("introspect", request, lambda: self.model.introspect(messages, sampling, layer))

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return await self.model.window()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`."""
        return await self.model.count(texts)

    async def _call(self, verb: str, request: dict[str, Any], ask: Callable[[], Awaitable[Answer]]) -> Answer:
        watch = nullcontext(_untold) if watchers.call is None else watchers.call(verb, self.name, request)
        async with self._gate():
            with watch as told:
                start = time.perf_counter()
                answer = await ask()
                seconds = time.perf_counter() - start
                tokens = answer.tokens
                call = Call(verb, self.name, request, _summary(answer), tokens.prompt, tokens.completion, seconds)
                told(call)
        if (meter := current_meter.get()) is not None:
            meter.record(call)
        return answer

    def _gate(self) -> asyncio.Semaphore:
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency))


def _untold(call: Call) -> None:
    """Nobody watches."""


def _summary(answer: Reply | Choice | Scores | Introspection) -> dict[str, Any]:
    if isinstance(answer, Reply):
        return {"texts": [c.text for c in answer.completions], "finish": [c.finish_reason for c in answer.completions]}
    if isinstance(answer, Introspection):
        return {**_summary(answer.reply), "layer": answer.layer, "states": list(answer.states.shape)}
    if isinstance(answer, Choice):
        return {"probabilities": dict(answer.probabilities)}
    return {"mean_logprobs": answer.means}
