"""Chunkers: documents are cut into chunks whose texts are exact slices of the document."""

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from langchain_text_splitters import RecursiveCharacterTextSplitter

from ..state.records import Chunk, Metadata
from .corpus import Document
from .metadata import metadata_of
from .spool import spooled

CountTokens = Callable[[str], int]

Progress = Callable[[int, int], None]
"""Gets how many are done, and how many there are."""

Span = tuple[int, int]
"""Start and end of a piece of text, in characters."""

COUNTED = 65_536
"""Words whose token counts are remembered."""


class Chunker(Protocol):
    """Cuts documents into chunks."""

    @property
    def name(self) -> str:
        """Its name in canonical spelling; stored in index manifests."""
        ...

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> Sequence[Chunk]:
        """The chunks of all documents in order; a document of white space only has no chunks.

        Ids are `document#0`, `document#1`, ..., and `document#s0`, ... for semantic chunks, so that both kinds of chunk
        of one document differ. progress: gets the sentences embedded, only from a chunker that embeds sentences.
        """
        ...


class _Sliceable(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Any: ...  # noqa: ANN401


Items = TypeVar("Items", bound=_Sliceable)


def batches(items: Items, size: int, progress: Progress | None) -> Iterator[Items]:
    """The items in batches of this size; progress: gets the number of items when the next batch is requested."""
    for start in range(0, len(items), size):
        batch: Items = items[start : start + size]
        yield batch
        if progress is not None:
            progress(start + len(batch), len(items))


def embedding_text(chunk: Chunk) -> str:
    """The text that is embedded for a chunk: its document's title above its text."""
    return f"{chunk['title']}\n{chunk['text']}" if chunk["title"] else chunk["text"]


class WordWindows:
    """Windows of `size` words without overlap, the last one shorter; joined, they are the document."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def name(self) -> str:
        """See `Chunker.name`."""
        return f"words:{self._size}"

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> Sequence[Chunk]:
        """See `Chunker.cut`; white space after a window belongs to the window."""
        return await asyncio.to_thread(
            lambda: spooled(chunk for document in documents for chunk in self._cut(document))
        )

    def _cut(self, document: Document) -> list[Chunk]:
        firsts = [word.start() for word in re.finditer(r"\S+", document.text)][:: self._size]
        starts = [0, *firsts[1:]] if firsts else []  # white space before the first word belongs to the first window
        ends = [*starts[1:], len(document.text)]
        return slices(document, zip(starts, ends, strict=False))


class TokenWindows:
    """Recursive splitting into chunks of at most `size` tokens; each repeats up to `overlap` tokens of the previous."""

    def __init__(self, size: int, overlap: int, count: CountTokens) -> None:
        """size, overlap: in tokens as `count` counts them."""
        self._size, self._overlap = size, overlap
        # the splitter counts the same words repeatedly
        self._count_word, self._count = lru_cache(COUNTED)(count), count

    @property
    def name(self) -> str:
        """See `Chunker.name`."""
        return f"tokens:{self._size}/{self._overlap}"

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> Sequence[Chunk]:
        """See `Chunker.cut`; pieces of white space only are left out."""
        return await asyncio.to_thread(
            lambda: spooled(chunk for document in documents for chunk in slices(document, self.spans(document.text)))
        )

    def spans(self, text: str) -> Iterator[Span]:
        """The positions of a text's pieces; pieces of white space only are left out."""
        splitter = _PlacingSplitter(
            chunk_size=self._size, chunk_overlap=self._overlap, length_function=self._length, strip_whitespace=False
        )
        for piece in splitter.split_text(text):
            if isinstance(piece, _Placed) and piece.strip():
                yield piece.start, piece.start + len(piece)

    def _length(self, text: str) -> int:
        return self._count_word(text) if len(text) <= 32 else self._count(text)


def slices(document: Document, spans: Iterable[Span], mark: str = "#") -> list[Chunk]:
    """The numbered chunks of a document at these positions; mark: between the document's id and the number."""
    chunks: list[Chunk] = []
    for number, (start, end) in enumerate(spans):
        chunk: Chunk = {
            "id": f"{document.id}{mark}{number}",
            "doc_id": document.id,
            "title": document.title,
            "text": document.text[start:end],
            "start": start,
        }
        first_word = start + len(chunk["text"]) - len(chunk["text"].lstrip())
        if metadata := {**document.metadata, **_place(document, first_word)}:
            chunk["metadata"] = metadata
        chunks.append(chunk)
    return chunks


def _place(document: Document, at: int) -> Metadata:
    """The page and the heading at an offset of the text; no heading that repeats the title."""
    page = {"page": bisect_right(document.pages, at)} if document.pages else {}
    before = bisect_right(document.headings, at, key=lambda heading: heading.start)
    heading = document.headings[before - 1].text if before else ""
    return metadata_of({**page, "heading": "" if heading == document.title else heading})


class _Placed(str):
    """A piece of a text with its start in the text."""

    __slots__ = ("start",)
    start: int


def _placed(text: str, start: int) -> _Placed:
    piece = _Placed(text)
    piece.start = start
    return piece


class _PlacingSplitter(RecursiveCharacterTextSplitter):
    """LangChain's splitter with the position of each piece; for one text.

    LangChain searches for a piece's position afterwards, and finds a wrong one where the text repeats itself. Here the
    smallest splits get their positions in `_merge_splits`, which they reach in text order and without gaps, because
    separators and white space are kept. A piece starts where its first split starts.
    """

    _reached = 0

    def _merge_splits(self, splits: Iterable[str], separator: str) -> list[str]:
        return super()._merge_splits(list(self._place(splits)), separator)

    def _place(self, splits: Iterable[str]) -> Iterator[_Placed]:
        for split in splits:
            yield _placed(split, self._reached)
            self._reached += len(split)

    def _join_docs(self, docs: list[str], separator: str) -> str | None:
        joined = super()._join_docs(docs, separator)
        return _placed(joined, docs[0].start) if joined and isinstance(docs[0], _Placed) else joined
