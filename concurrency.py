"""Concurrent coroutines whose results are needed together, and what belongs to an event loop or a process."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

S = TypeVar("S")
T = TypeVar("T")

_by_loop: dict[asyncio.AbstractEventLoop, WeakKeyDictionary[Any, Any]] = {}


def values_of_loop() -> WeakKeyDictionary[Any, Any]:
    """What belongs to the running event loop and cannot be used in another (connections, semaphores), by its owner.

    The values of closed loops are dropped. Weak references to loops would not do: such a value keeps its loop alive.
    """
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        for closed in [known for known in list(_by_loop) if known.is_closed()]:
            _by_loop.pop(closed, None)
    return _by_loop.setdefault(loop, WeakKeyDictionary())


class OfProcess(Generic[T]):
    """What belongs to a process and is made at its first use there, such as a thread.

    A forked child has none of its parent's threads, and its copies of their locks and queues may stay as they are.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """make: may be called by two threads at once; both then get what one of them made."""
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's own."""
        process = os.getpid()
        if process not in self._made:
            self._made.setdefault(process, self._make())
        return self._made[process]


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order.

    The first failure, or cancelling the caller, cancels the others and waits until they have ended. The failure is
    raised as it is, not as an ExceptionGroup.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    # outside of `except`, so that the failure keeps its own cause and gets no context
    raise failure


async def map_or_cancel(work: Callable[[S], Awaitable[T]], items: Iterable[S], at_once: int) -> list[T]:
    """The results of the work on each item, in their order; `at_once` items at a time. Faults: `gather_or_cancel`."""
    gate = asyncio.Semaphore(at_once)

    async def limited(item: S) -> T:
        async with gate:
            return await work(item)

    return await gather_or_cancel(map(limited, items))


async def worker_pool(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do the work on each item, in their order, `at_once` items at a time. The first fault cancels the others."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await gather_or_cancel(worker() for _ in range(at_once))
