"""Servers that `dubito serve` starts, waits for and ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ..errors import ModelFault
from ..render.sanitize import one_line
from ..settings import settings
from .exits import handling
from .vllm_commands import Command

SHOWN_LINES = 12
STOP_S = 20.0
POLL_S = 0.3

_ERROR = re.compile(r"\b(\w*(?:Error|Exception): .+)")


@dataclass(frozen=True)
class Server:
    """A server in a process group of its own, since vLLM's processes outlive the process that started them."""

    command: Command
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The base URL that reaches the server from this machine."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.command.port}/v1"

    def is_ready(self) -> bool:
        """Does it answer?"""
        connection = HTTPConnection(self.address, self.command.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def is_alive(self) -> bool:
        """Is a process of its group alive?"""
        self.process.poll()  # otherwise an ended leader counts as alive
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def start(command: Command, host: str) -> Server:
    """Start a server. Its log in the cache folder replaces that of the last server on this port."""
    folder = settings().cache / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"vllm-{command.port}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the caller's own words
            command.words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **command.environment},
            start_new_session=True,
        )
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - the caller's choice
    return Server(command, address, process, path)


def wait(servers: Sequence[Server], show: Callable[[Sequence[Server]], None]) -> None:
    """Wait until all servers are ready. show: called with those that are not ready yet."""
    waiting = list(servers)
    while waiting:
        check_alive(servers, "before it was ready")
        waiting = [server for server in waiting if not server.is_ready()]
        if waiting:
            show(waiting)
            time.sleep(POLL_S)


def watch(servers: Sequence[Server]) -> None:
    """Wait until a server ends (`ModelFault`) or a signal comes (`KeyboardInterrupt`)."""
    while True:
        check_alive(servers, "while it served")
        time.sleep(POLL_S)


def check_alive(servers: Sequence[Server], when: str) -> None:
    """Raise `ModelFault` if a server has ended, and show the end of its log."""
    for server in servers:
        if (code := server.process.poll()) is not None:
            lines, error = _last_lines(server.log)
            sys.stderr.write("".join(f"{one_line(line)}\n" for line in lines))
            because = f" ({one_line(error)})" if error else ""
            raise ModelFault(
                server.url,
                f"vLLM ended with exit code {code} {when}{because}; the end of its log is above, all of it in "
                f"{server.log}",
            )


def _last_lines(log: Path) -> tuple[list[str], str]:
    """The last lines of a log, and the first error that it names."""
    error = ""
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            last.append(line.rstrip())
            # vLLM warns of errors that could come, as of too many open files
            if not error and " WARNING " not in line and (match := _ERROR.search(line)):
                error = match[1].strip().rstrip(".")[:300]
    return list(last), error


def end_all(servers: Sequence[Server]) -> None:
    """End every process of every server. Signals are ignored meanwhile: a process left behind would hold its memory."""
    with handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        for server in servers:
            # the processes of a killed server ignore SIGTERM
            server.send(signal.SIGTERM if server.process.poll() is None else signal.SIGKILL)
        end = time.monotonic() + STOP_S
        while any(server.is_alive() for server in servers) and time.monotonic() < end:
            time.sleep(0.1)
        for server in servers:
            server.send(signal.SIGKILL)
            server.process.wait()
