"""The settings of a graph as the inputs of a form, made from its context."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from ..graphs.registry import context_type, graph_named, graph_names, takes_answers
from ..presenters.presenter import presenter_of
from ..resources.allowlist import AllowList
from ..resources.opening import SAMPLE, corpus_path
from ..state.context import FIRST, PRESET, BaseContext, marks_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ..graphs.registry import Graph

SHARED = ("corpus", "llm", "preset")
"""The settings that a graph has from another one that is asked the same question beside it."""

EXAMPLES = 4
"""Questions of the sample corpus on the page."""

NAMED_BY = {"corpus": "--corpus PATH", "llm": "--llm NAME"}
"""The options of `dubito ui` that allow values of these settings."""


@dataclass(frozen=True)
class Input:
    """The input of a setting.

    value: the first value, as text; options: for a choice, each value and its label; low, high: the limits of a number,
    None without a limit.
    """

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
    """about, when: what the graph does, and where it helps; answers: does the graph take right answers too?"""

    graph: str
    about: str
    when: str
    answers: bool
    common: Sequence[Input]
    rest: Sequence[Input]


@dataclass(frozen=True)
class Choice:
    """A graph to choose.

    answers: does the graph take right answers too?
    shared: those of its settings that two graphs asked side by side have in common.
    """

    graph: str
    label: str
    answers: bool
    shared: Sequence[str]


def choices() -> list[Choice]:
    """The graphs by what they are for; those that measure against right answers come last."""
    found = []
    for name in graph_names():
        presenter, graph = presenter_of(name), graph_named(name)
        label = f"{presenter.purpose} ({presenter.name})" if presenter.purpose else presenter.name
        shared = [setting for setting in SHARED if setting in context_type(graph).model_fields]
        found.append(Choice(name, label, takes_answers(graph), shared))
    return sorted(found, key=lambda choice: choice.answers)


def example_questions() -> list[tuple[str, str]]:
    """Questions about the sample corpus, each with its right answer; none in a package without the sample."""
    path = corpus_path(SAMPLE).parent / "questions.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(record["question"], record["answer"]) for record in map(json.loads, lines[:EXAMPLES])]


def form_of(graph: Graph, allowed: AllowList) -> Form:
    """The form of a graph: the settings that are always shown, and the others, which are folded."""
    schema = context_type(graph)
    added = {name: values[0] for name, values in allowed.added.items() if name in schema.model_fields}
    presets = [
        preset
        for preset in schema.presets or {"embedded": {}}
        if allowed.allows(schema.unchecked({"preset": preset, **added}).fitted(frozenset({"encoder"})))
    ]
    # a prompt is a text of many lines, which `dubito prompts` is for
    inputs = {name: _input(name, schema, allowed, presets) for name in schema.in_order() if name != "prompts"}
    if len(presets) < 2:
        del inputs["preset"]
    common = [inputs.pop(name) for name in (*FIRST, "preset") if name in inputs]
    presenter = presenter_of(graph.name)
    return Form(graph.name, presenter.about, presenter.when, takes_answers(graph), common, list(inputs.values()))


def _input(name: str, schema: type[BaseContext], allowed: AllowList, presets: Sequence[str]) -> Input:
    field = schema.model_fields[name]
    left_open = field.default == PRESET and len(presets) > 1
    value = str(field.default if left_open and name not in schema.configured() else getattr(schema(), name))
    shown = (name, field.title or name, _description(name, field))
    if marks_of(field).get("resource"):
        values = [*([PRESET] if left_open else []), *allowed.values(name, schema)]
        first = allowed.added[name][0] if name in allowed.added and schema().is_used(name) else value
        return Input(*shown, "choice", first, [(option, _short(option, values)) for option in values])
    if get_origin(field.annotation) is Literal:
        values = list(presets) if name == "preset" else [str(option) for option in get_args(field.annotation)]
        values = [option for option in values if option != PRESET or left_open]
        return Input(*shown, "choice", value, [(option, _label(option)) for option in values])
    if field.annotation is bool:
        return Input(*shown, "switch", value.lower())
    if field.annotation in {int, float} and not left_open:
        return Input(*shown, "whole" if field.annotation is int else "number", value, (), *_limits(field))
    return Input(*shown, "text", value)


def _description(name: str, field: FieldInfo) -> str:
    """The setting's description, and how to allow other values than those on the page."""
    if name in NAMED_BY:
        return f"To allow others, start dubito ui with {NAMED_BY[name]}."
    description = field.description or ""
    if not marks_of(field).get("resource"):
        return description
    return f"{description} To allow others, start dubito ui with --allow {name}=VALUE."


def _label(value: str) -> str:
    return {"": "none", PRESET: "as the preset says"}.get(value, value)


def _short(value: str, values: Sequence[str]) -> str:
    """A path's last part, where no other value ends alike: the reader need not know the folders of the server."""
    last = value.rstrip("/").rpartition("/")[2]
    is_alone = all(other == value or other.rstrip("/").rpartition("/")[2] != last for other in values)
    return last if value.startswith("/") and is_alone else _label(value)


def _limits(field: FieldInfo) -> tuple[float | None, float | None]:
    limits = {type(limit).__name__: limit for limit in field.metadata}
    return getattr(limits.get("Ge"), "ge", None), getattr(limits.get("Le"), "le", None)
