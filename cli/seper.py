"""`dubito seper`: what each retrieval step of a recorded run was worth to a model."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserFault
from .screen import clean, console, counted, duration, help_lines, print_json, shorten, show

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from ..evals.seper_steps import StepWorth
    from ..models.metering import Call
    from ..state.seper import SePerContext
    from ..traces.recording import Recording

EXAMPLES = help_lines(
    "Examples",
    'dubito ask "..." --graph sunar --trace run.jsonl',
    'dubito seper run.jsonl --answer "Beatrix Hale"',
    'dubito seper run.jsonl --answer "Beatrix Hale" --answer "B. Hale" --chunks --compress 0.5',
    'dubito seper run.jsonl --answer "..." --judge nli:microsoft/deberta-base-mnli --set n=20 --json',
)

WIDTH = 16
"""Cells of a bar, 0 in the middle."""

LONGEST_LABEL = 44

WHAT = {
    "known": "all so far",
    "compressed": "compressed",
    "first_stage": "as searched",
    "reranked": "as re-ranked",
    "chunk": "alone",
}
"""What was measured, in words."""


def seper(
    recorded: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that dubito ask --trace wrote.")],
    *,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answer", metavar="TEXT", help="A right answer to the question of the run; repeatable."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar="DUBITO_LLM", help="Whose belief counts; else the run's own chat model."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="NAME", help="nli:DIR, llm, embedded or similarity:T; says what is right.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="embedded (small models in packages) or paper.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the graph seper, such as n=20."),
    ] = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="Measure each chunk alone too.")] = False,
    compress: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Measure the evidence with this share of its sentences too, such as 0.5."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Measure what each retrieval step of a recorded run was worth: ΔSePer.

    The model answers the run's question with the evidence that was known up to each step, several times, and without
    any. ΔSePer is how much more it believes the right answer with the evidence: 1 is all of it, 0 nothing, below 0 the
    evidence misleads. Where the trace shows a re-ranking, the order before and after it are measured too.
    """
    if not answers:
        raise UserFault('There is no right answer to measure the belief in: give one with --answer "...".')
    screen = None if as_json else console()
    with (
        contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
        screen.status("measuring") if screen is not None and screen.is_interactive else contextlib.nullcontext(),
    ):
        from ..traces.recording import read  # noqa: PLC0415 - what is heavy loads when it is needed

        recording = read(recorded)
        context = _context(recording, {"llm": llm, "judge": judge, "preset": preset}, assignments or [])
        measured = _measure(recording, answers, context, chunks=chunks, compress=compress)
    if screen is None:
        print_json(_as_json(measured))
        return
    for part in _shown(measured):
        show(screen, part)


@dataclass(frozen=True)
class _Measured:
    """What was measured, and what it cost."""

    recording: Recording
    answers: Sequence[str]
    context: SePerContext
    steps: Sequence[StepWorth]
    calls: Sequence[Call]
    seconds: float

    @property
    def without(self) -> float | None:
        """SePer without evidence; None where nothing fitted."""
        return next((one.worth.seper_without for one in self.steps if one.worth), None)

    @property
    def warnings(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(warning for one in self.steps if one.worth for warning in one.worth.warnings))

    @property
    def tokens(self) -> tuple[int, int]:
        """Read and written."""
        return sum(call.prompt_tokens for call in self.calls), sum(call.completion_tokens for call in self.calls)


def _context(recording: Recording, options: dict[str, str | None], assignments: Sequence[str]) -> SePerContext:
    """The settings of SePer; what is not said is as in the run, where that is a matter of models."""
    from ..graphs.registry import graph_named  # noqa: PLC0415
    from ..state.seper import SePerContext  # noqa: PLC0415
    from .context import context_for  # noqa: PLC0415

    named = {assignment.partition("=")[0] for assignment in assignments}
    for name in ("llm", "encoder"):
        own = recording.context.get(name)
        if options.get(name) is None and options["preset"] is None and name not in named and isinstance(own, str):
            options[name] = own
    context = context_for(graph_named("seper"), options, assignments)
    assert isinstance(context, SePerContext)  # noqa: S101 - it is seper's
    return context


def _measure(
    recording: Recording, answers: Sequence[str], context: SePerContext, *, chunks: bool, compress: float | None
) -> _Measured:
    from ..evals.seper_steps import worth_of_steps  # noqa: PLC0415
    from ..models.background import run_in_background  # noqa: PLC0415
    from ..models.metering import Meter, current_meter  # noqa: PLC0415
    from ..models.resources import shared_resources  # noqa: PLC0415

    meter, begun = Meter(), time.monotonic()

    async def measure() -> list[StepWorth]:
        current_meter.set(meter)
        resources = shared_resources()
        return await worth_of_steps(recording, answers, context, resources, chunks=chunks, compress=compress)

    steps = run_in_background(measure())
    return _Measured(recording, answers, context, steps, meter.calls, time.monotonic() - begun)


def _shown(measured: _Measured) -> list[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 - rich loads when something is drawn

    recording, context = measured.recording, measured.context
    heading = Text.assemble((recording.graph, "bold"), "  ", clean(recording.question))
    models = f"chat model {context.llm}, judge {context.judge}, n = {context.n}"
    known = measured.without is not None
    before = [Text(f"Without evidence the belief in the right answer is {measured.without:.3f}.")] if known else []
    warned = [Text("Warning: " + clean(warning), "yellow") for warning in measured.warnings]
    read, written = measured.tokens
    calls = counted(len(measured.calls), "model call")
    cost = Text(f"{calls}, {read:,} tokens read, {written:,} written, {duration(measured.seconds)}", "dim")
    return [heading, Text(clean(models), "dim"), Text(), *before, _table(measured.steps), Text(), *warned, cost]


def _table(found: Sequence[StepWorth]) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    from .steps import one_line, rows  # noqa: PLC0415

    table = rows("", "step", "evidence", "chunks", "words", "SePer", "ΔSePer", "")
    for column in table.columns[3:7]:
        column.justify = "right"
    for column in table.columns[2:]:
        column.no_wrap, column.min_width = True, len(str(column.header))
    table.columns[-1].min_width = WIDTH + 1
    for one in found:
        first = one.what == "known"
        label = one_line(shorten(one.label, LONGEST_LABEL), "" if first else "dim")
        number = Text(str(one.step) if first else "", "dim")
        shown = [number, label if first or one.what == "chunk" else Text(), Text(WHAT[one.what], "dim")]
        size = [Text(str(len(one.evidence))), Text(f"{one.words:,}")]
        if one.worth is None:
            table.add_row(*shown, *size, "", "", Text("does not fit the model's window", "yellow"))
        else:
            figures = [Text(f"{one.worth.seper:.3f}"), Text(f"{one.worth.delta:+.3f}")]
            table.add_row(*shown, *size, *figures, delta_bar(one.worth.delta))
    return table


def delta_bar(delta: float) -> Text:
    """A number from −1 to 1 as a bar from the middle, to the right where it is above 0."""
    from rich.text import Text  # noqa: PLC0415

    half = WIDTH // 2
    cells = round(half * abs(delta))
    if delta < 0:
        return Text.assemble(("░" * (half - cells), "dim"), ("█" * cells, "red"), "│", ("░" * half, "dim"))
    return Text.assemble(("░" * half, "dim"), "│", ("█" * cells, "green"), ("░" * (half - cells), "dim"))


def _as_json(measured: _Measured) -> dict[str, Any]:
    read, written = measured.tokens
    return {
        "graph": measured.recording.graph,
        "question": measured.recording.question,
        "answers": list(measured.answers),
        "seper_without": measured.without,
        "steps": [
            {
                "step": one.step,
                "label": one.label,
                "evidence": one.what,
                "chunk_ids": [chunk["id"] for chunk in one.evidence],
                "words": one.words,
                "seper": one.worth.seper if one.worth else None,
                "delta": one.worth.delta if one.worth else None,
            }
            for one in measured.steps
        ],
        "warnings": measured.warnings,
        "usage": {"calls": len(measured.calls), "prompt_tokens": read, "completion_tokens": written},
        "seconds": measured.seconds,
        "context": measured.context.model_dump(mode="json"),
    }
