"""State and context of `neighbourhood`, which `sunar` has as a subgraph."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NotRequired, Self, get_args

from langgraph.channels import EphemeralValue
from pydantic import Field, ValidationInfo, model_validator
from typing_extensions import TypedDict

from .context import AUTO, UNCHECKED, Option, Presets, names_resource, on_local_server, unused_with
from .flow import Answered, Flow, Question
from .mixins import (
    CitingContext,
    DocumentGraphContext,
    Judge,
    K,
    RerankerContext,
    Samples,
    Temperature,
    ThinkingContext,
    UnitInterval,
)
from .records import Chunk, extend, merge

Pool = Literal["first_stage", "frontier"]
Penalty = Literal["1/s", "1/sqrt(s)", "fixed", "conformal", "none"]
PENALTIES: tuple[Penalty, ...] = get_args(Penalty)
StopReason = Literal["budget", "exhausted", "converged", "batches"]

MOST_BATCHES = 2_000
"""Batches in one look-up. A batch takes 5 supersteps; LangGraph's recursion limit of 10,007 is never reached."""


class FrontierEntry(TypedDict):
    """A document that waits in the frontier.

    parent: the scored document that it is a neighbour of; score: the parent's.
    """

    chunk_id: str
    score: float
    parent: str


class ScoredDocument(TypedDict):
    """A scored document and how the exploration reached it.

    iteration: the number of its batch, from 0; parent: the document whose neighbour it is, null for a document of the
    first stage; raw_score: the re-ranker's, in (0, 1); number_of_semantic_sets: s of the answers sampled from its
    batch, as the setting `asu` counts it, null if no answers were compared; score: raw_score times the penalty.
    """

    chunk_id: str
    iteration: int
    pool: Pool
    parent: str | None
    raw_score: float
    number_of_semantic_sets: int | None
    score: float


class NeighbourhoodInput(Question):
    """A question; `query`, if given, is the sub-question that is looked up and answered in its place."""

    query: NotRequired[str | None]


class NeighbourhoodState(Flow, total=False):
    """What flows through neighbourhood-aware retrieval.

    sub_question: what this look-up answers, `query` or else the question.
    documents_by_id: the first stage's documents and all scored ones.
    first_stage_name: the first stage's own name, such as bm25.
    first_stage: the pool R, ids that are not scored yet, best first.
    frontier: the pool N, in the order in which documents entered it.
    next_pool: the pool whose turn is next. iteration: batches so far.
    batch_ids, pool: the current batch and the pool that it was taken from.
    raw_scores: the re-ranker's, one for each document of the batch.
    sampled_answers, number_of_semantic_sets: of the current batch.
    calibration_scores: s of the calibration's batches, ascending; empty unless penalty=conformal.
    scored: all scored documents in the order of scoring.
    batches_without_improvement: how many batches in a row did not improve the best documents.
    stop_reason: why the exploration ended, null while it goes on.
    """

    # ephemeral: a thread's next question must not see the last one's sub-question
    query: Annotated[str | None, EphemeralValue(str)]
    sub_question: str
    documents_by_id: Annotated[dict[str, Chunk], merge]
    first_stage_name: str
    first_stage: list[str]
    frontier: list[FrontierEntry]
    iteration: int
    next_pool: Pool
    batch_ids: list[str]
    pool: Pool
    raw_scores: list[float]
    sampled_answers: list[str]
    number_of_semantic_sets: int | None
    calibration_scores: list[int]
    scored: Annotated[list[ScoredDocument], extend]
    batches_without_improvement: int
    stop_reason: StopReason | None


class NeighbourhoodOutput(Answered):
    """The answer to the sub-question, its evidence, and every scored document."""

    scored: list[ScoredDocument]
    stop_reason: StopReason


class NeighbourhoodContext(CitingContext, ThinkingContext, RerankerContext, DocumentGraphContext):
    """Settings of neighbourhood-aware retrieval with answer semantic uncertainty (SUNAR sections 3.1.2 and 3.2)."""

    graph: ClassVar[str] = "neighbourhood"
    measures_itself: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "embedded": {
            "llm": "embedded",
            "encoder": "embedded",
            "chunker": "words:100",
            "first_stage": "bm25",
            "graph_encoder": "embedded",
            "reranker": "embedded",
            "judge": "embedded",
        },
        # sections 3.2 and 4; ColBERTv2 chooses a document's neighbours among those that the encoder finds
        "paper": {
            "llm": on_local_server("meta-llama/Llama-3.1-8B-Instruct"),
            "encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
            "chunker": "words:100",
            "first_stage": "splade:naver/splade_v2_distil",
            "graph_encoder": "colbert:colbert-ir/colbertv2.0",
            "reranker": "cross:cross-encoder/mmarco-mMiniLMv2-L12-H384-v1",
            "judge": "nli:FacebookAI/roberta-large-mnli",
        },
    }

    budget: int = Field(
        default=100,
        ge=1,
        le=100_000,
        title="Budget (c)",
        description="The maximum number of documents that are scored in a look-up; `sunar` makes one for each "
        "sub-question.",
    )
    batch_size: int = Field(
        default=16, ge=1, le=10_000, title="Batch size (b)", description="The number of documents scored in a batch."
    )
    k: K = Field(
        default=10,
        title="Evidence (l)",
        description="The number of documents from which a sub-question is answered, those with the highest scores.",
    )
    first_stage_n: int = Field(
        default=100,
        ge=1,
        le=100_000,
        title="First-stage documents",
        description="The number of documents that the first stage finds for a question (the pool R).",
    )
    first_stage_query: Literal["sub_question", "question"] = Field(
        default="sub_question",
        title="First-stage query",
        description="What the first stage searches for. sub_question: the sub-question, as in the paper. question: the "
        "question itself, whose documents are then scored for each sub-question, as in the authors' code.",
    )
    penalty: Penalty = Field(
        default="1/s",
        title="Penalty",
        description="The factor for a batch's scores if the answers sampled from it form s semantic sets. fixed: "
        "fixed_penalty if s > 1. conformal: the p-value of s under penalty_file. none: no answers are sampled (the "
        "variant without ASU; the exploration is then GAR).",
    )
    fixed_penalty: float = Field(
        default=0.5,
        ge=0.01,
        le=1.0,
        title="Fixed penalty",
        description="The factor of penalty=fixed.",
        json_schema_extra=unused_with(penalty=[name for name in PENALTIES if name != "fixed"]),
    )
    penalty_file: str = Field(
        default="",
        title="File of the p-values",
        description="A file made by `dubito calibrate penalty`, for penalty=conformal.",
        json_schema_extra=names_resource("calibration", "")
        | unused_with(penalty=[name for name in PENALTIES if name != "conformal"]),
    )
    frontier_score: Literal["penalised", "raw"] = Field(
        default="penalised",
        title="Score in the frontier",
        description="The score of a document with which its neighbours wait in the frontier. penalised: after the "
        "penalty, as in the paper. raw: before it, as in the authors' code.",
        json_schema_extra=unused_with(penalty=["none"], graph_neighbours=[0]),
    )
    asu: Literal["semantic_sets", "contradictions"] = Field(
        default="semantic_sets",
        title="Answer semantic uncertainty (ASU)",
        description="How s is counted among the sampled answers. semantic_sets: the sets of answers that entail each "
        "other, as in the paper. contradictions: the pairs of answers of which one contradicts the other, at least 1, "
        "as in the authors' code.",
        json_schema_extra=unused_with(penalty=["none"]),
    )
    judge: Judge = Field(default=AUTO, json_schema_extra=unused_with(penalty=["none"]))
    samples: Samples = Field(
        default=10,
        ge=2,
        title="Samples (m)",
        description="The number of answers sampled from a batch's best documents.",
        json_schema_extra=unused_with(penalty=["none"]),
    )
    temperature: Temperature = Field(default=0.7, json_schema_extra=unused_with(penalty=["none"]))
    sampled_documents: int = Field(
        default=5,
        ge=0,
        le=1000,
        title="Documents sampled from",
        description="The number of a batch's best documents in the prompt for the sampled answers. 0: the whole batch, "
        "in the order of its pool, as in the authors' code.",
        json_schema_extra=unused_with(penalty=["none"]),
    )
    patience: int = Field(
        default=0,
        ge=0,
        le=10_000,
        title="Patience",
        description="Stop after this many consecutive batches without improvement of the best documents. 0: use the "
        "whole budget, as the paper does.",
    )
    tolerance: UnitInterval = Field(
        default=0.001,
        title="Tolerance (ε)",
        description="The best documents improve if their mean score grows by more than this.",
        json_schema_extra=unused_with(patience=[0]),
    )

    @model_validator(mode="after")
    def _has_what_the_penalty_needs(self, info: ValidationInfo) -> Self:
        if info.context is UNCHECKED:
            return self
        if self.penalty == "conformal" and not self.penalty_file:
            raise ValueError(
                "penalty=conformal needs calibrated p-values: make a file with dubito calibrate penalty, and set "
                "penalty_file to it"
            )
        if self.asu == "contradictions" and self.is_used("asu") and _is_similarity(self.judge):
            raise ValueError(
                f"asu=contradictions needs a judge that knows contradictions, which judge={self.judge} does not: set "
                "judge=llm, or judge to nli:FOLDER-OR-HUB-NAME"
            )
        return self

    def options(self) -> Mapping[str, Sequence[Option]]:
        """Only judges that know contradictions where these are counted."""
        options = super().options()
        if self.asu != "contradictions" or not self.is_used("asu"):
            return options
        known = [option for option in options["judge"] if not _is_similarity(option.value)]
        if known[0] != options["judge"][0]:
            known = [option._replace(because="it knows contradictions") for option in known]
        return {**options, "judge": known}

    @model_validator(mode="after")
    def _few_enough_batches(self) -> Self:
        if self.budget > self.batch_size * MOST_BATCHES:
            raise ValueError(
                f"a budget of {self.budget} in batches of {self.batch_size} makes more than {MOST_BATCHES} batches: "
                f"set batch_size to at least {math.ceil(self.budget / MOST_BATCHES)}, or use a smaller budget"
            )
        return self


def _is_similarity(judge: str) -> bool:
    """Is this judge the similarity of embeddings?"""
    return judge.partition(":")[0] in {"embedded", "similarity"}
