"""The settings of a graph as the inputs of a form, made from its context."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args, get_origin

from ...models.offer import Offer
from ...state.context import PRESET, BaseContext

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ...graphs.registry import Graph

COMMON = ("corpus", "llm", "k")
"""The settings that are not folded."""

NAMED_BY = {"corpus": "--corpus PATH", "llm": "--llm NAME"}
"""Those that have an option of their own."""


@dataclass(frozen=True)
class Input:
    """A setting. value: what it is to begin with, as text; options: of a choice, its value and its words;
    low, high: of a number, None where there is no limit."""

    name: str
    title: str
    description: str
    kind: Literal["choice", "switch", "whole", "number", "text"]
    value: str
    options: Sequence[tuple[str, str]] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Form:
    """about: what the graph is, in a line; answers: does it take right answers too?"""

    graph: str
    about: str
    answers: bool
    common: Sequence[Input]
    rest: Sequence[Input]


def form_of(graph: Graph, offer: Offer) -> Form:
    """The form of a graph: the common settings, then its own, then those that every graph has."""
    schema = cast("type[BaseContext]", graph.builder.context_schema)
    presets = [one for one in schema.presets or {"embedded": {}} if offer.allows(schema(preset=one, **_named(offer)))]
    inputs = {name: _input(name, schema, offer, presets) for name in schema.model_fields}
    if len(presets) < 2:
        del inputs["preset"]
    common = [inputs.pop(name) for name in (*COMMON, "preset") if name in inputs]
    own = [one for name, one in inputs.items() if name not in BaseContext.model_fields]
    shared = [one for name, one in inputs.items() if name in BaseContext.model_fields]
    about = (sys.modules[f"dubito.graphs.{graph.name}"].__doc__ or "").strip().splitlines()[0]
    answers = "answers" in graph.get_input_jsonschema()["properties"]
    return Form(graph.name, about, answers, common, [*own, *shared])


def _named(offer: Offer) -> dict[str, str]:
    """What a form begins with, of the settings that every graph has."""
    return {name: offer.values[name][0] for name in offer.named if name in BaseContext.model_fields}


def _input(name: str, schema: type[BaseContext], offer: Offer, presets: Sequence[str]) -> Input:
    field = schema.model_fields[name]
    left_open = field.default == PRESET and len(presets) > 1
    value = str(field.default if left_open else getattr(schema(), name))
    said = (name, field.title or name, _description(name, field, offer, left_open=left_open))
    if name in offer.values:
        values = [*([PRESET] if left_open else []), *offer.values[name]]
        first = offer.values[name][0] if name in offer.named else value
        return Input(*said, "choice", first, [(one, _words(one)) for one in values])
    if get_origin(field.annotation) is Literal:
        values = list(presets) if name == "preset" else [str(one) for one in get_args(field.annotation)]
        values = [one for one in values if one != PRESET or left_open]
        return Input(*said, "choice", value, [(one, _words(one)) for one in values])
    if field.annotation is bool:
        return Input(*said, "switch", value.lower())
    if field.annotation in {int, float}:
        return Input(*said, "whole" if field.annotation is int else "number", value, (), *_limits(field))
    return Input(*said, "text", value)


def _description(name: str, field: FieldInfo, offer: Offer, *, left_open: bool) -> str:
    """The context's own, without what cannot be chosen on the page."""
    if name in NAMED_BY:
        return f"{NAMED_BY[name]} names others when dubito ui is started."
    said = field.description or ""
    if not left_open:
        said = said.replace("; or 'preset'.", ".")
    return f"{said} Others than these: --allow {name}=... when dubito ui is started." if name in offer.values else said


def _words(value: str) -> str:
    return {"": "none", PRESET: "as the preset says"}.get(value, value)


def _limits(field: FieldInfo) -> tuple[float | None, float | None]:
    found = {type(limit).__name__: limit for limit in field.metadata}
    return getattr(found.get("Ge"), "ge", None), getattr(found.get("Le"), "le", None)
