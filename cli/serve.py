"""`dubito serve`: a vLLM server, and beside it one that gives the model's hidden states away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito serve Qwen/Qwen2.5-7B-Instruct",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states --port 8000",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states -- --max-model-len 8192",
    "dubito serve models/Qwen2.5-7B-Instruct --hidden-states --dry-run",
)


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or its name on a hub.")],
    vllm_arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="What follows a -- is given to vLLM as it is.")
    ] = None,
    *,
    hidden_states: Annotated[
        bool, typer.Option("--hidden-states", help="Start a second server on the next port, for hidden states.")
    ] = False,
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The layer whose states are given; without it the middle one."),
    ] = None,
    states_folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where they pass through; without it memory (/dev/shm), where there is such."),
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="P", min=1, max=65535, help="The port to listen on.")] = 8000,
    vllm: Annotated[
        str, typer.Option(metavar="PATH", envvar="DUBITO_VLLM", help="The vllm executable, of whichever environment.")
    ] = "vllm",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object once all is ready, and nothing else.")
    ] = False,
) -> None:
    """Serve a model with vLLM until Ctrl-C, and print the --llm name to use it by.

    With --hidden-states a second server of the same model is started beside the first: vLLM's sampling is wrong on a
    server that gives hidden states away.
    """
    from .serve_commands import Job  # noqa: PLC0415 - what is heavy loads when it is needed
    from .serving import run  # noqa: PLC0415

    job = Job(model, tuple(vllm_arguments or ()), hidden_states, layer, states_folder, host, port, vllm)
    run(job, dry_run=dry_run, as_json=as_json)
