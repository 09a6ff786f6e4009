"""`dubito draw`: a graph as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserFault, either
from ..graphs.registry import graph_named, graph_names
from . import completion
from .screen import help_lines

EXAMPLES = help_lines("Examples", "dubito draw df_rag", "dubito draw vanilla_rag --out vanilla_rag.mmd")


def draw(
    graph: Annotated[
        str, typer.Argument(metavar="GRAPH", help=f"{either(graph_names())}.", autocompletion=completion.graphs)
    ] = completion.DEFAULT,
    *,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file, not to the terminal.")] = None,
) -> None:
    """Draw a graph as Mermaid text.

    GitHub and mermaid.live show it as a picture.
    """
    drawn = graph_named(graph).get_graph(xray=True).draw_mermaid()
    if out is None:
        typer.echo(drawn, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(drawn, encoding="utf-8")
    except OSError as fault:
        raise UserFault(f"The drawing cannot be written to '{out}' ({fault.strerror}): give another path.") from fault
    typer.echo(f"Wrote {out}.")
