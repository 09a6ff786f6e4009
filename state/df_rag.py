"""State and context of `df_rag`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from .capability import Capability
from .context import BaseContext
from .flow import Answered, Flow
from .presets import DF_RAG_MODELS
from .records import Chunk, extend

NOTHING = -1
"""The candidate number of no chunks at all."""


class CandidateSet(TypedDict):
    """A distinct chunk set and the diversity levels λ that select it, both ascending.

    chunk_ids: most similar to the question first, so that equal sets make equal prompts.
    """

    lambdas: list[float]
    chunk_ids: list[str]


class Evaluation(TypedDict):
    """How well one candidate set supports each step of the plan.

    candidate: index of the set, or -1 for no chunks at all; scores: r(p_i) in 0..5, or for the likelihood evaluator the
    step's mean log-probability in nats; answers: the Evaluator's short answer per step, empty if it gives none.
    """

    candidate: int
    scores: list[float]
    answers: list[str]


class Support(TypedDict):
    """Retrieval Support (equation 4) of one candidate set: Σ r(p_i); for the likelihood evaluator the summed gain."""

    lambdas: list[float]
    support: float


class DFRagState(Flow, total=False):
    """What flows through DF-RAG.

    plan: the Planner's steps p_1..p_m; chunks: every candidate's chunks by id; candidates: the distinct sets by
    smallest λ; pending: candidates to evaluate next; evaluations: what the Evaluator found so far;
    supports: Retrieval Support of every evaluated set; lambda_star: the λ that was chosen (equation 5), null when
    nothing was retrieved; incremental_context: the plan's steps with the Evaluator's short answers, variant IC only.
    """

    plan: list[str]
    chunks: dict[str, Chunk]
    candidates: list[CandidateSet]
    pending: list[int]
    evaluations: Annotated[list[Evaluation], extend]
    supports: list[Support]
    lambda_star: float | None
    incremental_context: list[str]


class EvaluateInput(TypedDict):
    """What one evaluation reads: the plan and one candidate set's chunks."""

    plan: list[str]
    candidate: int
    chunks: list[Chunk]


class DFRagOutput(Answered):
    """The answer, and why it came out: the plan, the support of every set, the λ that won."""

    plan: list[str]
    supports: list[Support]
    lambda_star: float | None


class DFRagContext(BaseContext):
    """Settings of DF-RAG (Khan et al., sections 3.1-3.5)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "embedded": {**DF_RAG_MODELS["embedded"], "evaluator": "likelihood"},
        "paper": {**DF_RAG_MODELS["paper"], "evaluator": "report"},
    }

    evaluator: Literal["preset", "report", "choice", "likelihood"] = Field(
        default="preset",
        title="Evaluator",
        description="report: the paper's, one written report per chunk set. choice: a 0-5 choice per step. "
        "likelihood: how much likelier the chunk set makes each step; the one that works for small models.",
    )
    sampling: Literal["uniform", "binary"] = Field(
        default="uniform",
        title="Sampling of λ",
        description="uniform: evaluate every distinct chunk set. binary: search for the peak, O(log n) evaluations.",
    )
    diversity: Literal["gmmr", "mmr"] = Field(
        default="gmmr", title="Diversity function", description="gmmr: the paper's. mmr: classical MMR, for comparison."
    )
    incremental_context: bool = Field(
        default=False,
        title="Incremental context (IC)",
        description="Give the generator the plan and the Evaluator's short answers too; needs the report evaluator.",
    )
    search: Literal["exact", "ann"] = Field(
        default="exact",
        title="Search",
        description="exact: select among all chunks. "
        "ann: select among the nearest only, for large corpora (section 5.3).",
    )
    top_n: int = Field(
        default=200, ge=1, le=100_000, title="Nearest (N)", description="How many chunks `ann` search selects among."
    )

    @model_validator(mode="after")
    def _incremental_context_needs_answers(self) -> Self:
        if self.incremental_context and self.evaluator != "report":
            raise ValueError(
                "incremental_context needs the Evaluator's short answers: set evaluator to 'report', "
                f"not '{self.evaluator}'"
            )
        return self

    def needs(self) -> frozenset[Capability]:
        """The likelihood evaluator scores given text; the others only complete and choose."""
        return frozenset({"score"}) if self.evaluator == "likelihood" else frozenset()
