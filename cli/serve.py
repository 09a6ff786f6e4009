"""`dubito serve`: a vLLM server, and beside it a second server that returns the model's hidden states."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ModelFault, UserFault
from ..presenters.words import duration
from ..render.sanitize import one_line
from ..render.screen import console, print_json
from . import vllm_commands
from .ui import listener
from .vllm_commands import Command, has_flag

if TYPE_CHECKING:
    from .processes import Server

EXAMPLES = (
    "dubito serve Qwen/Qwen2.5-7B-Instruct",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states --port 8000",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states -- --max-model-len 8192",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states --dry-run",
)

OUR_FLAGS = ("--host", "--port")
HIDDEN_STATE_FLAGS = ("--speculative-config", "--kv-transfer-config")


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the model's name on a hub.")],
    vllm_arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="All arguments after -- are passed to vLLM.")
    ] = None,
    *,
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Start a second server on the next port, for hidden states.")
    ] = False,
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The layer whose hidden states are returned; default: the middle layer."),
    ] = None,
    states_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder that hidden states pass through; default: /dev/shm if it exists (memory)."
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="P", min=1, max=65535, help="The port to listen on.")] = 8000,
    vllm: Annotated[
        str, typer.Option(metavar="PATH", envvar="DUBITO_VLLM", help="The vllm executable, from any environment.")
    ] = "vllm",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the servers are ready, and nothing else.")
    ] = False,
) -> None:
    """Serve a model with vLLM until Ctrl-C, and print the --llm name to use it by.

    With --hidden-states a second server of the same model is started beside the first: vLLM samples wrong tokens on a
    server that returns hidden states.
    """
    arguments = vllm_arguments or []
    if not hidden_states and (layer or states_folder):
        raise UserFault("--layer and --states-folder are for hidden states: add --hidden-states.")
    for flag in (*OUR_FLAGS, *(HIDDEN_STATE_FLAGS if hidden_states else ())):
        if has_flag(arguments, flag):
            raise UserFault(f"{flag} is set by dubito serve itself: leave it out of vLLM's arguments (see --help).")
    if hidden_states and port == 65535:
        raise UserFault("--hidden-states takes two ports, P and P + 1, and 65535 is the last: choose a smaller --port.")
    _check_model(model)
    layer = vllm_commands.hidden_state_layer(model, layer) if hidden_states else None
    folder = _states_parent(states_folder) / f"dubito-states-{port}"
    executable = vllm if dry_run else _executable(vllm)
    commands = vllm_commands.commands(
        executable, model, arguments, host=host, port=port, layer=layer, states_folder=folder
    )
    if dry_run:
        _print_commands(commands, as_json=as_json)
        return
    for command in commands:
        listener(host, command.port, f" (--hidden-states takes {port} and {port + 1})" if hidden_states else "").close()

    from .processes import end_all, watch  # noqa: PLC0415 - keeps `--help` quick

    with ExitStack() as stack:
        if hidden_states:
            stack.enter_context(_empty_folder(folder))
        servers: list[Server] = []
        stack.callback(end_all, servers)
        seconds = _start(commands, servers, host)
        try:
            name = vllm_commands.served_name(model, arguments)
            _announce(name, servers, layer, seconds, as_json=as_json)
            watch(servers)
        except KeyboardInterrupt:
            sys.stderr.write("Ending vLLM ...\n")
        except ModelFault as fault:
            if not as_json:
                raise
            sys.stderr.write(f"{one_line(str(fault))}\n")  # standard output already has its JSON object
            raise typer.Exit(1) from None


def _check_model(model: str) -> None:
    path = Path(model).expanduser()
    if not path.exists() and (path.is_absolute() or model.startswith((".", "~"))):
        raise UserFault(f"There is no model in {path}: give a model's folder, or its name on a hub.")
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserFault(f"{path} is not a model folder: it has no config.json.")


def _executable(vllm: str) -> str:
    """The path of the vllm executable: on PATH, or beside this Python."""
    name = os.path.expanduser(vllm)  # noqa: PTH111 - as a Path, a bare name would not be looked up on PATH
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise UserFault(
            f"vLLM was not found as {vllm}: install it, in an environment of its own if you like, "
            "and name its executable by --vllm PATH."
        )
    return path


def _states_parent(states_folder: Path | None) -> Path:
    if states_folder is None:
        memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
        return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    parent = states_folder.expanduser().absolute()
    if not parent.is_dir():
        raise UserFault(f"There is no folder {parent} for hidden states: make it, or give another --states-folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserFault(f"The folder {parent} cannot be written: give another --states-folder for hidden states.")
    return parent


@contextmanager
def _empty_folder(folder: Path) -> Iterator[None]:
    """Make the folder anew, without the files of a killed server, and remove it in the end.

    Only its owner may read it: the files hold the tokens of prompts.
    """
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    except OSError as fault:
        raise UserFault(
            f"The folder {folder} for hidden states cannot be made anew ({fault.strerror or fault}): "
            "remove it, or give another by --states-folder."
        ) from None
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(commands: Sequence[Command], servers: list[Server], host: str) -> float:
    """Start the servers, wait until all are ready, and return the seconds that it took.

    On a GPU they start one after the other, since each measures the free memory of the GPU.
    """
    from rich.console import Console  # noqa: PLC0415 - rich loads when something is drawn

    from .processes import start, wait  # noqa: PLC0415 - keeps `--help` quick

    began = time.monotonic()
    screen = Console(stderr=True, markup=False, highlight=False)  # standard output is for the model's name
    if not screen.is_terminal:
        screen.print("Starting vLLM, which takes a minute or more ...")

    def show(waiting: Sequence[Server]) -> None:
        ports = " and ".join(str(server.command.port) for server in waiting)
        status.update(f"starting vLLM (port {ports}), {time.monotonic() - began:.0f} s ...")

    with screen.status("starting vLLM ...") as status:
        for command in commands:
            servers.append(start(command, host))
            if vllm_commands.has_gpu() or command is commands[-1]:
                wait(servers, show)
    return time.monotonic() - began


def _announce(name: str, servers: Sequence[Server], layer: int | None, seconds: float, *, as_json: bool) -> None:
    urls = [server.url for server in servers]
    llm = f"vllm:{urls[0]}#{name}" + (f"&states={urls[1]}&layer={layer}" if layer is not None else "")
    if as_json:
        shown = [{"url": server.url, "pid": server.process.pid, "log": str(server.log)} for server in servers]
        print_json({"llm": llm, "layer": layer, "seconds": round(seconds, 1), "servers": shown})
        return
    screen = console()
    states = f", the hidden states of layer {layer} at {urls[1]}" if layer is not None else ""
    screen.print(f"Ready after {duration(seconds)}: the model at {urls[0]}{states}.", soft_wrap=True)
    screen.print(f"Use it by: --llm {shlex.quote(llm)}", soft_wrap=True)
    screen.print(f"Logs: {', '.join(str(server.log) for server in servers)}", soft_wrap=True)
    screen.print(f"Ctrl-C ends {'both' if layer is not None else 'it'}.")


def _print_commands(commands: Sequence[Command], *, as_json: bool) -> None:
    if as_json:
        shown = [{"command": command.words, "environment": command.environment} for command in commands]
        print_json({"commands": shown})
        return
    for command in commands:
        typer.echo(str(command))
