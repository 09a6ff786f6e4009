"""The document graph of SUNAR: each chunk's k nearest other chunks by cosine, computed once and kept on disk.

On disk it is a folder with a manifest, `neighbours.npy` (int32 [N, k]: rows of the index, nearest first, filled up with
-1), `scores.npy` (float32 [N, k]: cosines, filled up with -inf) and `ids.npy` (uint64 [2, N]: hashes of the chunks'
ids, ascending, and their rows). The arrays are read memory-mapped.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Encoder, are_other_weights, weights_of
from ..settings import settings
from ..state.records import Chunk
from .chunking import Progress, batches
from .derived_files import Derived, get_or_build, read_array, read_derived
from .index import Index
from .index_files import sha256_of
from .neighbours import Neighbours, Rows, best_of, improved, nearly_nearest, none_yet

BATCH = 1024
"""Chunks searched between two reports of progress."""


class GraphManifest(Derived):
    """The inputs of a document graph.

    encoder, weights, dimension: of the vectors; k: neighbours per chunk; method: all pairs of chunks are compared
    (exact), or those that nearest-neighbour descent finds; late_interaction: the model that ranks `candidates` dense
    neighbours per chunk, null if the vectors alone decide; late_weights: its weights. `weights_of` says what these are.
    """

    kind: str = "document graph"
    format: int = 2
    encoder: str
    weights: str = ""
    dimension: int
    k: int
    method: Literal["exact", "descent"]
    late_interaction: str | None = None
    late_weights: str = ""
    candidates: int | None = None


class DocumentGraph:
    """The nearest other chunks of every chunk of an index.

    manifest: the graph's inputs; nearest: the neighbours' rows, read-only. The graph fits every index of the same
    chunks and any encoder.
    """

    def __init__(
        self,
        manifest: GraphManifest,
        chunks: Sequence[Chunk],
        nearest: Neighbours,
        ids: NDArray[np.uint64] | None = None,
    ) -> None:
        """For `build` and `read`. chunks: in row order; nearest: their neighbours in the same order; ids: see above."""
        self.manifest = manifest
        # plain arrays over the memory map: their rows are read several times faster
        self._chunks = chunks
        self.nearest = Neighbours(np.asarray(nearest.rows), np.asarray(nearest.scores))
        self._ids = np.asarray(_ids_of(chunks) if ids is None else ids)
        # single numbers are read from them faster than from the array
        self._hashes, self._rows = memoryview(self._ids[0]), memoryview(self._ids[1])

    @classmethod
    async def build(cls, index: Index, k: int, progress: Progress | None = None) -> Self:
        """Compare an index's vectors; progress: gets the number of finished chunks.

        Up to `graph_exact_up_to` chunks (of the settings) all pairs are compared: then equal vectors give equal graphs,
        and the search needs at most a few hundred megabytes beside the result. Beyond,
        nearest-neighbour descent finds nearly all neighbours; it takes about twice the memory of the vectors.
        `UserFault` unless k is at least 1.
        """
        manifest = manifest_of(index, k)
        rows = np.arange(len(index.chunks))
        nearest = none_yet(len(rows), k)
        if manifest.method == "exact":
            await _search(index, rows, rows, nearest, progress)
        else:
            await _search_by_descent(index, rows, nearest, progress)
        return cls(manifest, index.chunks, nearest)

    @classmethod
    def read(cls, folder: Path, index: Index, manifest: GraphManifest) -> Self:
        """Open the graph of this manifest in a folder of the cache; see `read_derived`."""
        shape = manifest.chunks, manifest.k
        rows = read_array(folder / "neighbours.npy", "int32", shape)
        scores = read_array(folder / "scores.npy", "float32", shape)
        ids = read_array(folder / "ids.npy", "uint64", (2, manifest.chunks))
        return cls(manifest, index.chunks, Neighbours(rows, scores), ids)

    def neighbours(self, chunk_id: str) -> list[tuple[str, float]]:
        """The nearest other chunks with their cosines, nearest first, equals in corpus order; none for an unknown id.

        There are k, or fewer in a corpus of at most k chunks.
        """
        try:
            row = self._row(chunk_id)
        except KeyError:
            return []
        rows, scores = self.nearest.rows[row].tolist(), self.nearest.scores[row].tolist()
        return [(self._chunks[other]["id"], score) for other, score in zip(rows, scores, strict=True) if other >= 0]

    def chunk(self, chunk_id: str) -> Chunk:
        """A copy of the chunk of that id, without a score; `KeyError` for an unknown id."""
        return self._chunks[self._row(chunk_id)].copy()

    def _row(self, chunk_id: str) -> int:
        """The row of the chunk of that id; `KeyError` for an unknown id."""
        due = _hash(chunk_id)
        first, end = bisect_left(self._hashes, due), bisect_right(self._hashes, due)
        rows = self._rows[first:end].tolist()
        if len(rows) > 1:  # reading chunks takes longer than all else here
            rows = [row for row in rows if self._chunks[row]["id"] == chunk_id]
        if not rows:
            raise KeyError(chunk_id)
        return int(rows[0])

    async def extended(self, index: Index, progress: Progress | None = None) -> Self:
        """The graph of an index that begins with this graph's chunks and continues with new chunks.

        New chunks are compared with all chunks, old chunks with the new ones; an exact graph becomes what `build` would
        give. progress: gets the number of finished chunks. `UserFault` unless the index begins with the same chunks and
        has the same encoder and weights.
        """
        old, whole = self.manifest.chunks, len(index.chunks)
        await asyncio.to_thread(self._check_extends, index)
        nearest = none_yet(whole, self.manifest.k)
        nearest.rows[:old], nearest.scores[:old] = self.nearest.rows, self.nearest.scores
        rows = np.arange(whole)
        if whole > old:
            await _search(index, rows[:old], rows[old:], nearest, progress and _of_all(progress, 0, whole))
            await _search(index, rows[old:], rows, nearest, progress and _of_all(progress, old, whole))
        grown = {"chunks": whole, "chunks_sha256": index.manifest.chunks_sha256}
        return type(self)(self.manifest.model_copy(update=grown), index.chunks, nearest)

    def _check_extends(self, index: Index) -> None:
        if self.manifest.late_interaction is not None:
            raise UserFault(
                f"The document graph is by late interaction ('{self.manifest.late_interaction}'), not by vectors "
                "alone: build it again from this index."
            )
        if (index.manifest.encoder, index.manifest.dimension) != (self.manifest.encoder, self.manifest.dimension):
            raise UserFault(
                f"The document graph compares vectors of '{self.manifest.encoder}' and this index has vectors of "
                f"'{index.manifest.encoder}': give the index under the graph's encoder."
            )
        if index.manifest.weights != self.manifest.weights:
            raise UserFault(
                f"The document graph compares vectors by other weights of the name '{self.manifest.encoder}': build it "
                "again from this index."
            )
        if sha256_of(index.chunks[: self.manifest.chunks]) != self.manifest.chunks_sha256:
            raise UserFault(
                "The index does not begin with the chunks of the document graph: build the graph again from this index."
            )

    def fill(self, folder: Path) -> None:
        """Write the arrays into a folder."""
        np.save(folder / "neighbours.npy", self.nearest.rows, allow_pickle=False)
        np.save(folder / "scores.npy", self.nearest.scores, allow_pickle=False)
        np.save(folder / "ids.npy", self._ids, allow_pickle=False)


def _hash(chunk_id: str) -> int:
    digest = blake2b(chunk_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _ids_of(chunks: Sequence[Chunk]) -> NDArray[np.uint64]:
    """[2, N]: the hashes of the chunks' ids, ascending, and their rows. With it a graph opens without its chunks."""
    hashes = np.fromiter((_hash(chunk["id"]) for chunk in chunks), np.uint64, len(chunks))
    rows = np.argsort(hashes, kind="stable")
    return np.stack([hashes[rows], rows.astype(np.uint64)])


async def cached_graph(
    index: Index,
    k: int,
    cache: Path,
    progress: Progress | None = None,
    *,
    encoder: Encoder | None = None,
    embedding: Progress | None = None,
    before: Index | None = None,
) -> DocumentGraph:
    """The graph of an index's chunks, built once and then loaded from the cache folder.

    encoder: of the vectors that are compared, by default the index's own; for another one the chunks are embedded while
    the graph is built. progress: gets the number of chunks with neighbours; embedding: the number embedded before that.
    before: an index whose chunks this one begins with; if its graph is in the cache, that graph is extended.
    `UserFault` unless k is at least 1.
    """
    other = None if encoder is None or _is_of(index, encoder) else encoder
    manifest = manifest_of(index, k)
    if other is not None:
        inputs = {"encoder": other.name, "weights": weights_of(other), "dimension": await other.dimension()}
        manifest = manifest.model_copy(update=inputs)

    async def build() -> Callable[[Path], None]:
        compared = index if other is None else await index.under(other, embedding)
        known = None if before is None else await asyncio.to_thread(known_graph, cache, manifest, before)
        if known is None:
            return (await DocumentGraph.build(compared, k, progress)).fill
        return (await known.extended(compared, progress)).fill

    return await get_or_build(cache, manifest, lambda folder: DocumentGraph.read(folder, index, manifest), build)


def _is_of(index: Index, encoder: Encoder) -> bool:
    """Did this encoder make the index's vectors, as far as is known?"""
    made = index.manifest
    return encoder.name == made.encoder and not are_other_weights(made.weights, weights_of(encoder))


def known_graph(cache: Path, manifest: GraphManifest, index: Index) -> DocumentGraph | None:
    """The cached graph of another index with the same settings; None if there is none."""
    due = manifest.model_copy(update={"chunks": index.manifest.chunks, "chunks_sha256": index.manifest.chunks_sha256})
    try:
        return read_derived(cache, due, lambda folder: DocumentGraph.read(folder, index, due))
    except UserFault:
        return None


def manifest_of(index: Index, k: int) -> GraphManifest:
    """The manifest for the graph of the index's own vectors; `UserFault` unless k is at least 1."""
    if k < 1:
        raise UserFault(f"The number of neighbours is {k}: it must be at least 1.")
    return GraphManifest(
        encoder=index.manifest.encoder,
        weights=index.manifest.weights,
        dimension=index.manifest.dimension,
        k=k,
        method="exact" if index.manifest.chunks <= settings().graph_exact_up_to else "descent",
        chunks=index.manifest.chunks,
        chunks_sha256=index.manifest.chunks_sha256,
    )


def _of_all(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


async def _search(index: Index, rows: Rows, candidates: Rows, nearest: Neighbours, progress: Progress | None) -> None:
    """Improve the neighbours of these rows by these candidates (both ascending), a batch at a time."""
    for batch in batches(rows, BATCH, progress):
        known = Neighbours(nearest.rows[batch], nearest.scores[batch])
        nearest.rows[batch], nearest.scores[batch] = await asyncio.to_thread(
            improved, index.vectors, batch, candidates, known
        )


async def _search_by_descent(index: Index, rows: Rows, nearest: Neighbours, progress: Progress | None) -> None:
    """Fill in nearly all neighbours of all rows."""
    k = nearest.rows.shape[1]
    candidates = await asyncio.to_thread(nearly_nearest, index.vectors, k)
    for batch in batches(rows, BATCH, progress):
        found = await asyncio.to_thread(best_of, index.vectors, batch, candidates[batch], k)
        nearest.rows[batch], nearest.scores[batch] = found
