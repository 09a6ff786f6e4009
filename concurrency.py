"""Concurrent coroutines whose results are needed together, and what belongs to an event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar
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
