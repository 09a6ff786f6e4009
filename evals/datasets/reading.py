"""The records of a JSON file with their places: a JSON list, JSON lines, or one JSON object."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UserFault
from ...json_files import (
    BrokenJson,
    JsonRecord,
    content_of,
    fitting,
    json_lines,
    list_records,
    not_utf8,
    open_file,
    parsed,
)
from ...retrieval.corpus import shown


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
        # invalid bytes spoil only their own records
        with io.TextIOWrapper(fitting(open_file(path)), "utf-8-sig", errors="surrogateescape", newline="\n") as file:
            first = next((line for line in file if line.strip()), "")
            if not first:
                raise UserFault(f"'{shown(path)}' is empty: give a file of questions.")
            if first.startswith(("\udcff\udcfe", "\udcfe\udcff")) or "\0" in first:
                raise UserFault(f"'{shown(path)}' is not UTF-8 text: give a JSON or JSONL file, saved as UTF-8.")
            file.seek(0)
            yield from map(_placed, _list(file.read()) if first.lstrip()[:1] == "[" else json_lines(file))
    except OSError as fault:
        raise UserFault(f"The dataset cannot be read from '{shown(path)}': {fault.strerror}.") from fault


def json_file(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Read a file with one JSON value; `UserFault` if it cannot be read or is not JSON."""
    try:
        return parsed(content_of(path))
    except OSError as fault:
        raise UserFault(f"'{shown(path)}' cannot be read: {fault.strerror}.") from fault
    except BrokenJson as fault:
        raise UserFault(f"'{shown(path)}' is not a JSON file ({fault}): correct or remove it.") from fault


def _list(text: str) -> Iterator[JsonRecord]:
    if fault := not_utf8(text):
        yield JsonRecord(None, fault.line, fault)
    yield from list_records(text)


def _placed(record: JsonRecord) -> PlacedRecord:
    number, line, value = record
    place = f"line {line}" if number is None else f"record {number}"
    if isinstance(value, BrokenJson):
        return place if number is None else f"{place}, line {line}", Broken(str(value))
    return place, value
