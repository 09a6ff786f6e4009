"""How the steps that several graphs have look on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..state.dense import DenseContext
from .screen import clean, counted
from .steps import Renderer, Shown, Step


def prepare(step: Step) -> Shown:
    """How far a preparation is; afterwards, that it was done. A subgraph's is passed over where it did nothing."""
    if step.progress is None:
        return Shown(passing=bool(step.path))
    if step.running:
        return under_way(step)
    return Shown(f"{clean(step.progress.what)}: {counted(step.progress.total, 'chunk')}")


def retrieve(step: Step) -> Shown:
    """How many chunks were retrieved, and how similar they are; where it matters, what cut them and of how many."""
    if step.running:
        return under_way(step)
    found = step.update["chunks" if "chunks" in step.update else "evidence"]
    if not found:
        return Shown("no chunks")
    scores = [chunk["score"] for chunk in found]
    total = f" of {step.update['total']:,}" if "total" in step.update else ""
    chunker = step.update.get("chunking", step.settings.chunker if isinstance(step.settings, DenseContext) else "")
    chunks = f"chunk{'' if len(found) == 1 and not total else 's'}" + (f" ({clean(chunker)})" if chunker else "")
    return Shown(f"{len(found):,}{total} {chunks}, similarity {min(scores):.2f} to {max(scores):.2f}")


def under_way(step: Step) -> Shown:
    """How far a running step's long preparation is, if it has any."""
    if step.progress is None:
        return Shown()
    what, done, total = clean(step.progress.what), step.progress.done, step.progress.total
    things = "" if what.startswith("comparing sentences") else " chunks"
    bar = Table.grid(padding=(0, 2, 0, 0))
    bar.add_row(ProgressBar(total=max(total, 1), completed=done, width=30), Text(f"{done:,} of {total:,}{things}"))
    return Shown(what, bar)


def generate(step: Step) -> Shown:
    """Nothing: the answer has its own panel."""
    return Shown()


RENDERERS: Mapping[str, Renderer] = {"prepare": prepare, "retrieve": retrieve, "generate": generate}
