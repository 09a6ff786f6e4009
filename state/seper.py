"""State and context of `seper`, the measurement of what retrieved chunks are worth to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NotRequired

from langgraph.channels import EphemeralValue
from pydantic import Field
from typing_extensions import TypedDict

from .capability import Capability
from .flow import Answered, Flow, Question
from .presets import SEPER_MODELS
from .records import Chunk, merge
from .vanilla_rag import VanillaRagContext

Side = Literal["with", "without"]
"""Which belief: with the chunks in the prompt, or without."""

WITH: Side = "with"
WITHOUT: Side = "without"


class SePerInput(Question):
    """A question, its right answers, and the chunks to measure; without chunks those of a retrieval are measured."""

    answers: list[str]
    chunks: NotRequired[list[str | Chunk] | None]


class Sampled(TypedDict):
    """One of n responses to a prompt.

    log_probability: of all its tokens, nats, null for one that cannot be or has no tokens; tokens: how many;
    weight: its likelihood, those of the n responses brought to the sum 1; cut: it was cut off at the longest answer.
    """

    text: str
    log_probability: float | None
    tokens: int
    weight: float
    cut: bool


class Judged(TypedDict):
    """What the judge says of n responses and a right answers: probabilities of entailment, neutral, contradiction.

    forward: of response i towards answer j, [n][a]; backward: the other way round, empty where that is not asked;
    between: of response i towards response j, [n][n], empty where nothing is clustered. Null where it could not say.
    """

    forward: list[list[list[float] | None]]
    backward: list[list[list[float] | None]]
    between: list[list[list[float] | None]]


class Response(Sampled):
    """A response as the belief counts it.

    entails, entailed: for each right answer P(response ⊨ answer) and P(answer ⊨ response), null where the judge could
    not say, the latter empty where it is not asked; cluster: its meaning, null where nothing is clustered.
    """

    entails: list[float | None]
    entailed: list[float | None]
    cluster: int | None


class Cluster(TypedDict):
    """Responses that mean the same: the first one, their weight together, and which right answers they match, [a]."""

    first: str
    weight: float
    matches: list[bool]


class Belief(TypedDict):
    """What a model believes: SePer, 0 to 1, and where it comes from.

    by_answer: SePer of each right answer by itself, [a]; clusters: empty where the rule is soft.
    """

    seper: float
    by_answer: list[float]
    responses: list[Response]
    clusters: list[Cluster]


class Figures(TypedDict):
    """What one measurement says.

    golds: the right answers, each once; seper, seper_without: the belief in them with the chunks and without, 0 to 1;
    delta: ΔSePer, the first less the second, −1 to 1: what the chunks are worth.
    """

    golds: list[str]
    seper: float
    seper_without: float
    delta: float
    with_context: Belief
    without_context: Belief


class SePerState(Flow, total=False):
    """What flows through the measurement.

    answers, chunks: what the caller gave, and given: that it gave any chunks; samples: the responses of each side;
    judged: what the judge says of them. The rest are the figures.
    """

    answers: Annotated[list[str] | None, EphemeralValue(list)]  # or a thread's next question would find them
    chunks: Annotated[list[str | Chunk] | None, EphemeralValue(list)]
    given: bool
    golds: list[str]
    samples: Annotated[dict[str, list[Sampled]], merge]
    judged: dict[str, Judged]
    seper: float
    seper_without: float
    delta: float
    with_context: Belief
    without_context: Belief


class SampleInput(TypedDict):
    """What one side's sampling reads."""

    side: Side
    question: str
    evidence: list[Chunk]


class SePerOutput(Answered, Figures):
    """The likeliest response, and how far the chunks made the model believe the right one."""


class SePerContext(VanillaRagContext):
    """Settings of SePer and ΔSePer (Dai et al., sections 3.3 and 3.4), and of the retrieval that is measured."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = SEPER_MODELS

    n: int = Field(
        default=10,
        ge=1,
        le=1000,
        title="Responses (n)",
        description="How many responses are sampled with the chunks, and how many without.",
    )
    temperature: float = Field(
        default=1.0,
        ge=0.01,
        le=2.0,
        title="Temperature",
        description="Of the sampled responses. At 1 they come as often as the model believes in them.",
    )
    rule: Literal["soft", "hard"] = Field(
        default="soft",
        title="Rule",
        description="soft: each response counts as far as it entails a right answer. hard: responses are put into "
        "clusters of one meaning, and those clusters count that match a right answer.",
    )
    direction: Literal["either", "forward"] = Field(
        default="either",
        title="Direction",
        description="Of the rule soft. either: the greater of response entails answer and answer entails response. "
        "forward: response entails answer alone.",
    )
    golds: Literal["max", "mean"] = Field(
        default="max",
        title="Several right answers",
        description="max: the belief in the one that is believed most. mean: over all of them.",
    )
    likelihood: Literal["mean", "sum"] = Field(
        default="mean",
        title="Likelihood",
        description="What a response weighs. mean: exp of its tokens' mean log-probability, whatever its length. "
        "sum: the product of its tokens' probabilities.",
    )
    clusters: Literal["bidirectional", "loose"] = Field(
        default="bidirectional",
        title="Clusters",
        description="Of the rule hard: two responses mean the same if each entails the other, or (loose) if one does "
        "and neither contradicts the other.",
    )
    match: Literal["loose", "bidirectional"] = Field(
        default="loose",
        title="Match",
        description="Of the rule hard: a cluster matches a right answer if its first response and the answer entail "
        "each other, or (loose) if one does and neither contradicts the other.",
    )
    judge: str = Field(
        default="preset",
        title="Entailment judge",
        description="nli:/folder-or-hub-name: an NLI cross-encoder. llm: the chat model itself. embedded: similarity "
        "of the answers' embeddings, an approximation; similarity:T with a threshold of your own; or 'preset'.",
    )

    def needs(self) -> frozenset[Capability]:
        """The responses' log-probabilities."""
        return frozenset({"logprobs"})
