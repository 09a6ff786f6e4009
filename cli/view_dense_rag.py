"""How the steps of DENSE-RAG look on the terminal, beside those of DENSE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast, get_args

from rich.text import Text

from ..nodes.keep import candidate, is_low, suffices
from ..state.dense_rag import Best, ChunkClass, Classified, DenseRagContext, DenseRagState, Stop
from ..state.records import Chunk
from .screen import counted
from .steps import Renderer, Shown, Step, one_line, rows
from .view_dense import MOST_ROWS, answers, most, name_of, said, titled, verdict
from .view_shared import retrieve

STOPS: Mapping[Stop, str] = {
    "certain": "the answer is certain without refinement",
    "not_refined": "the answer is uncertain and refinement is off",
    "accepted": "the context was accepted",
    "all_visited": "every chunk of the corpus has been tried",
    "max_rounds": "the rounds of refinement are used up",
    "unchanged": "refining changed nothing more",
    "nothing_left": "refining dropped every chunk",
}
"""Why a run ended, in words."""

_STYLES: Mapping[ChunkClass, str] = {"certain": "green", "necessary": "yellow", "unnecessary": "red"}


def dense(step: Step) -> Shown:
    """Which context is measured, and what came out."""
    name = f"context {len(step.state['rounds']) + 1}, {counted(len(step.state['chunks']), 'chunk')}"
    return Shown(name if step.running else f"{name}: {verdict(step.update, step.settings)}")


def rechunk(step: Step) -> Shown:
    """As `retrieve`."""
    shown = retrieve(step)
    return shown if step.running else Shown(f"cut by meaning: {shown.words}")


def self_evaluate(step: Step) -> Shown:
    """What the model says of the context."""
    if step.running:
        return Shown()
    if step.update.get("warnings"):
        return Shown("the model said neither yes nor no: the context counts as insufficient")
    return Shown(f"the model finds the context {'sufficient' if step.update['sufficient'] else 'insufficient'}")


def keep(step: Step) -> Shown:
    """The best answer so far; whether it is accepted, else why not and what follows."""
    if step.running:
        return Shown()
    best, before, stopped = step.update["best"], step.state["best"], step.update["stopped"]
    words = f"best so far: DSE {best['dse']:.2f}"
    if before is not None:
        words += " of an earlier context" if best == before else f", before it was {before['dse']:.2f}"
    if stopped == "accepted":
        return Shown(f"{words}, accepted")
    against = "not accepted: " + " and ".join(_objections(step))
    return Shown(words, Text(f"{against}; {f'it ends: {STOPS[stopped]}' if stopped else 'it is refined'}"))


def _objections(step: Step) -> list[str]:
    """Why the context is not accepted: the kept one, or the one just measured where either of two reasons is enough."""
    context = step.settings
    if not isinstance(context, DenseRagContext):
        raise TypeError("not the settings of dense_rag")
    current = candidate(cast("DenseRagState", step.input))
    judged: Best = step.update["best"] if context.accept == "both" else current
    found = []
    if not is_low(judged, context):
        found.append(f"its DSE is not below {context.threshold:g}" if judged["probed"] else "no chunk was rephrased")
    if not suffices(judged, context):
        found.append("its context is judged insufficient")
    return found


def ablate(step: Step) -> Shown:
    """The answers without each uncertain chunk, as they arrive."""
    r_0, chunks = step.state["responses"][0], step.state["chunks"]
    positions = {chunk["id"]: i for i, chunk in enumerate(chunks)}
    found: dict[str, str] = {}
    for end in step.ends:
        found |= end.update["ablations"]
    keys = [task.start.input["key"] for task in step.tasks.values()]
    without = [(f"c_{positions[key] + 1}", name_of(chunks[positions[key]]), found.get(key)) for key in keys]
    words = "" if step.running else f"the answer without each of {counted(len(keys), 'uncertain chunk')}"
    return Shown(words, answers(without, r_0))


def classify(step: Step) -> Shown:
    """Every chunk's class, with the answers that decide it."""
    if step.running:
        return Shown()
    found: list[Classified] = step.update["classified"]
    titles = {chunk["id"]: name_of(chunk) for chunk in step.input["chunks"]}
    counts = Counter(one["kind"] for one in found)
    kept, dropped = most(list(enumerate(found, 1)), MOST_ROWS, lambda one: one[1]["kind"] == "certain")
    table = titled("", "chunk", "class", "rephrased", "link", "left out", "link")
    for i, one in kept:
        style = _STYLES[one["kind"]]
        kind, link = Text(one["kind"], style, no_wrap=True), Text(f"{one['link']:g}")
        table.add_row(
            Text(f"c_{i}", "dim"), one_line(titles[one["chunk_id"]]), kind, said(one["response"]), link, *_left_out(one)
        )
    for position in (0, 2, 4, 6):
        table.columns[position].no_wrap = True
    if dropped:
        table.add_row("", Text(f"and {dropped} more", "dim"))
    words = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(ChunkClass) if counts[kind])
    return Shown(words, table)


def _left_out(one: Classified) -> tuple[Text, Text]:
    if one["ablation"] is None or one["ablation_link"] is None:
        return Text("not asked", "dim", no_wrap=True), Text()
    return said(one["ablation"]), Text(f"{one['ablation_link']:g}")


def refine(step: Step) -> Shown:
    """What was dropped, and what came in near which chunk."""
    if step.running:
        return Shown()
    record, stopped = step.update["rounds"][-1], step.update["stopped"]
    chunks: dict[str, Chunk] = {chunk["id"]: chunk for chunk in step.update.get("chunks", [])} | step.state["visited"]
    labels = {one["id"]: f"c_{i} {name_of(one)}" for i, one in enumerate(step.input["chunks"], 1)}
    table = rows("", "", "", "")
    for position in (0, 2):
        table.columns[position].no_wrap = True
    for one in record["pruned"]:
        table.add_row(Text("- dropped", "red"), one_line(labels[one]))
    for one in record["refilled"]:
        cosine = Text(f"cosine {one['similarity']:.2f} to", "dim")
        table.add_row(
            Text("+ added", "green"), one_line(name_of(chunks[one["chunk_id"]])), cosine, one_line(labels[one["near"]])
        )
    words = f"{len(record['pruned'])} dropped, {len(record['refilled'])} added"
    words += f"; it ends: {STOPS[stopped]}" if stopped else f": {counted(len(step.update['chunks']), 'chunk')} now"
    return Shown(words, table if table.row_count else None)


def conclude(step: Step) -> Shown:
    """Why it ended, and how certain the answer is."""
    if step.running:
        return Shown()
    return Shown(f"{STOPS[step.update['stopped']]}: DSE {step.update['dse']:.2f}")


RENDERERS: Mapping[str, Renderer] = {
    "dense": dense,
    "rechunk": rechunk,
    "self_evaluate": self_evaluate,
    "keep": keep,
    "ablate": ablate,
    "classify": classify,
    "refine": refine,
    "conclude": conclude,
}
