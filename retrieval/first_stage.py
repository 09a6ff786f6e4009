"""First-stage retrieval: by words, vectors, learned sparse vectors, or a fusion of these.

`bm25` ranks by words, `dense` by the index's own vectors, `splade:NAME` by a sparse encoder's weighted words (SPLADE).
`hybrid` fuses `bm25` and `dense`; `hybrid:A+B` fuses any of them. A live retriever is a first stage too.
"""

import re
from pathlib import Path
from typing import Protocol

from ..errors import UserFault
from ..state.records import Chunk
from .bm25 import open_bm25
from .chunking import Progress
from .fusion import Fused, Ranker
from .index import Index
from .pool import Pool, Retriever, at_least_one
from .restricted import Restricted
from .sparse import open_sparse

FIRST_STAGE_NAMES = (
    "bm25, dense, splade:folder-or-hub-name, hybrid (bm25 and dense), hybrid:A+B (any of the first three)"
)

SPLADE, HYBRID = "splade:", "hybrid:"

_PLUS = re.compile(r"\+(?=(?:bm25|dense)(?:\+|$)|splade:)")
"""A + between the parts of a hybrid, not a + in a folder's name."""


class FirstStage(Protocol):
    """Finds the first candidates for a question."""

    @property
    def name(self) -> str:
        """The name it was opened by."""
        ...

    async def search(self, query: str, n: int) -> list[Chunk]:
        """The n best chunks with this stage's own finite scores, best first, equals in corpus order.

        `bm25` and `splade:` leave out chunks that have nothing in common with the query, so there may be fewer.
        `UserFault` unless n is at least 1.
        """
        ...


class IndexStage:
    """A first stage that ranks the rows of an index."""

    def __init__(self, name: str, ranker: Ranker, index: Index) -> None:
        self.name = name
        self.ranker, self._index = ranker, index

    async def search(self, query: str, n: int) -> list[Chunk]:
        """See `FirstStage.search`; `hybrid` scores by reciprocal-rank fusion."""
        rows, scores = await self.ranker.rank(query, at_least_one(n))
        chunks = self._index.chunks
        return [_scored(chunks[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]


class VectorsOfStage:
    """A retriever whose pools are what a first stage finds, with the vectors of the index that it searches."""

    def __init__(self, stage: IndexStage, index: Index) -> None:
        self._stage, self._index = stage, index

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; the top_n chunks are the first stage's best, in its order."""
        if top_n is None:
            return await self._index.pool(query, None)
        rows = (await self._stage.ranker.rank(query, at_least_one(top_n))).rows
        return await self._index.pool_of(query, rows)


class LiveStage:
    """A live retriever as a first stage, in the retriever's order; scores are cosines of its pools' vectors."""

    name = "retriever"

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def search(self, query: str, n: int) -> list[Chunk]:
        """See `FirstStage.search`."""
        pool = await self._retriever.pool(query, at_least_one(n))
        scores = (pool.vectors @ pool.query).tolist() if len(pool) else []
        return [_scored(pool.chunk(row), score) for row, score in enumerate(scores[:n])]


async def open_first_stage(
    name: str, source: Index | Retriever, cache: Path, progress: Progress | None = None
) -> FirstStage:
    """The first stage of that name over an index; its files are built once and kept in the cache folder.

    source: an index, for `bm25` also one without vectors, or a live retriever, which is used under every name.
    progress: gets the number of chunks read when files are built. `UserFault` for an unknown name.
    """
    parts = _parts(name.strip())
    if not isinstance(source, Index):
        return LiveStage(source)
    rankers = [await _ranker(part, source, cache, progress) for part in parts]
    return IndexStage(name.strip(), rankers[0] if len(rankers) == 1 else Fused(rankers), source)


def _parts(name: str) -> list[str]:
    """The rankings in a first stage's name."""
    parts = ["bm25", "dense"] if name == "hybrid" else [name]
    if name.startswith(HYBRID):
        parts = _PLUS.split(name.removeprefix(HYBRID))
        if len(set(parts)) < 2:
            raise UserFault(f"The first stage '{name}' needs two different parts, as in hybrid:bm25+dense.")
    if not all(part in {"bm25", "dense"} or (part.startswith(SPLADE) and part != SPLADE) for part in parts):
        raise UserFault(f"There is no first stage named '{name}': use one of {FIRST_STAGE_NAMES}.")
    return parts


async def _ranker(name: str, index: Index, cache: Path, progress: Progress | None) -> Ranker:
    if name == "dense":
        return index
    ranker: Ranker
    if name == "bm25":
        ranker = await open_bm25(index, cache, progress)
    else:
        ranker = await open_sparse(name, name.removeprefix(SPLADE), index, cache, progress)
    return ranker if index.passing is None else Restricted(ranker, index.passing, len(index.chunks))


def _scored(chunk: Chunk, score: float) -> Chunk:
    scored = chunk.copy()
    scored["score"] = score
    return scored
