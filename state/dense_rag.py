"""State and context of `dense_rag`."""

from typing import Annotated, ClassVar, Literal, NotRequired

from langgraph.channels import EphemeralValue
from pydantic import Field
from typing_extensions import TypedDict

from .context import PRESET, Presets, names_no_resource, unused_with
from .dense import DenseContext, DseFigures
from .flow import Answered, Flow, Question
from .records import Chunk, extend, merge

ChunkClass = Literal["certain", "necessary", "unnecessary"]

StopReason = Literal["certain", "not_refined", "accepted", "all_visited", "max_rounds", "unchanged", "nothing_left"]
"""Why a run ended.

certain: the answer was certain without refinement. not_refined: it was uncertain and refinement is off.
accepted: a context met the `accept` setting. all_visited: every chunk has been in the context.
max_rounds: the limit of rounds was reached. unchanged: a round changed nothing.
nothing_left: a round dropped all chunks.
"""


class ClassifiedChunk(TypedDict):
    """The class of one chunk (section 5.2) and the evidence for it.

    response: r_i, with the chunk rephrased; link: W[i,0];
    ablation: ar_i, the response without the chunk; ablation_link: its link with r_0 (equations 9 and 10).
    Both are null for a certain chunk, which is not ablated.
    """

    chunk_id: str
    kind: ChunkClass
    response: str
    link: float
    ablation: str | None
    ablation_link: float | None


class Refill(TypedDict):
    """An added chunk, the chunk of the context it is nearest to, and their cosine in [-1, 1]."""

    chunk_id: str
    near: str
    similarity: float


class RefinementRound(TypedDict):
    """A measured context and its refinement.

    number: 0 for the first context of a chunking, then 1 more with each refinement;
    sufficient: the model's self-evaluation, null if it was not asked;
    classified, pruned, refilled: empty if the context was not refined.
    """

    number: int
    chunking: str
    chunk_ids: list[str]
    responses: list[str]
    link: list[list[float]]
    dse: float
    sufficient: bool | None
    classified: list[ClassifiedChunk]
    pruned: list[str]
    refilled: list[Refill]


class BestAnswer(TypedDict):
    """The answer with the lowest DSE so far, by the rule of Algorithm 3 (lines 7-12).

    probed: whether there is an answer, and at least one chunk was rephrased; without that the DSE means nothing.
    """

    answer: str
    chunk_ids: list[str]
    dse: float
    probed: bool
    sufficient: bool | None


GIVEN = "given"
"""In place of the chunker's name, of chunks that the caller gave."""


class DenseRagInput(Question):
    """A question, and the chunks to begin with. Without chunks, these are the k nearest chunks of the corpus."""

    chunks: NotRequired[list[str | Chunk] | None]


class DenseRagState(Flow, DseFigures, total=False):
    """The state of DENSE-RAG; the inherited figures are those of the latest context.

    chunks: the caller's chunks; given: whether the caller gave any; needs_corpus: whether the corpus is needed
    nevertheless; context_chunks: the context C to measure;
    chunking: the chunker of C, `GIVEN` for the caller's chunks; total: the number of chunks that C can be made from, 0
    if there is no corpus; visited: all chunks that have been in the context since then, by id;
    round: refinements so far; rechunked: whether the corpus was chunked again by meaning;
    sufficient: the self-evaluation of this context, null before it is asked; best: see `BestAnswer`;
    ablations: ar_i by chunk id; classified: the chunks of this context by class;
    stop_reason: null while the run goes on; rounds: all earlier contexts.
    """

    chunks: Annotated[list[str | Chunk] | None, EphemeralValue(list)]
    given: bool
    needs_corpus: bool
    context_chunks: list[Chunk]
    chunking: str
    total: int
    visited: dict[str, Chunk]
    round: int
    rechunked: bool
    sufficient: bool | None
    best: BestAnswer | None
    ablations: Annotated[dict[str, str], merge]
    classified: list[ClassifiedChunk]
    stop_reason: StopReason | None
    rounds: Annotated[list[RefinementRound], extend]


class DenseRagOutput(Answered):
    """The answer, how uncertain it is, and all measured contexts in order.

    dse, certain: of the context of the answer; sufficient: its self-evaluation, null if the model was not asked.
    """

    dse: float
    certain: bool
    sufficient: bool | None
    stop_reason: StopReason
    rounds: list[RefinementRound]


class DenseRagContext(DenseContext):
    """Settings of DENSE-RAG (section 5, Algorithms 2 and 3) and of its ablations (Tables 3 and 4)."""

    graph: ClassVar[str] = "dense_rag"
    presets: ClassVar[Presets] = {
        "embedded": {**DenseContext.presets["embedded"], "rechunker": "semantic:0.3/128"},
        "paper": {**DenseContext.presets["paper"], "rechunker": "semantic:0.6/512"},
    }

    max_rounds: int = Field(
        default=5,
        ge=1,
        le=100,
        title="Most rounds",
        description="The maximum number of refinements.",
        json_schema_extra=unused_with(refinement=["off"]),
    )
    refinement: Literal["full", "prune", "off"] = Field(
        default="full",
        title="Refinement",
        description="full: drop unnecessary chunks and add chunks that are similar to necessary ones. prune: only "
        "drop. off: answer from the chunks as they were retrieved.",
    )
    adaptive: bool = Field(
        default=True,
        title="Adaptive chunking",
        description="On: if the answer is uncertain, split the documents again into semantic chunks. Off: keep the "
        "first chunks.",
    )
    rechunker: str = Field(
        default=PRESET,
        title="Semantic chunker",
        description="semantic:TAU/TMAX: neighbouring sentences stay together while their cosine is at least TAU and "
        "the chunk has at most TMAX tokens.",
        json_schema_extra=names_no_resource() | unused_with(adaptive=[False]),
    )
    self_evaluation: bool = Field(
        default=True,
        title="Self-evaluation",
        description="On: ask the model whether the context suffices. Off: every context counts as sufficient.",
        json_schema_extra=unused_with(refinement=["off"]),
    )
    refill_near: Literal["necessary", "certain"] = Field(
        default="necessary",
        title="Add chunks near",
        description="The class of chunks to which the added chunks are similar.",
        json_schema_extra=unused_with(refinement=["off", "prune"]),
    )
    half_links: Literal["necessary", "unnecessary"] = Field(
        default="necessary",
        title="Half links",
        description="The class of a chunk if the answers with and without it entail each other in one direction only. "
        "necessary: Algorithm 3. unnecessary: equation 10.",
        json_schema_extra=unused_with(refinement=["off"]),
    )
    accept: Literal["both", "either"] = Field(
        default="both",
        title="Accept",
        description="both: stop when the DSE is below the threshold and the context suffices (Algorithm 3). either: "
        "stop when one of the two holds (section 5.2).",
        json_schema_extra=unused_with(refinement=["off"]),
    )
    max_chunks: int = Field(
        default=20,
        ge=1,
        le=1000,
        title="Largest context",
        description="The maximum number of chunks of a refined context. The paper sets no limit.",
        json_schema_extra=unused_with(refinement=["off", "prune"]),
    )
