"""Learned sparse retrieval (SPLADE, Formal et al. 2021): words of the model's vocabulary with weights, by dot product.

The chunks' vectors are encoded once and kept by word, as the postings of an inverted index: `indptr.npy` [V + 1] says
where each word's postings begin in `indices.npy` (rows, rising) and `data.npy` (weights). They are read memory-mapped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.encoders import load_weights
from .chunking import Progress, embedding_text
from .derived_files import Derived, cache_folder, kept, read_array, read_manifest
from .fusion import Ranking, best
from .index import Index

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder

KIND, FORMAT = "sparse index", 1

BATCH = 256
"""Chunks encoded between two reports of progress: a question need not wait for a whole corpus."""


class SparseManifest(Derived):
    """What a sparse index was made from; encoder: the name the first stage was opened by."""

    kind: str = KIND
    format: int = FORMAT
    encoder: str


class SparseVectors(NamedTuple):
    """n sparse vectors: what vector (rising), word and weight each entry has, [entries], and how many words there are.

    rows: int32, words: int32, weights: float32, finite and not 0.
    """

    rows: NDArray[np.int32]
    words: NDArray[np.int32]
    weights: NDArray[np.float32]
    vocabulary: int


class Postings(NamedTuple):
    """An inverted index, as the module says."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]


class SparseModel:
    """A sentence-transformers SparseEncoder on this machine, loaded at the first call."""

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self.name = name
        self._source = source
        self._model: SparseEncoder | None = None
        # the model's one thread: torch uses every core for one batch, and loading happens once
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dubito-sparse")

    async def encode(self, texts: Sequence[str], *, query: bool = False) -> SparseVectors:
        """The vectors of texts; `query` selects the query side of a model that has two."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._encode, list(texts), query)

    def _encode(self, texts: list[str], query: bool) -> SparseVectors:
        if self._model is None:
            self._model = _load(self._source)
        encode = self._model.encode_query if query else self._model.encode_document
        found: Any = encode(texts, show_progress_bar=False, convert_to_sparse_tensor=True, save_to_cpu=True)
        found = found.coalesce()
        rows, words = found.indices().numpy().astype(np.int32)
        weights = found.values().float().numpy()
        if not np.isfinite(weights).all():
            raise UserFault(f"The sparse encoder '{self.name}' gave weights that are not finite: use another one.")
        return SparseVectors(rows, words, weights, int(found.shape[1]))


def _load(source: str) -> SparseEncoder:
    try:
        from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds of import, an extra
    except ImportError as error:
        raise UserFault(f"The sparse encoder '{source}' needs a package: pip install \"dubito[local]\".") from error
    return load_weights(
        SparseEncoder, source, "sparse encoder", "local sentence-transformers SparseEncoder folder works too: splade:"
    )


class Sparse:
    """A ranking of an index's rows by the dot product of sparse vectors."""

    def __init__(self, model: SparseModel, postings: Postings, chunks: int, folder: Path) -> None:
        """postings: of this model; chunks: how many rows; folder: where the postings are kept."""
        self._model, self._postings, self._chunks, self._folder = model, postings, chunks, folder

    async def rank(self, query: str, n: int) -> Ranking:
        """See `Ranker.rank`; a row that shares no word with the query is left out."""
        asked = await self._model.encode([query], query=True)
        if asked.vocabulary != len(self._postings.indptr) - 1:
            raise UserFault(
                f"The sparse encoder '{self._model.name}' has {asked.vocabulary} words and had "
                f"{len(self._postings.indptr) - 1} when the chunks were encoded: delete {self._folder} and ask again."
            )
        return await asyncio.to_thread(lambda: best(scores_of(asked, self._postings, self._chunks), n))


def scores_of(query: SparseVectors, postings: Postings, chunks: int) -> NDArray[np.float32]:
    """The dot product of one vector with each of the chunks', [chunks]; only its own words' postings are read."""
    scores = np.zeros(chunks, dtype=np.float32)
    for word, weight in zip(query.words.tolist(), query.weights, strict=True):
        begin, end = postings.indptr[word : word + 2].tolist()
        scores[postings.indices[begin:end]] += weight * postings.data[begin:end]
    return scores


def postings_of(batches: Sequence[SparseVectors]) -> Postings:
    """The postings of consecutive batches of vectors; a batch's `rows` already count from the first batch on."""
    words = np.concatenate([batch.words for batch in batches])
    order = np.argsort(words, kind="stable")
    counts = np.bincount(words, minlength=batches[0].vocabulary)
    return Postings(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([batch.rows for batch in batches])[order],
        np.concatenate([batch.weights for batch in batches])[order],
    )


async def open_sparse(name: str, source: str, index: Index, cache: Path, progress: Progress | None = None) -> Sparse:
    """The ranking by that sparse encoder, its chunks encoded at first use; progress: hears how many are.

    `UserFault` if the model cannot be loaded or the cache folder cannot be written to.
    """
    model = SparseModel(name, source)
    manifest = SparseManifest(chunks=index.manifest.chunks, chunks_sha256=index.manifest.chunks_sha256, encoder=name)
    folder = cache_folder(cache, manifest)

    async def build() -> Callable[[Path], None]:
        batches = []
        for start in range(0, len(index.chunks), BATCH):
            texts = [embedding_text(chunk) for chunk in index.chunks[start : start + BATCH]]
            vectors = await model.encode(texts)
            batches.append(vectors._replace(rows=vectors.rows + np.int32(start)))
            if progress is not None:
                progress(start + len(texts), len(index.chunks))
        postings = await asyncio.to_thread(postings_of, batches)
        return lambda target: _write(target, postings)

    postings = await kept(folder, manifest, lambda: _read(folder, manifest), build)
    return Sparse(model, postings, manifest.chunks, folder)


def _write(folder: Path, postings: Postings) -> None:
    for name, array in postings._asdict().items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _read(folder: Path, due: SparseManifest) -> Postings:
    if read_manifest(folder, SparseManifest, KIND, FORMAT) != due:
        raise UserFault(f"The {KIND} {folder} is of other chunks or another encoder: build it anew.")
    indptr = read_array(folder, KIND, "indptr.npy", "int64", [None])
    entries = int(indptr[-1]) if len(indptr) else 0
    indices = read_array(folder, KIND, "indices.npy", "int32", [entries])
    return Postings(indptr, indices, read_array(folder, KIND, "data.npy", "float32", [entries]))
