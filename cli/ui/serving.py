"""What `dubito ui` does: check what was asked for, listen, say where."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING

import typer

from ...errors import UserFault
from ..processes import interruptible

if TYPE_CHECKING:
    from ...models.offer import Offer


@dataclass(frozen=True)
class Job:
    """What was asked for on the command line; see the options of `dubito ui`."""

    host: str
    port: int
    corpora: Sequence[str]
    llm: str | None
    allow: Sequence[str]
    at_once: int
    everybody_may_ask: bool


def serve(job: Job) -> None:
    """Serve until told to stop."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UserFault('dubito ui runs on starlette and uvicorn: run `pip install "dubito[ui]"`.')
    if not job.everybody_may_ask and not _is_loopback(job.host):
        raise UserFault(
            f"On --host {job.host} others can reach the page, ask the models and read the corpora without a password: "
            "add --everybody-may-ask if that is meant."
        )
    from .app import create_app  # noqa: PLC0415 - an extra
    from .server import Server  # noqa: PLC0415 - an extra

    app = create_app(page_offer(job.corpora, job.llm, job.allow), host=job.host, at_once=job.at_once)
    with _listening(job.host, job.port) as listener:
        typer.echo(f"Ask on {_url(listener)} (Ctrl-C ends it)")
        sys.stdout.flush()
        with interruptible(), contextlib.suppress(KeyboardInterrupt):
            Server(app).run(sockets=[listener])


def page_offer(corpora: Sequence[str], llm: str | None, others: Iterable[str]) -> Offer:
    """The offer of a command line: `--corpus`, `--llm` and `--allow SETTING=VALUE`; raises as `offered`."""
    from ...models.offer import offered  # noqa: PLC0415 - what is heavy loads when it is needed

    given = [*(f"corpus={corpus}" for corpus in corpora), *([f"llm={llm}"] if llm else []), *others]
    return offered(given, "--allow", "have it added by --allow {name}={value} when dubito ui is started")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as fault:
        raise UserFault(
            f"Port {port} of {host} cannot be listened on ({fault.strerror or fault}): give another --port or --host."
        ) from fault
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
