"""Text from PDF, HTML and Word files, by LangChain's document loaders (the `[loaders]` extra)."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UserFault, extra_command
from .passages import Finding, Passage, Problem

if TYPE_CHECKING:
    from langchain_core.document_loaders import BaseLoader

Kind = Literal["PDF", "HTML", "Word"]

MOST_UNPACKED = 500_000_000
"""Bytes of a Word file, which is packed, when it is unpacked. A small file can be made to unpack to any size."""


def kind_of(content: bytes) -> Kind | None:
    """The kind of a file by its first bytes; None if no loader reads it."""
    if content.startswith(b"%PDF-"):
        return "PDF"
    if content.startswith(b"PK\x03\x04") and b"word/" in content:
        return "Word"
    start = content[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return "HTML" if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) else None


def load(path: Path, kind: Kind) -> Iterator[Finding]:
    """One passage for the file, titled by its HTML title, else by its name."""
    loader = _loader(path, kind)
    try:
        if kind == "Word":
            _check_unpacked(path)
        parts = loader.load()
    except Exception as fault:  # these parsers raise almost any exception for a damaged file
        reason = " ".join(str(fault).split())[:120]
        yield Problem("", f"it cannot be read as {kind} ({type(fault).__name__}: {reason})")
        return
    text, pages = _joined([part.page_content for part in parts])
    title = str(parts[0].metadata.get("title") or "").strip() if parts and kind == "HTML" else ""
    if text:
        yield Passage("", " ".join(title.split()) or path.stem, text, pages=pages if kind == "PDF" else ())
    else:
        yield Problem("", "the file has no text" + (" (is it a scan?)" if kind == "PDF" else ""))


def _check_unpacked(path: Path) -> None:
    with zipfile.ZipFile(path) as packed:
        size = sum(part.file_size for part in packed.infolist())
    if size > MOST_UNPACKED:
        raise ValueError(f"it unpacks to {size:,} bytes")


NEEDS: dict[Kind, str] = {"PDF": "pypdf", "HTML": "bs4", "Word": "docx2txt"}
"""The module that each loader imports when it reads."""


def _loader(path: Path, kind: Kind) -> BaseLoader:
    try:
        from langchain_community import document_loaders  # noqa: PLC0415 - an extra, and slow to import

        import_module(NEEDS[kind])
    except ImportError as fault:
        raise UserFault(f"{path} is a {kind} file, which needs an extra: {extra_command('loaders')}.") from fault
    loader: BaseLoader
    if kind == "PDF":
        loader = document_loaders.PyPDFLoader(str(path), mode="page")
    elif kind == "HTML":
        loader = document_loaders.BSHTMLLoader(
            path, open_encoding="utf-8-sig", bs_kwargs={"features": "html.parser"}, get_text_separator=" "
        )
    else:
        loader = document_loaders.Docx2txtLoader(path)
    return loader


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
