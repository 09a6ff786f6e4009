"""An index: the chunks of a corpus with their vectors in FAISS, searched exactly."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors
from ..state.records import Chunk
from .chunking import Chunker, Progress, embedding_text, open_chunker
from .corpus import Corpus, read_corpus, shown
from .index_files import FORMAT, Manifest, build_command, is_index, read_manifest, read_rows, sha256_of, write
from .pool import Pool
from .rechunk import documents_of

SEMANTIC = "semantic:"
"""How the names of semantic chunkers begin."""

BATCH = 256
"""Chunks embedded between two reports of progress; their texts and vectors are all that building holds twice."""


class Index:
    """A retriever over one corpus.

    manifest: what it was made from; problems: the records that were left out when its corpus was read just now.
    """

    def __init__(self, manifest: Manifest, chunks: Sequence[Chunk], vectors: Any, encoder: Encoder) -> None:  # noqa: ANN401
        """For `build` and `load`. vectors: a faiss.IndexFlatIP with one row a chunk."""
        self.manifest = manifest
        self.problems: tuple[str, ...] = ()
        self._chunks, self._vectors, self._encoder = chunks, vectors, encoder
        self._rows = np.asarray(_Memory(vectors))

    @classmethod
    async def build(
        cls,
        corpus: Corpus,
        chunker: Chunker,
        encoder: Encoder,
        progress: Progress | None = None,
        comparing: Progress | None = None,
    ) -> Index:
        """Cut a corpus into chunks and embed them with their titles, a batch at a time.

        progress: hears how many chunks are embedded; comparing: how many sentences are, before the chunks, where the
        chunker embeds them.
        """
        chunks = await chunker.cut(corpus.documents, comparing)
        if not chunks:
            raise UserFault("The corpus has no chunks to index: give one with at least one text that is not empty.")
        vectors = await _embedded(chunks, encoder, progress)
        manifest = Manifest(
            encoder=encoder.name,
            dimension=vectors.d,
            chunker=chunker.name,
            corpus=await asyncio.to_thread(lambda: corpus.fingerprint),
            documents=len(corpus.documents),
            chunks=len(chunks),
            chunks_sha256=await asyncio.to_thread(sha256_of, chunks),
        )
        index = cls(manifest, chunks, vectors, encoder)
        index.problems = corpus.problems
        return index

    async def save(self, folder: str | Path, *, replace: bool = True) -> bool:
        """Write the index to a folder; False if one is there already and is not to be replaced."""
        path = _path(folder)
        return await asyncio.to_thread(lambda: write(path, self.manifest, self._chunks, self._vectors, replace=replace))

    @classmethod
    async def load(cls, folder: str | Path, encoder: Encoder) -> Index:
        """Open a saved index; `UserFault` unless it is whole, of this format and made with this encoder."""
        path = _path(folder)
        manifest = await asyncio.to_thread(read_manifest, path)
        if manifest.encoder != encoder.name:
            raise UserFault(
                f"The index {shown(path)} was made with the encoder '{manifest.encoder}', not with "
                f"'{encoder.name}': choose that encoder, or run {build_command(path, encoder.name)}."
            )
        if manifest.dimension != (dimension := await encoder.dimension()):
            raise UserFault(
                f"The index {shown(path)} has vectors of length {manifest.dimension} and the encoder '{encoder.name}' "
                f"now makes them of length {dimension}: run {build_command(path, encoder.name)}."
            )
        chunks, vectors = await asyncio.to_thread(read_rows, path, manifest)
        return cls(manifest, chunks, vectors, encoder)

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Every chunk in row order, without scores; not to be written to."""
        return self._chunks

    @property
    def vectors(self) -> Vectors:
        """The chunks' vectors in row order, [N, d], L2-normalised: FAISS's own memory, read-only."""
        return self._rows

    async def under(self, encoder: Encoder, progress: Progress | None = None) -> Index:
        """The same chunks embedded by another encoder; progress: hears how many are."""
        vectors = await _embedded(self._chunks, encoder, progress)
        manifest = self.manifest.model_copy(update={"encoder": encoder.name, "dimension": vectors.d})
        return Index(manifest, self._chunks, vectors, encoder)

    async def extended(
        self, corpus: Corpus, chunker: Chunker, progress: Progress | None = None, comparing: Progress | None = None
    ) -> Index:
        """An index that begins with this one's chunks and has those of another corpus after them.

        progress, comparing: as of `build`, of the new chunks. `UserFault` for another chunker, a document whose id is
        here already, and a corpus without chunks.
        """
        if chunker.name != self.manifest.chunker:
            raise UserFault(
                f"The index has chunks by '{self.manifest.chunker}', not by '{chunker.name}': choose that chunker."
            )
        here = {chunk["doc_id"] for chunk in self._chunks}
        if again := [document.id for document in corpus.documents if document.id in here]:
            some = ", ".join(f"'{one}'" for one in again[:3]) + (", ..." if len(again) > 3 else "")
            raise UserFault(
                f"{len(again)} of the {len(corpus.documents)} documents to add are in the index already ({some}): "
                "leave them out, give new ones ids of their own, or index everything anew."
            )
        new = await Index.build(corpus, chunker, self._encoder, progress, comparing)
        chunks, vectors = [*self._chunks, *new._chunks], faiss.IndexFlatIP(self.manifest.dimension)
        for part in (self, new):
            await asyncio.to_thread(_add, vectors, part._rows, len(part._chunks), self._encoder.name)
        both = json.dumps([self.manifest.corpus, new.manifest.corpus])
        manifest = self.manifest.model_copy(
            update={
                "corpus": hashlib.sha256(both.encode()).hexdigest(),
                "documents": self.manifest.documents + new.manifest.documents,
                "chunks": len(chunks),
                "chunks_sha256": await asyncio.to_thread(sha256_of, chunks),
            }
        )
        index = Index(manifest, chunks, vectors, self._encoder)
        index.problems = new.problems
        return index

    async def nearest(self, query: str, n: int) -> tuple[NDArray[np.int64], Vectors]:
        """The rows of the n chunks nearest to a query and their cosines, best first, equals by row."""
        question = (await self._encoder.embed([query], query=True))[0]
        return await asyncio.to_thread(self._nearest, question, min(n, len(self._chunks)))

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; with None the vectors are FAISS's own memory, not a copy."""
        question = (await self._encoder.embed([query], query=True))[0]
        if top_n is None:
            return Pool(question, self._rows, self._chunk, self.problems)
        if top_n < 1:
            raise UserFault(f"The number of chunks to search for is {top_n}: give one of at least 1.")
        nearest, _ = await asyncio.to_thread(self._nearest, question, min(top_n, len(self._chunks)))
        return Pool(question, self._rows[nearest], lambda i: self._chunk(int(nearest[i])), self.problems)

    def _chunk(self, row: int) -> Chunk:
        return self._chunks[row].copy()

    def _nearest(self, question: Vectors, count: int) -> tuple[NDArray[np.int64], Vectors]:
        """Rows by falling similarity, equal ones in their order, and the similarities.

        Of equals at the cut FAISS keeps any; then all rows that are at least as near are fetched.
        """
        scores, rows = self._vectors.search(question[None], min(count + 1, len(self._chunks)))
        scores, rows = scores[0], rows[0]
        if len(rows) > count and scores[count] == scores[count - 1]:
            below = float(np.nextafter(scores[count], np.float32(-np.inf)))
            _, scores, rows = self._vectors.range_search(question[None], below)
        order = np.lexsort((rows, -scores))[:count]
        return rows[order], scores[order]


async def chunker_for(name: str, encoder: Encoder) -> Chunker:
    """The chunker of that name; `tokens:` and `semantic:` count with the encoder's own tokenizer."""
    counts = name.strip().startswith(("tokens:", SEMANTIC))
    return open_chunker(name, await encoder.token_counter() if counts else None, encoder)


async def cached_index(
    corpus_path: str | Path,
    chunker_name: str,
    encoder: Encoder,
    cache_dir: Path,
    *,
    on_error: Literal["refuse", "skip"] = "refuse",
    progress: Progress | None = None,
    comparing: Progress | None = None,
) -> Index:
    """The index of a corpus, built once for its content, the encoder and the chunker, and loaded from the cache after.

    An index folder in place of a corpus is loaded as it is, whatever its chunker; only where a `semantic:` chunker is
    asked for and the folder has another, its documents are put together again from its chunks and cut anew.
    progress: hears how many chunks are embedded; comparing: with a `semantic:` chunker before that how many sentences.
    """
    path = _path(corpus_path)
    if await asyncio.to_thread(is_index, path):
        return await _opened(path, chunker_name, encoder, cache_dir, progress=progress, comparing=comparing)
    chunker = await chunker_for(chunker_name, encoder)
    corpus = await asyncio.to_thread(lambda: read_corpus(path, on_error=on_error))
    fingerprint = await asyncio.to_thread(lambda: corpus.fingerprint)

    async def build() -> Index:
        return await Index.build(corpus, chunker, encoder, progress, comparing)

    index = await _once([FORMAT, fingerprint, encoder.name, chunker.name], build, encoder, cache_dir)
    index.problems = corpus.problems
    return index


async def _opened(
    folder: Path,
    name: str,
    encoder: Encoder,
    cache_dir: Path,
    *,
    progress: Progress | None,
    comparing: Progress | None,
) -> Index:
    """An index folder's index, or the semantic one of the documents its chunks are from."""
    if not name.strip().startswith(SEMANTIC):
        return await Index.load(folder, encoder)
    chunker = await chunker_for(name, encoder)
    manifest = await asyncio.to_thread(read_manifest, folder)
    if manifest.chunker == chunker.name:
        return await Index.load(folder, encoder)

    async def build() -> Index:
        chunks = (await Index.load(folder, encoder))._chunks
        corpus = Corpus(tuple(await asyncio.to_thread(documents_of, chunks)))
        return await Index.build(corpus, chunker, encoder, progress, comparing)

    key = [FORMAT, "rechunked", manifest.chunks_sha256, encoder.name, chunker.name]
    return await _once(key, build, encoder, cache_dir)


async def _once(
    key: Sequence[object], build: Callable[[], Awaitable[Index]], encoder: Encoder, cache_dir: Path
) -> Index:
    """The cached index of that key, built and saved where there is none, or none that is whole."""
    folder = cache_dir / "indexes" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    damaged = await asyncio.to_thread(is_index, folder)
    try:
        return await Index.load(folder, encoder)
    except UserFault:
        index = await build()
        if not await index.save(folder, replace=damaged):  # another process was faster
            index = await Index.load(folder, encoder)
        return index


def _path(path: str | Path) -> Path:
    return Path(path).expanduser()


class _Memory:
    """A flat index's rows for NumPy, [n, d] and read-only; arrays over them keep the index alive."""

    def __init__(self, vectors: Any) -> None:  # noqa: ANN401 - faiss has no types
        self._vectors = vectors
        flat = faiss.rev_swig_ptr(vectors.get_xb(), vectors.ntotal * vectors.d)
        self.__array_interface__ = {
            "version": 3,
            "shape": (vectors.ntotal, vectors.d),
            "typestr": flat.dtype.str,
            "data": (flat.ctypes.data, True),
        }


async def _embedded(chunks: Sequence[Chunk], encoder: Encoder, progress: Progress | None) -> Any:  # noqa: ANN401
    """The chunks' vectors as a faiss.IndexFlatIP, embedded with their titles a batch at a time."""
    vectors = faiss.IndexFlatIP(await encoder.dimension())
    for start in range(0, len(chunks), BATCH):
        texts = [embedding_text(chunk) for chunk in chunks[start : start + BATCH]]
        await asyncio.to_thread(_add, vectors, await encoder.embed(texts), len(texts), encoder.name)
        if progress is not None:
            progress(start + len(texts), len(chunks))
    return vectors


def _add(vectors: Any, rows: Vectors, count: int, encoder: str) -> None:  # noqa: ANN401 - faiss has no types
    if rows.shape != (count, vectors.d):
        raise UserFault(
            f"The encoder '{encoder}' gave vectors of shape {rows.shape} for {count} texts where {vectors.d} numbers "
            "each were due."
        )
    vectors.add(np.ascontiguousarray(rows, dtype=np.float32))
