"""A graph laid out in layers from top to bottom, as Sugiyama et al. (1981) do: layers, order within them, places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

NARROWEST, CHARACTER, BESIDE = 88.0, 7.2, 42.0
"""Pixels: of a node at least, of a character of its name, of what stands around the name and behind it."""

GAP, LAYER = 18.0, 62.0
"""Pixels: beside a node, from one layer to the next."""

ASIDE = 24.0
"""Pixels from a node's middle to where edges that lead back touch it."""

BEND = 12.0
"""Width of the place that an edge takes up in a layer it passes."""

HALF = 15.0
"""Half a node's height."""

SWEEPS = 24

Point = tuple[float, float]
Edge = tuple[str, str]
Bend = tuple[str, str, int]
"""Where an edge passes a layer."""

Place = str | Bend


@dataclass(frozen=True)
class Layout:
    """Where the nodes' centres are, and the curve of every edge as the path of an SVG; sizes in pixels."""

    nodes: Mapping[str, Point]
    edges: Mapping[Edge, str]
    width: float
    height: float


def width_of(name: str) -> float:
    """Of a node, in pixels."""
    return max(NARROWEST, CHARACTER * len(name) + BESIDE)


def layout(edges: Sequence[Edge], start: str) -> Layout:
    """Lay out what can be reached from `start`; loops of a node to itself are left out."""
    out: dict[str, list[str]] = {}
    for source, target in edges:
        if source != target:
            out.setdefault(source, []).append(target)
    order, back = _walk(out, start)
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
            # an edge that leads back keeps to its side of the one that leads down
            aside = ASIDE if fmean(at for at, _ in way[1:]) >= way[0][0] else -ASIDE
            drawn[s, t] = _curve(way[::-1], -1, aside) if is_back else _curve(way, 1, 0.0)
    width = max(at + _size(place) / 2 for place, at in x.items()) + 2
    return Layout(nodes, drawn, width, (max(rank.values()) * LAYER) + 2 * HALF + 4)


def _walk(out: Mapping[str, Sequence[str]], start: str) -> tuple[list[str], set[Edge]]:
    """The nodes so that every edge leads on, but for those that lead back."""
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
    """The longest way from the start."""
    rank = dict.fromkeys(order, 0)
    for node in order:
        for source, target in down:
            if source == node:
                rank[target] = max(rank[target], rank[node] + 1)
    return rank


def _route(edge: Edge, rank: Mapping[str, int]) -> list[Place]:
    """From the upper node to the lower one, with what it passes between."""
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
    """Each layer in the order of what its places are linked to, downwards and upwards in turn; the fewest crossings."""
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
        for one, other in pairwise(route):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
    return above, below


def _crossings(layers: Sequence[Sequence[Place]], below: Mapping[Place, Sequence[Place]]) -> int:
    count = 0
    for upper, lower in pairwise(layers):
        at = {place: position for position, place in enumerate(lower)}
        ends = [(i, at[other]) for i, place in enumerate(upper) for other in below.get(place, ())]
        count += sum((a - c) * (b - d) < 0 for n, (a, b) in enumerate(ends) for c, d in ends[n + 1 :])
    return count


def _places(layers: Sequence[Sequence[Place]], routes: Mapping[Edge, Sequence[Place]]) -> dict[Place, float]:
    """The middle of every place, moved towards what it is linked to as far as its neighbours allow."""
    above, below = _linked(routes)
    x: dict[Place, float] = {}
    for layer in layers:
        x.update(zip(layer, _pushed(layer, [0.0] * len(layer)), strict=True))
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = [fmean([x[o] for o in (*above.get(p, ()), *below.get(p, ()))] or [x[p]]) for p in layer]
            x.update(zip(layer, _pushed(layer, wanted), strict=True))
    least = min(at - _size(place) / 2 for place, at in x.items())
    return {place: at - least + 2 for place, at in x.items()}


def _pushed(layer: Sequence[Place], wanted: Sequence[float]) -> list[float]:
    """As near to where they want to be as their sizes allow: the mean of pushing right and of pushing left."""
    apart = [(_size(a) + _size(b)) / 2 + GAP for a, b in pairwise(layer)]
    right, left = list(wanted), list(wanted)
    for i, space in enumerate(apart):
        right[i + 1] = max(right[i + 1], right[i] + space)
    for i in range(len(apart) - 1, -1, -1):
        left[i] = min(left[i], left[i + 1] - apart[i])
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _size(place: Place) -> float:
    return width_of(place) if isinstance(place, str) else BEND


def _curve(way: Sequence[Point], direction: int, aside: float) -> str:
    """Through the points, out of the first node and up to the second's rim; `aside` of the middle of both."""
    points = list(way)
    points[0] = (points[0][0] + aside, points[0][1] + direction * HALF)
    points[-1] = (points[-1][0] + aside, points[-1][1] - direction * (HALF + 5))
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return path
