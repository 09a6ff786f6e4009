"""`dubito draw`: a graph as Mermaid text."""

from pathlib import Path
from typing import Annotated

import typer

from ..graphs.registry import DEFAULT_GRAPH, graph_named
from ..traces.files import write_file, writing
from .options import GraphName

EXAMPLES = ("dubito draw vanilla_rag", "dubito draw vanilla_rag --out vanilla_rag.mmd")

BEGINNING = b"---\nconfig:\n  flowchart:\n"
"""How Mermaid text of LangGraph begins."""


def draw(
    graph: GraphName = DEFAULT_GRAPH,
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
    with writing(out, "drawing"):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, drawn.encode(), "drawing", BEGINNING)
    typer.echo(f"Wrote {out}.")
