"""Context of `vanilla_rag`, whose state and output have the shared keys only."""

from typing import ClassVar, Literal

from pydantic import Field

from .context import Presets, on_local_server, unused_with
from .mixins import K, RetrievalContext, ThinkingContext, UnitInterval

DF_RAG_MODELS: Presets = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100"},
    "paper": {
        "llm": on_local_server("meta-llama/Llama-3.3-70B-Instruct"),
        "encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
        "chunker": "words:300",
    },
}
"""DF-RAG section 3.5: Llama 3.3 70B, multi-qa-mpnet-base-cos-v1, windows of 100, 200 or 300 words."""


class VanillaRagContext(ThinkingContext, RetrievalContext):
    """Settings of plain retrieval and of DF-RAG's other baselines, which differ from it in how chunks are selected."""

    graph: ClassVar[str] = "vanilla_rag"
    presets: ClassVar[Presets] = DF_RAG_MODELS

    k: K = Field(default=5, json_schema_extra=unused_with(selection=["long_context"]))
    selection: Literal["top_k", "gmmr", "mmr", "long_context"] = Field(
        default="top_k",
        title="Selection",
        description="top_k: the k most similar chunks. gmmr, mmr: k chunks at one fixed diversity level λ. "
        "long_context: every chunk that fits into the model's context window.",
    )
    fixed_lambda: UnitInterval = Field(
        default=0.7,
        title="Fixed λ",
        description="The diversity level of gmmr and mmr: 1 is similarity only, 0 is diversity only.",
        json_schema_extra=unused_with(selection=["top_k", "long_context"]),
    )
