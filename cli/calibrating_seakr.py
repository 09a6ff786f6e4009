"""What `dubito calibrate seakr` does: ask every question unaided, find δ, show how well U tells right from wrong."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..errors import UserFault
from ..evals.conformal import Right, rule_of
from ..evals.known import SeaKRCalibration, depends_on, found_of, parts_of, separated, unaided
from ..evals.questions import GoldQuestion, read_questions
from ..evals.records import Record, Records
from ..graphs.seakr import graph as seakr
from ..models.resources import shared_resources
from ..nodes.prepare_reasoning import open_seakr
from ..state.calibration import identity, settings_of
from ..state.seakr import SeaKRContext
from .ask_many import ask_them, check_target, failures_of, keys_of, records_beside, show_failures
from .context import context_for
from .screen import clean, console, counted, print_json
from .screen import show as show_on

SNIPPETS = "k"
"""The setting that whole runs are swept over: how many snippets are tried (N)."""


@dataclass(frozen=True)
class SeaKRJob:
    """What was asked for on the command line; see the options of `dubito calibrate seakr`."""

    questions: Path
    out: Path
    options: Mapping[str, str | None]
    assignments: Sequence[str]
    right: str
    sweep: Sequence[str]
    plot: Path | None
    limit: int | None
    at_once: int


@dataclass(frozen=True)
class Swept:
    """A value of a setting and what came out with it: δ, AUROC and the share that δ decides right, where U depends on
    the setting; else the share of questions that whole runs answer right."""

    name: str
    value: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Asking:
    """The questions, where what is found is kept, and how they are asked."""

    questions: Sequence[GoldQuestion]
    records: Records
    at_once: int
    quiet: bool

    def found(self, technique: str, context: SeaKRContext, ask: Callable[[str], Awaitable[dict[str, Any]]]) -> Found:
        """Ask what has no outcome yet under these settings."""
        keys = keys_of(technique, context, self.questions)

        async def open_it() -> None:
            await open_seakr(context, shared_resources())

        ask_them(keys, open_it, ask, self.records, at_once=self.at_once, screen=console(), quiet=self.quiet)
        return Found(failures_of(keys, self.records), [self.records.found(key) for key in keys])


@dataclass(frozen=True)
class Found:
    """The questions that failed, and what was found for each; None is one that failed."""

    failed: list[Record]
    outcomes: list[dict[str, Any] | None]


def calibrate_seakr(job: SeaKRJob, *, as_json: bool) -> None:
    """Find δ, write the file and show it."""
    rule = rule_of(job.right)
    given = cast("SeaKRContext", context_for(seakr, job.options, job.assignments))
    variants = [(name, value, varied(given, name, value)) for name, value in sweeps_of(job.sweep)]
    questions = read_questions(job.questions, job.limit)
    check_target(job.out)
    if job.plot is not None:
        check_plot(job.plot)
    asking = Asking(questions, Records(records_beside(job.out)), job.at_once, as_json)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = without_help(asking, given)
        calibration = calibration_of(job, given, questions, found, rule)
        calibration.save(job.out)
        swept = [
            sweep(asking, name, value, variant, calibration=calibration, rule=rule) for name, value, variant in variants
        ]
    if job.plot is not None:
        draw(job.plot, separated(found.outcomes, questions, rule)[1:], calibration, swept)
    if as_json:
        told = [{"question": one["question"], "error": one["error"]} for one in found.failed]
        said = {**calibration.model_dump(mode="json"), "out": str(job.out), "sweep": [vars(one) for one in swept]}
        print_json({**said, "failures": told})
    else:
        show(console(), calibration, swept, found.failed, job.out)


def sweeps_of(given: Sequence[str]) -> list[tuple[str, str]]:
    """Each setting and value of `NAME=V1,V2,...`; `UserFault` for another form."""
    swept = []
    for one in given:
        name, equals, values = one.partition("=")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise UserFault(f"The sweep '{one}' is none: write it as in layer=5,10,15.")
        swept += [(name.strip(), value.strip()) for value in values.split(",")]
    return swept


def varied(context: SeaKRContext, name: str, value: str) -> SeaKRContext:
    """The context with one setting changed; `UserFault` for one that nothing depends on here."""
    if name != SNIPPETS and name not in depends_on(context):
        raise UserFault(f"There is no sweep over '{name}': use {SNIPPETS}, {', '.join(depends_on(context))}.")
    plain = {key: str(one) for key, one in context.model_dump(mode="json").items()}
    settings = [f"{key}={one}" for key, one in {**plain, name: value}.items()]
    return cast("SeaKRContext", context_for(seakr, {}, settings))


def without_help(asking: Asking, context: SeaKRContext) -> Found:
    """Every question answered without looking anything up."""
    alone = unaided(context)

    async def ask(question: str) -> dict[str, Any]:
        return found_of(await seakr.ainvoke({"question": question}, context=alone))

    return asking.found("seakr", alone, ask)


def sweep(
    asking: Asking, name: str, value: str, context: SeaKRContext, *, calibration: SeaKRCalibration, rule: Right
) -> Swept:
    """What comes out with another value of a setting."""
    if name != SNIPPETS:
        parted = separated(without_help(asking, context).outcomes, asking.questions, rule)[0]
        return Swept(name, value, {"δ": parted.threshold, "AUROC": parted.auroc, "decides right": parted.accuracy})
    whole = context.model_copy(update={"threshold": str(calibration.threshold)})

    async def ask(question: str) -> dict[str, Any]:
        return {"answer": (await seakr.ainvoke({"question": question}, context=whole))["answer"]}

    outcomes = asking.found("seakr, whole", whole, ask).outcomes
    right = [
        rule(one["answer"], question.answers)
        for one, question in zip(outcomes, asking.questions, strict=True)
        if one is not None
    ]
    return Swept(name, value, {"answered right": sum(right) / len(right)})


def calibration_of(
    job: SeaKRJob, context: SeaKRContext, questions: Sequence[GoldQuestion], found: Found, rule: Right
) -> SeaKRCalibration:
    """The calibration, from what was found for each question."""
    parted, values, wrong = separated(found.outcomes, questions, rule)
    return SeaKRCalibration(
        technique="seakr",
        model=identity(context.llm),
        settings=settings_of(context, depends_on(context)),
        threshold=parted.threshold,
        right=job.right,
        n=len(values),
        failed=len(questions) - len(values),
        wrong=sum(wrong) / len(wrong),
        accuracy=parted.accuracy,
        auroc=parted.auroc,
        parts=parts_of(values, wrong),
        made_with={"dubito": __version__, "questions": str(job.questions), "limit": job.limit},
    )


def show(screen: Console, found: SeaKRCalibration, swept: Sequence[Swept], failed: Sequence[Record], out: Path) -> None:
    """δ and how well it does, for a person."""
    screen.print(Text.assemble("Look something up where U is above ", (f"{found.threshold:.4g}", "bold"), "."))
    screen.print(
        f"{found.wrong:.0%} of {counted(found.n, 'question')} were answered wrong without looking anything up."
    )
    screen.print(
        f"On these δ decides right for {found.accuracy:.0%}; AUROC of U {found.auroc:.2f}, where 0.5 is chance."
    )
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("U", "questions", "wrong", style="dim")
    for part in found.parts:
        table.add_row(f"{part.low:.3g} to {part.high:.3g}", str(part.questions), f"{part.wrong:.0%}")
    show_on(screen, table)
    for one in swept:
        figures = ", ".join(f"{name} {value:.3g}" for name, value in one.figures.items())
        screen.print(f"{one.name}={one.value}: {figures}")
    if found.failed > len(failed):
        unknown = counted(found.failed - len(failed), "question")
        screen.print(Text(f"Warning: of {unknown} the uncertainty could not be measured; left out.", "yellow"))
    show_failures(screen, failed)
    screen.print(Text(f"Written to {clean(str(out))}", "dim"), soft_wrap=True)


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed."""
    if find_spec("matplotlib") is None:
        raise UserFault('A plot takes one more package: run `pip install "dubito[plots]"`.')
    if path.suffix.lower() not in {".png", ".svg", ".pdf"} or not path.absolute().parent.is_dir():
        raise UserFault(f"'{path}' cannot be a plot: name a .png, .svg or .pdf file in a folder that is there.")


def draw(
    path: Path, measured: tuple[Sequence[float], Sequence[bool]], found: SeaKRCalibration, swept: Sequence[Swept]
) -> None:
    """The distributions of U, the share of wrong answers by U, and a panel for each setting that was swept."""
    import matplotlib  # noqa: PLC0415 - only where a plot is asked for

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    names = list(dict.fromkeys(one.name for one in swept))
    figure, axes = plt.subplots(1, 2 + len(names), figsize=(5 * (2 + len(names)), 4), squeeze=False)
    spread, shares, *others = axes[0]
    parts = [[u for u, w in zip(*measured, strict=True) if w == wanted] for wanted in (False, True)]
    spread.hist(parts, bins=16, label=["answered right", "answered wrong"], color=["#4c72b0", "#dd8452"])
    spread.axvline(found.threshold, color="black", linestyle="--", label="δ")
    spread.set(title=f"U, AUROC {found.auroc:.2f}", xlabel="U", ylabel="questions")
    spread.legend()
    middles = [(part.low + part.high) / 2 for part in found.parts]
    shares.plot(middles, [part.wrong for part in found.parts], marker="o", color="#c44e52")
    shares.axvline(found.threshold, color="black", linestyle="--")
    shares.set(title="Answered wrong, by U", xlabel="U", ylabel="share", ylim=(0, 1))
    for axis, name in zip(others, names, strict=True):
        some = [one for one in swept if one.name == name]
        figure_of = "answered right" if name == SNIPPETS else "AUROC"
        axis.plot([one.value for one in some], [one.figures[figure_of] for one in some], marker="o", color="#7a6fac")
        axis.set(title=f"{figure_of} by {name}", xlabel=name, ylabel=figure_of, ylim=(0, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
