"""How the steps of DF-RAG look on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

from rich.table import Table
from rich.text import Text

from ..nodes.choose import supports
from ..state.df_rag import NOTHING, CandidateSet, DFRagState
from ..state.records import Chunk
from .screen import clean, counted
from .steps import Renderer, Shown, Step, number


def plan(step: Step) -> Shown:
    """The plan's steps, numbered."""
    if step.running:
        return Shown()
    lines = Table.grid(padding=(0, 1, 0, 0))
    for position, one in enumerate(step.update["plan"], 1):
        lines.add_row(Text(f"{position})", "dim"), Text(clean(one)))
    return Shown(counted(len(step.update["plan"]), "step"), lines)


def candidates(step: Step) -> Shown:
    """The distinct chunk sets: the λ that select each, the titles of its chunks."""
    if step.running:
        return Shown()
    sets: Sequence[CandidateSet] = step.update["candidates"]
    chunks: Mapping[str, Chunk] = step.update["chunks"]
    table = _table("λ", "chunks, most similar first")
    for one in sets:
        titles = Counter(clean(chunks[chunk_id]["title"]) for chunk_id in one["chunk_ids"])
        named = [title if times == 1 else f"{title} ({times})" for title, times in titles.items()]
        table.add_row(lambda_range(one["lambdas"]), Text("; ".join(named)))
    levels = sum(len(one["lambdas"]) for one in sets)
    words = f"{counted(len(sets), 'distinct chunk set')} at {counted(levels, 'level')} of diversity λ"
    return Shown(words, table) if sets else Shown("no chunks")


def sample(step: Step) -> Shown:
    """How many sets the Evaluator looks at next."""
    if step.running:
        return Shown()
    pending = step.update["pending"]
    return Shown(f"{counted(len(pending), 'set')} to evaluate" if pending else "nothing more to evaluate")


def evaluate(step: Step) -> Shown:
    """A row per chunk set, filled in as the scores arrive: a score per step of the plan, and the support."""
    sets: Sequence[CandidateSet] = step.state["candidates"]
    found = [*step.state.get("evaluations", []), *(e for end in step.ends for e in end.update["evaluations"])]
    known = {evaluation["candidate"]: evaluation["scores"] for evaluation in found}
    support = {
        tuple(one["lambdas"]): one["support"]
        for one in supports(cast("DFRagState", {"candidates": sets, "evaluations": found}))
    }
    wanted = sorted(task.start.input["candidate"] for task in step.tasks.values())
    is_gain = NOTHING in wanted or NOTHING in known
    compared = NOTHING in known or not is_gain
    table = _table("λ", "score of each step", "support (gain)" if is_gain else "support")
    table.columns[2].justify = "right"
    for candidate in wanted:
        label = "no chunks" if candidate == NOTHING else lambda_range(sets[candidate]["lambdas"])
        if candidate not in known:
            table.add_row(label, Text("...", "dim"), "")
            continue
        total = support[tuple(sets[candidate]["lambdas"])] if candidate != NOTHING and compared else None
        scores = "  ".join(number(score) for score in known[candidate])
        table.add_row(label, Text(scores), "" if total is None else number(total))
    return Shown("", table)


def choose(step: Step) -> Shown:
    """λ*, and what it was tied with."""
    if step.running:
        return Shown()
    found, lambda_star = step.update["supports"], step.update["lambda_star"]
    if lambda_star is None:
        return Shown("there is nothing to choose from")
    best = max(one["support"] for one in found)
    tied = sorted(level for one in found if one["support"] == best for level in one["lambdas"])
    words = f"λ* = {lambda_star:.1f} with support {number(best)}"
    if len(tied) > 1:
        words += f", the upper median of {len(tied)} tied levels ({lambda_range(tied)})"
    return Shown(words)


RENDERERS: Mapping[str, Renderer] = {
    "plan": plan,
    "candidates": candidates,
    "sample": sample,
    "evaluate": evaluate,
    "choose": choose,
}


def lambda_range(levels: Sequence[float]) -> str:
    """Ascending levels, neighbours drawn together: '0.1-0.3, 0.6'."""
    runs: list[list[float]] = []
    for level in levels:
        if runs and round(level - runs[-1][-1], 6) == 0.1:
            runs[-1].append(level)
        else:
            runs.append([level])
    return ", ".join(f"{run[0]:.1f}" if len(run) == 1 else f"{run[0]:.1f}-{run[-1]:.1f}" for run in runs)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(Text(column), no_wrap=position != 1)
    return table
