"""One event loop in a daemon thread: synchronous callers run async code on it."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Background:
    """A daemon thread that runs one event loop. It starts at first use, and again in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="dubito-background", daemon=True).start()
            return self._loop


_background = _Background()


def _start_anew() -> None:
    # a forked child has no such thread, and its copy of the lock may be locked for ever
    global _background  # noqa: PLW0603
    _background = _Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def start_in_background(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the shared background loop, in a copy of the caller's context, and return at once."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background.loop())


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared background loop and wait for its result.

    It runs in a copy of the caller's context, with its context variables. If the caller is interrupted while it
    waits, the coroutine is cancelled. Raises `RuntimeError` on the loop's own thread, where waiting would never end.
    """
    loop = _background.loop()
    if _running_loop() is loop:
        coroutine.close()
        raise RuntimeError(
            "run_in_background was called on the background event loop itself; await the coroutine there instead."
        )
    future = start_in_background(coroutine)
    try:
        return future.result()
    except BaseException:
        # the future is still pending only if the wait itself was interrupted (KeyboardInterrupt)
        future.cancel()
        raise


async def await_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared background loop, to which its connections belong, and await it from any loop.

    Cancelling the wait cancels the coroutine.
    """
    loop = _background.loop()
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(start_in_background(coroutine))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
