"""Documents cut into chunks whose texts are exact slices of the document.

`words:N` cuts windows of N words (DF-RAG, section 4.1: 100, 200 or 300). `tokens:SIZE/OVERLAP` splits recursively at
paragraphs, lines, words and characters, counted in an encoder's tokens (DENSE-RAG: 512/64). `semantic:TAU/TMAX` joins
neighbouring sentences of like meaning (DENSE-RAG: 0.6/512); see `semantic_chunks`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from langchain_text_splitters import RecursiveCharacterTextSplitter

from ..errors import UserFault
from ..models.interfaces import Encoder
from ..state.records import Chunk
from .corpus import Document

CountTokens = Callable[[str], int]

Progress = Callable[[int, int], None]
"""Hears how much is done so far, and of how much."""

Span = tuple[int, int]
"""Where a piece of a text starts and ends, in characters."""

CHUNKER_NAMES = (
    "words:100, words:200, words:300 (any number of words), tokens:512/64 (size/overlap in tokens), "
    "semantic:0.6/512 (smallest cosine of neighbouring sentences/most tokens)"
)

SMALLEST = 16
"""Tokens in the smallest chunk size: no single character has as many."""

COUNTED = 65_536
"""How many words' token counts are remembered."""


class Chunker(Protocol):
    """A way to cut documents."""

    @property
    def name(self) -> str:
        """The name it was opened by, in one spelling; stored in index manifests."""
        ...

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> list[Chunk]:
        """The chunks of all documents in order; a document that is only white space has none.

        Ids are `document#0`, `document#1`, ..., with `#s` for semantic chunks, so that both cuts of a document can be
        told apart. progress: hears of sentences, and only from a chunker that embeds them.
        """
        ...


def open_chunker(name: str, count: CountTokens | None = None, encoder: Encoder | None = None) -> Chunker:
    """The chunker of that name.

    count: a text's number of tokens, without special ones, for `tokens:` and `semantic:`; encoder: for `semantic:`.
    Raises `UserFault` for an unknown name, sizes that cannot be, and a name whose needs are not given.
    """
    if words := re.fullmatch(r"\s*words:(\d{1,9})\s*", name, re.ASCII):
        if size := int(words[1]):
            return WordWindows(size)
    elif tokens := re.fullmatch(r"\s*tokens:(\d{1,9})/(\d{1,9})\s*", name, re.ASCII):
        size, overlap = int(tokens[1]), int(tokens[2])
        if size < SMALLEST or overlap >= size:
            raise UserFault(
                f"The chunker '{name}' cannot be: the size is at least {SMALLEST} tokens and the overlap less than the "
                "size, as in tokens:512/64."
            )
        return TokenWindows(size, overlap, _needed(count, name))
    elif semantic := re.fullmatch(r"\s*semantic:(-?\d{1,3}(?:\.\d{1,9})?)/(\d{1,9})\s*", name, re.ASCII):
        from .semantic_chunks import SemanticChunks  # noqa: PLC0415 - it stands on this module

        tau, most = float(semantic[1]), int(semantic[2])
        if not -1 <= tau <= 1 or most < SMALLEST:
            raise UserFault(
                f"The chunker '{name}' cannot be: the cosine is from -1 to 1 and the size at least {SMALLEST} tokens, "
                "as in semantic:0.6/512."
            )
        if encoder is None:
            raise UserFault(
                f"The chunker '{name}' compares sentences and needs an encoder: give one, or use words:100."
            )
        return SemanticChunks(tau, most, _needed(count, name), encoder)
    raise UserFault(f"There is no chunker named '{name}': use one of {CHUNKER_NAMES}.")


def _needed(count: CountTokens | None, name: str) -> CountTokens:
    if count is None:
        raise UserFault(
            f"The chunker '{name}' counts tokens and this encoder has no tokenizer to count with: use words:100, "
            "or an encoder that runs on this machine."
        )
    return count


def embedding_text(chunk: Chunk) -> str:
    """What is embedded for a chunk: its document's title above its text."""
    return f"{chunk['title']}\n{chunk['text']}" if chunk["title"] else chunk["text"]


class WordWindows:
    """Windows of `size` words without overlap, the last one shorter; joined, they are the document's text."""

    def __init__(self, size: int) -> None:
        """size: words in a window."""
        self._size = size

    @property
    def name(self) -> str:
        """See `Chunker.name`."""
        return f"words:{self._size}"

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> list[Chunk]:
        """See `Chunker.cut`; the space after a window belongs to it."""
        return await asyncio.to_thread(lambda: [chunk for document in documents for chunk in self._cut(document)])

    def _cut(self, document: Document) -> list[Chunk]:
        firsts = [word.start() for word in re.finditer(r"\S+", document.text)][:: self._size]
        starts = [0, *firsts[1:]] if firsts else []  # what stands before the first word belongs to the first window
        ends = [*starts[1:], len(document.text)]
        return slices(document, zip(starts, ends, strict=False))


class TokenWindows:
    """Recursive splitting into chunks of at most `size` tokens that repeat up to `overlap` tokens of the one before."""

    def __init__(self, size: int, overlap: int, count: CountTokens) -> None:
        """size, overlap: in tokens as `count` counts them."""
        self._size, self._overlap = size, overlap
        # the splitter asks for the same words over and over
        self._count_word, self._count = lru_cache(COUNTED)(count), count

    @property
    def name(self) -> str:
        """See `Chunker.name`."""
        return f"tokens:{self._size}/{self._overlap}"

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> list[Chunk]:
        """See `Chunker.cut`; a piece of nothing but white space is left out."""
        return await asyncio.to_thread(
            lambda: [chunk for document in documents for chunk in slices(document, self.spans(document.text))]
        )

    def spans(self, text: str) -> Iterator[Span]:
        """Where the pieces of a text are; those of nothing but white space are left out."""
        splitter = _PlacingSplitter(
            chunk_size=self._size, chunk_overlap=self._overlap, length_function=self._length, strip_whitespace=False
        )
        for piece in splitter.split_text(text):
            if isinstance(piece, _Placed) and piece.strip():
                yield piece.start, piece.start + len(piece)

    def _length(self, text: str) -> int:
        return self._count_word(text) if len(text) <= 32 else self._count(text)


def slices(document: Document, spans: Iterable[Span], mark: str = "#") -> list[Chunk]:
    """The chunks of a document at these places, numbered; mark: what stands between its id and the number."""
    return [
        {
            "id": f"{document.id}{mark}{number}",
            "doc_id": document.id,
            "title": document.title,
            "text": document.text[start:end],
            "start": start,
        }
        for number, (start, end) in enumerate(spans)
    ]


class _Placed(str):
    """A piece of a text that knows where in the text it starts."""

    __slots__ = ("start",)
    start: int


def _placed(text: str, start: int) -> _Placed:
    piece = _Placed(text)
    piece.start = start
    return piece


class _PlacingSplitter(RecursiveCharacterTextSplitter):
    """LangChain's splitter, whose pieces know their place; for one text.

    LangChain can only search for a piece's place afterwards, and finds the wrong one where the text repeats itself.
    The smallest splits reach `_merge_splits` in the order of the text and without gaps, because separators and white
    space are kept: there each gets its place, and a piece starts where its first split does.
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
