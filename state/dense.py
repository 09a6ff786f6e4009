"""State and context of `dense`, the measurement, which `dense_rag` has as a subgraph."""

import hashlib
from typing import Annotated, ClassVar, Literal, NotRequired, Self

from langgraph.channels import EphemeralValue
from pydantic import Field, model_validator
from typing_extensions import TypedDict

from .context import AUTO, Presets, names_resource, on_local_server
from .flow import Answered, Flow, Question
from .mixins import CitingContext, Judge, SearchContext, ThinkingContext
from .records import Chunk, merge

ORIGINAL = "r_0"
"""The key of the response to the original context."""

REPEATED = "r_0 again"
"""The key of a second response to the original context."""


def context_key(i: int) -> str:
    """The key of C_i and r_i, i from 1 to k. It is not the chunk's id, because callers choose ids."""
    return f"r_{i}"


def text_key(text: str) -> str:
    """The key of a rephrasing: a hash of the original text, so that equal texts are rephrased once."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class DenseInput(Question):
    """A question, and the chunks to measure. Without chunks, the k nearest chunks of the corpus are measured."""

    chunks: NotRequired[list[str | Chunk] | None]


class DseFigures(TypedDict, total=False):
    """The figures of one measurement in a state: those of `DenseOutput`."""

    responses: list[str]
    rephrasings: list[str]
    link: list[list[float]]
    dse: float
    shares: list[float]
    certain: bool


class DenseState(Flow, DseFigures, total=False):
    """The state of the measurement.

    chunks: the caller's chunks; given: whether the caller gave any;
    repeat: whether r_0 is generated twice, to check that the model is deterministic;
    rephrased: c' by `text_key` of c;
    context_keys: the contexts to answer from, `ORIGINAL` and the `context_key` of each rephrased chunk;
    response_by_key: the response to each context.
    """

    chunks: Annotated[list[str | Chunk] | None, EphemeralValue(list)]  # ephemeral: a thread's next question has its own
    given: bool
    repeat: bool
    rephrased: Annotated[dict[str, str], merge]
    context_keys: list[str]
    response_by_key: Annotated[dict[str, str], merge]


class PartInput(Question):
    """The input of the measurement as a part of another graph: the chunks that this graph measures."""

    context_chunks: list[Chunk]


class PartState(DenseState, total=False):
    """The state of the measurement as a part of another graph."""

    context_chunks: Annotated[list[Chunk], EphemeralValue(list)]


class RephraseInput(TypedDict):
    """The input of one rephrasing."""

    chunk: Chunk


class ResponseInput(TypedDict):
    """The input of one response: a context, and the key of the response."""

    key: str
    question: str
    evidence: list[Chunk]


class DenseOutput(Answered):
    """The answer r_0 and the figures of its measurement with n = k + 1 responses.

    responses: r_0 to the original context, then r_i to the context with only chunk i rephrased, [n];
    rephrasings: c'_i, or the chunk's own text if it could not be rephrased, [k];
    link: the semantic adjacency matrix W, the mean entailment of both directions, [n, n], each 0, 0.5 or 1;
    dse: degree-based semantic entropy (equation 6), nats, from 0 (all responses agree) to log n (all differ);
    shares: the term of each r_i in equation 6, [k], nats; with the term of r_0 they add up to `dse`;
    certain: `dse` is at most the threshold, and at least one chunk was rephrased.
    """

    responses: list[str]
    rephrasings: list[str]
    link: list[list[float]]
    dse: float
    shares: list[float]
    certain: bool


class DenseContext(CitingContext, ThinkingContext, SearchContext):
    """Settings of DENSE (sections 4 and 5)."""

    graph: ClassVar[str] = "dense"
    measures_itself: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        # small chunks, because the embedded models are small and slow on a CPU
        "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "tokens:128/16", "judge": "embedded"},
        # section 6.1 and appendix G
        "paper": {
            "llm": on_local_server("meta-llama/Llama-3.1-8B-Instruct"),
            "encoder": "st:WhereIsAI/UAE-Large-V1",
            "chunker": "tokens:512/64",
            "judge": "llm",
        },
    }

    dse_threshold: float = Field(
        default=0.2,
        ge=0.0,
        le=10.0,
        title="DSE threshold",
        description="An answer is certain if its DSE is at most this value, in nats.",
    )
    task: Literal["answer", "summarise"] = Field(
        default="answer",
        title="Task",
        description="answer: a short answer to the question. summarise: a summary of the chunks in a few sentences, "
        "about the subject that the question names (appendix H.1); raise max_answer_tokens for it.",
    )
    judge: Judge = AUTO
    rephraser: str = Field(
        default="llm",
        title="Rephrasing model",
        description="The chat model that rephrases the chunks. llm: the one that answers, as in the paper. Another: a "
        "name as for the setting llm.",
        json_schema_extra=names_resource("chat model", "llm", "embedded"),
    )
    check_determinism: bool = Field(
        default=True,
        title="Check determinism",
        description="In a model's first measurement, ask the same prompt twice and warn if the answers differ. "
        "DENSE assumes that a model gives the same answer to the same prompt at temperature 0.",
    )

    @model_validator(mode="after")
    def _measures_a_summary_by_dse(self) -> Self:
        if self.task == "summarise" and self.uncertainty != "own":
            raise ValueError(
                f"uncertainty={self.uncertainty} is measured on short answers: with task=summarise leave "
                "uncertainty=own, which is DSE"
            )
        return self
