"""Adaptive semantic chunking (DENSE-RAG, section 5.1, equation 7, and Algorithm 2).

    documents -> sentences -> a vector each -> similar neighbours joined

At a cosine of exactly τ equation 7 joins and Algorithm 2 does not; equation 7 is followed. A chunk's length is also
that of equation 7: the tokens of the joined text, not the sum of its sentences' tokens.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors
from ..state.records import Chunk
from .chunking import CountTokens, Progress, Span, TokenWindows, batches, slices
from .corpus import Document
from .sentences import sentences

BATCH = 256
"""Sentences embedded between two reports of progress; only their vectors are held at once."""

ROUNDING = 1e-6
"""Cosines of float32 vectors that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence, or a part of a sentence that is too long for a chunk, and its position in the document."""

    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]


class SemanticChunks:
    """Neighbouring sentences are joined while each is similar to the previous one and the chunk is not too long.

    A sentence that is longer than a chunk is split as by `tokens:TMAX/0`, and its parts are joined by the same rule.
    The joined chunks are the document's text, except for white space in such a sentence that fits into no chunk.
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

    async def cut(self, documents: Sequence[Document], progress: Progress | None = None) -> Sequence[Chunk]:
        """See `Chunker.cut`; progress: gets the number of embedded sentences."""
        parts = await asyncio.to_thread(lambda: [part for document in documents for part in self._sentences(document)])
        similar = await self._similar_to_previous(parts, progress)
        return await asyncio.to_thread(lambda: list(self._chunks(parts, similar)))

    def _sentences(self, document: Document) -> Iterator[_Sentence]:
        if document.text.strip():
            for span in sentences(document.text):
                for start, end in self._fitting(document.text, span):
                    yield _Sentence(document, start, end)

    def _fitting(self, text: str, sentence: Span) -> Iterator[Span]:
        """The sentence, or its parts that fit into a chunk."""
        first, last = sentence
        if self._count(text[first:last]) <= self._most:
            yield sentence
            return
        spans = [(first + start, first + end) for start, end in self._windows.spans(text[first:last])]
        edges = [first, *(start for start, _ in spans[1:]), last]
        for number, span in enumerate(spans):
            with_space = edges[number], edges[number + 1]
            yield with_space if self._count(text[slice(*with_space)]) <= self._most else span

    async def _similar_to_previous(self, parts: Sequence[_Sentence], progress: Progress | None) -> list[bool]:
        """Whether each sentence is similar to the previous one; False for the first."""
        cosines = [-np.inf]
        previous: list[Vectors] = []
        for batch in batches(parts, BATCH, progress):
            texts = [sentence.text.strip() for sentence in batch]
            vectors = await self._encoder.embed(texts)
            if len(vectors) != len(texts):
                raise UserFault(
                    f"The encoder '{self._encoder.name}' gave {len(vectors)} vectors for {len(texts)} texts."
                )
            rows = np.concatenate([*previous, vectors])
            cosines += np.einsum("nd,nd->n", rows[:-1], rows[1:]).tolist()
            previous = [vectors[-1:]]
        return [cosine >= self._tau - ROUNDING for cosine in cosines]

    def _chunks(self, parts: Iterable[_Sentence], similar: Iterable[bool]) -> Iterator[Chunk]:
        pairs = zip(parts, similar, strict=False)
        for _, group in groupby(pairs, key=lambda pair: id(pair[0].document)):
            of_document = list(group)
            document = of_document[0][0].document
            yield from slices(document, self._joined(document.text, of_document), "#s")

    def _joined(self, text: str, of_document: Iterable[tuple[_Sentence, bool]]) -> list[Span]:
        """Algorithm 2 for one document."""
        spans: list[Span] = []
        for sentence, similar in of_document:
            if spans and similar and self._count(text[spans[-1][0] : sentence.end]) <= self._most:
                spans[-1] = spans[-1][0], sentence.end
            else:
                spans.append((sentence.start, sentence.end))
        return spans
