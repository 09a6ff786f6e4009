"""Draws the ```mermaid fences as SVG figures in the page, so that a page needs no script.

It reads only the lines that LangGraph writes. The layout is the trace page's.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from dubito.render.arcs import layout
from mkdocs.config.defaults import MkDocsConfig

EDGE = re.compile(r"^\s*(\S+) (-->|-\.->|-\. .* \.->|-- .* -->) (\S+);$", re.MULTILINE)
ENDS = {"__start__": "start", "__end__": "end"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give the fences to `figure`."""
    fence = {"name": "mermaid", "class": "graph", "format": figure}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def figure(source: str, *_: Any, **__: Any) -> str:  # noqa: ANN401 - the fences' own signature
    """The graph as SVG; dashed edges are decisions. Raises `ValueError` for a drawing without edges."""
    edges = {(_name(start), _name(end)): arrow != "-->" for start, arrow, end in EDGE.findall(source)}
    if not edges:
        raise ValueError(f"a mermaid fence holds no edge of a graph: {source[:80]!r}")
    drawn = layout(list(edges), "__start__")
    lines = [
        f'<path class="{"decided" if edges[edge] else "always"}" d="{path}" marker-end="url(#arrow)"/>'
        for edge, path in drawn.edges.items()
    ]
    nodes = [_node(name, *place) for name, place in drawn.nodes.items()]
    size = f'width="{drawn.width:.0f}" height="{drawn.height:.0f}" viewBox="0 0 {drawn.width:.0f} {drawn.height:.0f}"'
    return (
        f'<figure class="graph"><svg {size} role="img" aria-label="the graph\'s nodes and edges">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8Z"/></marker></defs>{"".join(lines)}{"".join(nodes)}</svg></figure>'
    )


def _name(written: str) -> str:
    return written.replace("\\3a", ":")


def _node(name: str, x: float, y: float, width: float) -> str:
    text = f'<text x="{x:.1f}" y="{y + 4.5:.1f}">{escape(ENDS.get(name, name))}</text>'
    if name in ENDS:
        return f'<g class="end">{text}</g>'
    return f'<g><rect x="{x - width / 2:.1f}" y="{y - 15:.1f}" width="{width:.1f}" height="30" rx="6"/>{text}</g>'
