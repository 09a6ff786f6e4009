"""Where the first candidates for a question come from: words, vectors, learned sparse vectors, or several together.

`bm25` ranks by words, `dense` by the index's own vectors, `splade:NAME` by a sparse encoder's weighted words (SPLADE),
`hybrid` fuses `bm25` and `dense`, and `hybrid:A+B` any of them. A live retriever is a first stage too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from ..errors import UserFault
from ..state.records import Chunk
from .bm25 import open_bm25
from .chunking import Progress
from .fusion import Fused, Ranker, Ranking
from .index import Index
from .pool import Retriever
from .sparse import open_sparse

FIRST_STAGE_NAMES = (
    "bm25, dense, splade:folder-or-hub-name, hybrid (bm25 and dense), hybrid:A+B (any of the first three)"
)

SPLADE, HYBRID = "splade:", "hybrid:"

_PLUS = re.compile(r"\+(?=(?:bm25|dense)(?:\+|$)|splade:)")
"""What joins the parts of a hybrid: a + within a folder's name does not."""


class FirstStage(Protocol):
    """A way to find a question's first candidates."""

    @property
    def name(self) -> str:
        """The name it was opened by."""
        ...

    async def search(self, query: str, n: int) -> list[Chunk]:
        """The n best chunks, best first and equals in corpus order, each with this stage's own score (finite).

        What has nothing in common with the query (a score of 0 of `bm25` and `splade:`) is left out, so that there may
        be fewer, or none. `UserFault` unless n is at least 1.
        """
        ...


class IndexStage:
    """A first stage that ranks the rows of an index."""

    def __init__(self, name: str, ranker: Ranker, index: Index) -> None:
        """ranker: ranks this index's rows."""
        self.name = name
        self._ranker, self._index = ranker, index

    async def search(self, query: str, n: int) -> list[Chunk]:
        """See `FirstStage.search`; scores of `hybrid` are those of reciprocal-rank fusion."""
        rows, scores = await self._ranker.rank(query, _at_least_one(n))
        chunks = self._index.chunks
        return [_scored(chunks[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]


class LiveStage:
    """A live retriever as a first stage, in its own order; scores are cosines under the encoder of its pools."""

    name = "retriever"

    def __init__(self, retriever: Retriever) -> None:
        """retriever: such as a `LangChainRetriever`."""
        self._retriever = retriever

    async def search(self, query: str, n: int) -> list[Chunk]:
        """See `FirstStage.search`."""
        pool = await self._retriever.pool(query, _at_least_one(n))
        scores = (pool.vectors @ pool.query).tolist() if len(pool) else []
        return [_scored(pool.chunk(row), score) for row, score in enumerate(scores[:n])]


class _Dense:
    def __init__(self, index: Index) -> None:
        self._index = index

    async def rank(self, query: str, n: int) -> Ranking:
        return Ranking(*await self._index.nearest(query, n))


async def open_first_stage(
    name: str, source: Index | Retriever, cache: Path, progress: Progress | None = None
) -> FirstStage:
    """The first stage of that name over an index; what it needs is built once and kept in the cache folder.

    source: anything but an index is a live retriever, which stands for whatever is named. progress: hears how many
    chunks are done, where they have to be read. `UserFault` for an unknown name.
    """
    parts = _parts(name.strip())
    if not isinstance(source, Index):
        return LiveStage(source)
    rankers = [await _ranker(part, source, cache, progress) for part in parts]
    return IndexStage(name.strip(), rankers[0] if len(rankers) == 1 else Fused(rankers), source)


def _parts(name: str) -> list[str]:
    """The rankings that a name asks for."""
    parts = ["bm25", "dense"] if name == "hybrid" else [name]
    if name.startswith(HYBRID):
        parts = _PLUS.split(name.removeprefix(HYBRID))
        if len(set(parts)) < 2:
            raise UserFault(f"The first stage '{name}' is of one only: name two that differ, as in hybrid:bm25+dense.")
    if not all(part in {"bm25", "dense"} or (part.startswith(SPLADE) and part != SPLADE) for part in parts):
        raise UserFault(f"There is no first stage named '{name}': use one of {FIRST_STAGE_NAMES}.")
    return parts


async def _ranker(name: str, index: Index, cache: Path, progress: Progress | None) -> Ranker:
    if name == "bm25":
        return await open_bm25(index, cache, progress)
    if name == "dense":
        return _Dense(index)
    return await open_sparse(name, name.removeprefix(SPLADE), index, cache, progress)


def _scored(chunk: Chunk, score: float) -> Chunk:
    scored = chunk.copy()
    scored["score"] = score
    return scored


def _at_least_one(n: int) -> int:
    if n < 1:
        raise UserFault(f"The number of chunks to search for is {n}: give one of at least 1.")
    return n
