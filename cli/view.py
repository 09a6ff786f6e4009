"""How each step of a graph looks on the terminal: one renderer per node name, a plain one for every other node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..nodes.choose import supports
from ..state.df_rag import NOTHING, CandidateSet, DFRagState
from ..state.records import Chunk
from .run import ModelCall, NodeEnd, NodeStart, Progress
from .screen import clean, counted, duration

INDENT = 12
"""Columns in front of what stands below a step's name."""

SHORTEST_SHOWN = 0.05
"""Seconds; a step that took less has no time beside its name."""

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Task:
    """One run of a node."""

    start: NodeStart
    end: NodeEnd | None = None


@dataclass
class Step:
    """A node's parallel runs of one round, as far as they are; `state` is the graph's state before them."""

    node: str
    namespace: tuple[str, ...]
    begun: float
    state: Mapping[str, Any]
    tasks: dict[str, Task] = field(default_factory=dict)
    calls: list[ModelCall] = field(default_factory=list)
    progress: Progress | None = None

    @property
    def running(self) -> bool:
        """Is a run of it under way?"""
        return any(task.end is None for task in self.tasks.values())

    @property
    def ends(self) -> list[NodeEnd]:
        """What ended, in the order of the starts."""
        return [task.end for task in self.tasks.values() if task.end is not None]

    @property
    def failed(self) -> bool:
        """Did a run of it end with an error?"""
        return any(end.error is not None for end in self.ends)

    @property
    def update(self) -> Mapping[str, Any]:
        """What the first run changed; empty while it runs."""
        return next(iter(self.ends)).update if self.ends else {}


@dataclass(frozen=True)
class Shown:
    """What a renderer has to say of a step: some words beside its name, and what stands below."""

    words: str = ""
    below: RenderableType | None = None


def block(step: Step, now: float | None = None) -> RenderableType:
    """A step as it is to be shown; `now` is the time if it still runs."""
    try:
        shown = (changes if step.failed else RENDERERS.get(step.node, changes))(step)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        # another graph's node of the same name, with another state
        shown = changes(step)
    heading = _heading(step, shown.words, now)
    return heading if shown.below is None else Group(heading, Padding(shown.below, (0, 0, 0, INDENT)))


def _heading(step: Step, words: str, now: float | None) -> RenderableType:
    path = [run.partition(":")[0] for run in step.namespace]
    name = clean(" / ".join([*path, step.node]))
    until = max((end.at for end in step.ends), default=step.begun) if now is None else now
    facts = [duration(until - step.begun)] if until - step.begun >= SHORTEST_SHOWN else []
    if step.calls:
        facts.append(counted(len(step.calls), "model call"))
    if len(step.tasks) > 1 and now is not None:
        facts.insert(0, f"{len(step.ends)} of {len(step.tasks)} done")
    said = Text() if now is None else Text(_SPINNER[int(now * 10) % len(_SPINNER)] + " ", "cyan")
    parts = [(words, "default"), ("failed" if step.failed else "", "bold red"), (", ".join(facts), "dim")]
    said.append_text(Text("  ").join([Text(part, style) for part, style in parts if part]))
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(min_width=INDENT - 2, no_wrap=True)
    line.add_row(Text(name, "bold"), said)
    return line


def changes(step: Step) -> Shown:
    """Any node: the keys of the state that it changed."""
    keys = dict.fromkeys(key for end in step.ends for key in end.update if key != "usage")
    return Shown("changed " + clean(", ".join(keys)) if keys else "")


def prepare(step: Step) -> Shown:
    """How far the indexing is; afterwards, that it was done."""
    if step.progress is None:
        return Shown()
    what, done, total = clean(step.progress.what), step.progress.done, step.progress.total
    if not step.running:
        return Shown(f"{what}: {counted(total, 'chunk')}")
    bar = Table.grid(padding=(0, 2, 0, 0))
    bar.add_row(ProgressBar(total=max(total, 1), completed=done, width=30), Text(f"{done:,} of {total:,} chunks"))
    return Shown(what, bar)


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


def retrieve(step: Step) -> Shown:
    """How many chunks were retrieved, and how similar they are."""
    if step.running:
        return Shown()
    scores = [chunk["score"] for chunk in step.update["evidence"]]
    if not scores:
        return Shown("no chunks")
    return Shown(f"{counted(len(scores), 'chunk')}, similarity {min(scores):.2f} to {max(scores):.2f}")


def generate(step: Step) -> Shown:
    """Nothing: the answer has its own panel."""
    return Shown()


RENDERERS: Mapping[str, Callable[[Step], Shown]] = {
    "prepare": prepare,
    "plan": plan,
    "candidates": candidates,
    "sample": sample,
    "evaluate": evaluate,
    "choose": choose,
    "retrieve": retrieve,
    "generate": generate,
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


def number(value: float) -> str:
    """A score: whole numbers as they are, others with two digits."""
    return f"{value:g}" if float(value).is_integer() else f"{value:.2f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(Text(column), no_wrap=position != 1)
    return table
