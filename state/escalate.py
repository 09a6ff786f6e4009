"""State and context of `escalate`."""

import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import TypedDict

from .context import BaseContext, Presets, all_contexts, names_no_resource
from .flow import Answered, Flow
from .mixins import CitingContext, RetrievalContext, ThinkingContext
from .records import extend
from .vanilla_rag import DF_RAG_MODELS

RUNGS = ("cot", "vanilla_rag", "df_rag", "dense_rag", "sunar", "seakr")
"""The graphs that may be a rung. `dense` is a part of dense_rag, and a figure cannot show one subgraph twice."""


@cache
def rung_context(name: str) -> type[BaseContext]:
    """The type of a rung's settings. The first call imports files, which must not happen on an event loop."""
    return next(context for context in all_contexts() if context.graph == name)


class Rung(TypedDict):
    """What a rung did.

    uncertainty: null if it could not be measured; signal: its name, empty if there is none; threshold: the rung answers
    up to this uncertainty; certain: does it? failure: why the rung has no answer, a sentence; empty if it has one.
    calls, tokens: what the rung cost.
    """

    graph: str
    answer: str
    uncertainty: float | None
    signal: str
    threshold: float
    certain: bool
    failure: str
    calls: int
    tokens: int


class EscalateState(Flow, total=False):
    """The state of a cascade.

    tried: the rungs so far, cheapest first; next_rung: the rung to try next, empty if there is none; failure: of the
    rung that ran last, null if it did not fail.
    """

    tried: Annotated[list[Rung], extend]
    next_rung: str
    failure: str | None


class EscalateOutput(Answered):
    """The answer, and the rungs that were tried for it."""

    tried: list[Rung]


class EscalateContext(CitingContext, ThinkingContext, RetrievalContext):
    """Settings of a cascade. The rungs have the settings that they share with it."""

    graph: ClassVar[str] = "escalate"
    measures_itself: ClassVar[bool] = True
    presets: ClassVar[Presets] = DF_RAG_MODELS

    rungs: str = Field(
        default="cot,vanilla_rag,df_rag,dense_rag",
        title="Rungs",
        description="The graphs to try in turn, the cheapest first: some of " + ", ".join(RUNGS) + ".",
        json_schema_extra=names_no_resource(),
    )
    certain_up_to: float = Field(
        default=0.5,
        ge=0.0,
        le=1000.0,
        title="Certain up to",
        description="A rung answers if its uncertainty is at most this. A calibration has a threshold for each rung.",
    )
    uncertainty: Literal["own", "likelihood", "semantic_entropy", "disagreement", "combined"] = Field(
        default="semantic_entropy",
        title="Uncertainty of the answer",
        description="The uncertainty that every rung measures; see the rungs' own setting.",
    )
    rung_settings: str = Field(
        default="",
        title="Settings of rungs",
        description='Settings of single rungs as JSON, such as {"df_rag": {"evaluator": "choice"}}. A rung has all '
        "other settings from here, or its own defaults.",
        json_schema_extra=names_no_resource(),
    )
    max_calls: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        title="Most calls",
        description="No further rung after this many model calls; 0: no limit.",
    )
    max_tokens: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        title="Most tokens",
        description="No further rung after this many tokens, read and written; 0: no limit.",
    )
    max_seconds: float = Field(
        default=0.0,
        ge=0.0,
        le=1e6,
        title="Most seconds",
        description="No further rung after its steps took so many seconds, those of parallel steps added; 0: no limit.",
    )

    @property
    def names(self) -> list[str]:
        """The rungs, the cheapest first."""
        return [name.strip() for name in self.rungs.split(",")]

    @property
    def own_settings(self) -> Mapping[str, Mapping[str, Any]] | None:
        """The settings of single rungs, by rung; None if the text is no JSON of this form."""
        try:
            own = json.loads(self.rung_settings or "{}")
        except (ValueError, RecursionError):
            return None
        right = isinstance(own, dict) and all(isinstance(settings, dict) for settings in own.values())
        return own if right else None

    @field_validator("rungs")
    @classmethod
    def _known_rungs(cls, text: str) -> str:
        names = [name.strip() for name in text.split(",")]
        if unknown := [name for name in names if name not in RUNGS]:
            raise ValueError(f"must list graphs of {', '.join(RUNGS)}, and '{unknown[0]}' is none of them")
        if len(set(names)) < len(names):
            raise ValueError("must list each graph once")
        return ",".join(names)

    @field_validator("rung_settings", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return json.dumps(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _check_rungs(self) -> Self:
        own = self.own_settings
        if own is None:
            raise ValueError('rung_settings must be JSON such as {"df_rag": {"evaluator": "choice"}}')
        for name, settings in own.items():
            if name not in self.names:
                raise ValueError(f"rung_settings names '{name}', which is no rung: use {', '.join(self.names)}")
            if wrong := {"llm", "corpus", "calibration", "cite", "preset"} & settings.keys():
                raise ValueError(f"rung_settings of {name} may not have {min(wrong)}: all rungs share it")
        for rung, names in self.parts():
            unused = rung.unused()
            if useless := next((name for name in names if name in unused), None):
                raise ValueError(
                    f"{useless} of the rung {rung.graph} has no effect: change its {unused[useless]}, or leave it out"
                )
        if self.calibration and (self.max_calls or self.max_tokens or self.max_seconds):
            raise ValueError(
                "calibration holds for runs without a limit: set max_calls, max_tokens and max_seconds to 0"
            )
        return self

    def parts(self) -> Iterator[tuple[BaseContext, Collection[str]]]:
        """The contexts of the rungs with settings of their own, and the names of these settings."""
        for name, settings in (self.own_settings or {}).items():
            rung = rung_context(name)
            yield rung.unchecked(self.for_part(rung)), settings.keys()

    def for_part(self, part: type[BaseContext]) -> Mapping[str, Any]:
        """A rung has its own settings, and leaves to the cascade whether its answer is given, and to cite it."""
        left = {name: off for name, off in (("calibration", ""), ("cite", False)) if name in part.model_fields}
        return {**super().for_part(part), **left, **(self.own_settings or {}).get(part.graph, {})}
