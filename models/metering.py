"""Counting and reporting the model calls of the running node."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..concurrency import values_of_loop
from ..errors import ContractFault
from ..state.messages import Call
from ..state.records import Usage
from .interfaces import ChatModel, Choice, Introspection, Reply, Scores
from .question_memory import current_memory
from .wrapped_chat import Result, WrappedChat


@dataclass
class Meter:
    """The calls of one node. on_call: gets each finished call; on_progress: gets the progress of long preparations."""

    on_call: Callable[[Call], None] | None = None
    on_progress: Callable[[str, int, int], None] | None = None
    calls: list[Call] = field(default_factory=list)

    def record(self, call: Call) -> None:
        """Add a finished call."""
        self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)


current_meter: ContextVar[Meter | None] = ContextVar("current_meter", default=None)

spent_by_task: ContextVar[dict[str, Usage] | None] = ContextVar("spent_by_task", default=None)
"""What the nodes of a graph cost so far, by task, if somebody wants to know it even of a run that fails."""


@dataclass
class Watchers:
    """Observers of the nodes of all graphs in this process; there are none unless spans are exported.

    call: gets verb, model and request; returns a context manager for the time of the call, whose value gets the
    finished call. evidence: gets a node's input, the chunks of its evidence, and its seconds.
    """

    call: Callable[[str, str, Mapping[str, Any]], AbstractContextManager[Callable[[Call], None]]] | None = None
    evidence: Callable[[Any, Sequence[Mapping[str, Any]], float], None] | None = None


watchers = Watchers()


def report_progress(what: str, done: int, total: int) -> None:
    """Report the progress of a long preparation to the running node's meter."""
    if (meter := current_meter.get()) is not None and meter.on_progress is not None:
        meter.on_progress(what, done, total)


class Metered(WrappedChat):
    """A chat model with limited concurrency, whose calls are reported to the running node's meter.

    In a cascade, a call that an earlier rung has made is not made again (see `QuestionMemory`).
    """

    def __init__(self, model: ChatModel, concurrency: int) -> None:
        """concurrency: the most concurrent calls in one event loop."""
        super().__init__(model)
        self._concurrency = concurrency

    async def _call(self, verb: str, request: dict[str, Any], ask: Callable[[int | None], Awaitable[Result]]) -> Result:
        memory = current_memory.get()
        key = None if memory is None else memory.numbered(self.model, verb, request)
        if memory is not None and key in memory.known:
            known: Result = memory.known[key]
            if (meter := current_meter.get()) is not None:
                meter.record(Call(verb, self.name, request, _summary(known), 0, 0, 0.0, reused=True))
            return known
        watch = nullcontext(None) if watchers.call is None else watchers.call(verb, self.name, request)
        gate: asyncio.Semaphore = values_of_loop().setdefault(self, asyncio.Semaphore(self._concurrency))
        async with gate:
            with watch as report:
                start = time.perf_counter()

                def record(reply: dict[str, Any], prompt: int, completion: int) -> None:
                    seconds = time.perf_counter() - start
                    call = Call(verb, self.name, request, reply, prompt, completion, seconds)
                    if report is not None:
                        report(call)
                    if (meter := current_meter.get()) is not None:
                        meter.record(call)

                try:
                    result = await ask(request.get("seed"))
                except ContractFault as fault:  # of a choice: it was asked for, and cost something
                    record({"reply": fault.reply, "problem": fault.problem}, *fault.spent)
                    raise
                record(_summary(result), result.tokens.prompt, result.tokens.completion)
        if memory is not None:
            memory.known[key] = result
        return result


def _summary(result: Reply | Choice | Scores | Introspection) -> dict[str, Any]:
    if isinstance(result, Reply):
        return {"texts": [c.text for c in result.completions], "finish": [c.finish_reason for c in result.completions]}
    if isinstance(result, Introspection):
        return {**_summary(result.reply), "layer": result.layer, "states": list(result.states.shape)}
    if isinstance(result, Choice):
        return {"probabilities": dict(result.probabilities)}
    return {"mean_logprobs": result.means}
