"""One event loop in a daemon thread, so that synchronous callers can use what is async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Background:
    """A daemon thread that runs one event loop, started when it is first needed and again after a fork."""

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
    # a forked child has neither the thread nor, perhaps, an open lock
    global _background  # noqa: PLW0603
    _background = _Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def start_in_background(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the shared background loop, in a copy of the caller's context, and return at once."""
    return asyncio.run_coroutine_threadsafe(coroutine, _background.loop())


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared background loop and wait for its result.

    It runs in a copy of the caller's context, so context variables are seen. If the waiting caller is interrupted, the
    coroutine is cancelled. It may be called from any thread but the loop's own, where waiting would never end.
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
        # reached with the future still pending only if the wait itself was interrupted (KeyboardInterrupt)
        future.cancel()
        raise


async def await_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await, from any event loop, a coroutine whose connections belong to the shared background loop.

    Cancelling the wait cancels the coroutine.
    """
    loop = _background.loop()
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
