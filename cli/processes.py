"""Servers that `dubito serve` starts, waits for and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from ..errors import ModelFault
from ..settings import settings
from .screen import clean
from .serve_commands import Command

SHOWN_LINES = 12
STOP_S = 20.0
POLL_S = 0.3

_CAUSE = re.compile(r"\b(\w*(?:Error|Exception): .+)")


@dataclass(frozen=True)
class Running:
    """A server that was started, in a process group of its own: vLLM's processes outlive the one that began them."""

    command: Command
    process: subprocess.Popen[bytes]
    log: Path


def start(command: Command) -> Running:
    """Start a server; what it says goes to a log in the cache folder, where the last one's is replaced."""
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
    return Running(command, process, path)


def wait(servers: Sequence[Running], host: str, tell: Callable[[Sequence[int]], None]) -> None:
    """Until all answer; tell: hears the ports that do not yet."""
    waiting = list(servers)
    while waiting:
        check_alive(servers, host, "before it was ready")
        waiting = [one for one in waiting if not _healthy(host, one.command.port)]
        if waiting:
            tell([one.command.port for one in waiting])
            time.sleep(POLL_S)


def watch(servers: Sequence[Running], host: str) -> None:
    """Until one ends (`ModelFault`) or a signal comes."""
    while True:
        check_alive(servers, host, "while it served")
        time.sleep(POLL_S)


def check_alive(servers: Sequence[Running], host: str, when: str) -> None:
    """Raise `ModelFault`, the end of its log being shown, if one has ended."""
    for one in servers:
        if (code := one.process.poll()) is not None:
            lines, cause = _last_lines(one.log)
            sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
            because = f" ({clean(cause)})" if cause else ""
            raise ModelFault(
                url_of(host, one.command.port),
                f"vLLM ended with exit code {code} {when}{because}; its log's end is above, the whole in {one.log}",
            )


def _last_lines(log: Path) -> tuple[list[str], str]:
    """The last lines of a log, and the first error that it names."""
    cause = ""
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            last.append(line.rstrip())
            if not cause and (found := _CAUSE.search(line)):
                cause = found[1].strip().rstrip(".")[:300]
    return list(last), cause


def _healthy(host: str, port: int) -> bool:
    try:
        connection = HTTPConnection(_reached(host), port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _reached(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - the caller's choice


def url_of(host: str, port: int) -> str:
    """The base URL by which a server is reached from this machine."""
    name = _reached(host)
    return f"http://[{name}]:{port}/v1" if ":" in name else f"http://{name}:{port}/v1"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a server as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def end_all(servers: Sequence[Running]) -> None:
    """End every process of every server's group; not to be broken off, as what is left would hold its memory."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        for one in servers:
            # what a killed server leaves behind does not listen to SIGTERM
            _signal(one, signal.SIGTERM if one.process.poll() is None else signal.SIGKILL)
        end = time.monotonic() + STOP_S
        while any(_lives(one) for one in servers) and time.monotonic() < end:
            time.sleep(0.1)
        for one in servers:
            _signal(one, signal.SIGKILL)
            one.process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _lives(one: Running) -> bool:
    one.process.poll()  # a leader that has ended counts as there until it is asked
    try:
        os.killpg(one.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(one: Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(one.process.pid, number)
