"""Plain RAG and ITER-RETGEN on the page: the chunks that were found, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...traces.recording import Recording, named
from .blocks import Block, Cell, Row, Table, Words, num
from .facts import names_of


def vanilla_rag(recording: Recording) -> list[Block]:
    """What was looked up."""
    found = _found(recording)
    if not found:
        return [Words("The run ended before anything was looked up.")]
    return [_chunks(found[-1])] if found[-1] else [Words("No chunks were retrieved.")]


def iter_retgen(recording: Recording) -> list[Block]:
    """Every round that came to its end."""
    updates = [task.update for step in named(recording.steps, "generate") for task in step.tasks]
    ran = [one for update in updates for one in update.get("rounds", [])]
    if not ran:
        return [Words("The run ended before a round was over.")]
    called = names_of({one["id"]: one for chunks in _found(recording) for one in chunks}.values())
    seen: set[str] = set()
    rows = []
    for number, one in enumerate(ran, 1):
        names = [called[name] + ("" if name in seen or number == 1 else " (new)") for name in one["chunk_ids"]]
        seen.update(one["chunk_ids"])
        cells = [Cell(f"{number}", number=True), Cell(one["query"]), Cell("; ".join(names)), Cell(one["reasoning"])]
        rows.append(Row([*cells, Cell(one["answer"] or "(no answer)")]))
    columns = ["round", "searched for", "found", "what was written", "answer"]
    return [Table(columns, rows, "Rounds", "New: no round before found it.")]


def _found(recording: Recording) -> list[Sequence[Mapping[str, Any]]]:
    """What each search brought."""
    return [
        task.update["evidence"]
        for step in named(recording.steps, "retrieve")
        for task in step.tasks
        if "evidence" in task.update
    ]


def _chunks(chunks: Sequence[Mapping[str, Any]]) -> Table:
    called = names_of(chunks)
    scores = [one.get("score") for one in chunks]
    rows = []
    for rank, (one, score) in enumerate(zip(chunks, scores, strict=True), 1):
        shown = num(score, f"{score:.3f}") if isinstance(score, int | float) else Cell("")
        rows.append(Row([Cell(f"{rank}", number=True), Cell(called[one["id"]]), shown]))
    return Table(["rank", "chunk", "score"], rows, "The chunks that were found", "The higher the score, the better.")
