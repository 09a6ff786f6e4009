"""What stands before a run and after it: its settings; the answer, what it was made from, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..state.baselines import IterRetgenContext
from ..state.dense import DenseContext
from ..state.neighbourhood import NeighbourhoodContext
from ..state.reasoning import ReasoningContext, SearchingContext
from ..state.records import Chunk, Usage
from ..state.seakr import SeaKRContext
from ..state.seper import SePerContext
from ..state.sunar import Hop
from ..traces.run import Run
from .screen import clean, counted, duration, shorten
from .view_dense import verdict
from .view_dense_rag import STOPS
from .view_neighbourhood import ENDINGS, exploration
from .view_reasoning import path as reasoning_path
from .view_seper import verdict as worth

MOST_EVIDENCE = 10
"""Chunks shown below an answer; the others are counted."""


def settings_line(run: Run) -> RenderableType:
    """What is about to run."""
    context = run.context
    if isinstance(context, ReasoningContext | IterRetgenContext):
        return Text(clean(f"{run.graph.name}: {_of_reasoning(context)}"), "dim")
    names = f"corpus {context.corpus}, chat model {context.llm}, encoder {context.encoder}"
    if isinstance(context, DenseContext | SePerContext):
        names += f", judge {context.judge}"
    if isinstance(context, NeighbourhoodContext):
        names += f", first stage {context.first_stage}, re-ranker {context.reranker}"
        names += "" if context.penalty == "none" else f", judge {context.judge}"
    return Text(clean(f"{run.graph.name}: {names}, k = {context.k}"), "dim")


def _of_reasoning(context: ReasoningContext | IterRetgenContext) -> str:
    names = f"chat model {context.llm}"
    if isinstance(context, SearchingContext | IterRetgenContext):
        names += f", corpus {context.corpus}, first stage {context.first_stage}, k = {context.k}"
    if isinstance(context, SeaKRContext):
        names += f", uncertainty {context.estimator}"
    return names


def answer_panel(run: Run) -> RenderableType:
    """The answer, how far it can be relied on, what it was made from, what went wrong on the way, what it cost."""
    parts: list[RenderableType] = [answer_text(run.output), Text(), *reliance(run), *way(run.output), *_grounds(run)]
    parts.append(Text(cost(run.output, run.seconds), "dim"))
    return Panel(Group(*parts), title="Answer", title_align="left", border_style="green")


def grounds_and_cost(run: Run) -> RenderableType:
    """The same without a frame and without the answer."""
    return Group(*reliance(run), *way(run.output), *_grounds(run), Text(cost(run.output, run.seconds)), Text())


def answer_text(output: Mapping[str, Any]) -> Text:
    """The answer, in as many lines as the model gave it."""
    text = clean(str(output.get("answer") or ""), lines=True).strip()
    return Text(text, "bold") if text else Text("(the model gave no answer)", "dim")


def reliance(run: Run) -> list[RenderableType]:
    """How certain the answer is, for the graphs that measure it, and how many contexts it took; or what chunks do."""
    output = run.output
    if "delta" in output:
        return [Text(worth(output), "green" if output["delta"] > 0 else "yellow"), Text()]
    if "dse" not in output:
        return []
    said: list[RenderableType] = [Text(verdict(output, run.context), "green" if output["certain"] else "yellow")]
    if "stopped" in output:
        measured = f"{counted(len(output['rounds']), 'context')} measured; it ended because {STOPS[output['stopped']]}."
        said.append(Text(f"{measured}{_JUDGED[output['sufficient']]}"))
    return [*said, Text()]


_JUDGED = {
    True: " The model finds the context sufficient.",
    False: " The model finds the context insufficient.",
    None: "",
}
"""Of the output's `sufficient`."""


def way(output: Mapping[str, Any]) -> list[RenderableType]:
    """The reasoning path of SUNAR, or how far a look-up went."""
    if "hops" in output:
        return [*_path(output), Text()]
    if "steps" in output:
        return [*reasoning_path(output), Text()]
    if "scored" in output:
        return [Text(f"Documents: {exploration(output)}; it ended because {ENDINGS[output['stopped']]}."), Text()]
    return []


def _path(output: Mapping[str, Any]) -> list[RenderableType]:
    hops: Sequence[Hop] = output["hops"]
    table = Table.grid(padding=(0, 2, 0, 0))
    for position, hop in enumerate(hops, 1):
        found = clean(hop["answer"]) or "(no answer)"
        table.add_row(Text(f"{position:>2}", "dim"), Text.assemble(clean(hop["question"]), " → ", (found, "bold")))
    said: list[RenderableType] = [Text(f"The path, {counted(len(hops), 'sub-question')}:", "dim"), table]
    if output["changed"]:
        before = clean(output["sequential_answer"]) or "no answer"
        said.append(Text(f"It arrived at: {before}. Reading its evidence again changed the answer.", "yellow"))
    return said


def _grounds(run: Run) -> list[RenderableType]:
    output = run.output
    evidence: Sequence[Chunk] = output.get("evidence") or []
    measure, figures = "similarity to the question", ".2f"
    if isinstance(run.context, NeighbourhoodContext):
        measure, figures = "the re-ranker's score", "#.3g"  # which may be far below 1
    if isinstance(run.context, SearchingContext | IterRetgenContext):
        measure = "the first stage's score"
    table = Table.grid(padding=(0, 2, 0, 0))
    for position, chunk in enumerate(evidence[:MOST_EVIDENCE], 1):
        score = format(chunk["score"], figures) if "score" in chunk else ""
        words = Text.assemble((clean(chunk["title"]), "bold"), "\n", shorten(chunk["text"], 100))
        table.add_row(Text(f"{position:>2}", "dim"), Text(score), words)
    more = len(evidence) - MOST_EVIDENCE
    heading = Text(f"From, with {measure}:", "dim")
    rest = [Text(f"and {counted(more, 'more chunk')}", "dim")] if more > 0 else []
    parts: list[RenderableType] = [heading, table, *rest, Text()] if evidence else []
    warnings = [Text("Warning: " + clean(warning), "yellow") for warning in output.get("warnings") or []]
    return [*parts, *warnings, Text()] if warnings else parts


def cost(output: Mapping[str, Any], seconds: float) -> str:
    """What a run cost, in one line."""
    usage: Usage | None = output.get("usage")
    if not usage:
        return duration(seconds)
    tokens = f"{usage['prompt_tokens']:,} tokens read, {usage['completion_tokens']:,} written"
    return f"{counted(usage['calls'], 'model call')}, {tokens}, {duration(seconds)}"
