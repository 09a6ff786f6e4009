"""The drawing of an exploration: a column for each batch, its documents below one another, lines from parents."""

from collections.abc import Mapping, Sequence

from ..state.neighbourhood import ScoredDocument
from .blocks import Dot, Flow, Line, scaled
from .words import figure

WIDTH, HEIGHT, TOP = 196, 24, 46
"""Pixels: a column, a document in it, the space above the documents."""

LONGEST_LABEL = 23
"""Characters of a title beside its document."""

CHARACTER = 7.0
"""Pixels of one of them, about."""

MOST_BATCHES, MOST_IN_BATCH = 12, 24
"""Drawn: the first batches; of a large batch first parents and evidence, then the best documents."""

NOTE = (
    "Squares come from the first stage, circles are neighbours; a line leads from the document whose neighbour it is. "
    "The fuller the colour, the higher the score. Bold: evidence of the answer."
)

Point = tuple[float, float]


def exploration(scored: Sequence[ScoredDocument], titles: Mapping[str, str], evidence: set[str]) -> Flow:
    """Draw the scored documents; the lines that lead to evidence stand out."""
    by_batch: dict[int, list[ScoredDocument]] = {}
    for document in scored:
        by_batch.setdefault(document["iteration"], []).append(document)
    important = evidence | {document["parent"] for document in scored if document["parent"] is not None}
    strong = _with_ancestors(scored, evidence)
    scores = [document["score"] for document in scored]
    line_starts: dict[str, Point] = {}
    columns: list[tuple[float, str]] = []
    dots: list[Dot] = []
    lines: list[Line] = []
    for column, batch in enumerate(sorted(by_batch)[:MOST_BATCHES]):
        documents = _drawn(by_batch[batch], important, line_starts)
        columns.append((column * WIDTH + 12.0, _heading(batch, by_batch[batch], len(documents))))
        for row, document in enumerate(documents):
            chunk_id, parent = document["chunk_id"], document["parent"]
            title = titles.get(chunk_id, chunk_id)
            x, y = column * WIDTH + 16.0, TOP + row * HEIGHT + 0.0
            line_starts[chunk_id] = (x + 14 + CHARACTER * len(_short(title)), y)
            level = scaled(document["score"], min(scores), max(scores))
            tip = _tip(document, titles)
            dots.append(Dot(x, y, _short(title), tip, level, square=parent is None, strong=chunk_id in evidence))
            if parent in line_starts:
                lines.append(Line(_curve(line_starts[parent], (x - 6, y)), chunk_id in strong))
    left_out = f" The first {MOST_BATCHES} of {len(by_batch)} batches are drawn."
    note = NOTE + (left_out if len(by_batch) > MOST_BATCHES else "")
    height = max(dot.y for dot in dots) + HEIGHT
    return Flow("The exploration", columns, dots, lines, len(columns) * WIDTH, height, note)


def _heading(batch: int, documents: Sequence[ScoredDocument], drawn: int) -> str:
    pool = "first stage" if documents[0]["pool"] == "first_stage" else "neighbours"
    left_out = f", {len(documents) - drawn} not drawn" if drawn < len(documents) else ""
    return f"batch {batch + 1}: {pool}{left_out}"


def _tip(document: ScoredDocument, titles: Mapping[str, str]) -> str:
    chunk_id, parent = document["chunk_id"], document["parent"]
    scores = f"score {figure(document['score'])} (raw {figure(document['raw_score'])})"
    neighbour = "" if parent is None else f", neighbour of {titles.get(parent, parent)}"
    return f"{titles.get(chunk_id, chunk_id)}: {scores}{neighbour}"


def _drawn(
    documents: Sequence[ScoredDocument], important: set[str], line_starts: Mapping[str, Point]
) -> list[ScoredDocument]:
    """The documents to draw, neighbours of one parent together, so that few lines cross."""
    chosen = sorted(documents, key=lambda document: (document["chunk_id"] not in important, -document["score"]))

    def order(document: ScoredDocument) -> Point:
        return (line_starts.get(document["parent"] or "", (0.0, 0.0))[1], -document["score"])

    return sorted(chosen[:MOST_IN_BATCH], key=order)


def _with_ancestors(scored: Sequence[ScoredDocument], evidence: set[str]) -> set[str]:
    """The evidence and the documents that led to it."""
    parents = {document["chunk_id"]: document["parent"] for document in scored}
    found: set[str] = set()
    for chunk_id in evidence:
        ancestor: str | None = chunk_id
        while ancestor is not None and ancestor not in found:
            found.add(ancestor)
            ancestor = parents.get(ancestor)
    return found


def _short(title: str) -> str:
    """A title cut in its middle: the end tells documents with the same title apart."""
    return title if len(title) <= LONGEST_LABEL else f"{title[: LONGEST_LABEL - 6].rstrip()}…{title[-5:]}"


def _curve(start: Point, end: Point) -> str:
    middle = max((start[0] + end[0]) / 2, end[0] - WIDTH / 3)
    return f"M{start[0]:g} {start[1]:g}C{middle:g} {start[1]:g} {middle:g} {end[1]:g} {end[0]:g} {end[1]:g}"
