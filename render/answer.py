"""The terminal's lines before and after a run: settings, answer, evidence, cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..presenters.presenter import outcome_of, score_name
from ..presenters.words import counted, duration, figure, source_of, title_of
from ..state.records import Chunk, Usage
from ..traces.run import Run
from .facts import Cost, shown_answer
from .sanitize import one_line, sanitize, shortened
from .terminal import drawn

MOST_EVIDENCE = 10
"""Chunks below an answer; the others are counted."""

NAMED = ("corpus", "llm", "encoder", "first_stage", "reranker", "judge", "estimator", "k")
"""The settings that the line before a run names, if the graph has them."""


def settings_line(run: Run) -> RenderableType:
    """The graph with its models and corpora; a dense search is the encoder's, which is named."""
    fields = type(run.context).model_fields
    settings = [
        f"{(fields[name].title or name).lower()} {value}" if isinstance(value, str) else f"{name} = {value}"
        for name in NAMED
        if name in fields and run.context.is_used(name) and (value := getattr(run.context, name)) not in {"", "dense"}
    ]
    return Text(one_line(f"{run.graph.name}: {', '.join(settings)}"), "dim")


def answer_panel(run: Run) -> RenderableType:
    """The answer, its uncertainty, evidence, warnings and cost, in a frame."""
    return Panel(
        Group(answer_text(shown_answer(run.output)), Text(), *_below(run)),
        title="Answer",
        title_align="left",
        border_style="green",
    )


def below_answer(run: Run) -> RenderableType:
    """The lines of the panel below the answer, without a frame."""
    return Group(*_below(run), Text())


def answer_text(answer: str) -> Text:
    """The answer, with the model's own line breaks."""
    text = sanitize(answer).strip()
    return Text(text, "bold") if text else Text("(no answer)", "dim")


def _below(run: Run) -> list[RenderableType]:
    sections: list[list[RenderableType]] = [
        drawn(outcome_of(run.graph.name, run.output, run.context)),
        _evidence(run.output.get("evidence") or [], score_name(run.graph.name, run.context)),
        [Text(f"Warning: {one_line(warning)}", "yellow") for warning in run.output.get("warnings") or []],
    ]
    cost = Text(cost_line(run.output, run.seconds), "dim")
    return [*(part for section in sections if section for part in (*section, Text())), cost]


def _evidence(evidence: Sequence[Chunk], score_name: str) -> list[RenderableType]:
    if not evidence:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    for position, chunk in enumerate(evidence[:MOST_EVIDENCE], 1):
        score = figure(chunk["score"]) if "score" in chunk else ""
        source = one_line(source_of(chunk))
        name = Text.assemble((one_line(title_of(chunk)), "bold"), (f"  {source}" if source else "", "dim"))
        words = Text.assemble(name, "\n", shortened(chunk["text"], 100))
        table.add_row(Text(f"{position:>2}", "dim"), Text(score), words)
    more = len(evidence) - MOST_EVIDENCE
    rest = [Text(f"and {counted(more, 'more chunk')}", "dim")] if more > 0 else []
    return [Text(f"From, with {score_name}:", "dim"), table, *rest]


def cost_line(output: Mapping[str, Any], seconds: float) -> str:
    """'3 model calls, 1,200 tokens read, 45 written, 2.1 s'."""
    usage: Usage | None = output.get("usage")
    if not usage:
        return duration(seconds)
    tokens = Cost(usage["calls"], usage["prompt_tokens"], usage["completion_tokens"]).tokens
    return f"{counted(usage['calls'], 'model call')}, {tokens}, {duration(seconds)}"
