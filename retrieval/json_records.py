"""Records of a JSON list, read one by one: each has its line number, and records before a fault are kept."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_SPACE = frozenset(" \t\r\n")


class BrokenJson(NamedTuple):
    """A fault in JSON text, as a clause for a message."""

    reason: str


class ListRecord(NamedTuple):
    """A record of a list, numbered from 1, and its line; or the fault behind that record, and the fault's line."""

    number: int
    line: int
    value: Any | BrokenJson


def list_records(text: str) -> Iterator[ListRecord]:
    """The records of a JSON list; reading ends at the first fault. text: begins with [ or white space before it."""
    decoder = json.JSONDecoder()
    at, number = _skip_space(text, _skip_space(text, 0) + 1), 0
    line, counted = 1, 0
    while text[at : at + 1] != "]":
        number, line, counted = number + 1, line + text.count("\n", counted, at), at
        try:
            record, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as fault:
            reason = f"the JSON is broken ({why_broken(fault)}) and the rest is not read"
            yield ListRecord(number, line_of(fault, line), BrokenJson(reason))
            return
        yield ListRecord(number, line, record)
        at = _skip_space(text, end)
        if text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif text[at : at + 1] != "]":
            reason = "the JSON is broken (a ',' or ']' is missing) and the rest is not read"
            yield ListRecord(number, _line(text, at), BrokenJson(reason))
            return
    if (rest := _skip_space(text, at + 1)) < len(text):
        reason = "there is text after the end of the JSON list, and it is not read"
        yield ListRecord(number, _line(text, rest), BrokenJson(reason))


def why_broken(fault: Exception) -> str:
    """The reason in an exception of `json`."""
    if isinstance(fault, json.JSONDecodeError):
        return f"{fault.msg[:1].lower()}{fault.msg[1:]}, column {fault.colno}"
    return "it is nested too deeply" if isinstance(fault, RecursionError) else "a number in it is too long"


def line_of(fault: Exception, default: int) -> int:
    """The line in an exception of `json`; `default` if it has none."""
    return fault.lineno if isinstance(fault, json.JSONDecodeError) else default


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _line(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at)
