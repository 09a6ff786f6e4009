"""From rows of a pool to the chunk records in the state: how many, which rows, in which order, with which scores."""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.rerankers import Reranker
from ..retrieval.chunking import embedding_text
from ..retrieval.gmmr import gmmr_sweep, mmr_centroid_sweep, mmr_sweep
from ..retrieval.pool import Pool, cosines
from ..state.mixins import Diversity
from ..state.records import Chunk

SWEEPS = {"gmmr": gmmr_sweep, "mmr_centroid": mmr_centroid_sweep, "mmr": mmr_sweep}


def selectable(pool: Pool, k: int) -> tuple[int, list[str]]:
    """The number of chunks to select, k or fewer, and warnings about skipped records and a pool smaller than k."""
    skipped = (
        [f"Skipped corpus records: {len(pool.left_out)}, the first one: {pool.left_out[0]}"] if pool.left_out else []
    )
    return min(k, len(pool)), [*skipped, *too_few(len(pool), k)]


def too_few(found: int, k: int) -> list[str]:
    """A warning if fewer than k chunks were found."""
    if not found:
        return ["The retriever found no chunks; the answer is made without evidence."]
    if found < k:
        return [f"Fewer chunks than k = {k} were found: {found}. All of them are used."]
    return []


async def select_diverse(
    pool: Pool, diversity: Diversity, lambdas: Sequence[float], k: int, begun: Sequence[int] = ()
) -> NDArray[np.int64]:
    """The rows that gMMR or MMR selects at each of L diversity levels λ, [L, k], in the order of selection.

    begun: the rows that are selected already, the first of the k.
    """
    levels = np.array(lambdas, dtype=np.float32)
    return await asyncio.to_thread(SWEEPS[diversity], pool.query, pool.vectors, levels, k, begun)


def by_similarity(rows: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """The rows ordered by cosine to the question, highest first. Ties: the lower row first."""
    return tuple(sorted(rows, key=lambda row: (-_cosine(pool, row), row)))


async def by_reranker(question: str, chunks: Sequence[Chunk], reranker: Reranker) -> list[Chunk]:
    """The chunks with the re-ranker's scores, best first. Ties: in the order in which they came."""
    scores = await reranker.scores(question, [embedding_text(chunk) for chunk in chunks])
    scored: list[Chunk] = [{**chunk, "score": score} for chunk, score in zip(chunks, scores, strict=True)]
    return sorted(scored, key=lambda chunk: -chunk["score"])


def scored_chunk(pool: Pool, row: int) -> Chunk:
    """The chunk of a row, with its cosine to the question as score."""
    return {**pool.chunk(row), "score": _cosine(pool, row)}


def _cosine(pool: Pool, row: int) -> float:
    return float(cosines(pool.vectors, [row], pool.query)[0])
