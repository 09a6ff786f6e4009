"""State and context of `dense`, the measurement, which `dense_rag` has as a subgraph."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NotRequired

from langgraph.channels import EphemeralValue
from pydantic import Field
from typing_extensions import TypedDict

from .context import BaseContext
from .flow import Answered, Flow, Question
from .presets import DENSE_MODELS
from .records import Chunk, merge

ORIGINAL = "(original)"
"""The key of the response to the context as it is, r_0; no chunk has it for an id."""

REPEATED = "(repeated)"
"""The key of a second response to the same context."""


def text_key(text: str) -> str:
    """The key a chunk's rephrasing goes by: of its text, so that equal texts are rephrased once."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class DenseInput(Question):
    """A question, and the chunks to measure; without chunks the nearest of the corpus are measured."""

    chunks: NotRequired[list[str | Chunk] | None]


class Figures(TypedDict):
    """What one measurement says, n = k + 1 responses.

    responses: r_0 to the context as it is, then r_i to the context with only chunk i rephrased, [n];
    rephrasings: c'_i, the chunk's own text where it could not be probed, [k];
    link: W, how far each two responses entail each other, [n, n], each 0, 0.5 or 1;
    dse: degree-based semantic entropy (equation 6) in nats, 0 (all agree) to log n (all differ);
    shares: each chunk's own term of it, that of r_i, [k], nats; with r_0's term they add up to `dse`;
    certain: the DSE is at most the threshold, and at least one chunk was probed.
    """

    responses: list[str]
    rephrasings: list[str]
    link: list[list[float]]
    dse: float
    shares: list[float]
    certain: bool


class DenseState(Flow, total=False):
    """What flows through the measurement.

    chunks: what the caller gave, and given: that it gave any; repeat: whether r_0 is asked twice, to see whether the
    model repeats itself; rephrased: c' by `text_key` of c; pending: the contexts to answer, each by the id of the
    chunk that is rephrased in it, or `ORIGINAL`; replies: their answers. The rest are the figures.
    """

    chunks: Annotated[list[str | Chunk] | None, EphemeralValue(list)]  # or a thread's next question would find them
    given: bool
    repeat: bool
    rephrased: Annotated[dict[str, str], merge]
    pending: list[str]
    replies: Annotated[dict[str, str], merge]
    responses: list[str]
    rephrasings: list[str]
    link: list[list[float]]
    dse: float
    shares: list[float]
    certain: bool


class RephraseInput(TypedDict):
    """What one rephrasing reads."""

    chunk: Chunk


class AnswerInput(TypedDict):
    """What one answer reads: a context, and the key its answer goes by."""

    key: str
    question: str
    evidence: list[Chunk]


class DenseOutput(Answered, Figures):
    """The answer r_0, and how far it can be relied on."""


class DenseContext(BaseContext):
    """Settings of DENSE (sections 4 and 5)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = DENSE_MODELS

    task: Literal["answer", "summarise"] = Field(
        default="answer",
        title="Task",
        description="answer: a short answer to the question. summarise: a few sentences on the chunks, the question "
        "says what of (appendix H.1); give max_answer_tokens room for them.",
    )
    judge: str = Field(
        default="preset",
        title="Entailment judge",
        description="llm: the chat model itself. nli:/folder-or-hub-name: an NLI cross-encoder. embedded: similarity "
        "of the answers' embeddings, an approximation; similarity:T with a threshold of your own; or 'preset'.",
    )
    threshold: float = Field(
        default=0.2,
        ge=0.0,
        le=10.0,
        title="Threshold",
        description="The highest DSE, in nats, at which a question counts as certain.",
    )
    check_determinism: bool = Field(
        default=True,
        title="Check determinism",
        description="Ask one prompt twice in a model's first measurement and warn if the answers differ: "
        "the measurement rests on a model that answers the same prompt the same way at temperature 0.",
    )
