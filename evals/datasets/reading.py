"""The records of a JSON file with their places: a JSON list, JSON lines, or one JSON object."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import UserFault
from ...retrieval.corpus import shown
from ...retrieval.json_records import BrokenJson, line_of, list_records, why_broken


class Broken(NamedTuple):
    """A record that cannot be read. what: the reason."""

    what: str


PlacedRecord = tuple[str, Any]
"""A record's place in its source, such as `line 3` or `record 17`, and the record or a `Broken`."""


def records_of(path: Path) -> Iterator[PlacedRecord]:
    """Every record of a file, in order. Lines are read one at a time.

    Raises `UserFault` for a file that cannot be opened, is empty, or does not begin with UTF-8 text.
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
    """Read a file with one JSON value; `UserFault` if it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as fault:
        raise UserFault(f"'{shown(path)}' cannot be read: {fault.strerror}.") from fault
    except (ValueError, RecursionError) as fault:
        raise UserFault(f"'{shown(path)}' is not a JSON file ({why_broken(fault)}): correct or remove it.") from fault


def _first_line(file: BinaryIO, path: Path) -> bytes:
    """The first line that is not blank. The file is then back at its start."""
    first = next((line for line in file if line.removeprefix(b"\xef\xbb\xbf").strip()), b"")
    first = first.removeprefix(b"\xef\xbb\xbf")
    file.seek(0)
    if not first:
        raise UserFault(f"'{shown(path)}' is empty: give a file of questions.")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first:
        raise UserFault(f"'{shown(path)}' is not UTF-8 text: give a JSON or JSONL file, saved as UTF-8.")
    return first


def _is_lines(first: bytes, file: BinaryIO) -> bool:
    """Does a file hold JSON lines? If its first line is broken, it may be one object over several lines."""
    if first.lstrip()[:1] == b"[":
        return False
    if not isinstance(_record(first), Broken):
        return True
    whole = _record(file.read().removeprefix(b"\xef\xbb\xbf"))
    file.seek(0)
    return isinstance(whole, Broken) and first.strip() != b"{"


def _lines(file: BinaryIO) -> Iterator[PlacedRecord]:
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
        return Broken(f"the JSON is broken ({why_broken(fault)})")


def _list_or_object(content: bytes) -> Iterator[PlacedRecord]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        what = f"byte {fault.start} (0x{content[fault.start]:02X}) is not UTF-8: save the file as UTF-8"
        yield f"line {content.count(10, 0, fault.start) + 1}", Broken(what)
        # only the records with such bytes are broken: later checks find them to be invalid Unicode
        text = content.decode("utf-8-sig", errors="surrogateescape")
    if text.lstrip()[:1] == "[":
        yield from _list(text)
        return
    try:
        yield "record 1", json.loads(text)
    except (ValueError, RecursionError) as fault:
        yield f"line {line_of(fault, 1)}", Broken(f"the JSON is broken ({why_broken(fault)})")


def _list(text: str) -> Iterator[PlacedRecord]:
    for number, line, record in list_records(text):
        if isinstance(record, BrokenJson):
            yield f"record {number}, line {line}", Broken(record.reason)
        else:
            yield f"record {number}", record
