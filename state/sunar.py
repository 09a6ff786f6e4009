"""State and context of `sunar`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .context import unused_with
from .flow import Answered, Flow
from .neighbourhood import NeighbourhoodContext, ScoredDocument, StopReason
from .records import Chunk, extend


class Hop(TypedDict):
    """A step of the reasoning path: a sub-question, its intermediate answer and its look-up.

    evidence_ids: the documents that the answer was made from, best first; scored: every document that was scored.
    """

    question: str
    answer: str
    evidence_ids: list[str]
    scored: list[ScoredDocument]
    stop_reason: StopReason


class ChainNode(TypedDict):
    """A node of SearChain's Chain-of-Query: a sub-question, and the model's own answer to it, empty if unsolved."""

    question: str
    answer: str


class SunarState(Flow, total=False):
    """What flows through SUNAR.

    query: the next sub-question, null if there is none.
    chain, chain_answer: with decomposition=searchain, the nodes from the current sub-question on and the chain's final
    answer, empty if its last node is unsolved.
    hops: the reasoning path so far.
    evidence_by_id: the best documents of every hop.
    sequential_answer: the answer at the end of the reasoning path.
    meta_evidence: the best of `evidence_by_id`, ranked for the question itself.
    changed: the final answer differs from the sequential one.
    scored, stop_reason: of the last look-up.
    """

    query: str | None
    chain: list[ChainNode]
    chain_answer: str
    hops: Annotated[list[Hop], extend]
    evidence_by_id: dict[str, Chunk]
    sequential_answer: str
    meta_evidence: list[Chunk]
    changed: bool
    scored: list[ScoredDocument]
    stop_reason: StopReason


class SunarOutput(Answered):
    """The answer, the reasoning path, its own answer, and whether reading all evidence again changed that answer."""

    hops: list[Hop]
    sequential_answer: str
    changed: bool


class SunarContext(NeighbourhoodContext):
    """Settings of SUNAR (section 3) and of its variants: -ASU is penalty=none, -MER is meta_evidence=false."""

    graph: ClassVar[str] = "sunar"
    decomposition: Literal["self_ask", "searchain"] = Field(
        default="self_ask",
        title="Decomposition",
        description="How the question is split. self_ask: the model asks one sub-question after another. searchain: "
        "the model writes the whole chain of sub-questions with its own answers, look-ups verify these, and after a "
        "wrong or missing answer it writes the rest anew.",
    )
    max_hops: int = Field(
        default=6, ge=1, le=100, title="Most sub-questions", description="The maximum number of sub-questions."
    )
    meta_evidence: bool = Field(
        default=True,
        title="Meta-evidence re-ranking (MER)",
        description="Read the best evidence of all sub-questions again before the final answer.",
    )
    documents_per_hop: int = Field(
        default=2,
        ge=1,
        le=100,
        title="Documents per sub-question",
        description="The number of each sub-question's best documents that go into the meta evidence.",
        json_schema_extra=unused_with(meta_evidence=[False]),
    )
    meta_documents: int = Field(
        default=10,
        ge=1,
        le=1000,
        title="Documents of the meta evidence",
        description="The number of meta-evidence documents that are read, those ranked highest for the question.",
        json_schema_extra=unused_with(meta_evidence=[False]),
    )
