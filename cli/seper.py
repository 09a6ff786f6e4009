"""`dubito seper`: how much each retrieval step of a recorded run raised a model's belief in the right answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import UserFault
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import shortened
from ..render.screen import console, print_json, working
from .options import Answers, AsJson, Assignments, Preset

if TYPE_CHECKING:
    from ..evals.compression import Compression
    from ..evals.seper_steps import StepScore
    from ..state.seper import SePerContext
    from ..traces.recording import Recording

EXAMPLES = (
    'dubito ask "..." --trace run.jsonl',
    'dubito seper run.jsonl --answer "Beatrix Hale"',
    'dubito seper run.jsonl --answer "Beatrix Hale" --answer "B. Hale" --chunks --compress 0.5',
    'dubito seper run.jsonl --answer "..." --judge nli:microsoft/deberta-base-mnli --set samples=20 --json',
)

WIDTH = 16
"""Columns of a bar of ΔSePer, with 0 in the middle."""

LONGEST_LABEL = 44

KIND_WORDS = {
    "known": "all so far",
    "compressed": "compressed",
    "first_stage": "as searched",
    "reranked": "as re-ranked",
    "chunk": "alone",
}
"""The kinds of evidence, in words."""


def seper(
    recorded: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace that dubito ask --trace wrote.")],
    *,
    answers: Answers = None,
    llm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The chat model to measure; default: the run's own."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="NAME", help="nli:DIR, llm, embedded or similarity:T; it compares answers.")
    ] = None,
    preset: Preset = None,
    assignments: Assignments = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="Measure each chunk alone too.")] = False,
    compress: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Measure the evidence with this share of its text too, such as 0.5."),
    ] = None,
    compression: Annotated[
        Literal["selective_context", "question_aware"] | None,
        typer.Option(
            help="What --compress keeps: the most informative sentences (the default), or the tokens that matter most "
            "to the question.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure ΔSePer of each retrieval step of a recorded run.

    The model answers the run's question several times with the evidence known up to each step, and several times
    without evidence. ΔSePer is how much the evidence raises its belief in the right answer: at most 1; 0 is no effect;
    below 0 the evidence misleads. If the trace shows a re-ranking, the orders before and after it are measured too.
    """
    if not answers:
        raise UserFault('There is no right answer to measure the belief in: give one with --answer "...".')
    if compression and compress is None:
        raise UserFault("--compression says what --compress keeps: give --compress SHARE too, such as --compress 0.5.")
    with working("measuring", as_json=as_json):
        from ..traces.recording import read  # noqa: PLC0415 - heavy modules load when needed

        recording = read(recorded)
        context = _context(recording, {"llm": llm, "judge": judge, "preset": preset}, assignments or [])
        how = compression or "selective_context"
        scores, facts = _measure(recording, answers, context, chunks=chunks, compress=compress, compression=how)
    if as_json:
        print_json(facts)
        return
    from ..render.terminal import show_blocks  # noqa: PLC0415

    show_blocks(console(), _blocks(scores, facts))


def _context(recording: Recording, options: dict[str, str | None], assignments: Sequence[str]) -> SePerContext:
    """The settings of SePer. Chat model and encoder are those of the run unless the command names others."""
    from ..graphs.context_from_text import context_for  # noqa: PLC0415
    from ..graphs.registry import graph_named  # noqa: PLC0415
    from ..state.seper import SePerContext  # noqa: PLC0415

    named = {assignment.partition("=")[0] for assignment in assignments}
    for name in ("llm", "encoder"):
        own = recording.context.get(name)
        if options.get(name) is None and options["preset"] is None and name not in named and isinstance(own, str):
            options[name] = own
    context = context_for(graph_named("seper"), options, assignments)
    assert isinstance(context, SePerContext)  # noqa: S101 - it is seper's
    return context


def _measure(
    recording: Recording,
    answers: Sequence[str],
    context: SePerContext,
    *,
    chunks: bool,
    compress: float | None,
    compression: Compression,
) -> tuple[list[StepScore], dict[str, Any]]:
    """The measurements, and the facts of all of them for the JSON object."""
    from ..evals.seper_steps import score_steps  # noqa: PLC0415
    from ..models.background import run_in_background  # noqa: PLC0415
    from ..models.metering import Meter, current_meter  # noqa: PLC0415
    from ..resources.fitting import fitted  # noqa: PLC0415
    from ..resources.resources import shared_resources  # noqa: PLC0415

    meter, begun = Meter(), time.monotonic()

    async def measure() -> tuple[SePerContext, list[StepScore]]:
        current_meter.set(meter)
        resources = shared_resources()
        taken = await fitted(context, resources)
        return taken, await score_steps(
            recording, answers, taken, resources, chunks=chunks, compress=compress, compression=compression
        )

    taken, scores = run_in_background(measure())
    results = [score.result for score in scores if score.result]
    return scores, {
        "graph": recording.graph,
        "question": recording.question,
        "answers": list(answers),
        "seper_without": results[0].seper_without if results else None,
        "steps": [_step_object(score) for score in scores],
        "warnings": list(dict.fromkeys(warning for result in results for warning in result.warnings)),
        "usage": {
            "calls": len(meter.calls),
            "prompt_tokens": sum(call.prompt_tokens for call in meter.calls),
            "completion_tokens": sum(call.completion_tokens for call in meter.calls),
        },
        "seconds": time.monotonic() - begun,
        "context": taken.model_dump(mode="json"),
    }


def _step_object(score: StepScore) -> dict[str, Any]:
    return {
        "step": score.step,
        "label": score.label,
        "evidence": score.kind,
        "chunk_ids": [chunk["id"] for chunk in score.evidence],
        "words": score.words,
        "seper": score.result.seper if score.result else None,
        "delta": score.result.delta if score.result else None,
    }


def _blocks(scores: Sequence[StepScore], facts: Mapping[str, Any]) -> list[Block]:
    from ..render.answer import cost_line  # noqa: PLC0415 - rich loads when needed

    models = "chat model {llm}, judge {judge}, {samples} samples".format_map(facts["context"])
    blocks: list[Block] = [Words(f"{facts['graph']}: {facts['question']}", "strong"), Words(models, "dim"), Words("")]
    if facts["seper_without"] is not None:
        blocks.append(Words(f"Without evidence the belief in the right answer is {facts['seper_without']:.3f}."))
    columns = ["", "step", "evidence", "chunks", "words", "SePer", "ΔSePer", ""]
    blocks += [Table(columns, [_row(score) for score in scores]), Words("")]
    blocks += [Words(f"Warning: {warning}", "warn") for warning in facts["warnings"]]
    return [*blocks, Words(cost_line(facts, facts["seconds"]), "dim")]


def _row(score: StepScore) -> Row:
    is_first = score.kind == "known"
    number = Cell(str(score.step) if is_first else "", number=True)
    label = shortened(score.label, LONGEST_LABEL) if is_first or score.kind == "chunk" else ""
    name = [number, Cell(label, tone="" if is_first else "dim"), Cell(KIND_WORDS[score.kind], tone="dim")]
    size = [Cell(str(len(score.evidence)), number=True), Cell(f"{score.words:,}", number=True)]
    if score.result is None:
        return Row([*name, *size, Cell(""), Cell(""), Cell("does not fit the model's window", tone="warn")])
    seper, delta = score.result.seper, score.result.delta
    bar = Cell(delta_bar(delta), tone="good" if delta > 0 else "bad")
    return Row([*name, *size, num(seper, f"{seper:.3f}"), num(delta, f"{delta:+.3f}"), bar])


def delta_bar(delta: float) -> str:
    """ΔSePer, −1 to 1, as a bar from the middle: to the right if it is above 0, else to the left."""
    half = WIDTH // 2
    filled = round(half * abs(delta))
    bar, rest = "█" * filled, "░" * (half - filled)
    return f"{rest}{bar}│{'░' * half}" if delta < 0 else f"{'░' * half}│{bar}{rest}"
