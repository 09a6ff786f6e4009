"""The drawing of an exploration: a column for each batch, with a line to each document from its parent."""

from collections.abc import Mapping, Sequence

from ..state.neighbourhood import ScoredDocument
from .blocks import Dot, Flow, scaled
from .words import figure

LONGEST_LABEL = 23
"""Characters of a title beside its document."""

MOST_BATCHES, MOST_IN_BATCH = 12, 24
"""Drawn: the first batches; of a large batch first parents and evidence, then the best documents."""

NOTE = (
    "Squares come from the first stage, circles are neighbours; a line leads from the document whose neighbour it is. "
    "The fuller the colour, the higher the score. Bold: evidence of the answer."
)


def exploration(scored: Sequence[ScoredDocument], titles: Mapping[str, str], evidence: set[str]) -> Flow:
    """The scored documents; the lines that lead to evidence stand out."""
    by_batch: dict[int, list[ScoredDocument]] = {}
    for document in scored:
        by_batch.setdefault(document["iteration"], []).append(document)
    important = evidence | {document["parent"] for document in scored if document["parent"] is not None}
    leading = _with_ancestors(scored, evidence)
    scores = [document["score"] for document in scored]
    columns: list[tuple[str, list[Dot]]] = []
    rows: dict[str | None, int] = {}
    for batch in sorted(by_batch)[:MOST_BATCHES]:
        best = sorted(by_batch[batch], key=lambda document: (document["chunk_id"] not in important, -document["score"]))
        # neighbours of one parent together, so that few lines cross
        drawn = sorted(
            best[:MOST_IN_BATCH], key=lambda document: (rows.get(document["parent"], -1), -document["score"])
        )
        rows |= {document["chunk_id"]: row for row, document in enumerate(drawn)}
        dots = [
            Dot(
                document["chunk_id"],
                document["parent"],
                _short(titles.get(document["chunk_id"], document["chunk_id"])),
                _tip(document, titles),
                scaled(document["score"], min(scores), max(scores)),
                strong=document["chunk_id"] in evidence,
                leads=document["chunk_id"] in leading,
            )
            for document in drawn
        ]
        columns.append((_heading(batch, by_batch[batch], len(drawn)), dots))
    left_out = f" The first {MOST_BATCHES} of {len(by_batch)} batches are drawn."
    return Flow("The exploration", columns, NOTE + (left_out if len(by_batch) > MOST_BATCHES else ""))


def _heading(batch: int, documents: Sequence[ScoredDocument], drawn: int) -> str:
    pool = "first stage" if documents[0]["pool"] == "first_stage" else "neighbours"
    left_out = f", {len(documents) - drawn} not drawn" if drawn < len(documents) else ""
    return f"batch {batch + 1}: {pool}{left_out}"


def _tip(document: ScoredDocument, titles: Mapping[str, str]) -> str:
    chunk_id, parent = document["chunk_id"], document["parent"]
    scores = f"score {figure(document['score'])} (raw {figure(document['raw_score'])})"
    neighbour = "" if parent is None else f", neighbour of {titles.get(parent, parent)}"
    return f"{titles.get(chunk_id, chunk_id)}: {scores}{neighbour}"


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
