"""Learned sparse retrieval (SPLADE, Formal et al. 2021): the dot product of weighted words.

The chunks are encoded once and kept as an inverted index: `indptr.npy` [V + 1] holds where each word's postings begin
in `indices.npy` (rows, ascending) and `data.npy` (weights). The files are read memory-mapped.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.sparse_encoder import SparseModel, SparseVectors
from .chunking import Progress, batches, embedding_text
from .derived_files import Derived, cache_folder, get_or_build, read_array
from .fusion import Ranking, best
from .index import Index

BATCH = 256
"""Chunks encoded in one go; between batches, progress is reported and questions get a turn."""


class SparseManifest(Derived):
    """The inputs of a sparse index. encoder: the name that the first stage was opened by; weights: the encoder's."""

    kind: str = "sparse index"
    format: int = 1
    encoder: str
    weights: str = ""


class Postings(NamedTuple):
    """An inverted index; see the module."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]


class Sparse:
    """Ranks an index's rows by the dot product of sparse vectors."""

    def __init__(self, model: SparseModel, postings: Postings, chunks: int, folder: Path) -> None:
        """postings: by this model; chunks: their number; folder: of the postings, for messages."""
        self._model, self._postings, self._chunks, self._folder = model, postings, chunks, folder

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`; rows without any word of the query are left out."""
        vector = await self._model.encode([query], query=True)
        if vector.vocabulary != len(self._postings.indptr) - 1:
            raise UserFault(
                f"The sparse encoder '{self._model.name}' has {vector.vocabulary} words and had "
                f"{len(self._postings.indptr) - 1} when the chunks were encoded: delete {self._folder} and ask again."
            )
        return await asyncio.to_thread(lambda: best(scores_of(vector, self._postings, self._chunks), n))


def scores_of(query: SparseVectors, postings: Postings, chunks: int) -> NDArray[np.float32]:
    """The dot product of a query vector with each chunk, [chunks]; reads only the postings of the query's words."""
    scores = np.zeros(chunks, dtype=np.float32)
    for word, weight in zip(query.words.tolist(), query.weights, strict=True):
        begin, end = postings.indptr[word : word + 2].tolist()
        scores[postings.indices[begin:end]] += weight * postings.data[begin:end]
    return scores


def postings_of(batches: Sequence[SparseVectors]) -> Postings:
    """The postings of consecutive batches; `rows` of every batch count from the first batch."""
    words = np.concatenate([batch.words for batch in batches])
    order = np.argsort(words, kind="stable")
    counts = np.bincount(words, minlength=batches[0].vocabulary)
    return Postings(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([batch.rows for batch in batches])[order],
        np.concatenate([batch.weights for batch in batches])[order],
    )


async def open_sparse(name: str, source: str, index: Index, cache: Path, progress: Progress | None = None) -> Sparse:
    """The ranking by a sparse encoder. The chunks are encoded at the first use; progress: gets their number.

    `UserFault` if the model cannot be loaded or the cache folder cannot be written to.
    """
    model = await asyncio.to_thread(SparseModel, name, source)
    manifest = SparseManifest(
        chunks=index.manifest.chunks,
        chunks_sha256=index.manifest.chunks_sha256,
        encoder=name,
        weights=model.weights,
    )

    async def build() -> Callable[[Path], None]:
        encoded: list[SparseVectors] = []
        for batch in batches(index.chunks, BATCH, progress):
            vectors = await model.encode([embedding_text(chunk) for chunk in batch])
            encoded.append(vectors._replace(rows=vectors.rows + np.int32(BATCH * len(encoded))))
        postings = await asyncio.to_thread(postings_of, encoded)
        return lambda target: _write(target, postings)

    postings = await get_or_build(cache, manifest, _read, build)
    return Sparse(model, postings, manifest.chunks, cache_folder(cache, manifest))


def _write(folder: Path, postings: Postings) -> None:
    for name, array in postings._asdict().items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _read(folder: Path) -> Postings:
    indptr = read_array(folder / "indptr.npy", "int64", [None])
    entries = int(indptr[-1]) if len(indptr) else 0
    indices = read_array(folder / "indices.npy", "int32", [entries])
    return Postings(indptr, indices, read_array(folder / "data.npy", "float32", [entries]))
