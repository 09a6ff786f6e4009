"""State and context of `df_rag`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from .context import AUTO, Option, Presets, unused_with
from .flow import Answered, Flow
from .mixins import RetrievalContext, ThinkingContext
from .records import Chunk, extend, newest
from .vanilla_rag import DF_RAG_MODELS

LAMBDAS = tuple(step / 10 for step in range(1, 11))
"""The diversity levels 0.1, 0.2, ..., 1.0 (section 3.4). 0 is left out because it ignores the question."""

NO_CHUNKS = -1
"""The candidate number of the empty chunk set."""


class CandidateSet(TypedDict):
    """A distinct chunk set and the diversity levels λ that select it, ascending.

    chunk_ids: most similar to the question first, so that equal sets give equal prompts.
    """

    lambdas: list[float]
    chunk_ids: list[str]


class Evaluation(TypedDict):
    """How well one candidate set supports each step of the plan.

    candidate: the index of the set, -1 for the empty set. scores: r(p_i) per step, 0 to 5; for the likelihood evaluator
    the step's mean log-probability in nats. answers: the Evaluator's short answer per step; empty if it writes none.
    """

    candidate: int
    scores: list[float]
    answers: list[str]


class Support(TypedDict):
    """Retrieval Support of one candidate set (equation 4): Σ r(p_i); for the likelihood evaluator the summed gain."""

    lambdas: list[float]
    support: float


class DFRagState(Flow, total=False):
    """The state of DF-RAG.

    plan: the Planner's steps p_1..p_m. chunks_by_id: the chunks of every candidate set. candidates: the distinct chunk
    sets, in the order of their smallest λ. pending: the candidates to evaluate next. evaluations: the Evaluator's
    scores so far. supports: Retrieval Support of every evaluated set. lambda_star: the chosen λ (equation 5), null if
    nothing was retrieved. incremental_context: the plan's steps with the Evaluator's short answers (variant IC only).
    """

    plan: list[str]
    chunks_by_id: dict[str, Chunk]
    candidates: Annotated[list[CandidateSet], newest]  # a reducer: null until the node has run, [] without chunks
    pending: list[int]
    evaluations: Annotated[list[Evaluation], extend]
    supports: list[Support]
    lambda_star: float | None
    incremental_context: list[str]


class EvaluateInput(TypedDict):
    """The input of one evaluation: the plan and the chunks of one candidate set."""

    plan: list[str]
    candidate: int
    chunks: list[Chunk]


class DFRagOutput(Answered):
    """The answer and its reasons: the plan, the support of every set, λ*."""

    plan: list[str]
    supports: list[Support]
    lambda_star: float | None


LIKELIHOOD = Option("likelihood", frozenset({"score"}), "the model gives log-probabilities of given text")


class DFRagContext(ThinkingContext, RetrievalContext):
    """Settings of DF-RAG (Khan et al., sections 3.1-3.5)."""

    graph: ClassVar[str] = "df_rag"
    presets: ClassVar[Presets] = DF_RAG_MODELS

    evaluator: Literal["auto", "report", "choice", "likelihood"] = Field(
        default=AUTO,
        title="Evaluator",
        description="How a chunk set is scored for each step of the plan. report (the paper's): one written report per "
        "chunk set. choice: one choice from 0 to 5 per step. likelihood: how much likelier the chunk set makes the "
        "step; use it with small models. auto: likelihood if the model gives log-probabilities of given text, else "
        "report; with preset=paper report.",
    )
    sampling: Literal["uniform", "binary"] = Field(
        default="uniform",
        title="Sampling of λ",
        description="uniform: evaluate every distinct chunk set. binary: search for the peak, O(log n) evaluations.",
    )
    diversity: Literal["gmmr", "mmr"] = Field(
        default="gmmr",
        title="Diversity function",
        description="gmmr: the paper's. mmr: classical MMR, for comparison.",
    )
    incremental_context: bool = Field(
        default=False,
        title="Incremental context (IC)",
        description="Add the plan and the Evaluator's short answers to the generator's prompt; needs evaluator=report.",
    )
    search: Literal["exact", "ann"] = Field(
        default="exact",
        title="Search",
        description="exact: select among all chunks. ann: select among the top_n chunks nearest to the question, for "
        "large corpora (section 5.3).",
    )
    top_n: int = Field(
        default=200,
        ge=1,
        le=100_000,
        title="Nearest chunks (N)",
        description="The number of chunks that search=ann selects among.",
        json_schema_extra=unused_with(search=["exact"]),
    )

    @model_validator(mode="after")
    def _incremental_context_needs_answers(self) -> Self:
        if self.incremental_context and self.evaluator not in {AUTO, "report"}:
            raise ValueError(
                "incremental_context needs the Evaluator's short answers: set evaluator to 'report', "
                f"not '{self.evaluator}'"
            )
        return self

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The likelihood evaluator needs log-probabilities of given text."""
        if self.incremental_context:
            because = "incremental_context needs its short answers"
        elif self.preset == "paper":
            because = "it is the paper's"
        else:
            because = "the model gives no log-probabilities of given text"
        others = [Option("report", frozenset(), because), Option("choice", frozenset(), "")]
        written = self.incremental_context or self.preset == "paper"
        return {"evaluator": [*others, LIKELIHOOD] if written else [LIKELIHOOD, *others]}
