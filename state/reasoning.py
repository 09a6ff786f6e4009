"""State and context that the graphs share which reason step by step: SeaKR, CoT, IRCoT, FLARE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .context import BaseContext
from .flow import Answered, Flow
from .presets import COT_MODELS, IRCOT_MODELS
from .records import Chunk, extend

Ending = Literal["answered", "max_steps", "max_docs", "query_repeated", "repeated", "nothing_found"]
"""Why the reasoning ended: a step gave the final answer; the steps are spent; so are the documents; what would be
searched for has been; a step says what an earlier one said; nothing was written and nothing was found."""


class Word(TypedDict):
    """A word of a rationale and the lowest probability of a token that has a part in it; null where unknown."""

    text: str
    probability: float | None


class Draft(TypedDict):
    """A step that the model would write, and how uncertain it is there: U, null where it could not be measured.

    U is on the scale of the estimator; higher is more uncertain.
    """

    rationale: str
    words: list[Word]
    uncertainty: float | None


class Attempt(TypedDict):
    """A snippet that was tried: the step that the model writes with it, and U with it."""

    chunk_id: str
    rationale: str
    uncertainty: float | None


class Step(TypedDict):
    """A step of the reasoning.

    draft: what the model would have written without looking anything up, and U there; both null where it was not
    asked. query: what was searched for, null where nothing was. attempts: the snippets that were tried, in the order of
    the search. chunk_id: the one that was kept; rationale: the step as it stands; uncertainty: U there.
    """

    draft: Draft | None
    query: str | None
    attempts: list[Attempt]
    chunk_id: str | None
    rationale: str
    uncertainty: float | None


class AttemptInput(TypedDict):
    """What one snippet is tried with: the question, the rationales so far, what was kept, and the snippet."""

    question: str
    rationales: list[str]
    knowledge: list[Chunk]
    snippet: Chunk


class ReasoningState(Flow, total=False):
    """What flows through a step-by-step graph.

    rationales: R, the sentences so far; knowledge: K, the snippets that were kept, in that order; steps: how each
    rationale came about. draft: the step under way; query: what is searched for, null where nothing is; queries: all
    that was; snippets: what was found; attempts: what came of trying them; kept: the best of these, null where there is
    none; ended: why the loop is over, null while it
    goes on.
    """

    rationales: Annotated[list[str], extend]
    knowledge: Annotated[list[Chunk], extend]
    steps: Annotated[list[Step], extend]
    draft: Draft | None
    query: str | None
    queries: Annotated[list[str], extend]
    snippets: list[Chunk]
    attempts: Annotated[list[Attempt], extend]
    kept: Attempt | None
    ended: Ending | None


class ReasoningOutput(Answered):
    """The answer, the steps that led to it, and why they ended."""

    steps: list[Step]
    ended: Ending


class ReasoningContext(BaseContext):
    """Settings of step-by-step reasoning. A model's own thinking is never used: the steps are its thoughts."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = COT_MODELS
    ends_with_documents: ClassVar[bool] = False
    """Whether the reasoning ends when the documents are spent, or goes on without more."""
    looks_up: ClassVar[bool] = False

    max_steps: int = Field(default=10, ge=1, le=100, title="Steps", description="How many sentences at most.")
    max_step_tokens: int = Field(
        default=100, ge=1, le=4096, title="Longest step", description="The longest step, in tokens."
    )

    def documents(self) -> int:
        """How many snippets are kept at most."""
        return 0


SEARCHES = (
    "What searches: bm25, dense (the encoder's index), splade:folder-or-hub-name, hybrid (bm25 and dense, ranks "
    "fused); or 'preset'."
)
"""What a setting `first_stage` says of itself."""


class SearchingContext(ReasoningContext):
    """Settings of step-by-step reasoning that looks things up, one snippet a step."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = IRCOT_MODELS
    looks_up: ClassVar[bool] = True

    first_stage: str = Field(default="preset", title="First stage", description=SEARCHES)
    max_docs: int = Field(
        default=3, ge=0, le=100, title="Documents", description="How many snippets are kept at most, one a step."
    )

    def documents(self) -> int:
        """As many as are set."""
        return self.max_docs
