"""The runtime context every technique's own context derives from: plain settings, named models, named corpora."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .capability import Capability

PRESET = "preset"
"""The value of a setting that is left to the preset."""

LAMBDAS = tuple(step / 10 for step in range(1, 11))
"""The diversity levels of DF-RAG: 0.1, 0.2, ..., 1.0 (section 3.4; 0 would ignore the question)."""


class BaseContext(BaseModel):
    """Settings that every graph has. Studio shows them as a form; the CLI takes each as `--set name=value`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    presets: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """For each preset, the values of the settings that differ between presets."""
    looks_up: ClassVar[bool] = True
    """Whether the graph reads its corpus at all."""

    preset: Literal["embedded", "paper"] = Field(
        default="embedded",
        title="Preset",
        description="embedded: small models that ship as packages, nothing to start. "
        "paper: the paper's models and sizes. It decides every setting whose value is 'preset'.",
    )
    llm: str = Field(
        default=PRESET,
        title="Chat model",
        description="embedded, vllm:http://host:8000/v1#model (with &states=URL for its hidden states), "
        "engine:/folder-or-hub-name (vLLM in this program), openai:https://host/v1#model, hf:/folder-or-hub-name, "
        "gguf:/file.gguf; or 'preset'.",
    )
    encoder: str = Field(
        default=PRESET,
        title="Encoder",
        description="embedded, st:/folder-or-hub-name, openai:https://host/v1#model; or 'preset'.",
    )
    corpus: str = Field(
        default="sample",
        title="Corpus",
        description="sample, or a path: an index folder made by `dubito index`, or a corpus file or folder to index; "
        "or qdrant:URL#collection.",
    )
    chunker: str = Field(
        default=PRESET,
        title="Chunker",
        description="words:N for windows of N words, tokens:SIZE/OVERLAP for recursive splitting, "
        "semantic:TAU/TMAX for sentences of like meaning; or 'preset'.",
    )
    on_bad_record: Literal["refuse", "skip"] = Field(
        default="refuse",
        title="On a broken record",
        description="What to do with a corpus that has broken records: refuse it, or skip them and go on.",
    )
    k: int = Field(default=5, ge=1, le=1000, title="Chunks (k)", description="How many chunks the answer is made from.")
    max_answer_tokens: int = Field(
        default=64, ge=1, le=32768, title="Longest answer", description="The longest answer, in tokens."
    )
    thinking: bool = Field(
        default=False,
        title="Thinking",
        description="Let a reasoning model think before it plans and answers; its thoughts are never the answer.",
    )
    concurrency: int = Field(
        default=16, ge=1, le=1024, title="Concurrency", description="How many model calls may be under way at once."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        chosen = cls.presets.get(str(values.get("preset", "embedded")), {})
        left_open = {name: value for name, value in chosen.items() if values.get(name, PRESET) == PRESET}
        return {**values, **left_open}

    def needs(self) -> frozenset[Capability]:
        """What these settings ask of the chat model beyond plain completion."""
        return frozenset()
