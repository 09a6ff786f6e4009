"""State and context of `df_rag`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import TypedDict

from .context import AUTO, UNCHECKED, Option, Presets, names_no_resource, unused_with
from .flow import Answered, Flow
from .mixins import CitingContext, Diversity, FirstStage, FirstStageContext, RetrievalContext, ThinkingContext, TopN
from .records import Chunk, extend, newest
from .vanilla_rag import DF_RAG_MODELS

MOST_LEVELS = 101


def levels_of(text: str) -> tuple[float, ...]:
    """The diversity levels λ that `START:END:STEP` or a list such as `0.2,0.5,0.8` names, ascending, each once.

    Levels are rounded to 6 decimals. Raises `ValueError`, whose words follow "lambdas is ... and", for another form, a
    level outside of 0 to 1, fewer than two levels and more than `MOST_LEVELS`.
    """
    is_range = ":" in text
    try:
        numbers = [float(part) for part in text.split(":" if is_range else ",")]
    except ValueError:
        numbers = []
    if is_range and len(numbers) == 3 and numbers[2] >= 1e-3 and 0 <= numbers[0] <= numbers[1] <= 1:
        start, end, step = numbers
        numbers = [start + i * step for i in range(int((end - start) / step + 1e-6) + 1)]
    elif is_range or not numbers or not all(0 <= number <= 1 for number in numbers):
        raise ValueError(
            "must be START:END:STEP, such as 0.1:1:0.1, or a list, such as 0.2,0.5,0.8, of levels from 0 to 1"
        )
    levels = sorted({round(number, 6) for number in numbers})
    if len(levels) < 2:
        raise ValueError(
            "must have two levels or more: for one λ use the graph vanilla_rag with selection=gmmr and fixed_lambda"
        )
    if len(levels) > MOST_LEVELS:
        raise ValueError(f"must have at most {MOST_LEVELS} levels, not {len(levels)}")
    return tuple(levels)


PAPER_LEVELS = "0.1:1:0.1"

LAMBDAS = levels_of(PAPER_LEVELS)
"""The paper's diversity levels 0.1, 0.2, ..., 1.0 (section 3.4). 0 is left out because it ignores the question."""

NO_CHUNKS = -1
"""The candidate number of the empty chunk set."""


class CandidateSet(TypedDict):
    """A distinct chunk set and the diversity levels λ that select it, ascending.

    chunk_ids: most similar to the question first, or in the order of selection, see the setting `chunk_order`.
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
    rows: the pool's rows of each candidate set; incomplete: the sets grow chunk by chunk and have fewer than k yet.
    """

    plan: list[str]
    chunks_by_id: dict[str, Chunk]
    candidates: Annotated[list[CandidateSet], newest]  # a reducer: null until the node has run, [] without chunks
    rows: list[list[int]]
    incomplete: bool
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
    """The answer and what it was decided from.

    plan: the Planner's steps. candidates: the distinct chunk sets. evaluations: the scores and short answers of each
    evaluated set, by its index in `candidates`, in no fixed order. supports: the Retrieval Support of each evaluated
    set. lambda_star: the chosen λ, null if nothing was retrieved. incremental_context: what the Generator was given
    beside the chunks (variant IC), else empty.
    """

    plan: list[str]
    candidates: list[CandidateSet]
    evaluations: list[Evaluation]
    supports: list[Support]
    lambda_star: float | None
    incremental_context: list[str]


LIKELIHOOD = Option("likelihood", frozenset({"score"}), "the model gives log-probabilities of given text")


class DFRagContext(CitingContext, ThinkingContext, FirstStageContext, RetrievalContext):
    """Settings of DF-RAG (Khan et al., sections 3.1-3.5)."""

    graph: ClassVar[str] = "df_rag"
    writes_marks: ClassVar[bool] = True
    measures_itself: ClassVar[bool] = True
    presets: ClassVar[Presets] = DF_RAG_MODELS

    evaluator: Literal["auto", "report", "choice", "likelihood"] = Field(
        default=AUTO,
        title="Evaluator",
        description="How a chunk set is scored for each step of the plan. report (the paper's): one written report per "
        "chunk set. choice: one choice from 0 to 5 per step. likelihood: how much likelier the chunk set makes the "
        "step; use it with small models. auto: likelihood if the model gives log-probabilities of given text, else "
        "report; with preset=paper report.",
    )
    lambdas: str = Field(
        default=PAPER_LEVELS,
        title="Levels of λ",
        description="The diversity levels, START:END:STEP or a list such as 0.2,0.5,0.8: 1 is similarity only, 0 is "
        "diversity only.",
        json_schema_extra=names_no_resource(),
    )
    report_examples: bool = Field(
        default=True,
        title="Examples of reports",
        description="On: evaluator=report is shown three worked examples of a report, as in the paper (few-shot). Off: "
        "it is not (zero-shot).",
        json_schema_extra=unused_with(evaluator=["choice", "likelihood"]),
    )
    sampling: Literal["uniform", "binary"] = Field(
        default="uniform",
        title="Sampling of λ",
        description="uniform: evaluate every distinct chunk set. binary: search for the peak, O(log n) evaluations.",
    )
    diversity: Diversity = Field(
        default="gmmr",
        title="Diversity function",
        description="gmmr: the paper's. mmr_centroid: the cosine to the mean of the selected chunks in place of the "
        "distance to it (appendix B.2). mmr: classical MMR, the cosine to the nearest selected chunk.",
    )
    chunk_order: Literal["similarity", "selection"] = Field(
        default="similarity",
        title="Order of chunks",
        description="The order of a set's chunks in the prompts. similarity: most similar to the question first. "
        "selection: as they were selected, at the (upper) median of the λ that select the set.",
    )
    incremental_sets: bool = Field(
        default=False,
        title="Grow the set chunk by chunk",
        description="Off: every λ selects k chunks at once. On: every λ adds one chunk to the set so far, the "
        "Evaluator scores these sets, and the best one grows on, up to k (appendix A.2; the paper does not test it).",
    )
    max_plan_steps: int = Field(
        default=8,
        ge=1,
        le=99,
        title="Longest plan",
        description="A plan is cut after this number of steps, with a warning. The paper sets no limit; its plans have "
        "fewer than 3 steps on average (section 5.4).",
    )
    incremental_context: bool = Field(
        default=False,
        title="Incremental context (IC)",
        description="Add the plan and the Evaluator's short answers to the generator's prompt; needs evaluator=report.",
    )
    first_stage: FirstStage = "dense"
    search: Literal["exact", "ann"] = Field(
        default="exact",
        title="Search",
        description="exact: select among all chunks. ann: select among the top_n best chunks of the first stage, for "
        "large corpora (section 5.3).",
    )
    top_n: TopN = Field(
        default=200,
        description="The number of chunks that search=ann selects among.",
        json_schema_extra=unused_with(search=["exact"]),
    )

    @property
    def uses_vectors(self) -> bool:
        """gMMR compares vectors."""
        return True

    @model_validator(mode="after")
    def _first_stage_finds_some(self, info: ValidationInfo) -> Self:
        if info.context is not UNCHECKED and self.search == "exact" and self.first_stage != "dense":
            raise ValueError(
                f"first_stage={self.first_stage} finds only a part of the chunks, and search=exact selects among all: "
                "set search=ann"
            )
        return self

    @field_validator("lambdas", mode="before")
    @classmethod
    def _read_levels(cls, levels: object) -> object:
        """A list of numbers is taken too."""
        text = ",".join(str(level) for level in levels) if isinstance(levels, list | tuple) else levels
        if isinstance(text, str):
            levels_of(text)
        return text

    def levels(self) -> tuple[float, ...]:
        """The diversity levels λ, ascending."""
        return levels_of(self.lambdas)

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
        evaluators = [*others, LIKELIHOOD] if written else [LIKELIHOOD, *others]
        return {**super().options(), "evaluator": evaluators}
