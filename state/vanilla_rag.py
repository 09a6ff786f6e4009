"""State and context of `vanilla_rag`, whose output has the shared keys only."""

from typing import ClassVar, Literal

from pydantic import Field

from .context import Presets, on_local_server, unused_with
from .flow import Flow
from .mixins import (
    FIRST_STAGE,
    CitingContext,
    FirstStage,
    K,
    RerankN,
    SearchContext,
    ThinkingContext,
    TopN,
    UnitInterval,
)
from .records import Chunk

DF_RAG_MODELS: Presets = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100", "judge": "embedded"},
    "paper": {
        "llm": on_local_server("meta-llama/Llama-3.3-70B-Instruct"),
        "encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
        "chunker": "words:300",
        "judge": "llm",
    },
}
"""DF-RAG section 3.5: Llama 3.3 70B, multi-qa-mpnet-base-cos-v1, windows of 100, 200 or 300 words."""


WHOLE = ["long_context"]
"""The selection that needs no search."""

NOT_TOP_K = ["gmmr", "mmr_centroid", "mmr", *WHOLE]
"""The selections that are not re-ranked."""


class SelectionState(Flow, total=False):
    """The state of a retrieval. first_stage: the chunks that were re-ranked, in the order of the search."""

    first_stage: list[Chunk]


class SelectionContext(ThinkingContext, SearchContext):
    """How one retrieval selects its chunks."""

    k: K = Field(default=5, json_schema_extra=unused_with(selection=["long_context"]))
    selection: Literal["top_k", "gmmr", "mmr_centroid", "mmr", "long_context"] = Field(
        default="top_k",
        title="Selection",
        description="top_k: the k most similar chunks. gmmr, mmr_centroid, mmr: k chunks at one fixed diversity level "
        "λ. long_context: every chunk that fits into the model's context window.",
    )
    fixed_lambda: UnitInterval = Field(
        default=0.7,
        title="Fixed λ",
        description="The diversity level: 1 is similarity only, 0 is diversity only.",
        json_schema_extra=unused_with(selection=["top_k", "long_context"]),
    )
    first_stage: FirstStage = Field(default="dense", json_schema_extra=FIRST_STAGE | unused_with(selection=WHOLE))
    top_n: TopN = Field(
        default=200,
        description="The number of chunks that the first stage finds for the selection of diverse ones; the dense one "
        "finds all.",
        json_schema_extra=unused_with(first_stage=["dense"], selection=["top_k", *WHOLE]),
    )
    rerank_n: RerankN = Field(default=0, json_schema_extra=unused_with(selection=NOT_TOP_K))

    @property
    def uses_vectors(self) -> bool:
        """Everything but top_k compares vectors."""
        return self.selection != "top_k"


class VanillaRagContext(CitingContext, SelectionContext):
    """Settings of plain retrieval and of DF-RAG's other baselines, which differ from it in how chunks are selected."""

    graph: ClassVar[str] = "vanilla_rag"
    writes_marks: ClassVar[bool] = True
    presets: ClassVar[Presets] = DF_RAG_MODELS
