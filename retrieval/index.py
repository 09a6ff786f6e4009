"""An index: the chunks of a corpus, and their vectors in FAISS, searched exactly. One for BM25 alone has no vectors."""

import asyncio
import hashlib
import json
import logging
import shlex
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors
from ..state.records import Chunk
from ..state.where import Condition
from .chunkers import SEMANTIC, chunker_for, open_chunker
from .chunking import Chunker, Progress, batches, embedding_text
from .corpus import Corpus, read_corpus, shown
from .fusion import Ranking
from .index_files import (
    FORMAT,
    HOW_TO_BUILD,
    Manifest,
    is_index,
    read_chunks,
    read_index_manifest,
    read_rows,
    sha256_of,
    write_index,
)
from .pool import Pool, at_least_one
from .rechunk import documents_of
from .restricted import passing_rows

logger = logging.getLogger(__name__)

BATCH = 256
"""Chunks embedded between two reports of progress; only their texts and vectors are in memory twice."""


class Index:
    """A retriever over one corpus.

    manifest: the index's inputs; problems: the records that were left out when the corpus was read.
    """

    def __init__(self, manifest: Manifest, chunks: Sequence[Chunk], vectors: Any, encoder: Encoder | None) -> None:  # noqa: ANN401
        """For `build` and `load`. vectors: a faiss.IndexFlatIP with one row per chunk, or None."""
        self.manifest = manifest
        self.problems: tuple[str, ...] = ()
        self._chunks, self._vectors, self._encoder = chunks, vectors, encoder
        self._rows = np.zeros((len(chunks), 0), np.float32) if vectors is None else np.asarray(_Memory(vectors))
        self.passing: NDArray[np.int64] | None = None
        """The rows that may be found, ascending; all of them if None."""

    @classmethod
    async def build(
        cls,
        corpus: Corpus,
        chunker: Chunker,
        encoder: Encoder | None,
        progress: Progress | None = None,
        comparing: Progress | None = None,
    ) -> Self:
        """Cut a corpus into chunks and embed them with their titles, a batch at a time.

        encoder: None for an index without vectors; progress: gets the number of embedded chunks; comparing: gets the
        number of embedded sentences before that, if the chunker embeds sentences.
        """
        chunks = await chunker.cut(corpus.documents, comparing)
        if not chunks:
            raise UserFault("The corpus has no chunks to index: it needs at least one text that is not empty.")
        vectors = None if encoder is None else await _embedded(chunks, encoder, progress)
        manifest = Manifest(
            encoder="" if encoder is None else encoder.name,
            dimension=0 if vectors is None else vectors.d,
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
        """Write the index to a folder; False if an index is there already and `replace` is false."""
        contents = self.manifest, self._chunks, self._vectors
        return await asyncio.to_thread(lambda: write_index(_path(folder), *contents, replace=replace))

    @classmethod
    async def load(cls, folder: str | Path, encoder: Encoder | None) -> Self:
        """Open a saved index; `UserFault` unless it is complete, of this format and made with this encoder.

        encoder: None opens the chunks without their vectors.
        """
        path = _path(folder)
        manifest = await asyncio.to_thread(read_index_manifest, path)
        if encoder is None:
            without = manifest.model_copy(update={"encoder": "", "dimension": 0})
            return cls(without, await asyncio.to_thread(read_chunks, path, manifest), None, None)
        if not manifest.encoder:
            option = "" if encoder.name == "embedded" else f"--encoder {shlex.quote(encoder.name)} "
            raise UserFault(
                f"The index {shown(path)} has no vectors, which this search compares: add them with "
                f"`dubito index --add encoder {option}{shlex.quote(shown(path))}`, or search by words alone, with "
                "first_stage=bm25 in vanilla_rag and dense."
            )
        if manifest.encoder != encoder.name:
            raise UserFault(
                f"The index {shown(path)} was made with the encoder '{manifest.encoder}', not with "
                f"'{encoder.name}': choose that encoder, or {HOW_TO_BUILD}."
            )
        _check_dimension(f"The index {shown(path)}", manifest, encoder, await encoder.dimension())
        chunks, vectors = await asyncio.to_thread(read_rows, path, manifest)
        return cls(manifest, chunks, vectors, encoder)

    @classmethod
    async def stored(cls, folder: str | Path) -> Self:
        """A saved index to be changed and not searched: its encoder is not opened."""
        path = _path(folder)
        manifest = await asyncio.to_thread(read_index_manifest, path)
        chunks, vectors = await asyncio.to_thread(read_rows, path, manifest)
        return cls(manifest, chunks, vectors, None)

    def restricted(self, condition: Condition) -> Self:
        """The same index, in which only the chunks that pass are found; `UserFault` if none does."""
        index = type(self)(self.manifest, self._chunks, self._vectors, self._encoder)
        index.problems, index.passing = self.problems, passing_rows(self._chunks, condition)
        return index

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Every chunk in row order, without scores; read-only."""
        return self._chunks

    @property
    def vectors(self) -> Vectors:
        """The chunks' vectors in row order, [N, d], L2-normalised: FAISS's own memory, read-only."""
        return self._rows

    async def under(self, encoder: Encoder, progress: Progress | None = None) -> Self:
        """The same chunks embedded by another encoder; progress: gets the number of embedded chunks."""
        vectors = await _embedded(self._chunks, encoder, progress)
        manifest = self.manifest.model_copy(update={"encoder": encoder.name, "dimension": vectors.d})
        return type(self)(manifest, self._chunks, vectors, encoder)

    async def extended(
        self,
        corpus: Corpus,
        chunker: Chunker,
        progress: Progress | None = None,
        comparing: Progress | None = None,
        *,
        replace: bool = False,
    ) -> Self:
        """An index of this index's chunks, followed by the chunks of another corpus.

        progress, comparing: see `build`; for the new chunks. replace: leave out this index's documents whose ids are in
        the other corpus. `UserFault` for such ids without it, for another chunker, and for a corpus without chunks.
        """
        if chunker.name != self.manifest.chunker:
            raise UserFault(
                f"The index was cut by '{self.manifest.chunker}', not by '{chunker.name}': choose that chunker."
            )
        known = {chunk["doc_id"] for chunk in self._chunks}
        repeated = [document.id for document in corpus.documents if document.id in known]
        if repeated and not replace:
            raise UserFault(
                f"{len(repeated)} of the {len(corpus.documents)} documents to add are in the index already "
                f"({_some(repeated)}): leave them out, give new documents new ids, or replace these with --replace."
            )
        new = await self.build(corpus, chunker, self._encoder, progress, comparing)
        old = await self._without(set(repeated)) if repeated else self
        vectors = None if self._vectors is None else faiss.IndexFlatIP(self.manifest.dimension)
        for part in (old, new) if vectors is not None else ():
            await asyncio.to_thread(_add, vectors, part._rows, len(part._chunks), self.manifest.encoder)
        index = await self._changed(
            [*old._chunks, *new._chunks],
            vectors,
            old.manifest.documents + new.manifest.documents,
            [old.manifest.corpus, new.manifest.corpus],
        )
        index.problems = new.problems
        return index

    async def without(self, ids: Collection[str]) -> Self:
        """An index without the documents of these ids; the others keep their vectors and their order.

        `UserFault` for ids that the index does not have, and if no document would be left.
        """
        known = {chunk["doc_id"] for chunk in self._chunks}
        if unknown := [name for name in dict.fromkeys(ids) if name not in known]:
            raise UserFault(
                f"The index has no documents with these ids: {_some(unknown)}; nothing was deleted. Leave them out."
            )
        if known <= set(ids):
            raise UserFault("These are all documents of the index: delete its folder in place of them.")
        return await self._without(set(ids))

    async def _without(self, ids: set[str]) -> Self:
        kept = [row for row, chunk in enumerate(self._chunks) if chunk["doc_id"] not in ids]
        vectors = None
        if self._vectors is not None:
            vectors = faiss.IndexFlatIP(self.manifest.dimension)
            await asyncio.to_thread(lambda: _add(vectors, self._rows[kept], len(kept), self.manifest.encoder))
        chunks = [self._chunks[row] for row in kept]
        made_from = [self.manifest.corpus, "without", *sorted(ids)]
        return await self._changed(chunks, vectors, self.manifest.documents - len(ids), made_from)

    async def _changed(self, chunks: Sequence[Chunk], vectors: Any, documents: int, made_from: Sequence[str]) -> Self:  # noqa: ANN401
        manifest = self.manifest.model_copy(
            update={
                "corpus": hashlib.sha256(json.dumps(made_from).encode()).hexdigest(),
                "documents": documents,
                "chunks": len(chunks),
                "chunks_sha256": await asyncio.to_thread(sha256_of, chunks),
            }
        )
        return type(self)(manifest, chunks, vectors, self._encoder)

    async def rank(self, query: str, n: int) -> Ranking:
        """The rows of the n chunks nearest to a query, and their cosines."""
        question = await self._question(query)
        return await asyncio.to_thread(self._nearest, question, n)

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; for None the vectors are FAISS's own memory, not a copy."""
        question = await self._question(query)
        whole = Pool(question, self._rows, self._chunk, self.problems)
        if top_n is None:
            return whole if self.passing is None else whole.of(self.passing)
        return whole.of((await asyncio.to_thread(self._nearest, question, at_least_one(top_n))).rows)

    async def pool_of(self, query: str, rows: NDArray[np.int64]) -> Pool:
        """The pool of these rows, in this order."""
        return Pool(await self._question(query), self._rows, self._chunk, self.problems).of(rows)

    async def _question(self, query: str) -> Vectors:
        if self._encoder is None:
            raise UserFault("The index was opened without its encoder: load it with one to search by vectors.")
        question: Vectors = (await self._encoder.embed([query], query=True))[0]
        _check_dimension("The index", self.manifest, self._encoder, len(question))
        return question

    def _chunk(self, row: int) -> Chunk:
        return self._chunks[row].copy()

    def _nearest(self, question: Vectors, count: int) -> Ranking:
        """At most `count` rows by falling similarity, equals by row, and their similarities.

        If rows are equally near at the cut, FAISS returns any of them; then all rows at least as near are fetched.
        """
        passing: Any = None
        if self.passing is not None:
            selected: Any = faiss.SearchParameters
            passing = selected(sel=faiss.IDSelectorBatch(self.passing))
        most = len(self._chunks if self.passing is None else self.passing)
        scores, rows = self._vectors.search(question[None], min(count + 1, most), params=passing)
        scores, rows = scores[0], rows[0]
        if len(rows) > count and scores[count] == scores[count - 1]:
            below = float(np.nextafter(scores[count], np.float32(-np.inf)))
            _, scores, rows = self._vectors.range_search(question[None], below, params=passing)
        order = np.lexsort((rows, -scores))[:count]
        return Ranking(rows[order], scores[order])


async def cached_index(
    corpus_path: str | Path,
    chunker_name: str,
    encoder: Encoder,
    cache_dir: Path,
    *,
    on_bad_record: Literal["refuse", "skip"] = "refuse",
    progress: Progress | None = None,
    comparing: Progress | None = None,
) -> Index:
    """The index of a corpus, built once per content, encoder and chunker, and then loaded from the cache.

    An index folder in place of a corpus is loaded as it is, with any chunker. The exception is a `semantic:`
    chunker that the folder was not made with: then the documents are restored from the chunks and cut again.
    progress: gets the number of embedded chunks; comparing: gets the number of embedded sentences before that.
    """
    path = _path(corpus_path)
    in_folder = await asyncio.to_thread(is_index, path)
    if in_folder and not chunker_name.strip().startswith(SEMANTIC):
        return await Index.load(path, encoder)
    chunker = await chunker_for(chunker_name, encoder)
    if in_folder:
        manifest = await asyncio.to_thread(read_index_manifest, path)
        if manifest.chunker == chunker.name:
            return await Index.load(path, encoder)
        key = [FORMAT, "rechunked", manifest.chunks_sha256, encoder.name, chunker.name]
    else:
        corpus = await asyncio.to_thread(lambda: read_corpus(path, on_bad_record=on_bad_record))
        key = [FORMAT, await asyncio.to_thread(lambda: corpus.fingerprint), encoder.name, chunker.name]

    async def build() -> Index:
        documents = await _restored(path, encoder) if in_folder else corpus
        return await Index.build(documents, chunker, encoder, progress, comparing)

    index = await _once(key, build, encoder, cache_dir)
    index.problems = () if in_folder else corpus.problems
    return index


async def cut_corpus(
    corpus_path: str | Path, chunker_name: str, *, on_bad_record: Literal["refuse", "skip"] = "refuse"
) -> Index | None:
    """A corpus or an index folder as an index without vectors; None if the chunker needs an encoder to cut it.

    An index folder is cut already; as in `cached_index`, only a `semantic:` chunker cuts it again. Raises `UserFault`
    as reading the corpus does.
    """
    path, name = _path(corpus_path), chunker_name.strip()
    if await asyncio.to_thread(is_index, path):
        return None if name.startswith(SEMANTIC) else await Index.load(path, None)
    if not name.startswith("words:"):
        return None
    corpus = await asyncio.to_thread(lambda: read_corpus(path, on_bad_record=on_bad_record))
    return await Index.build(corpus, open_chunker(name), None)


async def _restored(folder: Path, encoder: Encoder) -> Corpus:
    """The documents of an index."""
    chunks = (await Index.load(folder, encoder)).chunks
    return Corpus(tuple(await asyncio.to_thread(documents_of, chunks)))


async def _once(
    key: Sequence[object], build: Callable[[], Awaitable[Index]], encoder: Encoder, cache_dir: Path
) -> Index:
    """The cached index of that key; built and saved if it is missing or damaged."""
    folder = cache_dir / "indexes" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    damaged = await asyncio.to_thread(is_index, folder)
    try:
        return await Index.load(folder, encoder)
    except UserFault:
        index = await build()
    try:
        if not await index.save(folder, replace=damaged):  # another process has saved it first
            index = await Index.load(folder, encoder)
    except UserFault as fault:
        logger.warning("%s Going on without saving it.", fault)
    return index


def _check_dimension(index: str, manifest: Manifest, encoder: Encoder, dimension: int) -> None:
    """The model behind the encoder's name may have changed since the index was made."""
    if manifest.dimension != dimension:
        raise UserFault(
            f"{index} has vectors of length {manifest.dimension} and the encoder '{encoder.name}' now gives vectors "
            f"of length {dimension}: {HOW_TO_BUILD}."
        )


def _some(names: Sequence[str]) -> str:
    """The first names in quotation marks."""
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")


def _path(path: str | Path) -> Path:
    return Path(path).expanduser()


class _Memory:
    """A flat index's rows for NumPy, [n, d], read-only; arrays over them keep the index alive."""

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
    for batch in batches(chunks, BATCH, progress):
        rows = await encoder.embed([embedding_text(chunk) for chunk in batch])
        await asyncio.to_thread(_add, vectors, rows, len(batch), encoder.name)
    return vectors


def _add(vectors: Any, rows: Vectors, count: int, encoder: str) -> None:  # noqa: ANN401 - faiss has no types
    if rows.shape != (count, vectors.d):
        raise UserFault(
            f"The encoder '{encoder}' gave vectors of shape {rows.shape} for {count} texts: expected "
            f"{vectors.d} numbers each."
        )
    vectors.add(np.ascontiguousarray(rows, dtype=np.float32))
