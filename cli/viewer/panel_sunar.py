"""SUNAR and its retrieval on the page: the reasoning path, and for every look-up how the exploration went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...traces.recording import Recording, Step, Task, last_update, named
from ..view_neighbourhood import ENDINGS
from .blocks import Block, Cell, Fold, Pairs, Row, Table, Words, num
from .exploration import flow
from .facts import names_of


def sunar(recording: Recording) -> list[Block]:
    """The path, the answer it arrives at beside the final one, and the look-ups."""
    look_ups = [task for step in named(recording.steps, "neighbourhood") for task in step.tasks]
    if not look_ups:
        return [Words("The run ended before anything was looked up.")]
    path = [(str(task.input.get("query")), str(task.update.get("answer", "")) or "(no answer)") for task in look_ups]
    blocks: list[Block] = [Pairs(path, "Reasoning path", arrow=True), *_ending(recording)]
    for position, task in enumerate(look_ups, 1):
        inside = look_up(task.steps, recording)
        blocks.append(Fold(f"Look-up {position}: {task.input.get('query')}", inside, open=position == 1))
    return blocks


def neighbourhood(recording: Recording) -> list[Block]:
    """One look-up."""
    return look_up(recording.steps, recording)


def look_up(steps: Sequence[Step], recording: Recording) -> list[Block]:
    """A row a batch, the documents and what led to them, and why it ended."""
    batches = [task for step in named(steps, "promote") for task in step.tasks if "scored" in task.update]
    if not batches:
        return [Words("It ended before any document was scored.")]
    kept = {one["id"] for one in last_update(steps, "answer").get("evidence", [])}
    stopped = last_update(steps, "explore").get("stopped")
    blocks: list[Block] = [_batches(batches, int(recording.context["k"])), *_samples(batches)]
    if stopped:
        blocks.append(Words(f"It ended because {ENDINGS[stopped]}."))
    documents = names_of(one for task in batches for one in task.input["documents"].values())
    scored = [one for task in batches for one in task.update["scored"]]
    return [*blocks, flow(scored, documents, kept), _scores(scored, documents, kept)]


def _ending(recording: Recording) -> list[Block]:
    output = recording.output
    if output is None:
        return []
    pairs = [("The path's answer", output["sequential_answer"] or "(no answer)")]
    if named(recording.steps, "reason"):
        pairs.append(("From all evidence, read again", output["answer"] or "(no answer)"))
    said = "Reading all evidence again changed the answer." if output["changed"] else "The path's answer stands."
    return [Pairs(pairs, "Answers"), Words(said, "warn" if output["changed"] else "")]


def _batches(batches: Sequence[Task], k: int) -> Table:
    rows, seen = [], 0
    for task in batches:
        fresh, read = task.update["scored"], task.input
        new = _best([*read["scored"], *fresh], k) - _best(read["scored"], k)
        seen += len(fresh)
        factor = next((one["score"] / one["raw"] for one in fresh if one["raw"]), None)
        cells = [
            Cell(f"{read['iteration'] + 1}", number=True),
            Cell("first stage" if read["pool"] == "first_stage" else "neighbours"),
            Cell(f"{len(fresh)}", number=True),
            Cell(f"{seen}", number=True),
            Cell("-" if read["sets"] is None else f"{read['sets']}", number=True),
            Cell("-" if factor is None else f"× {factor:.2f}", number=True),
            num(max(one["raw"] for one in fresh)),
            num(max(one["score"] for one in fresh)),
            Cell(f"{len(new)}", number=True),
            Cell(f"{len(task.update['frontier'])}", number=True),
        ]
        rows.append(Row(cells))
    columns = ["batch", "from", "documents", "in all", "semantic sets", "factor", "best raw", "best score"]
    note = (
        "Semantic sets: how many different things the answers sampled from a batch say; the more, the lower its "
        "factor, by which the raw scores are multiplied. Waiting: neighbours that may be scored next."
    )
    return Table([*columns, f"new among best {k}", "waiting after"], rows, "Batches", note)


def _samples(batches: Sequence[Task]) -> list[Block]:
    """What was sampled from each batch; nothing where it has no answers."""
    found = [
        (f"batch {task.input['iteration'] + 1}", _counted(task.input["answers"]))
        for task in batches
        if task.input.get("answers") and task.input["sets"] is not None
    ]
    return [Fold("The answers sampled from each batch", [Pairs(found)])] if found else []


def _counted(answers: Sequence[str]) -> str:
    times = Counter(answer or "(empty)" for answer in answers)
    return "; ".join(f"{text} (×{count})" for text, count in times.most_common())


def _best(scored: Sequence[Mapping[str, Any]], k: int) -> set[str]:
    return {one["chunk_id"] for one in sorted(scored, key=lambda one: -one["score"])[:k]}


def _scores(scored: Sequence[Mapping[str, Any]], documents: Mapping[str, str], kept: set[str]) -> Block:
    rows = [
        Row(
            [
                Cell(f"{rank}", number=True),
                Cell(documents.get(one["chunk_id"], one["chunk_id"])),
                Cell(f"{one['iteration'] + 1}", number=True),
                Cell("" if one["via"] is None else documents.get(one["via"], one["via"])),
                num(one["raw"]),
                num(one["score"]),
                Cell("evidence" if one["chunk_id"] in kept else ""),
            ],
            marked=one["chunk_id"] in kept,
        )
        for rank, one in enumerate(sorted(scored, key=lambda one: -one["score"]), 1)
    ]
    columns = ["rank", "document", "batch", "neighbour of", "raw score", "score", ""]
    return Fold(f"All {len(scored)} scored documents, best first", [Table(columns, rows)])
