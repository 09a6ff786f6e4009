"""Adaptive semantic chunking (DENSE-RAG, section 5.1, equation 7, and Algorithm 2).

    documents -> sentences -> a vector each -> neighbours of like meaning joined

Equation 7 joins at a cosine of at least τ where Algorithm 2 says above τ: equation 7 holds. It is also followed in
what a chunk's length is: the tokens of the joined text, not the sum of its sentences' tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..errors import UserFault
from ..models.interfaces import Encoder
from ..state.records import Chunk
from .chunking import CountTokens, Progress, Span, TokenWindows, slices
from .corpus import Document
from .sentences import sentences

BATCH = 256
"""Sentences embedded between two reports of progress; their vectors are all that are held at once."""

ROUNDING = 1e-6
"""Vectors are float32: cosines that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence, or a part of one that is too long for a chunk, and where it is in its document's text."""

    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]


class SemanticChunks:
    """Neighbouring sentences, joined while each is like the one before and the chunk is not too long.

    A sentence that is itself too long is split as `tokens:TMAX/0` would, and its parts are joined by the same rule.
    Chunks joined are the document's text; only white space in such a sentence that does not fit into a chunk is left
    out.
    """

    def __init__(self, tau: float, most: int, count: CountTokens, encoder: Encoder) -> None:
        """tau: τ, the smallest cosine of two sentences in a chunk, in [-1, 1]; most: T_max, in tokens of `count`."""
        self._tau, self._most, self._count, self._encoder = tau, most, count, encoder
        self._windows = TokenWindows(most, 0, count)

    @property
    def name(self) -> str:
        """See `Chunker.name`."""
        tau = f"{self._tau:.9f}".rstrip("0").rstrip(".")
        return f"semantic:{'0' if tau == '-0' else tau}/{self._most}"

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> list[Chunk]:
        """See `Chunker.cut`; progress: hears how many sentences of all documents are embedded."""
        found = await asyncio.to_thread(lambda: [one for document in documents for one in self._sentences(document)])
        alike = await self._alike(found, progress)
        return await asyncio.to_thread(lambda: list(self._chunks(found, alike)))

    def _sentences(self, document: Document) -> Iterator[_Sentence]:
        if document.text.strip():
            for span in sentences(document.text):
                for start, end in self._fitting(document.text, span):
                    yield _Sentence(document, start, end)

    def _fitting(self, text: str, sentence: Span) -> Iterator[Span]:
        """The sentence, or the parts of it that fit into a chunk."""
        first, last = sentence
        if self._count(text[first:last]) <= self._most:
            yield sentence
            return
        spans = [(first + start, first + end) for start, end in self._windows.spans(text[first:last])]
        edges = [first, *(start for start, _ in spans[1:]), last]
        for number, span in enumerate(spans):
            with_space = edges[number], edges[number + 1]
            yield with_space if self._count(text[slice(*with_space)]) <= self._most else span

    async def _alike(self, found: Sequence[_Sentence], progress: Progress | None) -> list[bool]:
        """Whether each sentence is like the one before it; the first is not."""
        cosines = [-np.inf]
        before = np.zeros((0, 0), dtype=np.float32)
        for start in range(0, len(found), BATCH):
            texts = [sentence.text.strip() for sentence in found[start : start + BATCH]]
            vectors = await self._encoder.embed(texts)
            if len(vectors) != len(texts):
                raise UserFault(
                    f"The encoder '{self._encoder.name}' gave {len(vectors)} vectors for {len(texts)} texts."
                )
            rows = np.concatenate([before, vectors]) if start else vectors
            cosines += np.einsum("nd,nd->n", rows[:-1], rows[1:]).tolist()
            before = vectors[-1:]
            if progress is not None:
                progress(start + len(texts), len(found))
        return [cosine >= self._tau - ROUNDING for cosine in cosines]

    def _chunks(self, found: Iterable[_Sentence], alike: Iterable[bool]) -> Iterator[Chunk]:
        pairs = zip(found, alike, strict=False)
        for _, some in groupby(pairs, key=lambda pair: id(pair[0].document)):
            of_one = list(some)
            document = of_one[0][0].document
            yield from slices(document, self._joined(document.text, of_one), "#s")

    def _joined(self, text: str, of_one: Iterable[tuple[_Sentence, bool]]) -> list[Span]:
        """Algorithm 2 for one document."""
        spans: list[Span] = []
        for sentence, alike in of_one:
            if spans and alike and self._count(text[spans[-1][0] : sentence.end]) <= self._most:
                spans[-1] = spans[-1][0], sentence.end
            else:
                spans.append((sentence.start, sentence.end))
        return spans
