"""State and context of `seakr`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import TypedDict

from .capability import Capability
from .presets import SEAKR_MODELS
from .reasoning import ReasoningOutput, ReasoningState, SearchingContext
from .records import extend

KNOWN = "known"
"""The threshold that is not set."""

Estimator = Literal[
    "gram",
    "prompt",
    "perplexity",
    "multi_perplexity",
    "ln_entropy",
    "energy",
    "semantic_entropy",
    "degree_entropy",
]

NEEDS: dict[Estimator, frozenset[Capability]] = {
    "gram": frozenset({"hidden_states"}),
    "prompt": frozenset(),
    "perplexity": frozenset({"logprobs"}),
    "multi_perplexity": frozenset({"logprobs"}),
    "ln_entropy": frozenset({"logprobs"}),
    "energy": frozenset({"energy"}),
    "semantic_entropy": frozenset(),
    "degree_entropy": frozenset(),
}
"""What each estimator asks of the chat model."""

Strategy = Literal["rationales", "knowledge"]


class Concluded(TypedDict):
    """What a strategy answers, and its U (SeaKR section 3.3); null where it was not measured."""

    strategy: Strategy
    answer: str
    reasoning: str
    uncertainty: float | None


class SeaKRState(ReasoningState, total=False):
    """What flows through SeaKR. threshold: δ; conclusions: each strategy's answer; strategy: whose answer stands."""

    threshold: float
    conclusions: Annotated[list[Concluded], extend]
    strategy: Strategy


class SeaKROutput(ReasoningOutput):
    """The answer and how it came about: δ, both strategies' answers, and which one stands."""

    threshold: float
    conclusions: list[Concluded]
    strategy: Strategy


class SeaKRContext(SearchingContext):
    """Settings of SeaKR (sections 3 and 4.1.3)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = SEAKR_MODELS
    ends_with_documents: ClassVar[bool] = True

    k: int = Field(
        default=3, ge=1, le=100, title="Snippets (N)", description="How many snippets of a search are each tried."
    )
    estimator: Estimator = Field(
        default="gram",
        title="Uncertainty",
        description="How U is measured. gram: how far the hidden states of sampled steps lie apart (the paper's). "
        "prompt: the model's own word. perplexity, multi_perplexity, ln_entropy: from log-probabilities. energy: from "
        "logits. semantic_entropy, degree_entropy: whether sampled steps entail each other, for any model.",
    )
    threshold: str = Field(
        default=KNOWN,
        title="Threshold (δ)",
        description="Look something up where U is above this number; or 'known': what `calibration` says, or what is "
        "known of the model and the estimator.",
    )
    calibration: str = Field(
        default="", title="Calibration", description="A file made by `dubito calibrate seakr`; empty: none."
    )
    samples: int = Field(
        default=20, ge=2, le=1000, title="Samples (k)", description="How many steps are sampled to measure U."
    )
    temperature: float = Field(
        default=1.0, ge=0.01, le=5.0, title="Temperature", description="How freely the samples are drawn."
    )
    top_p: float = Field(
        default=0.9,
        ge=0.01,
        le=1.0,
        title="Top-p",
        description="Samples are drawn from the likeliest tokens with this share of the probability.",
    )
    top_k: int = Field(
        default=50,
        ge=0,
        le=1_000_000,
        title="Top-k",
        description="Samples are drawn from so many of the likeliest tokens; 0: all.",
    )
    layer: int = Field(
        default=0, ge=0, le=1000, title="Layer", description="Whose hidden states are compared; 0: the middle one."
    )
    alpha: float = Field(
        default=1e-3,
        ge=1e-9,
        le=1.0,
        title="Regularisation (α)",
        description="What is added to the Gram matrix's diagonal.",
    )
    max_reasoning_tokens: int = Field(
        default=200,
        ge=1,
        le=4096,
        title="Longest reasoning",
        description="The longest reasoning from all that was kept, in tokens.",
    )
    word_doubt: float = Field(
        default=0.1,
        ge=0.0,
        le=1.0,
        title="Doubtful words",
        description="A word is left out of the query if any of its tokens has 1 − p above this.",
    )
    judge: str = Field(
        default="preset",
        title="Entailment judge",
        description="For semantic_entropy and degree_entropy. llm: the chat model itself. nli:/folder-or-hub-name: an "
        "NLI cross-encoder. embedded: similarity of the embeddings; or 'preset'.",
    )
    mode: Literal["complex", "simple"] = Field(
        default="complex",
        title="Questions",
        description="complex: several look-ups, and a choice of two final strategies. simple: one look-up at most.",
    )
    self_aware_retrieval: bool = Field(
        default=True, title="Self-aware retrieval", description="Off: something is looked up at every step."
    )
    self_aware_reranking: bool = Field(
        default=True, title="Self-aware re-ranking", description="Off: the search's first snippet is kept."
    )
    reasoning: Literal["self_aware", "rationales", "knowledge"] = Field(
        default="self_aware",
        title="Self-aware reasoning",
        description="Which strategy gives the answer: the less uncertain one, or always the same.",
    )

    @field_validator("threshold", mode="before")
    @classmethod
    def _number_or_known(cls, value: object) -> object:
        said = str(value).strip()
        try:
            good = said == KNOWN or math.isfinite(float(said))
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"must be a number, or '{KNOWN}' for the one that is known for the model")
        return said

    def needs(self) -> frozenset[Capability]:
        """What the estimator asks for."""
        return NEEDS[self.estimator]

    def documents(self) -> int:
        """For simple questions one."""
        return min(self.max_docs, 1) if self.mode == "simple" else self.max_docs
