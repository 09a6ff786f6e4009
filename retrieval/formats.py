"""The formats of corpus files, recognised by content: prose, a JSON list, JSON lines, a table with a header."""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import BinaryIO, TextIO

from ..json_files import BrokenJson, JsonRecord, json_lines, list_records
from .passages import TEXT_NAMES, Finding, Heading, Passage, Problem, passages_of

LONGEST = 2**28
"""The most characters in a line and in a field of a table; the csv module's default is too small for a document."""

MARKDOWN = (".md", ".markdown")
TABLES = (".csv", ".tsv")


def read_format(text: str, path: PurePath) -> Iterator[Finding]:
    """All passages and problems of a file, in order. The file name decides only if the content is ambiguous."""
    ending, start = path.suffix.lower(), text.lstrip()[:1]
    if ending in MARKDOWN:
        return prose(text, path)
    if ending == ".json" and start not in {"[", "{"}:
        return iter([Problem("line 1", "the file is not a JSON list of records")])
    if ending in {".json", ".jsonl", ".ndjson"} or start == "{" or re.match(r"\s*\[\s*[{\]]", text):
        lines = (f"{line}\n" for line in text.split("\n"))
        return _passages(list_records(text) if start == "[" else json_lines(lines))
    table = io.StringIO(text, newline="")
    delimiter = _delimiter(table, by_name=ending in TABLES)
    return prose(text, path) if delimiter is None else _rows(table, delimiter)


def is_json_lines(start: bytes, path: PurePath) -> bool:
    """Whether a file is JSON lines (or a JSON object) by its first bytes; a Markdown file is prose in any case."""
    begins = start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"
    return begins and b"\0" not in start and path.suffix.lower() not in MARKDOWN


def read_json_lines(file: BinaryIO) -> Iterator[Finding]:
    """All passages and problems of JSON lines, a line in memory at a time; `OSError` for a line beyond `LONGEST`."""
    yield from _passages(json_lines(_lines(_text_of(file, "\n"))))


def read_table(file: BinaryIO) -> Iterator[Finding]:
    """All passages and problems of a CSV or TSV file, a row in memory at a time; `OSError` as in `read_json_lines`."""
    table = _text_of(file, "")
    yield from _rows(table, _delimiter(table, by_name=True) or ",")


def _text_of(file: BinaryIO, newline: str) -> TextIO:
    # invalid bytes spoil only their own records
    return io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=newline)


def _lines(text: TextIO) -> Iterator[str]:
    while line := text.readline(LONGEST):
        if len(line) == LONGEST:
            raise OSError(0, f"a line has more than {LONGEST:,} characters")
        yield line


def prose(text: str, path: PurePath) -> Iterator[Finding]:
    """One passage, titled by its first Markdown heading, else by the file's name."""
    headings = tuple(_headings(text))
    yield Passage("", (headings and headings[0].text) or path.stem, text, headings=headings)


def _headings(text: str) -> Iterator[Heading]:
    fenced, before, start = False, Heading(0, ""), 0
    for line in text.split("\n"):
        here = Heading(start, "" if fenced else line.strip())
        if line.lstrip().startswith(("```", "~~~")):
            fenced, here = not fenced, Heading(start, "")
        elif heading := None if fenced else re.match(r" {0,3}#{1,6}\s+(.*?)\s*#*\s*$", line):
            yield Heading(start, heading[1])
            here = Heading(start, "")
        elif before.text and re.fullmatch(r"=+\s*", line):
            yield before
        before = here
        start += len(line) + 1


def _passages(records: Iterable[JsonRecord]) -> Iterator[Finding]:
    for _, line, record in records:
        if isinstance(record, BrokenJson):
            yield Problem(f"line {line}", str(record))
        else:
            yield from passages_of(record, f"line {line}")


def _delimiter(table: TextIO, *, by_name: bool) -> str | None:
    """The column delimiter, if the file's name or its first line says that it is a table; else None."""
    csv.field_size_limit(LONGEST)
    for delimiter in ("\t", ",", ";"):
        names, row = _first_two_rows(table, delimiter)
        is_header = len(row) == len(names) > 1 and all(name.isidentifier() for name in names)
        if (by_name or is_header) and set(names) & set(TEXT_NAMES):
            return delimiter
    return "," if by_name else None


def _first_two_rows(table: TextIO, delimiter: str) -> tuple[list[str], list[str]]:
    table.seek(0)
    rows = filter(any, csv.reader(_lines(table), delimiter=delimiter))
    try:
        return [name.strip().lower() for name in next(rows, [])], next(rows, [])
    except csv.Error:
        return [], []


def _rows(table: TextIO, delimiter: str) -> Iterator[Finding]:
    table.seek(0)
    rows = csv.reader(_lines(table), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        where = f"line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except csv.Error as fault:
            yield Problem(where, f"the row cannot be read ({fault})")
            continue
        if row is None:
            return
        if not any(field.strip() for field in row):
            continue
        if header is None:
            header = [name.strip().lower() for name in row]
            if not set(header) & set(TEXT_NAMES):
                yield Problem(where, f"the header has no text column: name one of the columns {TEXT_NAMES[0]}")
                return
        elif len(row) > len(header):
            yield Problem(where, f"the row has {len(row)} fields and the header {len(header)}")
        else:
            yield from passages_of(dict(zip(header, row, strict=False)), where)
