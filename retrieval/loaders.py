"""Text from PDF, HTML and Word files (the `[loaders]` extra)."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from ..errors import UserFault, extra_command
from ..settings import settings
from .passages import Finding, Heading, Passage, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["PDF", "HTML", "Word"]

NEEDS: Mapping[Kind, str] = {"PDF": "pypdf", "HTML": "bs4", "Word": "docx2txt"}
"""The module that reads each kind."""

MARK = "\ufdd0"
"""Stands before each heading of an HTML file while its text is taken; a code point that no text has."""


def kind_of(content: bytes) -> Kind | None:
    """The kind of a file by its first bytes; None if no loader reads it."""
    if content.startswith(b"%PDF-"):
        return "PDF"
    if content.startswith(b"PK\x03\x04") and b"word/" in content:
        return "Word"
    start = content[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return "HTML" if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) else None


def load(content: bytes, kind: Kind, path: PurePath) -> Iterator[Finding]:
    """One passage for the file, titled by its HTML title, else by its name. path: for names and messages."""
    try:
        import_module(NEEDS[kind])
    except ImportError as fault:
        raise UserFault(f"{path} is a {kind} file, which needs an extra: {extra_command('loaders')}.") from fault
    try:
        found = {"PDF": _pdf, "HTML": _html, "Word": _word}[kind](content)
    except Exception as fault:  # these parsers raise almost any exception for a damaged file
        reason = " ".join(str(fault).split())[:120]
        yield Problem("", f"it cannot be read as {kind} ({type(fault).__name__}: {reason})")
        return
    if isinstance(found, Passage) and not found.text:
        found = Problem("", "the file has no text" + (" (is it a scan?)" if kind == "PDF" else ""))
    yield found if isinstance(found, Problem) or found.title else found._replace(title=path.stem)


def _pdf(content: bytes) -> Finding:
    from pypdf import PdfReader  # noqa: PLC0415 - an extra

    text, pages = _joined([page.extract_text() for page in PdfReader(io.BytesIO(content)).pages])
    return Passage("", "", text, pages=pages)


def _html(content: bytes) -> Finding:
    from bs4 import BeautifulSoup  # noqa: PLC0415 - an extra

    soup = BeautifulSoup(content.decode("utf-8-sig").replace(MARK, ""), "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    tags = soup.find_all(re.compile("h[1-6]$"))
    names = [" ".join(tag.get_text(" ").split()) for tag in tags]
    for tag in tags:
        tag.insert_before(MARK)
    text, starts = _joined(soup.get_text(" ").split(MARK))
    return Passage("", title, text, headings=tuple(map(Heading, starts[1:], names)))


def _word(content: bytes) -> Finding:
    import docx2txt  # noqa: PLC0415 - an extra

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist() if part.filename.endswith(".xml"))
    if unpacked > (most := settings().max_unpacked_gb) * 10**9:
        return Problem("", too_large(most))
    return Passage("", "", _joined([docx2txt.process(io.BytesIO(content))])[0])


def too_large(most: float) -> str:
    """The clause about a file that unpacks to more than `most` gigabytes."""
    return f"it unpacks to more than {most:g} GB: to read it, set DUBITO_MAX_UNPACKED_GB to a larger number"


def _joined(parts: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """The parts as one text, and where each of them begins in it; an empty part begins at the end of the one before."""
    text, starts = "", []
    for part in map(_tidy, parts):
        text += "\n\n" if text and part else ""
        starts.append(len(text))
        text += part
    return text, tuple(starts)


def _tidy(text: str) -> str:
    """Without repeated white space and blank lines from the layout."""
    lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
