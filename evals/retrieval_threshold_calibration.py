"""SeaKR's setting `retrieval_threshold`, δ, found from questions that are answered without retrieval."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ..errors import UserFault, extra_command
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import counted
from ..state.calibration import Calibration, identity, settings_of
from ..state.seakr import SeaKRContext
from .calibration import CalibrationReport, CalibrationRequest, Calibrator, Separation, best_threshold
from .reports.drawing import can_draw, panels

DEPENDS_ON = (
    "estimator",
    "samples",
    "temperature",
    "top_p",
    "top_k",
    "layer",
    "states",
    "at",
    "alpha",
    "max_step_tokens",
    "judge",
)
"""The settings that U depends on. The judge counts only for the estimators that ask it."""

SNIPPETS = "k"
"""Whole runs are swept over this setting: how many snippets are tried (the paper's N)."""

PARTS = 5
"""The share of wrong answers is reported for this many parts of the questions, by increasing U."""


class UncertaintyRange(BaseModel):
    """Questions with U from `low` to `high`: their number, and the share answered wrong."""

    model_config = ConfigDict(frozen=True)

    low: float
    high: float
    questions: int
    wrong: float


class ThresholdCalibration(Calibration):
    """δ for a model and an estimator (SeaKR sections 4.1.3 and 5.3).

    n: questions that δ was found from; failed: questions left out; wrong: the share answered wrong without retrieval;
    accuracy: the share of questions for which "retrieve iff U > δ" is right, measured on the same questions; auroc: how
    well U separates wrong from right answers, 0.5 is chance; parts: the share of wrong answers by U.
    """

    technique: Literal["retrieval_threshold"]
    right: str
    n: int
    failed: int
    wrong: float
    accuracy: float
    auroc: float
    parts: list[UncertaintyRange]


class ThresholdOptions(BaseModel):
    """The options of the calibration."""

    sweep: list[str] = Field(
        default=[],
        title="NAME=V1,V2",
        description="Also try these values of a setting that U depends on; repeatable.",
    )
    plot: Path | None = Field(
        default=None, title="FILE", description="Draw the distribution of U and the sweeps, as .png, .svg or .pdf."
    )


@dataclass(frozen=True)
class SweptValue:
    """A setting's value and its figures.

    figures: δ, AUROC and the share that δ decides right if U depends on the setting; else the share of questions that
    whole runs answer right.
    """

    name: str
    value: str
    figures: dict[str, float]


class Unaided(NamedTuple):
    """Answers without retrieval whose uncertainty is known: how δ separates them, [n] values of U, [n] wrong or not."""

    separation: Separation
    values: list[float]
    wrong: list[bool]


class ThresholdCalibrator(Calibrator[SeaKRContext, ThresholdOptions]):
    """Find the uncertainty of SeaKR above which it retrieves.

    Each question is answered without retrieval. The threshold best separates wrong answers, whose most uncertain step
    should be above it, from right ones. Outcomes are kept: run the same command again to go on.
    """

    graph = "seakr"
    options = ThresholdOptions
    examples = (
        "dubito calibrate retrieval_threshold questions.jsonl --llm hf:my-model",
        "dubito calibrate retrieval_threshold questions.jsonl --llm hf:my-model --sweep layer=8,16,24 --plot delta.png",
    )

    def __init__(self, context: SeaKRContext, given: ThresholdOptions) -> None:
        """Refuse sweeps over other settings and plots that cannot be drawn."""
        super().__init__(context, given)
        self._variants = [(name, value, varied(context, name, value)) for name, value in sweeps_of(given.sweep)]
        if given.plot is not None:
            check_plot(given.plot)

    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Find δ, then the figures of the sweeps."""
        context = self.context
        found = _unaided_answers(context, request)
        calibration = ThresholdCalibration(
            technique="retrieval_threshold",
            model=identity(context.llm),
            settings=settings_of(context, depends_on(context)),
            threshold=found.separation.threshold,
            right=request.right,
            n=len(found.values),
            failed=len(request.questions) - len(found.values),
            wrong=sum(found.wrong) / len(found.wrong),
            accuracy=found.separation.accuracy,
            auroc=found.separation.auroc,
            parts=parts_of(found.values, found.wrong),
            made_with=dict(request.made_with),
        )
        calibration.save(request.out)
        swept = [
            SweptValue(name, value, self._swept(name, variant, calibration, request))
            for name, value, variant in self._variants
        ]
        if self.given.plot is not None:
            draw(self.given.plot, found, calibration, swept)
        return CalibrationReport(
            calibration, _blocks(calibration, swept), {"sweep": [asdict(tried) for tried in swept]}
        )

    def _swept(
        self, name: str, variant: SeaKRContext, calibration: ThresholdCalibration, request: CalibrationRequest
    ) -> dict[str, float]:
        if name != SNIPPETS:
            separation = _unaided_answers(variant, request).separation
            return {"δ": separation.threshold, "AUROC": separation.auroc, "decides right": separation.accuracy}
        whole = variant.model_copy(update={"retrieval_threshold": str(calibration.threshold)})
        right = [judged[1] for judged in request.judged(whole) if judged is not None]
        return {"answered right": sum(right) / len(right)}


def _unaided_answers(context: SeaKRContext, request: CalibrationRequest) -> Unaided:
    """Answer without retrieval and find δ. Failed questions and unknown uncertainties are left out.

    Raises `UserFault` if no uncertainty is known, and if all answers are right or all are wrong.
    """
    settings = {"max_docs": 0, "retrieval_threshold": "0", "threshold_file": "", "reasoning": "rationales"}
    answered = request.judged(context.model_copy(update=settings))
    known = [
        (float(judged[0]["uncertainty"]["value"]), not judged[1])
        for judged in answered
        if judged is not None and judged[0]["uncertainty"]["value"] is not None
    ]
    if not known:
        raise UserFault("The uncertainty of no question could be measured: give other questions or another estimator.")
    values, wrong = [u for u, _ in known], [is_wrong for _, is_wrong in known]
    return Unaided(best_threshold(values, wrong), values, wrong)


def depends_on(context: SeaKRContext) -> tuple[str, ...]:
    """The settings that δ holds for."""
    judged = context.estimator in {"semantic_entropy", "degree_entropy"}
    return DEPENDS_ON if judged else DEPENDS_ON[:-1]


def parts_of(values: Sequence[float], wrong: Sequence[bool]) -> list[UncertaintyRange]:
    """The questions in `PARTS` parts of about equal size, by increasing uncertainty."""
    ordered = sorted(zip(values, wrong, strict=True))
    edges = [round(len(ordered) * place / PARTS) for place in range(PARTS + 1)]
    parts = [ordered[start:end] for start, end in pairwise(edges) if end > start]
    return [
        UncertaintyRange(
            low=part[0][0], high=part[-1][0], questions=len(part), wrong=sum(w for _, w in part) / len(part)
        )
        for part in parts
    ]


def sweeps_of(given: Sequence[str]) -> list[tuple[str, str]]:
    """Each setting and value of `NAME=V1,V2,...`; `UserFault` for another form."""
    swept = []
    for sweep in given:
        name, equals, values = sweep.partition("=")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise UserFault(f"'{sweep}' is not a sweep: write NAME=V1,V2, such as layer=5,10,15.")
        swept += [(name.strip(), value.strip()) for value in values.split(",")]
    return swept


def varied(context: SeaKRContext, name: str, value: str) -> SeaKRContext:
    """The context with one setting changed; `UserFault` for a setting that cannot be swept."""
    if name != SNIPPETS and name not in depends_on(context):
        raise UserFault(f"There is no sweep over '{name}': use {SNIPPETS}, {', '.join(depends_on(context))}.")
    return SeaKRContext(**{**context.model_dump(), name: value})


def _blocks(found: ThresholdCalibration, swept: Sequence[SweptValue]) -> list[Block]:
    rows = [
        Row([Cell(f"{part.low:.3g} to {part.high:.3g}"), num(part.questions), num(part.wrong, f"{part.wrong:.0%}")])
        for part in found.parts
    ]
    blocks: list[Block] = [
        Words(f"Retrieve when U is above {found.threshold:.4g}.", "strong"),
        Words(f"{found.wrong:.0%} of {counted(found.n, 'question')} were answered wrong without retrieval."),
        Words(
            f"On these questions δ decides right for {found.accuracy:.0%}; the AUROC of U is {found.auroc:.2f}, and "
            "0.5 is chance."
        ),
        Table(["U", "questions", "wrong"], rows),
    ]
    for tried in swept:
        figures = ", ".join(f"{name} {value:.3g}" for name, value in tried.figures.items())
        blocks.append(Words(f"{tried.name}={tried.value}: {figures}"))
    if found.failed:
        warning = f"Warning: {counted(found.failed, 'question')} left out: failed, or of unknown uncertainty."
        blocks.append(Words(warning, "warn"))
    return blocks


def check_plot(path: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed."""
    if not can_draw():
        raise UserFault(f"A plot needs one more package: {extra_command('plots')}.")
    if path.suffix.lower() not in {".png", ".svg", ".pdf"} or not path.absolute().parent.is_dir():
        raise UserFault(f"'{path}' cannot be a plot: name a .png, .svg or .pdf file in an existing folder.")


def draw(path: Path, found: Unaided, calibration: ThresholdCalibration, swept: Sequence[SweptValue]) -> None:
    """Draw the distributions of U, the share of wrong answers by U, and a panel for each swept setting."""
    names = list(dict.fromkeys(tried.name for tried in swept))
    figure, (distribution, shares, *others) = panels(2 + len(names), 5, 4)
    by_truth = [
        [u for u, w in zip(found.values, found.wrong, strict=True) if w is is_wrong] for is_wrong in (False, True)
    ]
    distribution.hist(by_truth, bins=16, label=["answered right", "answered wrong"], color=["#4c72b0", "#dd8452"])
    distribution.axvline(calibration.threshold, color="black", linestyle="--", label="δ")
    distribution.set(title=f"U, AUROC {calibration.auroc:.2f}", xlabel="U", ylabel="questions")
    distribution.legend()
    middles = [(part.low + part.high) / 2 for part in calibration.parts]
    shares.plot(middles, [part.wrong for part in calibration.parts], marker="o", color="#c44e52")
    shares.axvline(calibration.threshold, color="black", linestyle="--")
    shares.set(title="Answered wrong, by U", xlabel="U", ylabel="share", ylim=(0, 1))
    for axis, name in zip(others, names, strict=True):
        values = [tried for tried in swept if tried.name == name]
        figure_of = "answered right" if name == SNIPPETS else "AUROC"
        axis.plot(
            [tried.value for tried in values],
            [tried.figures[figure_of] for tried in values],
            marker="o",
            color="#7a6fac",
        )
        axis.set(title=f"{figure_of} by {name}", xlabel=name, ylabel=figure_of, ylim=(0, 1))
    figure.savefig(path, dpi=110)
