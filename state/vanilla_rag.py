"""State and context of `vanilla_rag`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from .context import BaseContext
from .flow import Answered, Flow
from .presets import DF_RAG_MODELS


class VanillaRagState(Flow, total=False):
    """Nothing but the shared keys: retrieve, then generate."""


class VanillaRagOutput(Answered):
    """Nothing but the shared figures."""


class VanillaRagContext(BaseContext):
    """Settings of plain retrieval, and of DF-RAG's baselines that differ from it only in how chunks are selected."""

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = DF_RAG_MODELS

    selection: Literal["top_k", "gmmr", "mmr", "long_context"] = Field(
        default="top_k",
        title="Selection",
        description="top_k: the k most similar chunks. gmmr, mmr: k chunks at one fixed diversity level. "
        "long_context: every chunk that fits the model's window.",
    )
    fixed_lambda: float = Field(
        default=0.7,
        ge=0.0,
        le=1.0,
        title="Fixed λ",
        description="The diversity level of gmmr and mmr: 1 is pure similarity, 0 pure diversity.",
    )
