"""States and contexts of the baselines of SeaKR: `ircot`, `flare` and `iter_retgen`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .capability import Capability
from .context import PRESET, Presets, unused_with
from .flow import Answered, Flow
from .mixins import CitingContext, ExamplesContext, FirstStage, ReasoningTokens, SearchContext, UnitInterval
from .reasoning import FoundAgain, MaxDocs, SearchingContext
from .records import extend


class FlareContext(SearchingContext):
    """Settings of FLARE (Jiang et al. 2023), which searches where a token is unlikely."""

    graph: ClassVar[str] = "flare"
    measures_itself: ClassVar[bool] = True
    likely_from: UnitInterval = Field(
        default=0.8,
        title="Likely from (θ)",
        description="Search if a word of the next step has a token with a probability below this.",
    )
    mask_below: UnitInterval = Field(
        default=0.4,
        title="Mask below (β)",
        description="Leave a word out of the query if it has a token with a probability below this.",
    )
    max_docs: MaxDocs = 3
    passages: Literal["collected", "current"] = Field(
        default="collected",
        title="Passages shown",
        description="The passages from which a step is written. collected: all that were kept, as SeaKR's authors ran "
        "FLARE. current: those of the step's own search; the draft is written without any, as in FLARE's paper.",
    )
    search_first: bool = Field(
        default=False,
        title="Search first",
        description="On: the first step is written with what a search for the question finds, as in FLARE's paper.",
    )

    found_again: FoundAgain = Field(default="replace", json_schema_extra=unused_with(passages=["current"]))

    def shows_collected(self) -> bool:
        """Is a step written from the snippets of earlier steps, too?"""
        return self.passages == "collected"

    def needs(self) -> frozenset[Capability]:
        """The probabilities of tokens."""
        return frozenset({"logprobs"})


class Iteration(TypedDict):
    """An iteration of ITER-RETGEN: its query, the chunks that were found, the reasoning and the answer."""

    query: str
    chunk_ids: list[str]
    reasoning: str
    answer: str


class IterRetgenState(Flow, total=False):
    """What flows through ITER-RETGEN."""

    iterations: Annotated[list[Iteration], extend]
    query: str


class IterRetgenOutput(Answered):
    """The answer and the iterations that led to it."""

    iterations: list[Iteration]


class IterRetgenContext(CitingContext, ExamplesContext, SearchContext):
    """Settings of ITER-RETGEN (Shao et al. 2023)."""

    graph: ClassVar[str] = "iter_retgen"
    presets: ClassVar[Presets] = SearchingContext.presets

    max_iterations: int = Field(
        default=2, ge=1, le=20, title="Iterations (T)", description="The number of times to retrieve and generate."
    )
    first_stage: FirstStage = PRESET
    max_reasoning_tokens: ReasoningTokens = 200
