"""Lays out a graph in layers from top to bottom (Sugiyama et al. 1981): layers, order in each layer, coordinates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

MIN_WIDTH, CHARACTER, MARGIN = 88.0, 7.2, 42.0
"""Pixels: the smallest width of a node, a character of its name, the margins with the number of runs."""

GAP, LAYER = 18.0, 62.0
"""Pixels: between two nodes of a layer, between two layers."""

ASIDE = 24.0
"""Pixels from the middle of a node to its back edges."""

BEND = 12.0
"""Pixels that an edge takes up in a layer that it crosses."""

HALF = 15.0
"""Pixels: half the height of a node."""

SWEEPS = 24

Point = tuple[float, float]
Edge = tuple[str, str]
Bend = tuple[str, str, int]
"""The point where an edge crosses a layer: source, target, layer."""

Place = str | Bend


@dataclass(frozen=True)
class GraphLayout:
    """The centres of the nodes, and every edge as an SVG path; sizes in pixels."""

    nodes: Mapping[str, Point]
    edges: Mapping[Edge, str]
    width: float
    height: float


def width_of(name: str) -> float:
    """The width of a node in pixels."""
    return max(MIN_WIDTH, CHARACTER * len(name) + MARGIN)


def layout(edges: Sequence[Edge], start: str) -> GraphLayout:
    """Lay out all nodes that can be reached from `start`; edges from a node to itself are left out."""
    out: dict[str, list[str]] = {}
    for source, target in edges:
        if source != target:
            out.setdefault(source, []).append(target)
    order, back = _topological_order(out, start)
    down = [(t, s) if (s, t) in back else (s, t) for s in order for t in out.get(s, ())]
    rank = _ranks(order, down)
    routes = {edge: _route(edge, rank) for edge in down}
    layers = _ordered(_filled(order, rank, routes), routes)
    x = _places(layers, routes)
    nodes = {node: (x[node], HALF + 2 + rank[node] * LAYER) for node in order}
    drawn = {}
    for s in order:
        for t in out.get(s, ()):
            is_back = (s, t) in back
            way = [(x[place], HALF + 2 + _rank(place, rank) * LAYER) for place in routes[(t, s) if is_back else (s, t)]]
            # a back edge keeps to its side of the edge that leads down
            aside = ASIDE if fmean(at for at, _ in way[1:]) >= way[0][0] else -ASIDE
            drawn[s, t] = _curve(way[::-1], -1, aside) if is_back else _curve(way, 1, 0.0)
    width = max(at + _size(place) / 2 for place, at in x.items()) + 2
    return GraphLayout(nodes, drawn, width, (max(rank.values()) * LAYER) + 2 * HALF + 4)


def _topological_order(out: Mapping[str, Sequence[str]], start: str) -> tuple[list[str], set[Edge]]:
    """The nodes in topological order, and the back edges (those that close a cycle)."""
    done: list[str] = []
    back: set[Edge] = set()
    path: set[str] = set()

    def visit(node: str) -> None:
        path.add(node)
        for other in out.get(node, ()):
            if other in path:
                back.add((node, other))
            elif other not in done:
                visit(other)
        path.remove(node)
        done.append(node)

    visit(start)
    return done[::-1], back


def _ranks(order: Sequence[str], down: Sequence[Edge]) -> dict[str, int]:
    """The layer of each node: the number of edges of the longest path from the start."""
    rank = dict.fromkeys(order, 0)
    for node in order:
        for source, target in down:
            if source == node:
                rank[target] = max(rank[target], rank[node] + 1)
    return rank


def _route(edge: Edge, rank: Mapping[str, int]) -> list[Place]:
    """The places of an edge: its upper node, the layers that it crosses, its lower node."""
    upper, lower = edge
    return [upper, *((upper, lower, layer) for layer in range(rank[upper] + 1, rank[lower])), lower]


def _filled(order: Sequence[str], rank: Mapping[str, int], routes: Mapping[Edge, Sequence[Place]]) -> list[list[Place]]:
    layers: list[list[Place]] = [[] for _ in range(max(rank.values()) + 1)]
    for node in order:
        layers[rank[node]].append(node)
    for route in routes.values():
        for place in route[1:-1]:
            layers[_rank(place, rank)].append(place)
    return layers


def _rank(place: Place, rank: Mapping[str, int]) -> int:
    return rank[place] if isinstance(place, str) else place[2]


def _ordered(layers: list[list[Place]], routes: Mapping[Edge, Sequence[Place]]) -> list[list[Place]]:
    """Sort each layer by the mean position of its neighbours, down and up in turn; keep the fewest crossings."""
    above, below = _linked(routes)
    best, least = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(SWEEPS):
        towards, indices = (above, range(1, len(layers))) if sweep % 2 == 0 else (below, range(len(layers) - 2, -1, -1))
        for index in indices:
            beside = layers[index - 1 if sweep % 2 == 0 else index + 1]
            at = {place: position for position, place in enumerate(beside)}
            middle = {
                place: fmean([at[other] for other in towards.get(place, ())] or [position])
                for position, place in enumerate(layers[index])
            }
            layers[index].sort(key=middle.__getitem__)
        if (count := _crossings(layers, below)) < least:
            best, least = [list(layer) for layer in layers], count
    return best


def _linked(routes: Mapping[Edge, Sequence[Place]]) -> tuple[dict[Place, list[Place]], dict[Place, list[Place]]]:
    above: dict[Place, list[Place]] = {}
    below: dict[Place, list[Place]] = {}
    for route in routes.values():
        for upper, lower in pairwise(route):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    return above, below


def _crossings(layers: Sequence[Sequence[Place]], below: Mapping[Place, Sequence[Place]]) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        at = {place: position for position, place in enumerate(lower)}
        ends = [(i, at[other]) for i, place in enumerate(upper) for other in below.get(place, ())]
        count += sum((a - c) * (b - d) < 0 for n, (a, b) in enumerate(ends) for c, d in ends[n + 1 :])
    return count


def _places(layers: Sequence[Sequence[Place]], routes: Mapping[Edge, Sequence[Place]]) -> dict[Place, float]:
    """The horizontal centre of every place: near the mean of its neighbours in the layers above and below."""
    above, below = _linked(routes)
    x: dict[Place, float] = {}
    for layer in layers:
        x.update(zip(layer, _pushed(layer, [0.0] * len(layer)), strict=True))
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            targets = [fmean([x[o] for o in (*above.get(p, ()), *below.get(p, ()))] or [x[p]]) for p in layer]
            x.update(zip(layer, _pushed(layer, targets), strict=True))
    least = min(at - _size(place) / 2 for place, at in x.items())
    return {place: at - least + 2 for place, at in x.items()}


def _pushed(layer: Sequence[Place], targets: Sequence[float]) -> list[float]:
    """The positions without overlap that are near the targets: the mean of pushing right and of pushing left."""
    apart = [(_size(a) + _size(b)) / 2 + GAP for a, b in pairwise(layer)]
    right, left = list(targets), list(targets)
    for i, space in enumerate(apart):
        right[i + 1] = max(right[i + 1], right[i] + space)
    for i in range(len(apart) - 1, -1, -1):
        left[i] = min(left[i], left[i + 1] - apart[i])
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _size(place: Place) -> float:
    return width_of(place) if isinstance(place, str) else BEND


def _curve(way: Sequence[Point], direction: int, aside: float) -> str:
    """A curve through the points, from the border of the first node to that of the last, `aside` pixels off centre."""
    points = list(way)
    points[0] = (points[0][0] + aside, points[0][1] + direction * HALF)
    points[-1] = (points[-1][0] + aside, points[-1][1] - direction * (HALF + 5))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return path
