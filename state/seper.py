"""State and context of `seper`, which measures how much chunks raise a model's belief in the right answer."""

from typing import Annotated, ClassVar, Literal, NotRequired, Self

from langgraph.channels import EphemeralValue
from pydantic import Field, field_validator, model_validator
from typing_extensions import TypedDict

from .capability import Capability
from .context import Presets, names_no_resource, on_local_server, unused_with
from .flow import Answered, Question
from .mixins import JudgeContext, Samples, Temperature, TopK, TopP
from .records import Chunk, merge
from .vanilla_rag import SelectionContext, SelectionState

Side = Literal["with", "without"]
"""With the chunks in the prompt, or without."""

WITH: Side = "with"
WITHOUT: Side = "without"

LIKELIEST = "likeliest"
"""The threshold τ that is not set: entailment holds if it is the likeliest label."""


class SePerInput(Question):
    """A question, its right answers, and the chunks to measure. Without chunks, a retrieval's chunks are measured."""

    answers: list[str]
    chunks: NotRequired[list[str | Chunk] | None]


class SampledResponse(TypedDict):
    """One of n responses to a prompt.

    log_probability: sum over tokens, nats; null if the response is empty or has a token of probability 0. tokens: their
    number. weight: the likelihood ℓ, normalised to sum 1 over the n responses. cut: was it cut off at the token limit?
    """

    text: str
    log_probability: float | None
    tokens: int
    weight: float
    cut: bool


class ResponseJudgements(TypedDict):
    """The judge's probabilities of entailment, neutral and contradiction, for n responses and a right answers.

    forward: response i towards answer j, [n][a]. backward: answer j towards response i, [n][a]; empty if not needed.
    between: response i towards response j, [n][n]; empty if the rule is soft. Null for a pair that it could not label.
    """

    forward: list[list[list[float] | None]]
    backward: list[list[list[float] | None]]
    between: list[list[list[float] | None]]


class ScoredResponse(SampledResponse):
    """A response with its judgements.

    entails, entailed: for each right answer P(response ⊨ answer) and P(answer ⊨ response); null if the judge could not
    label the pair; entailed is empty if it is not needed. cluster: its semantic cluster, null if the rule is soft.
    """

    entails: list[float | None]
    entailed: list[float | None]
    cluster: int | None


class Cluster(TypedDict):
    """A semantic cluster: its first response, its total weight, and which right answers it matches, [a]."""

    first: str
    weight: float
    matches: list[bool]


class Belief(TypedDict):
    """A model's belief in the right answers: SePer, 0 to 1, and where it comes from.

    by_answer: SePer of each right answer alone, [a]. clusters: empty if the rule is soft.
    """

    seper: float
    by_answer: list[float]
    responses: list[ScoredResponse]
    clusters: list[Cluster]


class SePerFigures(TypedDict, total=False):
    """The result of one measurement in a state: the figures of `SePerOutput`."""

    gold_answers: list[str]
    seper: float
    seper_without: float
    delta: float
    with_context: Belief
    without_context: Belief


class SePerState(SelectionState, SePerFigures, total=False):
    """The state of the measurement.

    answers, chunks: the caller's. given: whether the caller gave chunks. responses_by_side, judgements_by_side: the
    sampled responses of each side, and the judge's probabilities for them.
    """

    answers: Annotated[list[str] | None, EphemeralValue(list)]  # else the thread's next question would find them
    chunks: Annotated[list[str | Chunk] | None, EphemeralValue(list)]
    given: bool
    responses_by_side: Annotated[dict[str, list[SampledResponse]], merge]
    judgements_by_side: dict[str, ResponseJudgements]


class SampleInput(TypedDict):
    """The input of `sample_responses`: one side's evidence, which is empty without the chunks."""

    side: Side
    question: str
    evidence: list[Chunk]


class SePerOutput(Answered):
    """The likeliest answer, and how much the chunks raise the belief in the right one.

    gold_answers: the right answers without repetitions. seper, seper_without: the belief in them with the chunks and
    without, 0 to 1. delta: ΔSePer = seper − seper_without, −1 to 1.
    """

    gold_answers: list[str]
    seper: float
    seper_without: float
    delta: float
    with_context: Belief
    without_context: Belief


class SePerContext(JudgeContext, SelectionContext):
    """Settings of SePer and ΔSePer (Dai et al., sections 3.3 and 3.4), and of the retrieval that is measured."""

    graph: ClassVar[str] = "seper"
    presets: ClassVar[Presets] = {
        "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100", "judge": "embedded"},
        # sections 4.1 and D.4, over passages of 100 words; BGE is one of the retrievers of appendix C
        "paper": {
            "llm": on_local_server("meta-llama/Llama-2-7b-chat-hf"),
            "encoder": "st:BAAI/bge-base-en-v1.5",
            "chunker": "words:100",
            "judge": "nli:microsoft/deberta-v2-xlarge-mnli",
            "reranker": "cross:BAAI/bge-reranker-large",
        },
    }

    samples: Samples = Field(
        default=10,
        ge=1,
        title="Samples (n)",
        description="The number of responses that are sampled with the chunks, and again without them.",
    )
    rule: Literal["soft", "hard"] = Field(
        default="soft",
        title="Rule",
        description="soft: each response counts by the probability that it entails a right answer. hard: responses are "
        "put into semantic clusters, and the clusters that match a right answer count.",
    )
    temperature: Temperature = Field(
        default=1.0,
        description="The temperature at which responses are sampled. At 1 they follow the model's own distribution.",
    )
    top_p: TopP = 1.0
    top_k: TopK = 0
    stop: str = Field(
        default="",
        title="Stop",
        description="The texts that end a response, separated by commas; \\n is a line break. Empty: the model ends "
        "it. The authors' code has \\n,Question:,Context:.",
        json_schema_extra=names_no_resource(),
    )
    direction: Literal["either", "forward"] = Field(
        default="either",
        title="Direction",
        description="either: the greater of P(response entails answer) and P(answer entails response). forward: "
        "P(response entails answer).",
        json_schema_extra=unused_with(rule=["hard"]),
    )
    several_answers: Literal["max", "mean", "union"] = Field(
        default="max",
        title="Several right answers",
        description="max: the belief in the right answer with the highest belief. mean: the mean over all right "
        "answers. union (only with rule=hard): a cluster counts if it matches any right answer.",
    )
    likelihood: Literal["mean", "sum"] = Field(
        default="mean",
        title="Likelihood",
        description="The weight of a response. mean: exp of the mean log-probability of its tokens, so length does not "
        "matter. sum: the product of its tokens' probabilities.",
    )
    end_of_turn: bool = Field(
        default=True,
        title="End-of-turn token",
        description="Count the end-of-turn token in the weight of a response, where the model gives it. Off in the "
        "authors' code.",
    )
    question_mark: bool = Field(
        default=False,
        title="Question mark",
        description="Show the judge the question with a question mark at its end, also where it has none. On in the "
        "authors' code.",
    )
    entailment_threshold: str = Field(
        default=LIKELIEST,
        title="Entailment threshold (τ)",
        description="When one text entails another. likeliest: entailment is the judge's likeliest label (the authors' "
        "code). A number above 0, at most 1: P(entailment) is at least this.",
        json_schema_extra=names_no_resource() | unused_with(rule=["soft"]),
    )
    cluster_founder: Literal["first", "last"] = Field(
        default="first",
        title="Founder",
        description="Which cluster a response joins if it is equivalent to the first responses of several clusters: "
        "the first of these clusters, or the last (the authors' code).",
        json_schema_extra=unused_with(rule=["soft"]),
    )
    cluster_rule: Literal["bidirectional", "loose"] = Field(
        default="bidirectional",
        title="Cluster rule",
        description="When two responses belong to one cluster. bidirectional: each entails the other. loose: one "
        "entails the other, and neither contradicts the other.",
        json_schema_extra=unused_with(rule=["soft"]),
    )
    match_rule: Literal["loose", "bidirectional"] = Field(
        default="loose",
        title="Match rule",
        description="When a cluster matches a right answer, by the cluster's first response. bidirectional: response "
        "and answer entail each other. loose: one entails the other, and neither contradicts the other.",
        json_schema_extra=unused_with(rule=["soft"]),
    )

    @field_validator("entailment_threshold", mode="before")
    @classmethod
    def _threshold_or_likeliest(cls, value: object) -> object:
        text = str(value).strip()
        try:
            is_valid = text == LIKELIEST or 0 < float(text) <= 1
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ValueError(f"must be a number above 0, at most 1, or '{LIKELIEST}' for the judge's likeliest label")
        return text

    @model_validator(mode="after")
    def _union_of_clusters(self) -> Self:
        if self.several_answers == "union" and self.rule == "soft":
            raise ValueError(
                "several_answers=union needs clusters, which rule=soft has not: set rule=hard, or several_answers=max"
            )
        return self

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end a response."""
        return tuple(text.replace("\\n", "\n") for text in self.stop.split(",") if text)

    def made_useless_by(self, name: str) -> str | None:
        """A judge by similarity does not read the question."""
        if name == "question_mark" and self.judge.partition(":")[0] in {"embedded", "similarity"}:
            return "judge"
        return super().made_useless_by(name)

    def needs(self) -> frozenset[Capability]:
        """The log-probabilities of the responses."""
        return frozenset({"logprobs"})
