"""State and context of `seakr`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from .capability import At, Capability, Means, States
from .context import AUTO, PRESET, Option, Presets, names_no_resource, names_resource, unused_with
from .mixins import Judge, ReasoningTokens, Samples, Temperature, TopK, TopP, UnitInterval
from .reasoning import FoundAgain, MaxDocs, MaxSteps, ReasoningOutput, ReasoningState, SearchingContext
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

QUANTITIES: dict[States | At, str] = {
    "feed_forward": "it is what the authors' code reads",
    "eos": "it is what the authors' code reads",
    "residual": "the model shows no outputs of its feed-forward blocks, which the authors' code reads",
    "last": "the model shows no states at a token that is put in, which the authors' code reads",
}
"""Why the preset `paper` takes a hidden state."""

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


PAPER = {
    **SearchingContext.presets["paper"],
    # in this program, as the authors ran it: vLLM's server does not show the states that they read
    "llm": "engine:meta-llama/Llama-2-7b-chat-hf",
}


OURS = {
    "max_docs": "3",
    "max_steps": "10",
    "found_again": "replace",
    "on_nothing_new": "go_on",
    "rationales_uncertainty": "mean",
    "knowledge_ending": "kept",
}
AUTHORS = {
    # the numbers are those of the commands that the authors published
    "max_docs": "5",
    "max_steps": "7",
    "found_again": "skip",
    "on_nothing_new": "stop",
    "rationales_uncertainty": "anew",
    "knowledge_ending": "always",
}
"""Limits, and what happens where the paper is silent: ours, and what its authors' code does."""


OR_PRESET: JsonDict = {"type": "string"}
"""For a form: a text, which may be a number or the word 'preset'."""


class SeaKRContext(SearchingContext):
    """Settings of SeaKR (sections 3 and 4.1.3)."""

    graph: ClassVar[str] = "seakr"
    measures_itself: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "embedded": {**SearchingContext.presets["embedded"], **OURS},
        "paper": {**PAPER, **OURS},
        "authors": {**PAPER, **AUTHORS},
    }
    preset: Literal["embedded", "paper", "authors"] = Field(  # type: ignore[assignment]
        default="embedded",
        title="Preset",
        description="embedded: small models that are installed with dubito; no server is needed. paper: the models and "
        "sizes of the paper. authors: the paper's models with the limits and the endings of its authors' code. The "
        "preset sets every setting whose value is 'preset'.",
    )
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
        description="Retrieve when U is above this number. known: the value in threshold_file if there is "
        "one, else the built-in value for this model and estimator.",
        json_schema_extra=names_no_resource(),
    )
    threshold_file: str = Field(
        default="",
        title="File of the threshold",
        description="A file made by `dubito calibrate retrieval_threshold`; empty for no file.",
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
    top_p: TopP = Field(default=0.9, json_schema_extra=unused_with(estimator=UNSAMPLED))
    top_k: TopK = Field(default=50, json_schema_extra=unused_with(estimator=UNSAMPLED))
    layer: int = Field(
        default=0,
        ge=0,
        le=1000,
        title="Layer",
        description="The layer whose hidden states are compared; 0: the middle layer.",
        json_schema_extra=unused_with(estimator=NOT_GRAM),
    )
    states: Literal["auto", States] = Field(
        default=AUTO,
        title="Hidden states",
        description="The states of that layer. residual: the residual stream after it. feed_forward: the output of its "
        "feed-forward block alone, which the authors' code reads. auto: residual; with preset=paper feed_forward if "
        "the model shows it.",
        json_schema_extra=unused_with(estimator=NOT_GRAM),
    )
    at: Literal["auto", At] = Field(
        default=AUTO,
        title="Read at",
        description="The token whose state is read. last: the last token of the sample, whatever it is. eos: the "
        "end-of-sequence token, put in place of the last one, as the authors' code does. auto: last; with preset=paper "
        "eos if the model allows it.",
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
    max_docs: MaxDocs = Field(default=PRESET, json_schema_extra=OR_PRESET)  # type: ignore[assignment]  # a preset has it
    max_steps: MaxSteps = Field(default=PRESET, json_schema_extra=OR_PRESET)  # type: ignore[assignment]
    found_again: FoundAgain = Field(default=PRESET)
    max_reasoning_tokens: ReasoningTokens = Field(default=200, json_schema_extra=unused_with(reasoning=["rationales"]))
    word_uncertainty: UnitInterval = Field(
        default=0.1,
        title="Uncertain words",
        description="Leave a word out of the query if it has a token with 1 − p above this.",
    )
    on_nothing_new: Literal["preset", "go_on", "stop"] = Field(
        default=PRESET,
        title="Nothing new found",
        description="What happens if a search finds no new snippet. go_on: the draft step stands. stop: the reasoning "
        "ends without it, as in the authors' code.",
    )
    mode: Literal["complex", "simple", "one_pass"] = Field(
        default="complex",
        title="Questions",
        description="complex: retrieve up to max_docs times, then choose between two final strategies. simple: "
        "retrieve once at most. one_pass: write the whole reasoning in one reply; where its U is above the threshold, "
        "try each of the k best snippets for the question and keep the reasoning with the lowest U. The authors' code "
        "does this for simple questions, with k=10.",
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
        json_schema_extra=unused_with(mode=["one_pass"]),
    )
    rationales_uncertainty: Literal["preset", "mean", "anew"] = Field(
        default=PRESET,
        title="U of the rationales' answer",
        description="mean: the mean over the steps, as in the paper's examples. anew: U of the sentence that answers "
        "from the steps, which is written anew, as in the authors' code.",
        json_schema_extra=unused_with(mode=["one_pass"]),
    )
    knowledge_ending: Literal["preset", "kept", "always"] = Field(
        default=PRESET,
        title="Knowledge's answer",
        description="kept: answer from the knowledge if a snippet was kept. always: also without any, from the "
        "question alone, as in the authors' code.",
        json_schema_extra=unused_with(reasoning=["rationales"], mode=["one_pass"]),
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
        estimators = [Option(n, NEEDS[n], BECAUSE.get(n, "")) for n in ordered]
        inner: frozenset[Means] = frozenset({"inner_states"})
        pairs: Mapping[str, tuple[States | At, States | At]] = {
            "states": ("residual", "feed_forward"),
            "at": ("last", "eos"),
        }
        quantities = {
            name: [Option(ours, frozenset(), ""), Option(theirs, inner, "")]
            if self.preset == "embedded"
            else [Option(theirs, inner, QUANTITIES[theirs]), Option(ours, frozenset(), QUANTITIES[ours])]
            for name, (ours, theirs) in pairs.items()
        }
        return {**super().options(), "estimator": estimators, **quantities}

    def uses(self) -> frozenset[Capability]:
        """Also the probabilities of words, which decide what goes into a query."""
        return self.needs() | {"logprobs"}

    def refusal(self, llm: str, capabilities: frozenset[Capability]) -> str:
        """Names the estimators that the model can serve."""
        missing = sorted(self.needs() - capabilities)
        if not missing:
            return ""
        possible = ", ".join(name for name, needs in NEEDS.items() if needs <= capabilities)
        if missing == ["inner_states"]:
            return (
                f"states={self.states} and at={self.at} need what the chat model '{llm}' does not show: set "
                "states=residual and at=last, or use a model that shows it: embedded, hf:, gguf: or engine:."
            )
        return (
            f"The uncertainty estimator '{self.estimator}' needs {' and '.join(missing)}, which the chat model '{llm}' "
            f"does not give: use estimator {possible}; or a model that does: embedded, hf:, gguf:, or for hidden "
            "states engine:, or a vllm: server started by `dubito serve --hidden-states`."
        )

    def quantity(self) -> tuple[States, At]:
        """The hidden states that `gram` compares, and the token at which they are read."""
        return "residual" if self.states == AUTO else self.states, "last" if self.at == AUTO else self.at

    def documents(self) -> int:
        """The maximum number of snippets that are kept; at most 1 for simple questions."""
        return self.max_docs if self.mode == "complex" else min(self.max_docs, 1)

    def ends_with_nothing_new(self) -> bool:
        """Does the reasoning end if a search finds no new snippet?"""
        return self.on_nothing_new == "stop"

    def steps(self) -> int:
        """The maximum number of steps; a whole reasoning is one."""
        return 1 if self.mode == "one_pass" else self.max_steps
