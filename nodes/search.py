"""What a first stage finds for a question, re-ranked if the settings say so."""

from typing import NamedTuple

from ..resources.resources import Resources
from ..state.mixins import SearchContext
from ..state.records import Chunk
from .evidence import by_reranker, by_similarity, scored_chunk, selectable, too_few


class Search(NamedTuple):
    """chunks: the best k, best first; found: what was re-ranked, in the order of the first stage, else nothing."""

    chunks: list[Chunk]
    found: list[Chunk]
    warnings: list[str]


async def search(query: str, context: SearchContext, resources: Resources, *, chunker: str | None = None) -> Search:
    """The k best chunks of the first stage with its scores (dense: cosines), or of the re-ranker (SePer, section 5.5).

    chunker: in place of the context's.
    """
    n = max(context.k, context.rerank_n)
    if context.first_stage == "dense":
        retriever = await resources.retriever(context, chunker=chunker)
        pool = await retriever.pool(query, n)
        _, warnings = selectable(pool, context.k)
        found = [scored_chunk(pool, row) for row in by_similarity(range(min(n, len(pool))), pool)]
    else:
        stage = await resources.first_stage(context, chunker=chunker)
        found = await stage.search(query, n)
        warnings = too_few(len(found), context.k)
    if not context.is_used("reranker"):
        return Search(found[: context.k], [], warnings)
    best = await by_reranker(query, found, await resources.reranker(context))
    return Search(best[: context.k], found, warnings)
