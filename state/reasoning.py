"""State and context of the graphs that reason step by step: SeaKR, CoT, IRCoT, FLARE."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .context import Presets, on_local_server
from .flow import Answered, Flow
from .mixins import AnsweringContext, CitingContext, ExamplesContext, FirstStageContext
from .records import Chunk, extend

StopReason = Literal[
    "answered", "max_steps", "max_docs", "query_repeated", "nothing_new", "step_repeated", "step_empty"
]
"""Why the reasoning ended: a step gave the final answer; `max_steps` steps are written; `max_docs` snippets are kept;
the query was searched for before; the search found no new snippet; the step repeats an earlier one; the step is empty.
"""


class Word(TypedDict):
    """A word of a rationale and the lowest probability of the tokens that overlap it; null if unknown."""

    text: str
    probability: float | None


class Draft(TypedDict):
    """A step before retrieval, and U there: higher is more uncertain; null if not measured."""

    rationale: str
    words: list[Word]
    uncertainty: float | None


class Attempt(TypedDict):
    """A snippet that was tried, the step that the model writes with it, and U there."""

    chunk_id: str
    rationale: str
    uncertainty: float | None


class Kept(TypedDict):
    """The snippets that are kept for a step, the step with them, and U there."""

    chunk_ids: list[str]
    rationale: str
    uncertainty: float | None


class ReasoningStep(TypedDict):
    """A step of the reasoning.

    draft: the step before retrieval, null if the graph retrieves first. query: null if nothing was searched for.
    attempts: the snippets that were tried, in the order of the search. chunk_ids: the snippets that were kept.
    rationale: the final sentence; uncertainty: U there, null if not measured.
    """

    draft: Draft | None
    query: str | None
    attempts: list[Attempt]
    chunk_ids: list[str]
    rationale: str
    uncertainty: float | None


class AttemptInput(TypedDict):
    """The input of `try_snippet`: the question, rationales and knowledge so far, and one more snippet."""

    question: str
    rationales: list[str]
    knowledge: list[Chunk]
    snippet: Chunk


class ReasoningState(Flow, total=False):
    """What flows through a step-by-step graph.

    rationales: R, the sentences so far. knowledge: K, the snippets kept so far. steps: a record for each step.
    Of the current step: draft; query, null if it needs no retrieval; snippets that the search found; attempts, one for
    each snippet tried; kept, the step with the snippets that are kept, null if there are none.
    queries: all queries so far. stop_reason: null until the reasoning ends.
    """

    rationales: Annotated[list[str], extend]
    knowledge: Annotated[list[Chunk], extend]
    steps: Annotated[list[ReasoningStep], extend]
    draft: Draft | None
    query: str | None
    queries: Annotated[list[str], extend]
    snippets: list[Chunk]
    attempts: Annotated[list[Attempt], extend]
    kept: Kept | None
    stop_reason: StopReason | None


class ReasoningOutput(Answered):
    """The answer, the steps that led to it, and why they ended."""

    steps: list[ReasoningStep]
    stop_reason: StopReason


MaxSteps = Annotated[
    int,
    Field(ge=1, le=100, title="Most steps", description="The maximum number of reasoning steps (sentences)."),
]


class ReasoningContext(AnsweringContext, ExamplesContext):
    """Settings of step-by-step reasoning. The steps are the model's thinking, so thinking is always off."""

    graph: ClassVar[str] = "cot"
    presets: ClassVar[Presets] = {
        "embedded": {"llm": "embedded", "encoder": "embedded", "judge": "embedded"},
        # SeaKR section 4.1.3
        "paper": {"llm": on_local_server("meta-llama/Llama-2-7b-chat-hf"), "encoder": "embedded", "judge": "llm"},
    }
    ends_with_documents: ClassVar[bool] = False
    """Whether the reasoning ends when `documents()` snippets are kept, or goes on without more."""

    max_steps: MaxSteps = 10
    max_step_tokens: int = Field(
        default=100, ge=1, le=4096, title="Longest step", description="The maximum length of a step, in tokens."
    )

    def steps(self) -> int:
        """The maximum number of steps."""
        return self.max_steps

    def shows_collected(self) -> bool:
        """Is a step written from the snippets of earlier steps, too?"""
        return True

    def documents(self) -> int:
        """The maximum number of snippets that are kept."""
        return 0


BM25_SEARCH = {"encoder": "embedded", "chunker": "words:100", "first_stage": "bm25"}
"""SeaKR section 4.1.3: BM25 over passages of 100 words, for which no encoder is needed."""


NO_LIMIT = 10_000
"""The most snippets that can be kept: those of 100 steps of 100 snippets each."""

MaxDocs = Annotated[
    int,
    Field(
        ge=0,
        le=NO_LIMIT,
        title="Most snippets",
        description=f"The maximum number of snippets that are kept; {NO_LIMIT}: no limit.",
    ),
]


FoundAgain = Annotated[
    Literal["preset", "replace", "skip"],
    Field(
        title="Snippets found again",
        description="What a search does with snippets that are kept already. replace: the next best take their places. "
        "skip: none do, so that it finds fewer.",
    ),
]


class SearchingContext(CitingContext, FirstStageContext, ReasoningContext):
    """Settings of step-by-step reasoning that searches a corpus and keeps snippets: those of IRCoT.

    IRCoT searches before every step (Trivedi et al. 2023).
    """

    graph: ClassVar[str] = "ircot"
    presets: ClassVar[Presets] = {
        preset: {**models, **BM25_SEARCH} for preset, models in ReasoningContext.presets.items()
    }

    max_docs: MaxDocs = NO_LIMIT
    found_again: FoundAgain = "replace"
    k: int = Field(
        default=1,
        ge=1,
        le=100,
        title="Snippets (k)",
        description="The number of snippets that a search adds.",
    )

    def ends_with_nothing_new(self) -> bool:
        """Does the reasoning end if a search finds no new snippet?"""
        return False

    def documents(self) -> int:
        """The maximum number of snippets that are kept."""
        return self.max_docs
