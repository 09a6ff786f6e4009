"""JSON from disk. It is untrusted: another program, an editor or a crash may have written any part of it."""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

DEEPEST = 100
"""Lists and objects in each other. Python's own recursion limit is reached at a few hundred."""

LONGEST_NUMBER = 300
"""Digits of a whole number: more do not fit into a float."""

_SPACE = frozenset(" \t\r\n")
_CONTAINERS = frozenset({dict, list})


class BrokenJson(ValueError):
    """Text that is not JSON or cannot be used as JSON. Its message is a clause; line: where the fault is."""

    def __init__(self, reason: str, line: int = 1) -> None:
        """reason: the clause."""
        super().__init__(reason)
        self.line = line


class JsonRecord(NamedTuple):
    """A record of a file, or the fault in its place. number: from 1 in a list, None for lines and a single object."""

    number: int | None
    line: int
    value: Any | BrokenJson


def open_file(path: Path, *, mapped: bool = False) -> BinaryIO:
    """Open a file to read it.

    mapped: it will be mapped into memory. `OSError` for a pipe or a device, which may never end, and for a file that is
    larger than the memory, unless it is mapped.
    """
    # without O_NONBLOCK, opening a pipe waits for somebody to write into it
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    status = os.fstat(file.fileno())
    refused = ""
    if not stat.S_ISREG(status.st_mode):
        refused = "it is a pipe or a device and not a file"
    elif not mapped and status.st_size > _memory():
        refused = "it is larger than the memory of this machine"
    if refused:
        file.close()
        raise OSError(0, refused, str(path))
    return file


def content_of(path: Path) -> bytes:
    """The content of a file; `OSError` as in `open_file`."""
    with open_file(path) as file:
        return file.read()


def parsed(text: str | bytes) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The value of a JSON text; NaN and infinities, which JSON does not have, become None.

    `BrokenJson` if it is not JSON or not UTF-8, is nested more than `DEEPEST` deep, or holds a number that a float
    cannot hold.
    """
    try:
        value = _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise _broken(fault) from fault
    return _checked(value)


def json_lines(lines: Iterable[str]) -> Iterator[JsonRecord]:
    """The records of JSON lines, or one JSON object over several lines. Lines are read one at a time.

    If the first line is broken, the text may be one object: then all lines are read at once.
    """
    rest = iter(lines)
    head = []
    for line in rest:
        head.append(line)
        if line.strip():
            break
    if head and isinstance(_record(head[-1]), BrokenJson):
        first, head = head[-1], [*head, *rest]
        whole = _record("".join(head))
        if not isinstance(whole, BrokenJson) or first.strip() == "{":
            yield JsonRecord(None, whole.line if isinstance(whole, BrokenJson) else 1, whole)
            return
    number = 0
    for group in (head, rest):
        for number, line in enumerate(group, number + 1):  # noqa: B020 - it goes on from the group before
            if line.strip():
                yield JsonRecord(None, number, _record(line))


def list_records(text: str) -> Iterator[JsonRecord]:
    """The records of a JSON list; reading ends at the first fault. text: begins with [ or white space before it."""
    at, number = _skip_space(text, _skip_space(text, 0) + 1), 0
    line, counted = 1, 0
    while text[at : at + 1] != "]":
        number, line, counted = number + 1, line + text.count("\n", counted, at), at
        try:
            record, end = _DECODER.raw_decode(text, at)
            record = _checked(record)
        except (ValueError, RecursionError) as fault:
            broken = _broken(fault, line)
            reason = f"the JSON is broken ({broken}) and the rest is not read"
            yield JsonRecord(number, broken.line, BrokenJson(reason))
            return
        yield JsonRecord(number, line, record)
        at = _skip_space(text, end)
        if text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif text[at : at + 1] != "]":
            reason = "the JSON is broken (a ',' or ']' is missing) and the rest is not read"
            yield JsonRecord(number, _line(text, at), BrokenJson(reason))
            return
    if (rest := _skip_space(text, at + 1)) < len(text):
        reason = "there is text after the end of the JSON list, and it is not read"
        yield JsonRecord(number, _line(text, rest), BrokenJson(reason))


def not_utf8(text: str) -> BrokenJson | None:
    """The first byte that is not UTF-8 of a text decoded with `errors="surrogateescape"`; None if there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        place, byte = len(text[: fault.start].encode()), ord(text[fault.start]) & 0xFF
        reason = f"byte {place} (0x{byte:02X}) is not UTF-8: save the file as UTF-8"
        return BrokenJson(reason, _line(text, fault.start))
    return None


def _record(text: str) -> Any:  # noqa: ANN401
    if fault := not_utf8(text):
        return fault
    try:
        return parsed(text)
    except BrokenJson as fault:
        return BrokenJson(f"the JSON is broken ({fault})", fault.line)


def _checked(value: Any) -> Any:  # noqa: ANN401
    """The value; `BrokenJson` if it is nested too deeply."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if type(outer) in _CONTAINERS
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if type(inner) in _CONTAINERS
        ]
        if not level:
            return value
    raise BrokenJson("it is nested too deeply")


def _broken(fault: ValueError | RecursionError, line: int = 1) -> BrokenJson:
    """The fault as a clause; line: for faults that have none of their own."""
    if isinstance(fault, BrokenJson):
        return BrokenJson(str(fault), line)
    if isinstance(fault, json.JSONDecodeError):
        return BrokenJson(f"{fault.msg[:1].lower()}{fault.msg[1:]}, column {fault.colno}", fault.lineno)
    if isinstance(fault, UnicodeDecodeError):
        return BrokenJson(f"byte {fault.start} (0x{fault.object[fault.start]:02X}) is not UTF-8", line)
    return BrokenJson("it is nested too deeply" if isinstance(fault, RecursionError) else "a number in it is too long")


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise BrokenJson("a number in it is too long")
    return int(digits)


def _decimal(digits: str) -> float:
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        raise BrokenJson("a number in it is too large")
    return value


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_decimal, parse_constant=lambda name: None)


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _line(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at)


def _memory() -> int:
    """Bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 2**63
