"""Records of a JSON file one after the other, each with its place: a JSON list, JSON lines, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import UserFault
from ...retrieval.corpus import shown

_SPACE = " \t\r\n"


class Broken(NamedTuple):
    """Why there is no record at a place."""

    what: str


Placed = tuple[str, Any]
"""Where it is in its source, such as `line 3` or `record 17`, and the record, or `Broken`."""


def records_of(path: Path) -> Iterator[Placed]:
    """Every record of a file, in order; lines are read one at a time.

    Raises `UserFault` for a file that cannot be opened, is empty, or is no UTF-8 text from its first bytes on.
    """
    try:
        with path.open("rb") as file:
            if _is_lines(_first_line(file, path), file):
                yield from _lines(file)
            else:
                yield from _list_or_object(file.read())
    except OSError as fault:
        raise UserFault(f"The dataset cannot be read from '{shown(path)}': {fault.strerror}.") from fault


def json_file(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """A file that is one JSON value. Raises `UserFault` if it cannot be read or is none."""
    try:
        return json.loads(path.read_bytes())
    except OSError as fault:
        raise UserFault(f"'{shown(path)}' cannot be read: {fault.strerror}.") from fault
    except (ValueError, RecursionError) as fault:
        raise UserFault(f"'{shown(path)}' is no JSON file ({_reason(fault)}): mend it, or take it away.") from fault


def _first_line(file: BinaryIO, path: Path) -> bytes:
    """The first line that is not blank; the file is back at its start."""
    first = next((line for line in file if line.removeprefix(b"\xef\xbb\xbf").strip()), b"")
    first = first.removeprefix(b"\xef\xbb\xbf")
    file.seek(0)
    if not first:
        raise UserFault(f"'{shown(path)}' is empty: give a file of questions.")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first:
        raise UserFault(f"'{shown(path)}' is no UTF-8 text: give a JSON or JSONL file, saved as UTF-8.")
    return first


def _is_lines(first: bytes, file: BinaryIO) -> bool:
    """JSON lines begin with a whole object; if it is broken, the file is one object or still lines of them."""
    if first.lstrip()[:1] == b"[":
        return False
    if not isinstance(_record(first), Broken):
        return True
    whole = _record(file.read().removeprefix(b"\xef\xbb\xbf"))
    file.seek(0)
    return isinstance(whole, Broken) and first.strip() != b"{"


def _lines(file: BinaryIO) -> Iterator[Placed]:
    for number, line in enumerate(file, start=1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line  # noqa: PLW2901
        if line.strip():
            yield f"line {number}", _record(line)


def _record(line: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as fault:
        return Broken(f"byte {fault.start} (0x{line[fault.start]:02X}) is not UTF-8: save the file as UTF-8")
    except (ValueError, RecursionError) as fault:
        return Broken(f"the JSON is broken ({_reason(fault)})")


def _list_or_object(content: bytes) -> Iterator[Placed]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        what = f"byte {fault.start} (0x{content[fault.start]:02X}) is not UTF-8: save the file as UTF-8"
        yield f"line {content.count(10, 0, fault.start) + 1}", Broken(what)
        # the bytes that are no text spoil only the records they are in, which are found to be no Unicode
        text = content.decode("utf-8-sig", errors="surrogateescape")
    if text.lstrip()[:1] == "[":
        yield from _list(text)
        return
    try:
        yield "record 1", json.loads(text)
    except (ValueError, RecursionError) as fault:
        yield _line(text, fault), Broken(f"the JSON is broken ({_reason(fault)})")


def _list(text: str) -> Iterator[Placed]:
    """The records one by one, so that those before a broken place are kept."""
    decoder, number = json.JSONDecoder(), 0
    at = _next_mark(text, _next_mark(text, 0) + 1)
    while text[at : at + 1] != "]":
        number += 1
        try:
            record, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as fault:
            what = f"the JSON is broken ({_reason(fault)}, {_line(text, fault)}) and what follows is not read"
            yield f"record {number}", Broken(what)
            return
        yield f"record {number}", record
        at = _next_mark(text, end)
        if text[at : at + 1] == ",":
            at = _next_mark(text, at + 1)
        elif text[at : at + 1] != "]":
            what = f"the JSON is broken after it (a ',' or ']' is missing, line {1 + text.count(chr(10), 0, at)})"
            yield f"record {number}", Broken(f"{what} and what follows is not read")
            return
    if _next_mark(text, at + 1) < len(text):
        yield f"record {number}", Broken("there is something after the end of the JSON list, and it is not read")


def _next_mark(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _line(text: str, fault: Exception) -> str:
    at = fault.pos if isinstance(fault, json.JSONDecodeError) else 0
    return f"line {1 + text.count(chr(10), 0, at)}"


def _reason(fault: Exception) -> str:
    if isinstance(fault, json.JSONDecodeError):
        return f"{fault.msg[:1].lower()}{fault.msg[1:]}, column {fault.colno}"
    return "it is nested too deeply" if isinstance(fault, RecursionError) else "a number in it is too long"
