"""State and context of `seakr`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import TypedDict

from .capability import Capability
from .context import AUTO, Option, Presets, names_no_resource, names_resource, unused_with
from .mixins import Judge, JudgeContext, ReasoningTokens, Samples, Temperature, UnitInterval
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
"""The capabilities of the chat model that each estimator needs."""

BECAUSE: dict[str, str] = {
    "gram": "it is the paper's, and the model shows its hidden states",
    "prompt": "the model shows no hidden states; this estimator's threshold holds for every model",
}
"""Why `auto` takes an estimator, the preferred one first."""

Strategy = Literal["rationales", "knowledge"]


class StrategyAnswer(TypedDict):
    """A strategy's answer, its reasoning and its U, null if not measured (SeaKR section 3.3).

    problem: why the answer is empty, as a clause about the model's reply; empty if there is an answer.
    """

    strategy: Strategy
    answer: str
    problem: str
    reasoning: str
    uncertainty: float | None


class SeaKRState(ReasoningState, total=False):
    """What flows through SeaKR. threshold: δ; strategy_answers: one for each strategy; strategy: the chosen one."""

    threshold: float
    strategy_answers: Annotated[list[StrategyAnswer], extend]
    strategy: Strategy


class SeaKROutput(ReasoningOutput):
    """The answer, δ, the strategies' answers, and the strategy that was chosen."""

    threshold: float
    strategy_answers: list[StrategyAnswer]
    strategy: Strategy


UNSAMPLED = ["prompt", "perplexity", "energy"]
"""The estimators that need no samples."""

UNJUDGED = [AUTO, *(name for name in NEEDS if name not in {"semantic_entropy", "degree_entropy"})]
"""The estimators that need no entailment judge."""

NOT_GRAM = [name for name in NEEDS if name != "gram"]


class SeaKRContext(JudgeContext, SearchingContext):
    """Settings of SeaKR (sections 3 and 4.1.3)."""

    graph: ClassVar[str] = "seakr"
    presets: ClassVar[Presets] = {
        "embedded": {**SearchingContext.presets["embedded"], "judge": "embedded"},
        "paper": {
            **SearchingContext.presets["paper"],
            # hidden states come from a second server, started by `dubito serve --hidden-states`
            "llm": SearchingContext.presets["paper"]["llm"] + "&states=http://127.0.0.1:8001/v1",
            "judge": "llm",
        },
    }
    ends_with_documents: ClassVar[bool] = True

    k: int = Field(
        default=3,
        ge=1,
        le=100,
        title="Snippets (N)",
        description="The number of snippets of a search that are tried, each by itself.",
        json_schema_extra=unused_with(self_aware_reranking=[False]),
    )
    estimator: Literal["auto", Estimator] = Field(
        default=AUTO,
        title="Uncertainty estimator",
        description="How the uncertainty U is measured. auto: gram if the model shows hidden states, else prompt. "
        "gram (the paper's): how far apart the hidden states of sampled steps are. prompt: the model says whether it "
        "knows enough. perplexity, multi_perplexity, ln_entropy: from log-probabilities. energy: from logits. "
        "semantic_entropy, degree_entropy: whether sampled steps entail each other; they work with every model.",
    )
    retrieval_threshold: str = Field(
        default=KNOWN,
        title="Threshold (δ)",
        description="Retrieve when U is above this number. known: the value of the setting calibration if there is "
        "one, else the built-in value for this model and estimator.",
        json_schema_extra=names_no_resource(),
    )
    calibration: str = Field(
        default="",
        title="Calibration",
        description="A file made by `dubito calibrate seakr`; empty for no file.",
        json_schema_extra=names_resource("calibration", ""),
    )
    samples: Samples = Field(
        default=20,
        ge=2,
        title="Samples (k)",
        description="The number of steps that are sampled to measure U.",
        json_schema_extra=unused_with(estimator=UNSAMPLED),
    )
    temperature: Temperature = Field(default=1.0, json_schema_extra=unused_with(estimator=UNSAMPLED))
    top_p: float = Field(
        default=0.9,
        ge=0.01,
        le=1.0,
        title="Top-p",
        description="Sample among the most likely tokens that together have this probability.",
        json_schema_extra=unused_with(estimator=UNSAMPLED),
    )
    top_k: int = Field(
        default=50,
        ge=0,
        le=1_000_000,
        title="Top-k",
        description="Sample among this many of the most likely tokens; 0: among all.",
        json_schema_extra=unused_with(estimator=UNSAMPLED),
    )
    layer: int = Field(
        default=0,
        ge=0,
        le=1000,
        title="Layer",
        description="The layer whose hidden states are compared; 0: the middle layer.",
        json_schema_extra=unused_with(estimator=NOT_GRAM),
    )
    alpha: float = Field(
        default=1e-3,
        ge=1e-9,
        le=1.0,
        title="Regularisation (α)",
        description="The number that is added to the diagonal of the Gram matrix.",
        json_schema_extra=unused_with(estimator=NOT_GRAM),
    )
    judge: Judge = Field(default=AUTO, json_schema_extra=unused_with(estimator=UNJUDGED))
    max_reasoning_tokens: ReasoningTokens = Field(default=200, json_schema_extra=unused_with(reasoning=["rationales"]))
    word_uncertainty: UnitInterval = Field(
        default=0.1,
        title="Uncertain words",
        description="Leave a word out of the query if it has a token with 1 − p above this.",
    )
    mode: Literal["complex", "simple"] = Field(
        default="complex",
        title="Questions",
        description="complex: retrieve up to max_docs times, then choose between two final strategies. simple: "
        "retrieve once at most.",
    )
    self_aware_retrieval: bool = Field(
        default=True,
        title="Self-aware retrieval",
        description="On: retrieve when U is above the threshold. Off: retrieve at every step.",
    )
    self_aware_reranking: bool = Field(
        default=True,
        title="Self-aware re-ranking",
        description="On: keep the snippet with the lowest U. Off: keep the first snippet of the search.",
    )
    reasoning: Literal["self_aware", "rationales", "knowledge"] = Field(
        default="self_aware",
        title="Self-aware reasoning",
        description="The final strategy. self_aware: the strategy with the lower U. rationales: answer from the steps. "
        "knowledge: answer from the kept snippets.",
    )

    @field_validator("retrieval_threshold", mode="before")
    @classmethod
    def _number_or_known(cls, value: object) -> object:
        text = str(value).strip()
        try:
            is_valid = text == KNOWN or math.isfinite(float(text))
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ValueError(f"must be a number, or '{KNOWN}' for the value that is known for the model")
        return text

    def options(self) -> Mapping[str, Sequence[Option]]:
        """The estimators, those that `auto` may take first."""
        ordered = sorted(NEEDS, key=lambda name: name not in BECAUSE)
        return {**super().options(), "estimator": [Option(n, NEEDS[n], BECAUSE.get(n, "")) for n in ordered]}

    def uses(self) -> frozenset[Capability]:
        """Also the probabilities of words, which decide what goes into a query."""
        return self.needs() | {"logprobs"}

    def refusal(self, llm: str, capabilities: frozenset[Capability]) -> str:
        """Names the estimators that the model can serve."""
        missing = sorted(self.needs() - capabilities)
        if not missing:
            return ""
        possible = ", ".join(name for name, needs in NEEDS.items() if needs <= capabilities)
        return (
            f"The uncertainty estimator '{self.estimator}' needs {' and '.join(missing)}, which the chat model '{llm}' "
            f"does not give: use estimator {possible}; or a model that does: embedded, hf:, gguf:, or for hidden "
            "states engine:, or a vllm: server started by `dubito serve --hidden-states`."
        )

    def documents(self) -> int:
        """The maximum number of snippets that are kept; at most 1 for simple questions."""
        return min(self.max_docs, 1) if self.mode == "simple" else self.max_docs

    def tried(self) -> int:
        """The number of snippets of a search that are tried."""
        return self.k
