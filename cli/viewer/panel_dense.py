"""DENSE and DENSE-RAG on the page: how the answers are linked, what each chunk does to them, the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...traces.recording import Recording, Step, Task, named
from ..view_dense_rag import STOPS
from .blocks import Bar, Bars, Block, Cell, Fold, Row, Table, Words, num
from .facts import names_of


def dense(recording: Recording) -> list[Block]:
    """One measurement."""
    return measurement(recording.steps) or [Words("The run ended before anything was measured.")]


@dataclass
class _Context:
    """A context that was measured, and what became of it: updates, empty where there are none."""

    task: Task
    judged: bool | None = None
    classified: Sequence[Mapping[str, Any]] = ()
    refined: Mapping[str, Any] = field(default_factory=dict)


def dense_rag(recording: Recording) -> list[Block]:
    """Every context that was measured, and what became of it."""
    found = _contexts(recording.steps)
    if not found:
        return [Words("The run ended before anything was measured.")]
    blocks: list[Block] = [_course(recording, found)]
    if stopped := (recording.output or {}).get("stopped"):
        blocks.append(Words(f"It ended because {STOPS[stopped]}."))
    for position, one in enumerate(found):
        inside = [*_judged(one), *measurement(one.task.steps, one.classified), *_refined(one)]
        title = f"{_name(position, one.task)}: DSE {one.task.update['dse']:.3f}"
        blocks.append(Fold(title, inside, open=position == 0))
    return blocks


def _contexts(steps: Sequence[Step]) -> list[_Context]:
    """Each measurement with the steps that follow it, up to the next one."""
    found: list[_Context] = []
    for step in steps:
        task = step.tasks[0]
        if step.node == "dense" and "dse" in task.update:
            found.append(_Context(task))
        elif step.node == "keep":
            found[-1].judged = task.input["sufficient"]
        elif step.node == "classify":
            found[-1].classified = task.update.get("classified", [])
        elif step.node == "refine":
            found[-1].refined = task.update
    return found


def _judged(one: _Context) -> list[Block]:
    if one.judged is None:
        return []
    return [Words(f"The model finds this context {'sufficient' if one.judged else 'insufficient'}.")]


def measurement(steps: Sequence[Step], classified: Sequence[Mapping[str, Any]] = ()) -> list[Block]:
    """The link matrix W of one measurement, and a row a chunk; empty where it did not get that far."""
    measured = [task for step in named(steps, "measure") for task in step.tasks if "dse" in task.update]
    if not measured:
        return []
    read, said = measured[-1].input, measured[-1].update
    kinds = {one["chunk_id"]: one for one in classified}
    return [_matrix(read, kinds), _chunks(read, said, kinds), _rephrasings(read, said)]


def _matrix(read: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    link, evidence = read["link"], read["evidence"]
    names, called = [f"r{i}" for i in range(len(link))], names_of(evidence)
    heads = [Cell("r0", tip="the context as it is")]
    for name, chunk in zip(names[1:], evidence, strict=True):
        kind = kinds.get(chunk["id"], {}).get("kind", "")
        heads.append(Cell(name, tone=kind, tip=f"{called[chunk['id']]}{f', {kind}' if kind else ''}"))
    rows = [
        Row(
            [head, *(Cell(f"{one:g}", one, tip=f"{head.text}, {other}") for other, one in zip(names, row, strict=True))]
        )
        for head, row in zip(heads, link, strict=True)
    ]
    note = (
        "1: the two answers entail each other; 0.5: one way only; 0: neither. r0 answers the context as it is, r1 the "
        "one in which only the first chunk is in other words, and so on."
    )
    return Table(["", *names], rows, "Links W between the answers", note, matrix=True)


def _chunks(read: Mapping[str, Any], said: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row a response; with the classes of the chunks where they are known."""
    columns = ["", "chunk", "answer with it rephrased", "link to r0", "share of DSE"]
    columns += ["class", "answer without it", "its link to r0"] if kinds else []
    own = said["dse"] - sum(said["shares"])
    most = max([*said["shares"], own, 1e-9])
    first = [Cell("r0"), Cell("the context as it is", tone="dim"), Cell(said["responses"][0]), Cell("")]
    rows = [Row([*first, num(own, f"{abs(own):.3f}", max(own, 0.0) / most), *([Cell("")] * 3 if kinds else [])])]
    called = names_of(read["evidence"])
    for i, (chunk, share) in enumerate(zip(read["evidence"], said["shares"], strict=True), 1):
        name, link = called[chunk["id"]], read["link"][i][0]
        if said["rephrasings"][i - 1] == chunk["text"]:
            name += " (not rephrased)"
        cells = [Cell(f"r{i}"), Cell(name), Cell(said["responses"][i])]
        cells += [num(link, level=link), num(share, f"{share:.3f}", share / most)]
        rows.append(Row([*cells, *(_class(kinds[chunk["id"]]) if chunk["id"] in kinds else [])]))
    title = f"DSE {said['dse']:.3f} nats: {'certain' if said['certain'] else 'uncertain'}"
    note = (
        "A link of 1: the answer says the same as r0. The shares add up to the DSE: the larger, the more that answer "
        "differs from the others."
    )
    return Table(columns, rows, title, note)


def _class(kind: Mapping[str, Any]) -> list[Cell]:
    cells = [Cell(kind["kind"], tone=kind["kind"])]
    if kind["ablation"] is None:
        return [*cells, Cell("not asked", tone="dim"), Cell("")]
    return [*cells, Cell(kind["ablation"]), num(kind["ablation_link"], level=kind["ablation_link"])]


def _rephrasings(read: Mapping[str, Any], said: Mapping[str, Any]) -> Fold:
    found = zip(read["evidence"], said["rephrasings"], strict=True)
    rows = [
        Row([Cell(f"r{i}"), Cell(chunk["text"]), Cell("" if other == chunk["text"] else other)])
        for i, (chunk, other) in enumerate(found, 1)
    ]
    return Fold("The chunks in other words", [Table(["", "chunk", "rephrased"], rows)])


def _course(recording: Recording, found: Sequence[_Context]) -> Bars:
    figures = [one.task.update["dse"] for one in found]
    bars = [Bar(_name(i, one.task), dse, f"{dse:.3f}") for i, (one, dse) in enumerate(zip(found, figures, strict=True))]
    limit = float(recording.context["threshold"])
    note = "In nats; at or below the threshold an answer counts as certain."
    return Bars("DSE of each context", bars, limit, f"threshold {limit:g}", note)


def _name(position: int, task: Task) -> str:
    chunks = len(task.input.get("chunks") or [])
    return f"Context {position + 1}, round {task.input['round']}, {chunks} chunks by {task.input['chunking']}"


def _refined(one: _Context) -> list[Block]:
    """What refinement dropped and added."""
    update, task = one.refined, one.task
    rounds = update.get("rounds")
    if not rounds:
        return []
    before = names_of(task.input["chunks"])
    after = names_of(update.get("chunks", []))
    rows = [
        Row([Cell("dropped", tone="unnecessary"), Cell(before.get(one, one)), Cell("")]) for one in rounds[-1]["pruned"]
    ]
    rows += [
        Row(
            [
                Cell("added", tone="certain"),
                Cell(after.get(one["chunk_id"], one["chunk_id"])),
                Cell(f"cosine {one['similarity']:.2f} to {before.get(one['near'], one['near'])}"),
            ]
        )
        for one in rounds[-1]["refilled"]
    ]
    return [Table(["", "chunk", "near"], rows, "Refined")] if rows else []
