"""What `dubito serve` does: check what was asked for, start the servers, say by which name to use them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from ..errors import ModelFault, UserFault
from .processes import Running, end_all, interruptible, start, url_of, wait, watch
from .screen import clean, console, duration, print_json
from .serve_commands import Command, Job, commands, given, has_gpu, layer_of, served_name

OURS = ("--host", "--port")
OURS_TOO = ("--speculative-config", "--kv-transfer-config")
"""Where hidden states are given."""


def run(job: Job, *, dry_run: bool, as_json: bool) -> None:
    """Serve until told to stop; the exit code is 0 if that was after all was ready."""
    _check(job)
    layer = layer_of(job) if job.hidden_states else None
    folder = _folder_base(job) / f"dubito-states-{job.port}"
    if dry_run:
        _show_commands(commands(job, layer, folder), as_json=as_json)
        return
    job = _found(job)
    wanted = commands(job, layer, folder)
    _check_ports(job, [command.port for command in wanted])
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        if job.hidden_states:
            stack.enter_context(_emptied(folder))
        servers: list[Running] = []
        stack.callback(end_all, servers)
        seconds = _bring_up(wanted, servers, job.host)
        try:
            _announce(job, servers, layer, seconds, as_json=as_json)
            watch(servers, job.host)
        except KeyboardInterrupt:
            sys.stderr.write("Ending vLLM ...\n")
        except ModelFault as fault:
            if not as_json:
                raise
            sys.stderr.write(f"{clean(str(fault))}\n")  # standard output has its one object
            raise typer.Exit(1) from None


def _check(job: Job) -> None:
    if not job.hidden_states and (job.layer or job.states_folder):
        raise UserFault("--layer and --states-folder say how hidden states are given: add --hidden-states.")
    for flag in (*OURS, *(OURS_TOO if job.hidden_states else ())):
        if given(job, flag):
            raise UserFault(f"{flag} is set by dubito serve itself: leave it out of vLLM's arguments (see --help).")
    if job.hidden_states and job.port == 65535:
        raise UserFault("--hidden-states takes two ports, P and P + 1, and 65535 is the last: choose a smaller --port.")
    path = Path(job.model).expanduser()
    if not path.exists() and (path.is_absolute() or job.model.startswith((".", "~"))):
        raise UserFault(f"There is no model in {path}: give a model's folder, or its name on a hub.")
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserFault(f"{path} is no model folder: it has no config.json.")


def _found(job: Job) -> Job:
    """The job with the path of the vllm executable."""
    wanted = os.path.expanduser(job.vllm)  # noqa: PTH111 - a bare name is looked for on PATH, as a path it is not
    path = shutil.which(wanted) or shutil.which(wanted, path=str(Path(sys.executable).parent))
    if path is None:
        raise UserFault(
            f"vLLM was not found as {job.vllm}: install it, in an environment of its own if you like, "
            "and name its executable by --vllm PATH."
        )
    return replace(job, vllm=path)


def _check_ports(job: Job, ports: Sequence[int]) -> None:
    for port in ports:
        try:
            family, *_, address = socket.getaddrinfo(job.host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except socket.gaierror:
            raise UserFault(f"{job.host} is no address of this machine: give one by --host, as 127.0.0.1.") from None
        except OSError as fault:
            both = f" (--hidden-states takes {job.port} and {job.port + 1})" if job.hidden_states else ""
            raise UserFault(
                f"Port {port} of {job.host} cannot be used ({fault.strerror}): choose another by --port{both}."
            ) from None


def _folder_base(job: Job) -> Path:
    if job.states_folder is None:
        memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
        return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    base = job.states_folder.expanduser().absolute()
    if not base.is_dir():
        raise UserFault(f"There is no folder {base} for hidden states to pass through: make it, or give another.")
    if not os.access(base, os.W_OK | os.X_OK):
        raise UserFault(f"The folder {base} cannot be written: hidden states pass through it, so give another.")
    return base


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """A new folder for the time being, in the place of what a killed server has left.

    Only its owner may look inside: the files hold the tokens of prompts.
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


def _bring_up(wanted: Sequence[Command], servers: list[Running], host: str) -> float:
    """Start them and wait until each answers; one after the other where they measure how much of a GPU is free."""
    began = time.monotonic()
    screen = Console(stderr=True, markup=False, highlight=False)  # standard output is for the name to use
    if not screen.is_terminal:
        screen.print("Starting vLLM, which takes a minute or more ...")

    def tell(ports: Sequence[int]) -> None:
        named = " and ".join(map(str, ports))
        status.update(f"starting vLLM (port {named}), {time.monotonic() - began:.0f} s ...")

    with screen.status("starting vLLM ...") as status:
        for command in wanted:
            servers.append(start(command))
            if has_gpu() or command is wanted[-1]:
                wait(servers, host, tell)
    return time.monotonic() - began


def _announce(job: Job, servers: Sequence[Running], layer: int | None, seconds: float, *, as_json: bool) -> None:
    urls = [url_of(job.host, one.command.port) for one in servers]
    name = f"vllm:{urls[0]}#{served_name(job)}" + "".join(f"&states={url}" for url in urls[1:])
    logs = [str(one.log) for one in servers]
    if as_json:
        told = [
            {"url": url, "pid": one.process.pid, "log": log} for url, one, log in zip(urls, servers, logs, strict=True)
        ]
        print_json({"llm": name, "layer": layer, "seconds": round(seconds, 1), "servers": told})
        return
    screen = console()
    states = f", the hidden states of layer {layer} at {urls[1]}" if layer is not None else ""
    screen.print(f"Ready after {duration(seconds)}: the model at {urls[0]}{states}.", soft_wrap=True)
    screen.print(f"Use it by: --llm {shlex.quote(name)}", soft_wrap=True)
    screen.print(f"Logs: {', '.join(logs)}", soft_wrap=True)
    screen.print(f"Ctrl-C ends {'both' if layer is not None else 'it'}.")


def _show_commands(wanted: Sequence[Command], *, as_json: bool) -> None:
    if as_json:
        shown = [{"command": one.words, "environment": one.environment} for one in wanted]
        print_json({"commands": shown})
        return
    for one in wanted:
        typer.echo(str(one))
