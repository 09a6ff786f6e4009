"""What `dubito calibrate sunar` does: check, ask every question, find the threshold, show how it does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..evals.calibration import identity, settings_of
from ..evals.conformal import Conformal, Half, Outcome, Right, conformal_figures, fewest_right, rule_of, split
from ..evals.consistent_sunar import graph as consistent_sunar
from ..evals.consistent_sunar import open_everything
from ..evals.questions import GoldQuestion, read_questions
from ..evals.records import Record, Records
from ..models.resources import check_corpus, shared_resources
from ..state.sunar import SunarContext
from ..uncertainty import conformal_threshold
from .ask_many import ask_them, check_target, failures_of, keys_of, records_beside, show_failures
from .context import context_for
from .screen import clean, console, counted, print_json
from .screen import show as show_on


@dataclass(frozen=True)
class Job:
    """What was asked for on the command line; see the options of `dubito calibrate sunar`."""

    questions: Path
    out: Path
    options: Mapping[str, str | None]
    assignments: Sequence[str]
    alpha: float
    right: str
    holdout: float
    seed: int
    limit: int | None
    at_once: int


def calibrate_sunar(job: Job, *, as_json: bool) -> None:
    """Find the threshold of SUNAR's consistency, write the file and show it."""
    rule = rule_of(job.right)
    conformal_threshold([], job.alpha)  # refuses what is no share
    context = cast("SunarContext", context_for(consistent_sunar, job.options, job.assignments))
    check_corpus(context.corpus)
    questions = read_questions(job.questions, job.limit)
    check_target(job.out)
    records = Records(records_beside(job.out))
    keys = keys_of("sunar", context, questions)

    async def open_it() -> None:
        await open_everything(context, shared_resources())

    async def ask(question: str) -> dict[str, Any]:
        output = await consistent_sunar.ainvoke({"question": question}, context=context)
        return {name: output[name] for name in ("answer", "consistency", "resampled", "warnings")}

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        ask_them(keys, open_it, ask, records, at_once=job.at_once, screen=console(), quiet=as_json)
    failed = failures_of(keys, records)
    found = conformal_of(job, context, questions, [records.found(key) for key in keys], rule)
    found.save(job.out)
    if as_json:
        told = [{"question": one["question"], "error": one["error"]} for one in failed]
        print_json({**found.model_dump(mode="json"), "out": str(job.out), "kept": str(records.path), "failures": told})
    else:
        show_conformal(console(), found, failed, job.out)


def conformal_of(
    job: Job,
    context: SunarContext,
    questions: Sequence[GoldQuestion],
    found: Sequence[Mapping[str, Any] | None],
    rule: Right,
) -> Conformal:
    """The calibration, from what was found for each question; None is one that failed."""
    outcomes = [
        None if one is None else Outcome(one["consistency"], rule(one["answer"], question.answers))
        for one, question in zip(found, questions, strict=True)
    ]
    calibration, held_back = split(len(questions), job.holdout, job.seed)
    figures = conformal_figures([outcomes[i] for i in calibration], [outcomes[i] for i in held_back], job.alpha)
    return Conformal(
        technique="sunar",
        model=identity(context.llm),
        settings=settings_of(context),
        alpha=job.alpha,
        right=job.right,
        made_with={
            "dubito": __version__,
            "questions": str(job.questions),
            "limit": job.limit,
            "corpus": context.corpus,
            "holdout": job.holdout,
            "seed": job.seed,
        },
        **figures._asdict(),
    )


def show_conformal(screen: Console, found: Conformal, failed: Sequence[Record], out: Path) -> None:
    """The threshold and how it does, for a person."""
    least = (str(found.threshold), "bold")
    screen.print(Text.assemble("Keep an answer whose consistency is at least ", least, "."))
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("", "questions", "right", "kept", "wrong", "kept", "failed", style="dim")
    for name, half in (("calibration", found.calibration), ("held back", found.held_back)):
        table.add_row(name, *_row(half))
    show_on(screen, table)
    if found.coverage is None:
        screen.print("No right answer was held back, so what it keeps of others is not known.")
    else:
        kept = f"Of the right answers held back it keeps {found.coverage:.1%}"
        screen.print(f"{kept}; at least {1 - found.alpha:.1%} is promised, on average over such samples.")
    if found.n < (needed := fewest_right(found.alpha)):
        screen.print(
            Text(
                f"Warning: {counted(found.n, 'right answer')} to calibrate on, where an alpha of {found.alpha:g} takes "
                f"{needed}: the threshold is 0 and keeps every answer.",
                "yellow",
            )
        )
    show_failures(screen, failed)
    screen.print(Text(f"Written to {clean(str(out))}", "dim"), soft_wrap=True)


def _row(half: Half) -> list[str]:
    return [
        str(count) for count in (half.questions, half.right, half.kept_right, half.wrong, half.kept_wrong, half.failed)
    ]
