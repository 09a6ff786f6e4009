"""State and context of `dense_rag`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from .dense import DenseContext
from .flow import Answered, Flow
from .presets import DENSE_MODELS
from .records import Chunk, extend, merge

ChunkClass = Literal["certain", "necessary", "unnecessary"]

Stop = Literal["certain", "not_refined", "accepted", "all_visited", "max_rounds", "unchanged", "nothing_left"]
"""Why a run ended: the answer was certain without refinement; it was not, and refinement is off; a context was
accepted; every chunk has been measured; the rounds are spent; a round changed nothing; a round dropped every chunk."""


class Classified(TypedDict):
    """What one chunk does to the answer (section 5.2).

    response: r_i, with the chunk rephrased; link: W[i,0]; ablation: ar_i, without the chunk, and ablation_link: its
    link with r_0 (equations 8-10), both null for a certain chunk, which is not ablated.
    """

    chunk_id: str
    kind: ChunkClass
    response: str
    link: float
    ablation: str | None
    ablation_link: float | None


class Refill(TypedDict):
    """A chunk that came in, the chunk it is near to, and their cosine in [-1, 1]."""

    chunk_id: str
    near: str
    similarity: float


class Round(TypedDict):
    """A context that was measured, and what became of it.

    number: 0 for the first context of its chunking, then one more with each refinement; sufficient: the model's
    self-evaluation, null where it was not asked; classified, pruned, refilled: empty where the context was not refined.
    """

    number: int
    chunking: str
    chunk_ids: list[str]
    responses: list[str]
    link: list[list[float]]
    dse: float
    sufficient: bool | None
    classified: list[Classified]
    pruned: list[str]
    refilled: list[Refill]


class Best(TypedDict):
    """The answer to fall back on: that of the lowest DSE, as Algorithm 3 (lines 7-12) keeps it."""

    answer: str
    chunk_ids: list[str]
    dse: float
    probed: bool
    sufficient: bool | None


class DenseRagState(Flow, total=False):
    """What flows through DENSE-RAG.

    chunks: C, the context to measure; chunking: the chunker its chunks come from; total: how many chunks that has cut;
    visited: every chunk that has been in the context since, by id; round: refinements so far;
    rechunked: the chunks are cut by meaning after the first ones were uncertain;
    sufficient: the self-evaluation of this context, null where it was not asked (yet); best: see `Best`;
    ablations: ar_i by chunk id; classified: the chunks of this context; stopped: why the run ended, null while it goes
    on; rounds: every context that was measured and left. The rest are this context's figures, see `Figures`.
    """

    chunks: list[Chunk]
    chunking: str
    total: int
    visited: dict[str, Chunk]
    round: int
    rechunked: bool
    sufficient: bool | None
    best: Best | None
    ablations: Annotated[dict[str, str], merge]
    classified: list[Classified]
    stopped: Stop | None
    rounds: Annotated[list[Round], extend]
    responses: list[str]
    rephrasings: list[str]
    link: list[list[float]]
    dse: float
    shares: list[float]
    certain: bool


class DenseRagOutput(Answered):
    """The answer, how far it can be relied on, and every context that was measured on the way.

    dse: of the answer's own context; sufficient: the model's judgement of it, null where it was not asked.
    """

    dse: float
    certain: bool
    sufficient: bool | None
    stopped: Stop
    rounds: list[Round]


class DenseRagContext(DenseContext):
    """Settings of DENSE-RAG (section 5, Algorithms 2 and 3) and of its ablations (Tables 3 and 4)."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "embedded": {**DENSE_MODELS["embedded"], "rechunker": "semantic:0.3/128"},
        "paper": {**DENSE_MODELS["paper"], "rechunker": "semantic:0.6/512"},
    }

    adaptive: bool = Field(
        default=True,
        title="Adaptive chunking",
        description="Cut the corpus anew by meaning when the answer is uncertain. Off: refine the first chunks.",
    )
    rechunker: str = Field(
        default="preset",
        title="Semantic chunker",
        description="semantic:TAU/TMAX: neighbouring sentences stay together while their cosine is at least TAU and "
        "the chunk at most TMAX tokens; or 'preset'.",
    )
    refinement: Literal["full", "prune", "off"] = Field(
        default="full",
        title="Refinement",
        description="full: drop unnecessary chunks and add chunks near the necessary ones. prune: drop only. "
        "off: answer from the chunks as retrieved.",
    )
    self_evaluation: bool = Field(
        default=True,
        title="Self-evaluation",
        description="Ask the model whether the context suffices; off, every context counts as sufficient.",
    )
    refill_near: Literal["necessary", "certain"] = Field(
        default="necessary", title="Refill near", description="Which chunks the added ones are to be similar to."
    )
    half_links: Literal["necessary", "unnecessary"] = Field(
        default="necessary",
        title="Half links",
        description="What a chunk is whose removal leaves an answer that is entailed in one direction only. "
        "necessary: Algorithm 3. unnecessary: equation 10.",
    )
    accept: Literal["both", "either"] = Field(
        default="both",
        title="Accept",
        description="both: stop when the DSE is below the threshold and the context is judged sufficient "
        "(Algorithm 3). either: when one of them holds (section 5.2).",
    )
    max_rounds: int = Field(
        default=5, ge=1, le=100, title="Rounds", description="How many times the context is refined at most."
    )
    max_chunks: int = Field(
        default=20,
        ge=1,
        le=1000,
        title="Largest context",
        description="How many chunks a refined context has at most; the paper sets no limit.",
    )
