"""State and context of the baselines that retrieve otherwise than SeaKR: `flare` and `iter_retgen`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from .capability import Capability
from .context import BaseContext
from .flow import Answered, Flow
from .presets import IRCOT_MODELS
from .reasoning import SEARCHES, SearchingContext
from .records import extend


class IRCoTContext(SearchingContext):
    """Settings of IRCoT (Trivedi et al. 2023), as SeaKR's section 4.1.2 compares it: the best snippet at every step."""

    k: int = Field(default=1, ge=1, le=1, title="Snippets", description="The best one of each search is kept.")


class FlareContext(IRCoTContext):
    """Settings of FLARE (Jiang et al. 2023), which looks something up where a token is unlikely."""

    likely_from: float = Field(
        default=0.8,
        ge=0.0,
        le=1.0,
        title="Likely from (θ)",
        description="Look something up if a word of the next step has a token of lower probability.",
    )
    mask_below: float = Field(
        default=0.4,
        ge=0.0,
        le=1.0,
        title="Mask below (β)",
        description="Words with a token of lower probability are left out of the query.",
    )

    def needs(self) -> frozenset[Capability]:
        """The tokens' probabilities."""
        return frozenset({"logprobs"})


class Round(TypedDict):
    """One round of ITER-RETGEN: what was searched for, what was found, and what was made of it."""

    query: str
    chunk_ids: list[str]
    reasoning: str
    answer: str


class IterRetgenState(Flow, total=False):
    """What flows through ITER-RETGEN."""

    rounds: Annotated[list[Round], extend]
    query: str


class IterRetgenOutput(Answered):
    """The answer and the rounds that led to it."""

    rounds: list[Round]


class IterRetgenContext(BaseContext):
    """Settings of ITER-RETGEN (Shao et al. 2023)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = IRCOT_MODELS

    first_stage: str = Field(default="preset", title="First stage", description=SEARCHES)
    rounds: int = Field(
        default=2, ge=1, le=20, title="Rounds", description="How often documents are looked up and the answer is made."
    )
    max_reasoning_tokens: int = Field(
        default=200,
        ge=1,
        le=4096,
        title="Longest reasoning",
        description="The longest reasoning of a round, in tokens.",
    )
