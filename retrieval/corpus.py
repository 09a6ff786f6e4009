"""Documents read from files of many formats; ids are unique and the same in every run."""

import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from ..errors import UserFault
from ..json_files import fitting, not_utf8, open_file
from ..settings import settings
from ..state.records import Metadata
from .formats import TABLES, is_json_lines, prose, read_format, read_json_lines, read_table
from .loaders import kind_of, load, too_large
from .passages import Finding, Heading, Problem
from .spool import spooled

PROSE = (".txt", ".md", ".markdown")
LOADED = (".pdf", ".html", ".htm", ".docx")
PACKED = ".gz"

GZIP = b"\x1f\x8b"
"""The first bytes of a file that gzip has packed."""

START = 65_536
"""Bytes that decide whether a file is JSON lines."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a title; `id` is unique in its corpus.

    pages: the offsets in the text where its pages begin; headings: of the text, in order.
    """

    id: str
    title: str
    text: str
    metadata: Metadata = field(default_factory=dict)
    pages: tuple[int, ...] = ()
    headings: tuple[Heading, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Documents in source order, and the problems of records that were left out."""

    documents: Sequence[Document]
    problems: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, titles, texts and what else is known of the documents, in order."""
        digest = hashlib.sha256()
        for document in self.documents:
            fields: list[Any] = [document.id, document.title, document.text]
            if document.metadata or document.pages or document.headings:
                fields += [document.metadata, document.pages]
            if document.headings:
                fields.append(document.headings)
            digest.update(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()


def read_corpus(path: str | Path, *, on_bad_record: Literal["refuse", "skip"] = "refuse") -> Corpus:
    """Read a file (JSONL, JSON, CSV, TSV, text, PDF, HTML, Word) or a folder of text, PDF, HTML and Word files.

    The content decides the format; a file may be packed by gzip. JSON lines, CSV and TSV are read a record at a time,
    and many documents are on the disk and not in memory (see `spooled`). `UserFault` if there is nothing to read, or if
    a record cannot be read and `on_bad_record` is `refuse`; with `skip`, bad records are left out and
    `Corpus.problems` names each file and line.
    """
    path = Path(path).expanduser()
    ids: list[str | None] = []
    problems: list[str] = []
    documents = spooled(_documents(path, ids, problems), _fields, _document)
    if problems and (on_bad_record == "refuse" or not documents):
        raise UserFault(refusal(problems, None if documents else "there is no document to read"))
    if not documents:
        raise UserFault(f"{shown(path)} holds no documents: give a corpus with at least one record that has a text.")
    if None in ids or len(set(ids)) < len(ids):
        documents = spooled(_named(documents, ids), _fields, _document)
    return Corpus(tuple(documents) if isinstance(documents, list) else documents, tuple(problems))


def shown(path: Path) -> str:
    """A path for messages, even if it is not valid Unicode."""
    return os.fsencode(path).decode(errors="backslashreplace")


def refusal(problems: Sequence[str], nothing_left: str | None) -> str:
    """The message about records that cannot be read. nothing_left: a clause, if they are all there is."""
    more = {1: "", 2: " (and 1 more problem)"}.get(len(problems), f" (and {len(problems) - 1} more problems)")
    if nothing_left:
        return f"{problems[0]}{more}, so {nothing_left}."
    return f"{problems[0]}{more}; correct it, or skip broken records (on_bad_record='skip')."


def _findings(path: Path) -> Iterator[tuple[Path, Finding]]:
    if not path.exists():
        raise UserFault(f"There is no corpus at {shown(path)}: give the path of a file or folder that exists.")
    if not path.is_dir():
        for finding in _in_file(path):
            yield path, finding
        return
    files = sorted(_files_below(path), key=lambda file: file.relative_to(path).parts)
    if not files:
        endings = " ".join((*PROSE, *LOADED))
        raise UserFault(
            f"The folder {shown(path)} holds no file that can be read as documents ({endings}): "
            "give such a folder, or the path of one JSONL, JSON, CSV or TSV file."
        )
    for file in files:
        for finding in _in_file(file, in_folder=True):
            yield file, finding


def _plain(path: Path) -> Path:
    """The name of the unpacked file."""
    return path.with_suffix("") if path.suffix.lower() == PACKED else path


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and _plain(Path(name)).suffix.lower() in (*PROSE, *LOADED):
                yield Path(parent, name)


def _in_file(path: Path, *, in_folder: bool = False) -> Iterator[Finding]:
    name = _plain(path)
    try:
        with _unpacked(path) as file:
            start = file.read(START)
            file.seek(0)
            if not in_folder and is_json_lines(start, name):
                yield from read_json_lines(file)
            elif not in_folder and name.suffix.lower() in TABLES and not (kind_of(start) or _why_not_text(start)):
                yield from read_table(file)
            else:
                yield from _in_content(fitting(file).read(), name, in_folder=in_folder)
    except OSError as fault:
        yield Problem("", f"it cannot be opened ({fault.strerror})")


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    """The file, unpacked if gzip has packed it; `OSError` if it is damaged or unpacks to more than the limit."""
    with open_file(path) as file:
        is_packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        if not is_packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as plain:
            _check_size(plain)
            plain.seek(0)
            yield cast("BinaryIO", plain)


def _check_size(plain: gzip.GzipFile) -> None:
    size, most = 0, settings().max_unpacked_gb
    try:
        while part := plain.read(2**20):
            size += len(part)
            if size > most * 10**9:
                raise OSError(0, too_large(most))
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise OSError(0, f"it is a damaged gzip file: {fault}") from fault


def _in_content(content: bytes, path: Path, *, in_folder: bool) -> Iterable[Finding]:
    kind = kind_of(content)
    if kind in {"PDF", "Word"} or (kind and path.suffix.lower() not in PROSE):
        return load(content, kind, path)
    if unreadable := _why_not_text(content):
        return [Problem("", unreadable)]
    # invalid bytes spoil only their own records: `_checked` finds them there
    text = content.decode("utf-8-sig", errors="surrogateescape")
    found = prose(text, path) if in_folder else read_format(text, path)
    invalid = not_utf8(text)
    return chain([Problem(f"line {invalid.line}", str(invalid))], found) if invalid else found


def _why_not_text(content: bytes) -> str | None:
    if not content.strip():
        return "the file is empty"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is UTF-16: save it as UTF-8"
    if b"\0" in content:
        return f"the file is binary (byte {content.index(0)} is 0) and of an unknown format"
    return None


def _checked(finding: Finding) -> Finding:
    if isinstance(finding, Problem):
        return finding
    if not finding.text.strip():
        return Problem(finding.where, "the text is empty")
    try:
        "".join((finding.title, finding.text, finding.id or "")).encode()
    except UnicodeEncodeError:
        return Problem(finding.where, "the text is not valid Unicode: save the file as UTF-8")
    return finding


def _documents(path: Path, ids: list[str | None], problems: list[str]) -> Iterator[Document]:
    """The documents at a path; a paragraph that several questions share is kept once.

    ids: gets the records' own ids; problems: gets the problems.
    """
    seen: set[bytes] = set()
    for file, read in _findings(path):
        finding = _checked(read)
        if isinstance(finding, Problem):
            place = f"{shown(file)}, {finding.where}" if finding.where else shown(file)
            problems.append(f"{place}: {finding.what}")
            continue
        if finding.pooled:
            digest = hashlib.sha256(json.dumps([finding.title, finding.text]).encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
        ids.append(finding.id)
        yield Document(finding.id or "", finding.title, finding.text, finding.metadata, finding.pages, finding.headings)


def _named(documents: Iterable[Document], ids: Sequence[str | None]) -> Iterator[Document]:
    """The documents with unique ids: the record's own, else its title, else a number.

    An id that is taken gets a number behind it: `Title`, `Title (2)`, `Title (3)`.
    """
    own = Counter(name for name in ids if name is not None)
    taken: set[str] = set()
    tries: Counter[str] = Counter()
    for number, (document, given) in enumerate(zip(documents, ids, strict=True), 1):
        name = given
        if name is None or own[name] > 1:
            base = name = document.title or str(number)
            while name in taken or own[name] == 1:
                tries[base] += 1
                name = f"{base} ({tries[base] + 1})"
            taken.add(name)
        yield replace(document, id=name)


def _fields(document: Document) -> list[Any]:
    return [document.id, document.title, document.text, document.metadata, document.pages, document.headings]


def _document(fields: list[Any]) -> Document:
    name, title, text, metadata, pages, headings = fields
    return Document(name, title, text, metadata, tuple(pages), tuple(Heading(*heading) for heading in headings))
