"""`dubito prompts`: the prompts of a graph, to read and to replace."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault
from ..graphs.registry import DEFAULT_GRAPH, graph_named
from ..traces.files import writing
from .options import GraphName

EXAMPLES = (
    "dubito prompts df_rag",
    "dubito prompts df_rag --out prompts/",
    'dubito ask "..." --graph df_rag --prompts prompts/',
)


def prompts(
    graph: GraphName = DEFAULT_GRAPH,
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write them to this folder, one file each, to edit them.")
    ] = None,
) -> None:
    """Print the prompts of a graph, or write them to a folder.

    Each begins with its inputs, what its reply must be, and the nodes that use it.
    """
    from ..graphs.wiring import prompts_of  # noqa: PLC0415 - keeps `--help` quick

    used = prompts_of(graph_named(graph))
    if out is None:
        typer.echo("\n".join(f"--- {prompt.name}.jinja\n{prompt.source.rstrip()}\n" for prompt in used), nl=False)
        return
    if taken := [prompt.name for prompt in used if (out / f"{prompt.name}.jinja").exists()]:
        raise UserFault(f"'{out}' has {taken[0]}.jinja already: choose another folder, or move the file away.")
    with writing(out, "folder of prompts"):
        out.mkdir(parents=True, exist_ok=True)
        for prompt in used:
            (out / f"{prompt.name}.jinja").write_text(prompt.source, encoding="utf-8")
    typer.echo(
        f"Wrote {len(used)} prompts to {out}. Edit them, delete those that you leave as they are, and give --prompts."
    )
