"""Options and `--set name=value` turned into the context of a graph, or into one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, get_args, get_origin

from ..errors import UserFault, closest, either

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from ..graphs.registry import Graph
    from ..state.context import BaseContext


def context_for(graph: Graph, options: Mapping[str, str | None], assignments: Sequence[str]) -> BaseContext:
    """The graph's context from options (None where not given) and `name=value` assignments."""
    from pydantic import ValidationError  # noqa: PLC0415 - keeps `--help` quick

    schema = cast("type[BaseContext]", graph.builder.context_schema)
    fields = schema.model_fields
    values = {name: value for name, value in options.items() if value is not None}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise UserFault(f"--set takes name=value, such as --set k=3, and got '{assignment}'.")
        if name not in fields:
            raise UserFault(
                f"{graph.name} has no setting '{name}'{closest(name, fields)}: use {either(sorted(fields))}."
            )
        if name in values:
            raise UserFault(f"The setting {name} is given twice: say it once.")
        values[name] = value
    try:
        return schema(**values)  # pydantic reads numbers and truth values from text
    except ValidationError as fault:
        raise UserFault(_sentence(fault, fields)) from fault


def _sentence(fault: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    said = []
    for error in fault.errors(include_url=False):
        if error["loc"]:
            name = str(error["loc"][0])
            own = error.get("ctx", {}).get("error")  # of a validator of ours, which says it itself
            said.append(f"{name} is '{error['input']}' and {own or f'must be {_allowed(fields[name])}'}")
        else:
            said.append(str(error.get("ctx", {}).get("error", error["msg"])))
    return "; ".join(said) + "."


def _allowed(field: FieldInfo) -> str:
    """What a setting may be, in words."""
    if get_origin(field.annotation) is Literal:
        return either([str(option) for option in get_args(field.annotation)])
    if field.annotation is bool:
        return "true or false"
    kind = {int: "a whole number", float: "a number"}.get(field.annotation, "text")  # type: ignore[arg-type]
    limits = {type(limit).__name__: limit for limit in field.metadata}
    low, high = getattr(limits.get("Ge"), "ge", None), getattr(limits.get("Le"), "le", None)
    if low is not None and high is not None:
        return f"{kind} from {low} to {high}"
    if low is not None:
        return f"{kind}, {low} or more"
    return f"{kind}, at most {high}" if high is not None else kind
