"""Makes a graph's context from texts: options and `name=value` assignments. Faults become one sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from ..errors import UserFault, closest, either
from .registry import context_type

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from ..state.context import BaseContext
    from .registry import Graph


def context_for(
    graph: Graph, options: Mapping[str, str | None], assignments: Sequence[str], *, check: bool = True
) -> BaseContext:
    """The graph's context from options (None: not given) and `name=value` assignments.

    An option from an environment variable (DUBITO_CORPUS, ...) is left out if the graph has no such setting.
    check: refuse a setting that has no effect. Raises `UserFault` for unknown, repeated and invalid settings.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - keeps `--help` quick

    schema = context_type(graph)
    fields = schema.model_fields
    values = {
        name: value
        for name, value in options.items()
        if value is not None and (name in fields or value != os.environ.get(f"DUBITO_{name.upper()}"))
    }
    if unknown := next((name for name in values if name not in fields), None):
        raise UserFault(f"{graph.name} has no setting '{unknown}': leave --{unknown} out.")
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise UserFault(f"--set takes name=value, such as --set k=3, and got '{assignment}'.")
        if name not in fields:
            raise UserFault(
                f"{graph.name} has no setting '{name}'{closest(name, fields)}: use {either(sorted(fields))}."
            )
        if name in values:
            raise UserFault(f"The setting {name} is given twice: give it once.")
        values[name] = value
    try:
        # pydantic reads numbers and truth values from text
        return schema(**values) if check else schema.unchecked(values)
    except ValidationError as fault:
        raise UserFault(sentence_of(fault, fields)) from fault


def sentence_of(fault: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """A validation's faults in one sentence."""
    sentences = []
    for error in fault.errors(include_url=False):
        if error["loc"]:
            name = str(error["loc"][0])
            own = error.get("ctx", {}).get("error")  # the words of a validator of ours
            sentences.append(f"{name} is '{error['input']}' and {own or f'must be {_allowed(fields[name])}'}")
        else:
            sentences.append(str(error.get("ctx", {}).get("error", error["msg"])))
    return "; ".join(sentences) + "."


def _allowed(field: FieldInfo) -> str:
    """The allowed values of a setting, in words."""
    if get_origin(field.annotation) is Literal:
        return either([str(option) for option in get_args(field.annotation)])
    if field.annotation is bool:
        return "true or false"
    kind = {int: "a whole number", float: "a number"}.get(field.annotation, "text")  # type: ignore[arg-type]
    limits = {name: getattr(limit, name) for limit in field.metadata for name in ("ge", "le") if hasattr(limit, name)}
    return f"{kind} from {limits['ge']} to {limits['le']}" if limits else kind  # a number has both
