"""Options and `--set name=value` turned into the context of a graph, or into one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from .. import __all__ as exported
from ..errors import UserFault

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from ..state.context import BaseContext

    Graph = CompiledStateGraph[Any, Any, Any, Any]


def graph_names() -> list[str]:
    """The graphs there are."""
    return [name for name in exported if not name.startswith("_")]


def graph_named(name: str) -> Graph:
    """The compiled graph of that name; `UserFault` for an unknown one."""
    if name not in graph_names():
        raise UserFault(
            f"There is no graph named '{name}': use {either(graph_names())}{_closest(name, graph_names())}."
        )
    graph: Graph = import_module(f"..graphs.{name}", __package__).graph
    return graph


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
                f"{graph.name} has no setting '{name}'{_closest(name, fields)}: use {either(sorted(fields))}."
            )
        if name in values:
            raise UserFault(f"The setting {name} is given twice: say it once.")
        values[name] = value
    try:
        return schema(**values)  # pydantic reads numbers and truth values from text
    except ValidationError as fault:
        raise UserFault(_sentence(fault, fields)) from fault


def either(names: Sequence[str]) -> str:
    """'a', 'a or b', 'a, b or c'."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _closest(name: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


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
