"""Wrong settings, told in one sentence: the name, what is wrong, the closest right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from ..errors import UserFault, closest, either
from ..server_url import refuse_secrets

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

LONGEST_VALUE = 200
"""Characters of a wrong value that are quoted."""


def sentence_of(
    fault: ValidationError, fields: Mapping[str, FieldInfo], graph: str = "", places: Mapping[str, str] | None = None
) -> str:
    """A validation's faults in one sentence.

    graph: whose settings these are; places: where a value stands, in words, if the caller did not give it.
    """
    sentences = []
    for error in fault.errors(include_url=False):
        own = error.get("ctx", {}).get("error")  # the words of a validator of ours
        if not error["loc"]:
            sentences.append(str(own or error["msg"]))
            continue
        name = str(error["loc"][0])
        if error["type"] == "extra_forbidden":
            sentences.append(no_setting(name, fields, graph))
            continue
        place = (places or {}).get(name, name)
        sentences.append(f"{place} is {_quoted(error['input'])} and {own or f'must be {allowed(fields[name])}'}")
    return "; ".join(sentence.removesuffix(".") for sentence in sentences) + "."


def no_setting(name: str, fields: Mapping[str, FieldInfo], graph: str) -> str:
    """The sentence for a setting that a graph does not have."""
    return f"{graph or 'This graph'} has no setting '{name}'{closest(name, fields)}: use {either(sorted(fields))}."


def allowed(field: FieldInfo) -> str:
    """The allowed values of a setting, in words."""
    if get_origin(field.annotation) is Literal:
        return either([str(option) for option in get_args(field.annotation)])
    if field.annotation is bool:
        return "true or false"
    if get_origin(field.annotation) is dict:
        return "templates by the names of their prompts"
    kind = {int: "a whole number", float: "a number"}.get(field.annotation, "text")  # type: ignore[arg-type]
    limits = {name: getattr(limit, name) for limit in field.metadata for name in ("ge", "le") if hasattr(limit, name)}
    return f"{kind} from {limits['ge']} to {limits['le']}" if limits else kind  # a number has both


def _quoted(value: object) -> str:
    if isinstance(value, list | tuple | dict | set):
        return "a list" if not isinstance(value, dict) else "a table"
    try:
        refuse_secrets(str(value))
    except UserFault:
        return "a URL that may hold a key"
    text = str(value)
    return f"'{text}'" if len(text) <= LONGEST_VALUE else f"'{text[:LONGEST_VALUE]}...'"
