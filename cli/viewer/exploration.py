"""Which document led to which: a column for each batch, the documents that were scored below one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .blocks import Dot, Flow, Line, figure, scaled

WIDTH, HEIGHT, TOP = 196, 24, 46
"""Pixels of a column, of a document in it, of what stands above."""

LONGEST_LABEL = 23
"""Characters of a title beside its document."""

CHARACTER = 7.0
"""Pixels of one of them, about."""

MOST_BATCHES = 12
MOST_IN_BATCH = 24
"""What is drawn; of a larger batch those that led to others or became evidence, then the best."""


def flow(scored: Sequence[Mapping[str, Any]], titles: Mapping[str, str], kept: set[str]) -> Flow:
    """Draw what was scored; `kept` became evidence, and the links that led there stand out."""
    led = {one["via"] for one in scored if one["via"] is not None}
    batches = sorted({one["iteration"] for one in scored})
    places: dict[str, tuple[float, float]] = {}  # where lines begin: behind the title
    dots: list[Dot] = []
    lines: list[Line] = []
    low, high = min(one["score"] for one in scored), max(one["score"] for one in scored)
    way = _way(scored, kept)
    columns = []
    for column, batch in enumerate(batches[:MOST_BATCHES]):
        here = [one for one in scored if one["iteration"] == batch]
        drawn = _drawn(here, kept | led, places)
        pool = "first stage" if here[0]["pool"] == "first_stage" else "neighbours"
        more = f", {len(here) - len(drawn)} not drawn" if len(drawn) < len(here) else ""
        columns.append((column * WIDTH + 12.0, f"batch {batch + 1}: {pool}{more}"))
        for row, one in enumerate(drawn):
            name, title = one["chunk_id"], titles.get(one["chunk_id"], one["chunk_id"])
            x, y = column * WIDTH + 16.0, TOP + row * HEIGHT + 0.0
            places[name] = (x + 14 + CHARACTER * len(_short(title)), y)
            via = f", neighbour of {titles.get(one['via'], one['via'])}" if one["via"] is not None else ""
            tip = f"{title}: score {figure(one['score'])} (raw {figure(one['raw'])}){via}"
            level = scaled(one["score"], low, high)
            dots.append(Dot(x, y, _short(title), tip, level, one["via"] is None, name in kept))
            if one["via"] in places:
                lines.append(Line(_curve(places[one["via"]], (x - 6, y)), name in way))
    note = (
        "Squares come from the first stage, circles are neighbours, a line leads from the document that offered them. "
    )
    note += "The fuller the colour, the higher the score. Bold: evidence of the answer."
    if len(batches) > MOST_BATCHES:
        note += f" The first {MOST_BATCHES} of {len(batches)} batches are drawn."
    height = max(dot.y for dot in dots) + HEIGHT
    return Flow("What was explored", columns, dots, lines, len(columns) * WIDTH, height, note)


def _drawn(
    here: Sequence[Mapping[str, Any]], matter: set[str], places: Mapping[str, tuple[float, float]]
) -> list[Mapping[str, Any]]:
    """Those to draw, neighbours of the same document together, so that few lines cross."""
    chosen = sorted(here, key=lambda one: (one["chunk_id"] not in matter, -one["score"]))[:MOST_IN_BATCH]

    def order(one: Mapping[str, Any]) -> tuple[float, float]:
        return (places.get(one["via"], (0.0, 0.0))[1], -one["score"])

    return sorted(chosen, key=order)


def _way(scored: Sequence[Mapping[str, Any]], kept: set[str]) -> set[str]:
    """The evidence, and the documents that led to it."""
    via = {one["chunk_id"]: one["via"] for one in scored}
    found: set[str] = set()
    for name in kept:
        step: str | None = name
        while step is not None and step not in found:
            found.add(step)
            step = via.get(step)
    return found


def _short(title: str) -> str:
    """Cut in the middle: what tells documents of one title apart stands at the end."""
    return title if len(title) <= LONGEST_LABEL else f"{title[: LONGEST_LABEL - 6].rstrip()}…{title[-5:]}"


def _curve(a: tuple[float, float], b: tuple[float, float]) -> str:
    middle = max((a[0] + b[0]) / 2, b[0] - WIDTH / 3)
    return f"M{a[0]:g} {a[1]:g}C{middle:g} {a[1]:g} {middle:g} {b[1]:g} {b[0]:g} {b[1]:g}"
