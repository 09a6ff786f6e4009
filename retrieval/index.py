"""An index: a corpus's chunks and their vectors, searched exactly or approximately. One for BM25 has no vectors."""

import asyncio
import hashlib
import json
import logging
import shlex
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import Encoder, Vectors, are_other_weights, weights_of
from ..state.records import Chunk
from ..state.where import Condition
from .approximate import ApproximateSearch, kind_for
from .chunkers import SEMANTIC, chunker_for, open_chunker
from .chunking import Chunker, Progress, batches, embedding_text
from .corpus import Corpus, read_corpus, shown
from .fusion import Ranking
from .index_files import (
    FORMAT,
    HOW_TO_BUILD,
    Manifest,
    StoredChunks,
    is_index,
    read_index_manifest,
    read_vectors,
    sha256_of,
    write_index,
)
from .pool import Pool, at_least_one, ranked
from .rechunk import documents_of
from .restricted import passing_rows

logger = logging.getLogger(__name__)

BATCH = 256
"""Chunks embedded between two reports of progress; only their texts and vectors are in memory twice."""


class Index:
    """A retriever over one corpus.

    manifest: the index's inputs; problems: the records that were left out when the corpus was read.
    """

    def __init__(
        self,
        manifest: Manifest,
        chunks: Sequence[Chunk],
        vectors: Vectors | None,
        encoder: Encoder | None,
        search: ApproximateSearch | None = None,
    ) -> None:
        """For `build` and `load`. vectors: [N, d], a row per chunk, or None; search: of these vectors."""
        self.manifest = manifest
        self.problems: tuple[str, ...] = ()
        self._chunks, self._encoder, self._search = chunks, encoder, search
        self._vectors = np.zeros((len(chunks), 0), np.float32) if vectors is None else vectors
        self._vectors.flags.writeable = False
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
            weights="" if encoder is None else weights_of(encoder),
            dimension=0 if vectors is None else vectors.shape[1],
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
        contents = self.manifest, self._chunks, self._vectors if self.manifest.encoder else None, self._search
        return await asyncio.to_thread(lambda: write_index(_path(folder), *contents, replace=replace))

    @classmethod
    async def load(cls, folder: str | Path, encoder: Encoder | None) -> Self:
        """Open a saved index; `UserFault` unless it is complete, of this format and made with this encoder.

        encoder: None opens the chunks without their vectors.
        """
        path = _path(folder)
        manifest = await asyncio.to_thread(read_index_manifest, path)
        if encoder is None:
            without = manifest.model_copy(update={"encoder": "", "dimension": 0, "search": None})
            return cls(without, await asyncio.to_thread(StoredChunks, path, manifest), None, None)
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
        if are_other_weights(manifest.weights, weights_of(encoder)):
            names = f"{shlex.quote(encoder.name)} --force {shlex.quote(shown(path))}"
            raise UserFault(
                f"The index {shown(path)} was made with other weights of the name '{encoder.name}', or by an early "
                "dubito that told fewer apart: embed its chunks again with "
                f"`dubito index --add encoder --encoder {names}`."
            )
        _check_dimension(f"The index {shown(path)}", manifest, encoder, await encoder.dimension())
        return await cls._read(path, manifest, encoder)

    @classmethod
    async def _read(cls, path: Path, manifest: Manifest, encoder: Encoder | None) -> Self:
        chunks = await asyncio.to_thread(StoredChunks, path, manifest)
        vectors, search = await asyncio.to_thread(read_vectors, path, manifest)
        return cls(manifest, chunks, vectors, encoder, search)

    @classmethod
    async def stored(cls, folder: str | Path) -> Self:
        """A saved index to be changed and not searched: its encoder is not opened."""
        path = _path(folder)
        return await cls._read(path, await asyncio.to_thread(read_index_manifest, path), None)

    def restricted(self, condition: Condition) -> Self:
        """The same index, in which only the chunks that pass are found; `UserFault` if none does."""
        index = type(self)(self.manifest, self._chunks, self._vectors, self._encoder, self._search)
        index.problems, index.passing = self.problems, passing_rows(self._chunks, condition)
        return index

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Every chunk in row order, without scores; read-only."""
        return self._chunks

    @property
    def vectors(self) -> Vectors:
        """The chunks' vectors in row order, [N, d], L2-normalised, read-only; of a saved index memory-mapped."""
        return self._vectors

    async def under(self, encoder: Encoder, progress: Progress | None = None) -> Self:
        """The same chunks embedded by another encoder; progress: gets the number of embedded chunks."""
        vectors = await _embedded(self._chunks, encoder, progress)
        changed = {
            "encoder": encoder.name,
            "weights": weights_of(encoder),
            "dimension": vectors.shape[1],
            "search": None,
        }
        return type(self)(self.manifest.model_copy(update=changed), self._chunks, vectors, encoder)

    async def searched_by(self, name: str, progress: Progress | None = None, before: Self | None = None) -> Self:
        """The same index with another kind of search: flat (exact), hnsw, ivf, ivf_pq, or auto (see `kind_for`).

        progress: gets the number of chunks in the search's structure. before: an index whose structure of that kind is
        extended, if this index begins with its vectors. `UserFault` for an unknown name and for too few chunks.
        """
        kind, search = kind_for(name, self.manifest.chunks), None
        if kind is not None:
            build = partial(ApproximateSearch.build, kind, self._vectors)
            if before is not None and before._search is not None and before._search.manifest.kind == kind:
                begins = self._vectors[: len(before._vectors)]
                if await asyncio.to_thread(np.array_equal, begins, before._vectors):
                    build = partial(before._search.grown, self._vectors)
            search = await asyncio.to_thread(build, progress)
        manifest = self.manifest.model_copy(update={"search": search and search.manifest})
        index = type(self)(manifest, self._chunks, self._vectors, self._encoder, search)
        index.problems = self.problems
        return index

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

        progress, comparing: see `build`; for the new chunks. The search of the result is exact: see `searched_by`.
        replace: leave out this index's documents whose ids are in the other corpus. `UserFault` for such ids without
        it, for another chunker, and for a corpus without chunks.
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
        index = await self._changed(
            [*old._chunks, *new._chunks],
            await asyncio.to_thread(np.concatenate, [old._vectors, new._vectors]),
            old.manifest.documents + new.manifest.documents,
            [old.manifest.corpus, new.manifest.corpus],
        )
        index.problems = new.problems
        return index

    async def without(self, ids: Collection[str]) -> Self:
        """An index without the documents of these ids; the others keep their vectors and their order.

        The search is exact: see `searched_by`.
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
        vectors = await asyncio.to_thread(lambda: self._vectors[kept])
        chunks = [self._chunks[row] for row in kept]
        made_from = [self.manifest.corpus, "without", *sorted(ids)]
        return await self._changed(chunks, vectors, self.manifest.documents - len(ids), made_from)

    async def _changed(
        self, chunks: Sequence[Chunk], vectors: Vectors, documents: int, made_from: Sequence[str]
    ) -> Self:
        manifest = self.manifest.model_copy(
            update={
                "corpus": hashlib.sha256(json.dumps(made_from).encode()).hexdigest(),
                "documents": documents,
                "chunks": len(chunks),
                "chunks_sha256": await asyncio.to_thread(sha256_of, chunks),
                "search": None,
            }
        )
        return type(self)(manifest, chunks, vectors, self._encoder)

    async def rank(self, query: str, n: int) -> Ranking:
        """The rows of the n chunks nearest to a query, and their cosines."""
        question = await self._question(query)
        return await asyncio.to_thread(self._nearest, question, n)

    async def pool(self, query: str, top_n: int | None) -> Pool:
        """See `Retriever.pool`; for None the vectors are the index's own, not a copy."""
        question = await self._question(query)
        whole = Pool(question, self._vectors, self._chunk, self.problems)
        if top_n is None:
            return whole if self.passing is None else whole.of(self.passing)
        return whole.of((await asyncio.to_thread(self._nearest, question, at_least_one(top_n))).rows)

    async def pool_of(self, query: str, rows: NDArray[np.int64]) -> Pool:
        """The pool of these rows, in this order."""
        return Pool(await self._question(query), self._vectors, self._chunk, self.problems).of(rows)

    async def _question(self, query: str) -> Vectors:
        if self._encoder is None:
            raise UserFault("The index was opened without its encoder: load it with one to search by vectors.")
        question: Vectors = (await self._encoder.embed([query], query=True))[0]
        _check_dimension("The index", self.manifest, self._encoder, len(question))
        return question

    def _chunk(self, row: int) -> Chunk:
        return self._chunks[row].copy()

    def _nearest(self, question: Vectors, count: int) -> Ranking:
        """At most `count` rows by falling cosine, equals by row, and their cosines.

        Where only some rows may be found, or the approximate search finds too few, the search is exact.
        """
        among = self.passing
        if among is None and self._search is not None:
            among = self._search.candidates(question, count)
        return ranked(self._vectors, question, count, among)


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


async def _embedded(chunks: Sequence[Chunk], encoder: Encoder, progress: Progress | None) -> Vectors:
    """The chunks' vectors [N, d], embedded with their titles a batch at a time."""
    dimension = await encoder.dimension()
    vectors = np.empty((len(chunks), dimension), np.float32)
    done = 0
    for batch in batches(chunks, BATCH, progress):
        rows = await encoder.embed([embedding_text(chunk) for chunk in batch])
        if rows.shape != (len(batch), dimension):
            raise UserFault(
                f"The encoder '{encoder.name}' gave vectors of shape {rows.shape} for {len(batch)} texts: expected "
                f"{dimension} numbers each."
            )
        vectors[done : done + len(batch)] = rows
        done += len(batch)
    return vectors
