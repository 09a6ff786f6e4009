"""The chunks of a corpus without vectors: what BM25 reads, so that no encoder is loaded for it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..state.records import Chunk
from ..state.where import Condition
from .chunkers import open_chunker
from .corpus import read_corpus
from .index_files import is_index, read_chunks, read_index_manifest, sha256_of
from .restricted import passing_rows


@dataclass(frozen=True)
class ChunkedCorpus:
    """Chunks in row order, and the hash of their file, as in the manifest of an index; passing: see `Index`."""

    chunks: Sequence[Chunk]
    chunks_sha256: str
    passing: NDArray[np.int64] | None = None

    def restricted(self, condition: Condition) -> Self:
        """See `Index.restricted`."""
        return replace(self, passing=passing_rows(self.chunks, condition))


async def cut_corpus(
    path: str | Path, chunker_name: str, *, on_bad_record: Literal["refuse", "skip"] = "refuse"
) -> ChunkedCorpus | None:
    """The chunks that an index of this corpus or index folder would have; None for a chunker that needs an encoder.

    Raises `UserFault` as reading the corpus does.
    """
    if not chunker_name.strip().startswith("words:"):
        return None
    folder = Path(path)
    if await asyncio.to_thread(is_index, folder):
        return await asyncio.to_thread(_of_index, folder)
    corpus = await asyncio.to_thread(lambda: read_corpus(folder, on_bad_record=on_bad_record))
    chunks = await open_chunker(chunker_name).cut(corpus.documents, None)
    return ChunkedCorpus(chunks, await asyncio.to_thread(sha256_of, chunks)) if chunks else None


def _of_index(folder: Path) -> ChunkedCorpus:
    manifest = read_index_manifest(folder)
    return ChunkedCorpus(read_chunks(folder, manifest), manifest.chunks_sha256)
