"""The web server, which lets go of what is under way when it is told to end."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from starlette.applications import Starlette

LEAVE_S = 2
"""Seconds that connections have to end after Ctrl-C."""


class Server(uvicorn.Server):
    """Runs until Ctrl-C or SIGTERM."""

    def __init__(self, app: Starlette) -> None:
        """app: of `create_app`."""
        super().__init__(
            uvicorn.Config(
                app,
                log_level="error",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=LEAVE_S,
            )
        )
        self._ending: asyncio.Event = app.state.ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the runs, which else would be waited for, then the server."""
        self._ending.set()
        await super().shutdown(sockets)
