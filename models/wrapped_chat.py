"""A chat model around a chat model: every verb becomes one call, which subclasses observe or answer."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from ..prompts import break_chat_marks
from .interfaces import (
    MIDDLE_LAYER,
    Capability,
    ChatModel,
    Checkable,
    Choice,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
)

Result = TypeVar("Result", Reply, Choice, Scores, Introspection)


class WrappedChat(ABC):
    """A `ChatModel` with the name and capabilities of the wrapped model.

    Whatever a message quotes, the model gets no marks of chat templates from it (`break_chat_marks`). The same holds
    for the continuations that it scores: a server reads control tokens in them too.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """See `ChatModel.name`."""
        return self.model.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """See `ChatModel.capabilities`."""
        return self.model.capabilities

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """See `Checkable.lacks`; empty for a model that knows what it can do."""
        return self.model.lacks if isinstance(self.model, Checkable) else {}

    async def check(self, claimed: frozenset[Capability]) -> Mapping[Capability, str]:
        """See `Checkable.check`."""
        return await self.model.check(claimed) if isinstance(self.model, Checkable) else {}

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        messages = _without_marks(messages)
        request = _request(messages, sampling)
        return await self._call(
            "complete", request, lambda seed: self.model.complete(messages, replace(sampling, seed=seed))
        )

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        messages = _without_marks(messages)
        request = {"messages": messages, "options": list(options)}
        return await self._call("choose", request, lambda _: self.model.choose(messages, options))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""
        messages, continuations = _without_marks(messages), [break_chat_marks(text) for text in continuations]
        request = {"messages": messages, "continuations": continuations}
        return await self._call("score", request, lambda _: self.model.score(messages, continuations))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        messages = _without_marks(messages)
        request = {**_request(messages, sampling), "layer": place.layer}
        if place.is_inner:  # else the keys of caches that were written before there was a choice
            request |= {"states": place.states, "at": place.at}
        return await self._call(
            "introspect", request, lambda seed: self.model.introspect(messages, replace(sampling, seed=seed), place)
        )

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return await self.model.window()

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`."""
        return await self.model.count(texts)

    @abstractmethod
    async def _call(self, verb: str, request: dict[str, Any], ask: Callable[[int | None], Awaitable[Result]]) -> Result:
        """The result of a call. request: as JSON values; ask: calls the wrapped model with a seed, if it samples."""


def _request(messages: list[Message], sampling: Sampling) -> dict[str, Any]:
    request = {"messages": messages, **asdict(sampling), "stop": list(sampling.stop)}
    if sampling.pattern is None:
        del request["pattern"]  # the keys of caches that were written before there were patterns
    return request


def _without_marks(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": break_chat_marks(message["content"])} for message in messages]
