"""`dubito calibrate`: thresholds found from questions with gold answers, a command for each technique that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exits import MEANINGS
from .options import Chunker, Corpus, Encoder, K, Llm, Preset
from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito calibrate sunar questions.jsonl --corpus notes.index --alpha 0.1",
    "dubito calibrate sunar questions.jsonl --set budget=32 --set samples=5 --limit 100",
    "dubito calibrate seakr questions.jsonl --llm hf:my-model --sweep layer=8,16,24 --plot seakr.png",
    'dubito calibrate sunar questions.jsonl --llm "vllm:http://127.0.0.1:8000/v1#my-model" --at-once 8 --json',
)

calibrate = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Find a technique's threshold from questions with gold answers."
)

Questions = Annotated[
    Path, typer.Argument(metavar="FILE", help='JSON lines, each {"question": "...", "answers": ["...", ...]}.')
]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where to write it.  [default: TECHNIQUE.calibration.json]")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting of the technique, repeatable; a wrong name lists them."
    ),
]
Alpha = Annotated[float, typer.Option(metavar="SHARE", help="The share of right answers that may be lost, in (0, 1).")]
Rule = Annotated[str, typer.Option(metavar="RULE", help="When an answer is right: f1:T (F1 at least T) or exact.")]
Holdout = Annotated[
    float,
    typer.Option(metavar="SHARE", min=0.0, max=0.95, help="The share of questions the threshold is tried on."),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of drawing the questions that are held back.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the file's first N questions.")]
AtOnce = Annotated[
    int, typer.Option(metavar="N", min=1, max=1024, help="Questions under way at a time, which a killed run loses.")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=V1,V2", help="Also try these values of a setting that U depends on; repeatable."),
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw how U is distributed and what was swept, as .png, .svg, .pdf.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")]


@calibrate.command(epilog=EXAMPLES + "\n\n" + MEANINGS)
def sunar(
    questions: Questions,
    *,
    out: Out = None,
    corpus: Corpus = None,
    llm: Llm = None,
    encoder: Encoder = None,
    chunker: Chunker = None,
    preset: Preset = None,
    k: K = None,
    assignments: Assignments = None,
    alpha: Alpha = 0.1,
    right: Rule = "f1:0.5",
    holdout: Holdout = 0.5,
    seed: Seed = 0,
    limit: Limit = None,
    at_once: AtOnce = 4,
    as_json: Json = False,
) -> None:
    """Find how consistent an answer of SUNAR must be, to keep right ones with probability 1 - alpha.

    Each question is answered by SUNAR and the final answer sampled again; the share of samples that mean the same is
    its consistency. What is found is kept question by question: run the same command again to go on.
    """
    from .calibrating import Job, calibrate_sunar  # noqa: PLC0415 - what is heavy loads when it is needed

    options = {"corpus": corpus, "llm": llm, "encoder": encoder, "chunker": chunker, "preset": preset, "k": k}
    target = (out or Path("sunar.calibration.json")).expanduser()
    job = Job(questions, target, options, assignments or [], alpha, right, holdout, seed, limit, at_once)
    calibrate_sunar(job, as_json=as_json)


@calibrate.command(epilog=EXAMPLES + "\n\n" + MEANINGS)
def seakr(
    questions: Questions,
    *,
    out: Out = None,
    corpus: Corpus = None,
    llm: Llm = None,
    preset: Preset = None,
    assignments: Assignments = None,
    right: Rule = "f1:0.5",
    sweep: Sweep = None,
    plot: Plot = None,
    limit: Limit = None,
    at_once: AtOnce = 4,
    as_json: Json = False,
) -> None:
    """Find the uncertainty of SeaKR above which something is looked up.

    Each question is answered without looking anything up; the threshold is the one that best tells wrong answers, whose
    most uncertain step is to be above it, from right ones. What is found is kept question by question: run the same
    command again to go on.
    """
    from .calibrating_seakr import SeaKRJob, calibrate_seakr  # noqa: PLC0415 - what is heavy loads when it is needed

    options = {"corpus": corpus, "llm": llm, "preset": preset}
    target = (out or Path("seakr.calibration.json")).expanduser()
    job = SeaKRJob(questions, target, options, assignments or [], right, sweep or [], plot, limit, at_once)
    calibrate_seakr(job, as_json=as_json)


@calibrate.callback()
def _techniques() -> None:
    """Find a technique's threshold from questions with gold answers."""
