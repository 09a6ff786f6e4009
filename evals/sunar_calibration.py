"""The conformal threshold of SUNAR's answer consistency.

The graph `consistent_sunar` is SUNAR with one more step:

begin ─> sunar ─> measure_consistency
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from langgraph.graph import END
from pydantic import BaseModel, Field

from ..graphs import sunar
from ..graphs.wiring import Machine
from ..nodes.consistency import measure_consistency
from ..presenters.blocks import Block, Cell, Row, Table, Words, num
from ..presenters.words import counted
from ..resources.opening import check_corpus
from ..resources.resources import Resources
from ..state.calibration import Calibration, identity, settings_of
from ..state.flow import Question
from ..state.sunar import SunarContext, SunarOutput, SunarState
from ..uncertainty import conformal_threshold
from .calibration import CalibrationReport, CalibrationRequest, Calibrator
from .conformal import PartCounts, ScoredAnswer, conformal_figures, fewest_right, split

if TYPE_CHECKING:
    from ..graphs.registry import Graph

GRAPH = "consistent_sunar"


class ConsistentContext(SunarContext):
    """Settings of SUNAR. The final answer is sampled and judged with every penalty."""

    always_used: ClassVar[frozenset[str]] = frozenset({"judge", "samples", "temperature"})


class ConsistentState(SunarState, total=False):
    """SUNAR's state, the samples of its final answer, and the share of them that means the same as it."""

    consistency: float
    resampled: list[str]


class ConsistentOutput(SunarOutput):
    """SUNAR's output, the samples of its final answer, and the consistency of that answer, in [0, 1]."""

    consistency: float
    resampled: list[str]


def build(
    resources: Resources | None = None,
) -> Machine[ConsistentState, ConsistentContext, Question, ConsistentOutput]:
    """Wire the machine. resources: live objects that replace the names in the context."""
    graph = Machine(ConsistentState, ConsistentContext, Question, ConsistentOutput, resources)
    graph.add_prepare(name="begin")
    graph.add_node("sunar", sunar.build(resources).compile(name="sunar"))
    graph.add_steps(measure_consistency)
    graph.add_path("begin", "sunar", "measure_consistency", END)
    return graph


class SunarCalibration(Calibration):
    """A threshold that keeps right answers with probability at least 1 − alpha (`dubito.uncertainty.conformal`).

    An answer is kept iff its consistency is at least the threshold. n: right answers that it was found from; coverage:
    the share of held-back right answers that it keeps, null if there are none; calibration, held_back: the counts.
    """

    technique: Literal["sunar"]
    alpha: float
    n: int
    coverage: float | None
    right: str
    calibration: PartCounts
    held_back: PartCounts


class SunarOptions(BaseModel):
    """The options of the calibration."""

    alpha: float = Field(
        default=0.1, title="SHARE", description="The share of right answers that may be lost, in (0, 1)."
    )
    holdout: float = Field(
        default=0.5, ge=0.0, le=0.95, title="SHARE", description="The share of questions to try the threshold on."
    )
    seed: int = Field(default=0, ge=0, title="N", description="The seed for drawing these questions.")


class SunarCalibrator(Calibrator[ConsistentContext, SunarOptions]):
    """Find how consistent an answer of SUNAR must be, to keep right answers with probability 1 - alpha.

    SUNAR answers each question, and its final answer is sampled again. The answer's consistency is the share of samples
    that mean the same. Outcomes are kept: run the same command again to go on.
    """

    graph = GRAPH
    options = SunarOptions
    examples = (
        "dubito calibrate sunar questions.jsonl --corpus notes.index --alpha 0.1",
        "dubito calibrate sunar hotpotqa:dev.json --set budget=32 --set samples=5 --limit 100",
        'dubito calibrate sunar questions.jsonl --llm "vllm:http://127.0.0.1:8000/v1#my-model" --at-once 8 --json',
    )

    def __init__(self, context: ConsistentContext, given: SunarOptions) -> None:
        """Refuse an alpha outside (0, 1) and a corpus that does not exist."""
        super().__init__(context, given)
        conformal_threshold([], given.alpha)
        check_corpus(context.corpus)

    @staticmethod
    def compiled(name: str, resources: Resources | None) -> Graph:
        """SUNAR with its answer's consistency."""
        return build(resources).compile(name=name)

    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Find the threshold of the consistency on one part of the questions, and try it on the other part."""
        answers = [
            None if judged is None else ScoredAnswer(judged[0]["consistency"], judged[1])
            for judged in request.judged(GRAPH, self.context)
        ]
        given = self.given
        calibration, held_back = split(len(answers), given.holdout, given.seed)
        figures = conformal_figures([answers[i] for i in calibration], [answers[i] for i in held_back], given.alpha)
        found = SunarCalibration(
            technique="sunar",
            model=identity(self.context.llm),
            settings=settings_of(self.context),
            alpha=given.alpha,
            right=request.right,
            made_with={
                **request.made_with,
                "corpus": self.context.corpus,
                "holdout": given.holdout,
                "seed": given.seed,
            },
            **figures._asdict(),
        )
        found.save(request.out)
        return CalibrationReport(found, _blocks(found))


calibrator = SunarCalibrator


def _blocks(found: SunarCalibration) -> list[Block]:
    columns = ["", "questions", "right", "kept", "wrong", "kept", "failed"]
    rows = [_row("calibration", found.calibration), _row("held back", found.held_back)]
    coverage = (
        "No right answer was held back, so the share of other right answers that it keeps is unknown."
        if found.coverage is None
        else f"Of the right answers held back it keeps {found.coverage:.1%}; at least {1 - found.alpha:.1%} is "
        "promised, on average over such samples."
    )
    blocks: list[Block] = [
        Words(f"Keep an answer whose consistency is at least {found.threshold}.", "strong"),
        Table(columns, rows),
        Words(coverage),
    ]
    if found.n < (needed := fewest_right(found.alpha)):
        warning = (
            f"Warning: {counted(found.n, 'right answer')} to calibrate on, and an alpha of {found.alpha:g} needs "
            f"{needed}: the threshold is 0 and keeps every answer."
        )
        blocks.append(Words(warning, "warn"))
    return blocks


def _row(name: str, counts: PartCounts) -> Row:
    numbers = [counts.questions, counts.right, counts.kept_right, counts.wrong, counts.kept_wrong, counts.failed]
    return Row([Cell(name), *map(num, numbers)])


graph = build().compile(name=GRAPH)
