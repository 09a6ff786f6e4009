"""States and contexts of the baselines of SeaKR: `ircot`, `flare` and `iter_retgen`."""

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from .capability import Capability
from .context import Presets
from .flow import Answered, Flow
from .mixins import FirstStageContext, ReasoningTokens, RetrievalContext, UnitInterval
from .reasoning import SearchingContext
from .records import extend


class FlareContext(SearchingContext):
    """Settings of FLARE (Jiang et al. 2023), which searches where a token is unlikely."""

    graph: ClassVar[str] = "flare"
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


class IterRetgenContext(RetrievalContext, FirstStageContext):
    """Settings of ITER-RETGEN (Shao et al. 2023)."""

    graph: ClassVar[str] = "iter_retgen"
    presets: ClassVar[Presets] = SearchingContext.presets

    max_reasoning_tokens: ReasoningTokens = 200
    max_iterations: int = Field(
        default=2, ge=1, le=20, title="Iterations (T)", description="The number of times to retrieve and generate."
    )
