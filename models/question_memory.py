"""What the rungs of a cascade need not ask again: the model calls and searches of earlier rungs for one question."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class QuestionMemory:
    """What is known for one question while one rung runs, in which the rung's equal calls are numbered.

    The rung's second sample is not its first one again, but the second one of an earlier rung: within a rung samples
    stay independent. `dubito eval` shares the calls of several graphs in the same way (`RememberingChat`).
    """

    def __init__(self, known: dict[object, Any]) -> None:
        """known: all rungs' results by request; nobody changes a result."""
        self.known = known
        self._calls: Counter[str] = Counter()

    def numbered(self, model: object, verb: str, request: Mapping[str, Any]) -> object:
        """The key of a call. model: lives as long as `known`."""
        text = json.dumps([id(model), verb, request], sort_keys=True)
        self._calls[text] += 1
        return text, self._calls[text]


current_memory: ContextVar[QuestionMemory | None] = ContextVar("current_memory", default=None)


@contextmanager
def remembering(known: dict[object, Any]) -> Iterator[None]:
    """Take what is meanwhile asked from `known`, or else keep it there."""
    token = current_memory.set(QuestionMemory(known))
    try:
        yield
    finally:
        current_memory.reset(token)
