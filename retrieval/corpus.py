"""Documents read from files of many kinds, each with an id that is unique and the same in every run."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

from ..errors import UserFault
from .formats import prose, read_format
from .loaders import kind_of, load
from .passages import Finding, Passage, Problem

PROSE = (".txt", ".md", ".markdown")
LOADED = (".pdf", ".html", ".htm", ".docx")


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a title; `id` is unique in its corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents in the order of their source, and the problems of the records that were left out."""

    documents: tuple[Document, ...]
    problems: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, titles and texts in order."""
        digest = hashlib.sha256()
        for document in self.documents:
            fields = [document.id, document.title, document.text]
            digest.update(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()


def read_corpus(path: str | Path, *, on_error: Literal["refuse", "skip"] = "refuse") -> Corpus:
    """Read a file (JSONL, JSON, CSV, TSV, text, PDF, HTML, Word) or a folder of text, PDF, HTML and Word files.

    The format is told by the content. Raises `UserFault` if there is nothing to read, or anything that cannot be read
    and `on_error` is `refuse`; with `skip` the rest is kept and `Corpus.problems` names file and line of each.
    """
    path = Path(path).expanduser()
    passages: list[Passage] = []
    problems: list[str] = []
    for file, found in _findings(path):
        finding = _checked(found)
        if isinstance(finding, Passage):
            passages.append(finding)
        else:
            place = f"{shown(file)}, {finding.where}" if finding.where else shown(file)
            problems.append(f"{place}: {finding.what}")
    if problems and (on_error == "refuse" or not passages):
        raise UserFault(_refusal(problems, some_left=bool(passages)))
    if not passages:
        raise UserFault(f"{shown(path)} holds no documents: give a corpus with at least one record that has a text.")
    return Corpus(tuple(_documents(passages)), tuple(problems))


def shown(path: Path) -> str:
    """A path fit for a message, even if its name is not valid Unicode."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _refusal(problems: list[str], *, some_left: bool) -> str:
    more = {1: "", 2: " (and 1 problem more)"}.get(len(problems), f" (and {len(problems) - 1} problems more)")
    if not some_left:
        return f"{problems[0]}{more}, so there is no document to read."
    advice = "leave out what cannot be read (--on-bad-record skip, in Python on_error='skip')"
    return f"{problems[0]}{more}; mend it, or {advice}."


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


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in (*PROSE, *LOADED):
                yield Path(parent, name)


def _in_file(path: Path, *, in_folder: bool = False) -> Iterable[Finding]:
    try:
        content = path.read_bytes()
    except OSError as fault:
        return [Problem("", f"it cannot be opened ({fault.strerror})")]
    kind = kind_of(content)
    if kind in {"PDF", "Word"} or (kind and path.suffix.lower() not in PROSE):
        return load(path, kind)
    if unreadable := _no_text(content):
        return [Problem("", unreadable)]
    read = prose if in_folder else read_format
    try:
        return read(content.decode("utf-8-sig"), path)
    except UnicodeDecodeError as fault:
        # bytes that are no text spoil only the records they are in: `_checked` finds them there
        what = f"byte {fault.start} (0x{content[fault.start]:02X}) is not UTF-8: save the file as UTF-8"
        found = Problem(f"line {content.count(10, 0, fault.start) + 1}", what)
        return chain([found], read(content.decode("utf-8-sig", errors="surrogateescape"), path))


def _no_text(content: bytes) -> str | None:
    if not content.strip():
        return "the file is empty"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is UTF-16: save it as UTF-8"
    if b"\0" in content:
        return f"the file is binary (byte {content.index(0)} is 0) and of no kind that can be read"
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


def _documents(passages: list[Passage]) -> Iterator[Document]:
    """Paragraphs that several questions share are kept once; the id is the record's own, else its title, else a number.

    What is taken already gets a number after it: `Title`, `Title (2)`, `Title (3)`.
    """
    own = Counter(passage.id for passage in passages if passage.id is not None)
    taken = {name for name, count in own.items() if count == 1}
    seen: set[tuple[str, str]] = set()
    tries: Counter[str] = Counter()
    number = 0
    for passage in passages:
        if passage.pooled:
            if (passage.title, passage.text) in seen:
                continue
            seen.add((passage.title, passage.text))
        number += 1
        name = passage.id
        if name is None or own[name] > 1:
            wanted = name = passage.title or str(number)
            while name in taken:
                tries[wanted] += 1
                name = f"{wanted} ({tries[wanted] + 1})"
            taken.add(name)
        yield Document(name, passage.title, passage.text)
