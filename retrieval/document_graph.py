"""The document graph of SUNAR: every chunk's k nearest other chunks by cosine, computed once and kept on disk.

On disk it is a folder with `neighbours.npy` (int32 [N, k], rows of the index, nearest first, -1 where there are fewer
than k others), `scores.npy` (float32 [N, k], cosines, -inf there) and a manifest. Both are read memory-mapped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ..errors import UserFault
from ..models.interfaces import Encoder
from ..state.records import Chunk
from .chunking import Progress
from .corpus import shown
from .derived_files import Derived, cache_folder, check_target, kept, read_array, read_manifest, write
from .index import Index
from .index_files import sha256_of
from .neighbours import Clusters, Neighbours, Rows, improved, none_yet

KIND, FORMAT = "document graph", 1

BATCH = 1024
"""Chunks whose neighbours are searched for between two reports of progress."""

EXACT_UP_TO = 1_000_000
"""The most chunks that are all compared with each other; of more only those that share a cluster are."""


class GraphManifest(Derived):
    """What a document graph was made from.

    encoder, dimension: of the vectors that were compared; k: neighbours a chunk; method: whether all pairs of chunks
    were compared (exact), or those that share a cluster; late_interaction: the model by which the nearest of so many
    candidates a chunk were chosen, null where the vectors alone decide.
    """

    kind: str = KIND
    format: int = FORMAT
    encoder: str
    dimension: int
    k: int
    method: Literal["exact", "clusters"]
    late_interaction: str | None = None
    candidates: int | None = None


class DocumentGraph:
    """The nearest other chunks of every chunk of an index.

    manifest: what it was made from; found: the neighbours' rows, not to be written to. The graph is about chunks, not
    vectors: it serves every index of the same chunks, whatever its encoder.
    """

    def __init__(self, manifest: GraphManifest, chunks: Sequence[Chunk], found: Neighbours) -> None:
        """For `build` and `load`. chunks: in row order; found: their neighbours in the same order."""
        self.manifest = manifest
        # still memory-mapped, but rows of a plain array are read several times faster
        self._chunks, self.found = chunks, Neighbours(np.asarray(found.rows), np.asarray(found.scores))
        self._row = {chunk["id"]: row for row, chunk in enumerate(chunks)}

    @classmethod
    async def build(
        cls, index: Index, k: int, progress: Progress | None = None, exact_up_to: int = EXACT_UP_TO
    ) -> DocumentGraph:
        """Compare an index's vectors; progress: hears how many chunks' neighbours are known.

        The same vectors give the same graph. Beside the result it holds a few hundred megabytes at most.
        exact_up_to: see `EXACT_UP_TO`. `UserFault` unless k is at least 1.
        """
        manifest = manifest_of(index, k, exact_up_to)
        rows = np.arange(len(index.chunks))
        found = none_yet(len(rows), k)
        if manifest.method == "exact":
            await _search(index, rows, rows, found, progress)
        else:
            clusters = await asyncio.to_thread(Clusters.of, index.vectors)
            for number in range(len(clusters)):
                members = clusters.members(number)
                await _search(index, members, members, found, None)
                if progress is not None:
                    progress(len(rows) * (number + 1) // len(clusters), len(rows))
        return cls(manifest, index.chunks, found)

    async def save(self, folder: str | Path) -> None:
        """Write the graph to a folder, in place of a graph that is there; `UserFault` for anything else that is."""
        target = _path(folder)
        await asyncio.to_thread(check_target, target, KIND)
        await asyncio.to_thread(lambda: write(target, self.manifest, self.fill, replace=True))

    @classmethod
    async def load(cls, folder: str | Path, index: Index) -> DocumentGraph:
        """Open a saved graph of this index's chunks; `UserFault` unless it is whole and of the same chunks."""
        return await asyncio.to_thread(cls.read, _path(folder), index)

    @classmethod
    def read(cls, folder: Path, index: Index, due: GraphManifest | None = None) -> DocumentGraph:
        """As `load`; with a manifest that is due also `UserFault` for the graph of another."""
        manifest = read_manifest(folder, GraphManifest, KIND, FORMAT)
        if manifest.chunks_sha256 != index.manifest.chunks_sha256 or manifest.chunks != index.manifest.chunks:
            raise UserFault(
                f"The document graph {shown(folder)} was made of {manifest.chunks} chunks that are not the "
                f"{index.manifest.chunks} of this index: build it anew from this index, or open the index it is from."
            )
        if due is not None and manifest != due:
            raise UserFault(f"The document graph {shown(folder)} is another one: build it anew.")
        shape = manifest.chunks, manifest.k
        rows = read_array(folder, KIND, "neighbours.npy", "int32", shape)
        scores = read_array(folder, KIND, "scores.npy", "float32", shape)
        return cls(manifest, index.chunks, Neighbours(rows, scores))

    def neighbours(self, chunk_id: str) -> list[tuple[str, float]]:
        """The nearest other chunks with their cosines, nearest first and equals in corpus order; of an unknown id none.

        There are k, or as many as the corpus has others.
        """
        row = self._row.get(chunk_id)
        if row is None:
            return []
        rows, scores = self.found.rows[row].tolist(), self.found.scores[row].tolist()
        return [(self._chunks[other]["id"], score) for other, score in zip(rows, scores, strict=True) if other >= 0]

    def chunk(self, chunk_id: str) -> Chunk:
        """A copy of the chunk of that id, without a score; `KeyError` for an unknown id."""
        return self._chunks[self._row[chunk_id]].copy()

    async def extended(self, index: Index, progress: Progress | None = None) -> DocumentGraph:
        """The graph of an index that begins with this graph's chunks and has new ones after them.

        The new chunks are compared with all, the old ones with the new: of an exact graph it makes what building it
        anew would. progress: hears how many chunks are done. `UserFault` unless the index begins with the same chunks
        and has the same encoder as the vectors that were compared.
        """
        old, whole = self.manifest.chunks, len(index.chunks)
        await asyncio.to_thread(self._check_extends, index)
        found = none_yet(whole, self.manifest.k)
        found.rows[:old], found.scores[:old] = self.found.rows, self.found.scores
        rows = np.arange(whole)
        if whole > old:
            await _search(index, rows[:old], rows[old:], found, progress and _of_all(progress, 0, whole))
            await _search(index, rows[old:], rows, found, progress and _of_all(progress, old, whole))
        grown = {"chunks": whole, "chunks_sha256": index.manifest.chunks_sha256}
        return DocumentGraph(self.manifest.model_copy(update=grown), index.chunks, found)

    def _check_extends(self, index: Index) -> None:
        if self.manifest.late_interaction is not None:
            raise UserFault(
                f"The document graph is by late interaction ('{self.manifest.late_interaction}'), not by vectors "
                "alone: build it anew from this index."
            )
        if (index.manifest.encoder, index.manifest.dimension) != (self.manifest.encoder, self.manifest.dimension):
            raise UserFault(
                f"The document graph compares vectors of '{self.manifest.encoder}' and this index has those of "
                f"'{index.manifest.encoder}': give the index under the graph's encoder."
            )
        if sha256_of(index.chunks[: self.manifest.chunks]) != self.manifest.chunks_sha256:
            raise UserFault(
                "The index does not begin with the chunks of the document graph: build the graph anew from this index."
            )

    def fill(self, folder: Path) -> None:
        """Write the arrays into a folder."""
        np.save(folder / "neighbours.npy", self.found.rows, allow_pickle=False)
        np.save(folder / "scores.npy", self.found.scores, allow_pickle=False)


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
    """The graph of an index's chunks, built once and loaded from the cache folder after.

    encoder: whose vectors are compared, by default the index's own; with another one the chunks are embedded anew
    while the graph is built. progress: hears how many chunks' neighbours are known; embedding: before that, how many
    chunks are embedded. before: an index that this one begins with; if its graph is kept, that one is extended.
    `UserFault` unless k is at least 1.
    """
    other = encoder if encoder is not None and encoder.name != index.manifest.encoder else None
    manifest = manifest_of(index, k)
    if other is not None:
        manifest = manifest.model_copy(update={"encoder": other.name, "dimension": await other.dimension()})
    folder = cache_folder(cache, manifest)

    async def build() -> Callable[[Path], None]:
        compared = index if other is None else await index.under(other, embedding)
        known = None if before is None else await asyncio.to_thread(known_graph, cache, manifest, before)
        if known is None:
            return (await DocumentGraph.build(compared, k, progress)).fill
        return (await known.extended(compared, progress)).fill

    return await kept(folder, manifest, lambda: DocumentGraph.read(folder, index, manifest), build)


def known_graph(cache: Path, manifest: GraphManifest, index: Index) -> DocumentGraph | None:
    """The graph that is kept of another index, made in the same way; None if there is none."""
    due = manifest.model_copy(update={"chunks": index.manifest.chunks, "chunks_sha256": index.manifest.chunks_sha256})
    try:
        return DocumentGraph.read(cache_folder(cache, due), index, due)
    except UserFault:
        return None


def manifest_of(index: Index, k: int, exact_up_to: int = EXACT_UP_TO) -> GraphManifest:
    """What the graph of the index's own vectors will be made from; `UserFault` unless k is at least 1."""
    if k < 1:
        raise UserFault(f"The number of neighbours is {k}: give one of at least 1.")
    return GraphManifest(
        encoder=index.manifest.encoder,
        dimension=index.manifest.dimension,
        k=k,
        method="exact" if index.manifest.chunks <= exact_up_to else "clusters",
        chunks=index.manifest.chunks,
        chunks_sha256=index.manifest.chunks_sha256,
    )


def _path(path: str | Path) -> Path:
    return Path(path).expanduser()


def _of_all(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


async def _search(index: Index, rows: Rows, candidates: Rows, found: Neighbours, progress: Progress | None) -> None:
    """Write into `found` what is nearer to these rows among these candidates (both rising), a batch at a time."""
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        known = Neighbours(found.rows[some], found.scores[some])
        better = await asyncio.to_thread(improved, index.vectors, some, candidates, known)
        found.rows[some], found.scores[some] = better
        if progress is not None:
            progress(start + len(some), len(rows))
