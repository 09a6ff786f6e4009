"""State and context of `neighbourhood`, which `sunar` has as a subgraph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NotRequired, Self

from langgraph.channels import EphemeralValue
from pydantic import Field, model_validator
from typing_extensions import TypedDict

from .capability import Capability
from .context import BaseContext
from .flow import Answered, Flow, Question
from .presets import SUNAR_MODELS
from .records import Chunk, extend

Pool = Literal["first_stage", "frontier"]
Ending = Literal["budget", "exhausted", "converged", "batches"]

MOST_BATCHES = 2_000
"""Batches in one look-up. Each takes five of LangGraph's steps and a run has 10,007, which must not be what ends it."""


class Offer(TypedDict):
    """A document in the frontier: the neighbour that offered it, and that one's score."""

    chunk_id: str
    score: float
    via: str


class Scored(TypedDict):
    """A scored document, and where it came from.

    iteration: of the exploration, from 0; via: the neighbour that led to it, null from the first stage; raw: the
    re-ranker's score in (0, 1); sets: how many semantic sets the answers from its batch make, null where none were
    sampled; score: the raw one after the penalty.
    """

    chunk_id: str
    iteration: int
    pool: Pool
    via: str | None
    raw: float
    sets: int | None
    score: float


class NeighbourhoodInput(Question):
    """A question; `query`, if given, is what is looked up and answered in its place, a sub-question of it."""

    query: NotRequired[str | None]


class NeighbourhoodState(Flow, total=False):
    """What flows through neighbourhood-aware retrieval.

    asked: what is looked up; documents: the first stage's, and what was scored, by id; first_stage: R, the ids that
    are not scored yet, best first; frontier: N, in the order they were first offered; iteration: batches so far;
    source: the name of the first stage that looked; turn: whose turn it is; batch, pool: what is being scored and where
    it was taken from; raw: the batch's re-ranker scores; answers: sampled from its best documents; sets: their
    semantic sets; scored: all that was scored, in that order; stale: batches in a row that did not improve the best;
    stopped: why it ended, null while it goes on.
    """

    query: Annotated[str | None, EphemeralValue(str)]  # or a thread's next question would find it
    asked: str
    documents: dict[str, Chunk]
    source: str
    first_stage: list[str]
    frontier: list[Offer]
    iteration: int
    turn: Pool
    batch: list[str]
    pool: Pool
    raw: list[float]
    answers: list[str]
    sets: int | None
    scored: Annotated[list[Scored], extend]
    stale: int
    stopped: Ending | None


class NeighbourhoodOutput(Answered):
    """The answer to what was looked up, its evidence, and where every scored document came from."""

    scored: list[Scored]
    stopped: Ending


class NeighbourhoodContext(BaseContext):
    """Settings of neighbourhood-aware retrieval with answer semantic uncertainty (SUNAR section 3.2, Algorithm 1)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = SUNAR_MODELS

    k: int = Field(
        default=10,
        ge=1,
        le=1000,
        title="Evidence (l)",
        description="How many of the best documents the answer to a sub-question is made from.",
    )
    first_stage: str = Field(
        default="preset",
        title="First stage",
        description="bm25, dense (the encoder's index), splade:folder-or-hub-name, hybrid (bm25 and dense, ranks "
        "fused); or 'preset'.",
    )
    graph_encoder: str = Field(
        default="preset",
        title="Graph's encoder",
        description="Whose vectors say which documents are neighbours; best another one than the first stage's. "
        "embedded, st:/folder-or-hub-name, openai:https://host/v1#model, or colbert:/folder-or-hub-name, whose late "
        "interaction re-scores the nearest under `encoder`; or 'preset'.",
    )
    first_stage_n: int = Field(
        default=100, ge=1, le=100_000, title="First stage's documents", description="How many documents are in R."
    )
    graph_neighbours: int = Field(
        default=10, ge=0, le=1000, title="Neighbours", description="How many neighbours a document has in the graph."
    )
    reranker: str = Field(
        default="preset",
        title="Re-ranker",
        description="embedded: similarity under the encoder. cross:folder-or-hub-name: a cross-encoder. likelihood: of "
        "the question given the document, under the chat model; or 'preset'.",
    )
    judge: str = Field(
        default="preset",
        title="Entailment judge",
        description="llm: the chat model itself. nli:/folder-or-hub-name: an NLI cross-encoder. embedded: similarity "
        "of the answers' embeddings, an approximation; similarity:T with a threshold of your own; or 'preset'.",
    )
    budget: int = Field(
        default=100, ge=1, le=100_000, title="Budget (c)", description="How many documents are scored at most."
    )
    batch: int = Field(default=16, ge=1, le=10_000, title="Batch (b)", description="How many are scored at a time.")
    penalty: Literal["1/s", "1/sqrt(s)", "fixed", "none"] = Field(
        default="1/s",
        title="Penalty",
        description="What a batch's scores are multiplied by if the answers sampled from it make s semantic sets. "
        "fixed: by fixed_penalty if s > 1. none: nothing is sampled (the variant without ASU).",
    )
    fixed_penalty: float = Field(
        default=0.5, ge=0.01, le=1.0, title="Fixed penalty", description="The factor of penalty 'fixed'."
    )
    samples: int = Field(
        default=10, ge=2, le=1000, title="Samples (m)", description="How many answers are sampled from a batch."
    )
    sampled_documents: int = Field(
        default=5,
        ge=1,
        le=1000,
        title="Documents sampled from",
        description="How many of a batch's best documents the answers are sampled from.",
    )
    temperature: float = Field(default=0.7, ge=0.01, le=2.0, title="Temperature", description="Of the sampled answers.")
    patience: int = Field(
        default=0,
        ge=0,
        le=10_000,
        title="Patience",
        description="Stop after this many batches in a row that do not improve the best documents; 0: spend the "
        "whole budget, as the paper does.",
    )
    tolerance: float = Field(
        default=0.001,
        ge=0.0,
        le=1.0,
        title="Tolerance (ε)",
        description="How much the mean score of the best documents must grow to count as better.",
    )

    @model_validator(mode="after")
    def _few_enough_batches(self) -> Self:
        if self.budget > self.batch * MOST_BATCHES:
            raise ValueError(
                f"a budget of {self.budget} in batches of {self.batch} makes more than {MOST_BATCHES} batches: give a "
                f"batch of at least {math.ceil(self.budget / MOST_BATCHES)}, or a smaller budget"
            )
        return self

    def needs(self) -> frozenset[Capability]:
        """Query likelihood scores given text."""
        return frozenset({"score"}) if self.reranker == "likelihood" else frozenset()
