"""The p-values of SUNAR's penalty `conformal`: how many semantic sets batches with the right answer have."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from ..errors import UserFault
from ..presenters.blocks import Block, Row, Table, Words, num
from ..presenters.words import counted
from ..state.answer_text import normalised
from ..state.calibration import PenaltyCalibration, identity, settings_of
from ..state.neighbourhood import NeighbourhoodContext, ScoredDocument
from ..state.records import Chunk
from ..uncertainty.conformal import conformal_p_value
from .calibration import CalibrationReport, CalibrationRequest, Calibrator
from .reliability import auroc

DEPENDS_ON = (
    "samples",
    "temperature",
    "sampled_documents",
    "batch_size",
    "asu",
    "judge",
    "reranker",
    "max_answer_tokens",
    "thinking",
    "prompts",
)
"""The settings that the number of semantic sets of a batch depends on."""


class PenaltyOptions(BaseModel):
    """The options of the calibration."""

    seed: int = Field(default=0, ge=0, title="N", description="The seed for drawing a batch of each question.")


class Batches(NamedTuple):
    """The numbers of semantic sets of a question's batches: those that hold the right answer, and the others."""

    holding: list[int]
    others: list[int]


class PenaltyCalibrator(Calibrator[NeighbourhoodContext, PenaltyOptions]):
    """Find the p-values of the penalty `conformal`.

    The retrieval of SUNAR answers each question, without a penalty. Of the questions answered right, one batch each is
    drawn at random from those that put a document with the right answer among the best. Outcomes are kept: run the same
    command again to go on.
    """

    graph = "neighbourhood"
    options = PenaltyOptions
    examples = (
        "dubito calibrate penalty questions.jsonl --corpus notes.index",
        "dubito ask ... --graph sunar --set penalty=conformal --set penalty_file=penalty.calibration.json",
    )

    def __init__(self, context: NeighbourhoodContext, given: PenaltyOptions) -> None:
        """Refuse settings with which no answers are sampled."""
        super().__init__(context, given)
        if context.penalty == "none":
            raise UserFault("The p-values are of sampled answers, and penalty=none samples none: leave penalty out.")

    def calibrate(self, request: CalibrationRequest) -> CalibrationReport:
        """Draw a batch of each question, and save their numbers of semantic sets."""
        # a fixed penalty of 1: answers are sampled and compared, and no score is changed
        settings = {"penalty": "fixed", "fixed_penalty": 1.0, "penalty_file": "", "calibration": ""}
        judged = request.judged(self.context.model_copy(update=settings))
        draw = np.random.default_rng(self.given.seed)
        scores: list[int] = []
        others: list[int] = []
        for question, one in zip(request.questions, judged, strict=True):
            batches = batches_of(one[0], question.answers) if one is not None else Batches([], [])
            others += batches.others
            if one is not None and one[1] and batches.holding:
                scores.append(batches.holding[int(draw.integers(len(batches.holding)))])
        if not scores:
            raise UserFault(
                f"Of {counted(len(request.questions), 'question')} none was answered right from a document that holds "
                "the answer, so there is no p-value: give more questions, or ones that the corpus answers."
            )
        calibration = PenaltyCalibration(
            technique="penalty",
            model=identity(self.context.llm),
            settings=settings_of(self.context, DEPENDS_ON),
            scores=sorted(scores),
            right=request.right,
            left_out=len(request.questions) - len(scores),
            made_with={**request.made_with, "corpus": self.context.corpus, "seed": self.given.seed},
        )
        calibration.save(request.out)
        separation = auroc([*scores, *others], [False] * len(scores) + [True] * len(others))
        return CalibrationReport(calibration, _blocks(calibration, others, separation), {"auroc": separation})


def batches_of(output: Mapping[str, Any], gold_answers: Sequence[str]) -> Batches:
    """The numbers of semantic sets of a look-up's batches.

    A batch holds the right answer if a document of it is among the best and contains a gold answer as whole words,
    normalised. Batches without a number are left out.
    """
    scored: Sequence[ScoredDocument] = output["scored"]
    holding_ids = set(_holding(output["evidence"], gold_answers))
    numbers = {document["iteration"]: document["number_of_semantic_sets"] for document in scored}
    holding = {document["iteration"] for document in scored if document["chunk_id"] in holding_ids}
    known = {iteration: s for iteration, s in numbers.items() if s is not None}
    return Batches(
        [s for iteration, s in known.items() if iteration in holding],
        [s for iteration, s in known.items() if iteration not in holding],
    )


def _holding(evidence: Sequence[Chunk], gold_answers: Sequence[str]) -> Iterator[str]:
    answers = [f" {normalised(answer)} " for answer in gold_answers]
    for chunk in evidence:
        text = f" {normalised(chunk['title'])} {normalised(chunk['text'])} "
        if any(answer in text for answer in answers if answer.strip()):
            yield chunk["id"]


def _blocks(found: PenaltyCalibration, others: Sequence[int], separation: float | None) -> list[Block]:
    scores = found.scores
    rows = [
        Row([num(s), num(scores.count(s)), num(others.count(s)), num(p := conformal_p_value(s, scores), f"× {p:.3g}")])
        for s in sorted({*scores, *others})
    ]
    n = len(scores)
    told = f"The penalty is the p-value of s under {counted(n, 'question')}, with a batch each that has the answer."
    blocks: list[Block] = [
        Words(told, "strong"),
        Table(["s", "batches with the answer", "other batches", "penalty"], rows),
        Words(f"The smallest p-value is 1 / {n + 1} = {1 / (n + 1):.2g}."),
    ]
    if separation is not None:
        blocks.append(Words(f"The AUROC of s for the other batches is {separation:.2f}, and 0.5 is chance."))
    if found.left_out:
        left_out = counted(found.left_out, "question")
        blocks.append(Words(f"{left_out} left out: failed, answered wrong, or without a document with the answer."))
    return blocks
