"""`dubito ui`: a page on this machine to ask questions and watch the steps of the answer."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserFault, extra_command
from ..settings import settings
from .options import ConfigFile, EverybodyMayAsk, QuestionsAtOnce, typed_options

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from ..resources.allowlist import AllowList

EXAMPLES = (
    "dubito ui",
    "dubito ui --corpus notes/ --corpus papers.index --port 8701",
    'dubito ui --llm "vllm:http://127.0.0.1:8000/v1#my-model"',
    "dubito ui --uploads uploads/ --upload-mb 50",
    "dubito ui --allow judge=nli:my-cross-encoder --allow encoder=st:my-encoder",
)


def ui(
    context: typer.Context,
    *,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any free port.")] = 8700,
    corpus: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A corpus that may be chosen beside 'sample'; repeatable."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The chat model that is chosen at the start; 'embedded' may be chosen too.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=VALUE",
            help="Another file, folder or server that a setting may name (llm, encoder, judge, ...); repeatable.",
        ),
    ] = None,
    at_once: QuestionsAtOnce = 2,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; see --everybody-may-ask.")
    ] = "127.0.0.1",
    everybody_may_ask: EverybodyMayAsk = False,
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Keep questions, answers and traces after the page has ended."),
    ] = True,
    uploads: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Let browsers upload files, to ask questions of; they are kept in this folder. Off by default.",
        ),
    ] = None,
    upload_mb: Annotated[
        float, typer.Option("--upload-mb", metavar="N", min=0.001, help="The maximum size of an uploaded file, in MB.")
    ] = 20,
    uploads_mb: Annotated[
        float, typer.Option("--uploads-mb", metavar="N", min=0.001, help="The same of all files of a browser, in MB.")
    ] = 100,
    config_file: ConfigFile = None,
) -> None:
    """Serve one page on this machine, until Ctrl-C: ask, watch the steps, read the answer and its trace.

    The page offers 'sample', 'embedded', and the corpora and models that are named here, in DUBITO_ALLOW or in the
    configuration (docs/settings.md). Questions, answers and traces are kept in the cache folder, and each browser
    finds its own. Nothing is sent anywhere except to the models.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UserFault(f"dubito ui runs on starlette and uvicorn: run `{extra_command('ui')}`.")
    if uploads is None and typed_options(context).keys() & {"upload_mb", "uploads_mb"}:
        raise UserFault("--upload-mb and --uploads-mb are limits of uploaded files: give --uploads DIR too.")
    from ..ui.app import create_app  # noqa: PLC0415 - an extra
    from ..ui.uploads import Limits  # noqa: PLC0415 - an extra

    check_reach(host, everybody_may_ask=everybody_may_ask)
    allowed = page_allow_list(corpus or [], llm, allow or [])
    limits = Limits(file=round(upload_mb * 1_000_000), browser=round(uploads_mb * 1_000_000))
    with ExitStack() as ends:
        listening = ends.enter_context(listener(host, port))
        forgotten = ends.enter_context(TemporaryDirectory(prefix="dubito-"))
        if uploads is not None:
            ends.enter_context(upload_folder(uploads))
        kept = None if history else Path(forgotten)
        app = create_app(allowed, host=host, at_once=at_once, history=kept, uploads=uploads, limits=limits)
        query = "" if settings().token is None else "?token=TOKEN"
        serve_until_interrupted(app, listening, f"Ask on {url_of(listening)}/{query}")


def upload_folder(folder: Path) -> AbstractContextManager[None]:
    """Holds a folder for uploads, which is made if it is missing; `UserFault` if it cannot be used, or is in use."""
    from ..file_lock import exclusive_lock  # noqa: PLC0415 - keeps `--help` quick

    try:
        folder.expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as fault:
        raise UserFault(f"--uploads {folder} cannot be used ({fault.strerror}): give another folder.") from fault
    busy = f"Another dubito ui keeps its uploads in {folder}: give another folder, or end that one."
    return exclusive_lock(folder.expanduser() / ".lock", busy)


def check_reach(host: str, *, everybody_may_ask: bool) -> None:
    """Raise `UserFault` for an address that others can reach, unless a token is set or everybody may ask."""
    from ..ui.guard import is_loopback  # noqa: PLC0415 - an extra

    if not everybody_may_ask and settings().token is None and not is_loopback(host):
        raise UserFault(
            f"On --host {host} others can reach this server, ask the models and read the corpora without a password: "
            "set a token in DUBITO_TOKEN, or add --everybody-may-ask to allow that."
        )


def page_allow_list(corpora: Sequence[str], llm: str | None, others: Iterable[str]) -> AllowList:
    """The allow-list of `--corpus`, `--llm`, `--allow SETTING=VALUE` and DUBITO_ALLOW; raises as `allow_list`."""
    from ..resources.allowlist import AllowList, allow_list, configured_list  # noqa: PLC0415 - keeps `--help` quick

    how_to_add = "have it added by --allow {name}={value} when dubito ui is started"
    named = [*(f"corpus={corpus}" for corpus in corpora), *([f"llm={llm}"] if llm else []), *others]
    own = allow_list(named, "--allow", how_to_add).added
    shared = allow_list(configured_list(), "DUBITO_ALLOW", how_to_add).added
    return AllowList(
        {name: [*own.get(name, ()), *shared.get(name, ())] for name in dict.fromkeys([*own, *shared])}, how_to_add
    )


def url_of(listening: socket.socket) -> str:
    """The address and port of a socket that listens, as http://HOST:PORT."""
    address, port = listening.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def serve_until_interrupted(app: Starlette, listening: socket.socket, announcement: str) -> None:
    """Announce an app and serve it until Ctrl-C."""
    from ..ui.server import Server  # noqa: PLC0415 - an extra

    typer.echo(f"{announcement} (Ctrl-C ends it)")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        Server(app).run(sockets=[listening])


def listener(host: str, port: int, ports: str = "") -> socket.socket:
    """A socket that listens, so that early clients wait for the app; `UserFault` for an address that cannot be used.

    ports: which ports the command takes, for the message.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError as fault:
        raise UserFault(
            f"Port {port} of {host} cannot be used ({fault.strerror or fault}): give another --port{ports} or --host."
        ) from fault
    return bound
