"""Lays out a graph as an arc diagram: nodes below one another, long edges as arcs, back edges on the left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_WIDTH, CHARACTER, MARGIN = 88.0, 7.2, 42.0
"""Pixels: the smallest width of a node, a character of its name, the margins with the number of runs."""

HALF, ROW, ARROW = 15.0, 46.0, 5.0
"""Pixels: half the height of a node, from one node to the next, from the end of an edge to its node."""

ARC = 18.0
"""Pixels that the points which an arc bends towards lie further out for each row that it spans."""

Edge = tuple[str, str]


@dataclass(frozen=True)
class GraphLayout:
    """Of each node the centre (x, y) and the width, and every edge as an SVG path; sizes in pixels."""

    nodes: Mapping[str, tuple[float, float, float]]
    edges: Mapping[Edge, str]
    width: float
    height: float


def layout(edges: Sequence[Edge], start: str) -> GraphLayout:
    """Lay out all nodes that can be reached from `start`; edges from a node to itself are left out."""
    out: dict[str, list[str]] = {}
    for source, target in edges:
        if source != target:
            out.setdefault(source, []).append(target)
    order = _topological_order(out, start)
    row = {node: number for number, node in enumerate(order)}
    rows = {(source, target): row[target] - row[source] for source in order for target in out.get(source, ())}
    # `__start__` and `__end__` are words without a box
    boxes = {node: max(MIN_WIDTH, CHARACTER * len(node) + MARGIN) for node in order if not node.startswith("__")}
    widths = {node: boxes.get(node, CHARACTER * (len(node.strip("_")) + 1)) for node in order}
    half = max(widths.values()) / 2
    # an arc gets three quarters of the way to the points that it bends towards
    centre = half + 0.75 * ARC * max([-count for count in rows.values() if count < 0], default=0) + 2
    right = centre + half + 0.75 * ARC * max([count for count in rows.values() if count > 1], default=0) + 2
    nodes = {node: (centre, HALF + 2 + row[node] * ROW, width) for node, width in widths.items()}
    paths = {}
    for (source, target), count in rows.items():
        upper, lower = nodes[source][1], nodes[target][1]
        if count == 1:
            paths[source, target] = f"M{centre:.1f} {upper + HALF:.1f}V{lower - HALF - ARROW:.1f}"
            continue
        side = 1 if count > 0 else -1
        begin, end = centre + side * widths[source] / 2, centre + side * (widths[target] / 2 + ARROW)
        bend, y, to_y = centre + side * half + count * ARC, upper + side * HALF / 3, lower - side * HALF / 3
        paths[source, target] = f"M{begin:.1f} {y:.1f}C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {end:.1f} {to_y:.1f}"
    return GraphLayout(nodes, paths, right, (len(order) - 1) * ROW + 2 * HALF + 4)


def _topological_order(out: Mapping[str, Sequence[str]], start: str) -> list[str]:
    """The nodes, each above those that its edges lead to, except for back edges."""
    seen: set[str] = set()
    done: list[str] = []

    def visit(node: str) -> None:
        seen.add(node)
        for other in out.get(node, ()):
            if other not in seen:
                visit(other)
        done.append(node)

    visit(start)
    return done[::-1]
