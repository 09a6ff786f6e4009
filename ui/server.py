"""The web server of the page; it ends the running questions when it is told to stop."""

import socket

import uvicorn
from starlette.applications import Starlette

LEAVE_S = 2
"""Seconds that connections have to end after Ctrl-C."""


class Server(uvicorn.Server):
    """Runs until Ctrl-C or SIGTERM."""

    def __init__(self, app: Starlette) -> None:
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
        self._end_runs = app.state.end_runs

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the running questions, which uvicorn would wait for, then the server."""
        self._end_runs()
        await super().shutdown(sockets)
