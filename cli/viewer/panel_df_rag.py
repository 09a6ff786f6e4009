"""DF-RAG on the page: the plan, every level of diversity against every step of it, the level that was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...traces.recording import Recording, last_update, named
from .blocks import Block, Cell, Pairs, Row, Table, Words, num, scaled
from .facts import names_of

NOTHING = -1
"""The number of no chunks at all among the sets."""


def panel(recording: Recording) -> list[Block]:
    """As far as the run got."""
    plan: Sequence[str] = last_update(recording.steps, "plan").get("plan", [])
    found = last_update(recording.steps, "candidates")
    blocks: list[Block] = [Pairs([(f"{i}", str(step)) for i, step in enumerate(plan, 1)], "Plan")] if plan else []
    sets: Sequence[Mapping[str, Any]] = found.get("candidates", [])
    if not sets:
        return [*blocks, Words("No chunks were retrieved." if found else "The run ended before chunks were selected.")]
    choice = last_update(recording.steps, "choose")
    return [*blocks, _scores(recording, sets, len(plan), choice), _sets(sets, found["chunks"])]


def _scores(recording: Recording, sets: Sequence[Mapping[str, Any]], m: int, choice: Mapping[str, Any]) -> Table:
    """A row a level λ; levels that select the same set have the same scores."""
    known: dict[int, Sequence[float]] = {}
    for step in named(recording.steps, "evaluate"):
        for task in step.tasks:
            known |= {one["candidate"]: one["scores"] for one in task.update.get("evaluations", [])}
    support = {lam: one["support"] for one in choice.get("supports", []) for lam in one["lambdas"]}
    levels = sorted((lam, number) for number, one in enumerate(sets) for lam in one["lambdas"])
    spans = [_span(known, step) for step in range(m)]
    rows = []
    for lam, number in levels:
        is_star = lam == choice.get("lambda_star")
        total = num(support[lam]) if lam in support else Cell("")
        name = [Cell(f"{lam:.1f}", number=True), Cell(f"{number + 1}")]
        rows.append(Row([*name, *_cells(known.get(number), spans), total, Cell("λ*" if is_star else "")], is_star))
    if NOTHING in known:
        rows.append(
            Row([Cell("none"), Cell("no chunks"), *(num(score) for score in known[NOTHING]), Cell(""), Cell("")])
        )
    gain = NOTHING in known
    note = (
        "Scores are mean log-probabilities of the step in nats; the support is their sum less that of no chunks."
        if gain
        else "The support is the sum of the scores."
    )
    columns = ["λ", "set", *(f"step {i}" for i in range(1, m + 1)), "support (gain)" if gain else "support", ""]
    return Table(columns, rows, "Support of the plan at each level of diversity", f"{note} Shaded within each column.")


def _cells(scores: Sequence[float] | None, spans: Sequence[tuple[float, float]]) -> list[Cell]:
    if scores is None:
        return [Cell("-", tone="dim", number=True)] * len(spans)
    return [num(score, level=scaled(score, *span)) for score, span in zip(scores, spans, strict=True)]


def _span(known: Mapping[int, Sequence[float]], step: int) -> tuple[float, float]:
    """The lowest and the highest score of a step; that of no chunks at all would make the others look alike."""
    found = [scores[step] for number, scores in known.items() if number != NOTHING]
    return (min(found), max(found)) if found else (0.0, 0.0)


def _sets(sets: Sequence[Mapping[str, Any]], chunks: Mapping[str, Mapping[str, Any]]) -> Table:
    rows, called = [], names_of(chunks.values())
    for number, one in enumerate(sets, 1):
        titles = "; ".join(f"{called[i]} ({chunks[i].get('score', 0.0):.2f})" for i in one["chunk_ids"])
        levels = ", ".join(f"{lam:.1f}" for lam in one["lambdas"])
        rows.append(Row([Cell(f"{number}"), Cell(levels), Cell(titles)]))
    return Table(["set", "λ", "chunks, with similarity to the question"], rows, "The distinct chunk sets")
