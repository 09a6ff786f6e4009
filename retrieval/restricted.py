"""A corpus of which only some chunks may be found."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..state.records import Chunk
from ..state.where import Condition, passes
from .corpus_graph import CorpusGraph
from .fusion import Ranker, Ranking


def passing_rows(chunks: Sequence[Chunk], condition: Condition) -> NDArray[np.int64]:
    """The rows of the chunks that pass, ascending; `UserFault` if none does."""
    rows = np.fromiter((row for row, chunk in enumerate(chunks) if passes(condition, chunk)), dtype=np.int64)
    if not len(rows):
        names = sorted({name for chunk in chunks[:1000] for name in chunk.get("metadata", {})})
        known = f"the first chunks have {', '.join(names[:20])}" if names else "the chunks have no metadata"
        raise UserFault(f"No chunk of the corpus passes the filter `where` ({known}): correct it, or leave it out.")
    return rows


class Restricted:
    """A ranking that leaves out the rows that do not pass."""

    def __init__(self, ranker: Ranker, passing: NDArray[np.int64], rows: int) -> None:
        """rows: the number of all rows."""
        self._ranker = ranker
        self._passes = np.zeros(rows, dtype=bool)
        self._passes[passing] = True

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`."""
        rows, scores = await self._ranker.rank(query, len(self._passes))
        kept = self._passes[rows]
        return Ranking(rows[kept][:n], scores[kept][:n])


class RestrictedGraph:
    """A corpus graph without the documents that do not pass."""

    def __init__(self, graph: CorpusGraph, condition: Condition) -> None:
        self._graph, self._condition = graph, condition

    def neighbours(self, chunk_id: str) -> Sequence[tuple[str, float]]:
        """See `CorpusGraph.neighbours`; there may be fewer."""
        found = self._graph.neighbours(chunk_id)
        return [(other, score) for other, score in found if passes(self._condition, self._graph.chunk(other))]

    def chunk(self, chunk_id: str) -> Chunk:
        """See `CorpusGraph.chunk`."""
        return self._graph.chunk(chunk_id)
