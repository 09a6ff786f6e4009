"""State and context of the graphs that reason step by step: SeaKR, CoT, IRCoT, FLARE."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .context import BaseContext, Presets, on_local_server
from .flow import Answered, Flow
from .mixins import FirstStageContext
from .records import Chunk, extend

StopReason = Literal["answered", "max_steps", "max_docs", "query_repeated", "step_repeated", "step_empty"]
"""Why the reasoning ended: a step gave the final answer; `max_steps` steps are written; `max_docs` snippets are kept;
the query was searched for before; the step repeats an earlier one; the step is empty."""


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


class ReasoningStep(TypedDict):
    """A step of the reasoning.

    draft: the step before retrieval, null if the graph retrieves first. query: null if nothing was searched for.
    attempts: the snippets that were tried, in the order of the search. chunk_id: the snippet that was kept.
    rationale: the final sentence; uncertainty: U there, null if not measured.
    """

    draft: Draft | None
    query: str | None
    attempts: list[Attempt]
    chunk_id: str | None
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
    each snippet tried; kept, the attempt with the snippet that is kept, null if there is none.
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
    kept: Attempt | None
    stop_reason: StopReason | None


class ReasoningOutput(Answered):
    """The answer, the steps that led to it, and why they ended."""

    steps: list[ReasoningStep]
    stop_reason: StopReason


class ReasoningContext(BaseContext):
    """Settings of step-by-step reasoning. The steps are the model's thinking, so thinking is always off."""

    graph: ClassVar[str] = "cot"
    presets: ClassVar[Presets] = {
        "embedded": {"llm": "embedded"},
        "paper": {"llm": on_local_server("meta-llama/Llama-2-7b-chat-hf")},  # SeaKR section 4.1.3
    }
    ends_with_documents: ClassVar[bool] = False
    """Whether the reasoning ends when `documents()` snippets are kept, or goes on without more."""

    max_steps: int = Field(
        default=10, ge=1, le=100, title="Most steps", description="The maximum number of reasoning steps (sentences)."
    )
    max_step_tokens: int = Field(
        default=100, ge=1, le=4096, title="Longest step", description="The maximum length of a step, in tokens."
    )

    def documents(self) -> int:
        """The maximum number of snippets that are kept."""
        return 0


BM25_SEARCH = {"encoder": "embedded", "chunker": "words:100", "first_stage": "bm25"}
"""SeaKR section 4.1.3: BM25 over passages of 100 words, for which no encoder is needed."""


class SearchingContext(FirstStageContext, ReasoningContext):
    """Settings of step-by-step reasoning that searches a corpus and keeps one snippet per step."""

    graph: ClassVar[str] = "ircot"
    presets: ClassVar[Presets] = {
        preset: {**models, **BM25_SEARCH} for preset, models in ReasoningContext.presets.items()
    }

    max_docs: int = Field(
        default=3, ge=0, le=100, title="Most snippets", description="The maximum number of snippets that are kept."
    )

    def documents(self) -> int:
        """The maximum number of snippets that are kept."""
        return self.max_docs

    def tried(self) -> int:
        """The number of snippets of a search that are tried."""
        return 1
