"""A server's outages, waited out: while a server refuses everything, one caller probes it and all others wait."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

REFUSALS = 3
"""Refusals in a row, of any callers, that make an outage."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
"""Between two probes; each pause is twice the one before."""


class Outages:
    """The outages of one server, for all its callers in any event loop or thread.

    An outage is a server that has answered before and now refuses every request. A server that never answered has no
    outage: its name is wrong, or it was not started.
    """

    def __init__(self, server: str) -> None:
        """server: its name in the log."""
        self._server = server
        self._has_answered = False
        self._refusals = 0
        self._since = 0.0
        self._pause = FIRST_PAUSE_S
        self._next_probe = 0.0
        self._probe_failed = False

    def answered(self) -> None:
        """Note that the server answered a request, even with an error of the request's own."""
        self._has_answered, self._refusals, self._pause = True, 0, FIRST_PAUSE_S
        self._probe_failed = False

    def refused(self) -> None:
        """Note that the server could not be reached, or said that it cannot serve."""
        if self._refusals == 0:
            self._since = time.monotonic()
        self._refusals += 1

    @property
    def seconds(self) -> float | None:
        """How long the outage has lasted; None without one."""
        lasts = self._has_answered and self._refusals >= REFUSALS
        return time.monotonic() - self._since if lasts else None

    async def wait(self, probe: Callable[[], Awaitable[bool]], limit: float) -> bool:
        """Wait until the server is up again, or `limit` seconds have passed since it went down.

        probe: asks the server for something that it always has; returns whether it answered. Returns whether a probe
        failed: a server that refuses some requests and answers every probe has no outage.
        """
        failed = False
        while (lasts := self.seconds) is not None and lasts < limit:
            now = time.monotonic()
            if now < self._next_probe:
                await asyncio.sleep(min(self._next_probe - now, 1.0))
                failed = failed or self._probe_failed
                continue
            self._next_probe = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            if await probe():
                if self._probe_failed:
                    logger.warning("%s answers again.", self._server)
                self.answered()
            else:
                if not self._probe_failed:
                    patience = "" if limit == math.inf else f" up to {limit:.0f} s (DUBITO_OUTAGE_S)"
                    logger.warning(
                        "%s does not answer: start it again. Requests wait for it%s.", self._server, patience
                    )
                failed = self._probe_failed = True
        return failed
