"""Concurrent coroutines whose results are needed together."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


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


async def worker_pool(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do the work on each item, in their order, `at_once` items at a time. The first fault cancels the others."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    await gather_or_cancel(worker() for _ in range(at_once))
