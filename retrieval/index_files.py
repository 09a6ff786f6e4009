"""An index on disk: its chunks, their vectors and `manifest.json`. All but the manifest is read memory-mapped.

`chunks.jsonl`: one chunk a line; `line_ends.npy`: int64 [N], the offset behind each line; `vectors.npy`: float32
[N, d], a row per chunk in the same order; `search.faiss`: the structure of an approximate search. An index for BM25
alone has no vectors, and an index with an exact search no structure.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import cast, overload

import numpy as np
from pydantic import ValidationError

from ..errors import UserFault
from ..json_files import BrokenJson, content_of, open_file, parsed
from ..models.interfaces import Vectors
from ..state.records import Chunk
from .approximate import ApproximateSearch, SearchManifest
from .corpus import shown
from .derived_files import UNREADABLE, read_array, reading
from .saved_folder import MANIFEST, FolderManifest, write_folder

KIND, FORMAT = "index", 2
CHUNKS, ENDS, VECTORS, SEARCH = "chunks.jsonl", "line_ends.npy", "vectors.npy", "search.faiss"

KEYS = ("id", "doc_id", "title", "text")
"""The keys that every chunk has."""

HASHED = 2**27
"""The most bytes of a chunks file that are hashed when it is opened; of a larger file the length is compared."""

HOW_TO_BUILD = "build it again with `dubito index`, or in Python with `Index.build`"
"""The advice in a sentence about a folder that cannot be used."""


class Manifest(FolderManifest):
    """The inputs that an index was made from.

    encoder, dimension: of the vectors; empty and 0 without vectors; weights: the encoder's, see `weights_of`; corpus:
    the corpus's fingerprint; documents, chunks: their numbers; chunks_sha256: the hash of the chunks file; search: the
    approximate search, None for exact.
    """

    kind: str = KIND
    format: int = FORMAT
    encoder: str = ""
    weights: str = ""
    dimension: int = 0
    chunker: str
    corpus: str
    documents: int
    chunks: int
    chunks_sha256: str
    search: SearchManifest | None = None


def is_index(folder: Path) -> bool:
    """Whether a folder was written as an index, complete or not."""
    return sum((folder / name).exists() for name in (VECTORS, CHUNKS, MANIFEST)) > 1


def sha256_of(chunks: Iterable[Chunk]) -> str:
    """The hash of a chunks file."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(_line(chunk))
    return digest.hexdigest()


def _line(chunk: Chunk) -> bytes:
    return json.dumps(chunk, ensure_ascii=False).encode() + b"\n"


def write_index(
    folder: Path,
    manifest: Manifest,
    chunks: Iterable[Chunk],
    vectors: Vectors | None,
    search: ApproximateSearch | None,
    *,
    replace: bool,
) -> bool:
    """Write an index; False if an index is there already and is not to be replaced.

    vectors: a row per chunk, None for an index without; search: of `manifest.search`. `UserFault` if the folder holds
    anything but an index, or cannot be written to.
    """

    def fill(target: Path) -> None:
        if vectors is not None:
            np.save(target / VECTORS, vectors, allow_pickle=False)
        if search is not None:
            search.write(target / SEARCH)
        with (target / CHUNKS).open("wb") as file:
            lengths = np.fromiter((file.write(_line(chunk)) for chunk in chunks), np.int64)
        np.save(target / ENDS, np.cumsum(lengths), allow_pickle=False)

    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not (is_free or is_index(folder)):
        raise UserFault(f"{shown(folder)} exists and is not an index: give a folder that is new or empty.")
    return write_folder(folder, manifest, fill, replace=replace)


def read_index_manifest(folder: Path) -> Manifest:
    """The manifest of an index of this format; `UserFault` for every other folder."""
    no_index = UserFault(f"{shown(folder)} is not an index: {HOW_TO_BUILD}.")
    damaged = UserFault(f"The index {shown(folder)} is damaged: delete that folder and {HOW_TO_BUILD}.")
    try:
        content = parsed(content_of(folder / MANIFEST))
    except OSError as fault:
        raise no_index from fault
    except ValueError as fault:
        raise damaged from fault
    if not isinstance(content, dict) or content.get("kind", KIND) != KIND:  # manifests had no kind at first
        raise no_index
    if content.get("format") != FORMAT:
        raise UserFault(
            f"The index {shown(folder)} has format {content.get('format')} and this version of dubito reads format "
            f"{FORMAT}: {HOW_TO_BUILD}."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as fault:
        raise damaged from fault


class StoredChunks(Sequence[Chunk]):
    """The chunks of an index folder. The file is memory-mapped, and a chunk is parsed when it is asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """`UserFault` if the files are missing, or are not those of the manifest."""
        self._folder = folder
        try:
            with open_file(folder / CHUNKS) as file, reading:
                self._lines = mmap(file.fileno(), 0, access=ACCESS_READ)
                self._ends = np.asarray(read_array(folder / ENDS, "int64", [manifest.chunks]))
        except UNREADABLE as fault:  # an empty file cannot be mapped
            raise damaged(folder) from fault
        if (
            not len(self._ends)
            or self._ends[-1] != len(self._lines)
            or (len(self._lines) <= HASHED and hashlib.sha256(self._lines).hexdigest() != manifest.chunks_sha256)
        ):
            raise UserFault(f"{shown(folder / CHUNKS)} was changed after the index was made: {HOW_TO_BUILD}.")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        if isinstance(place, slice):
            return [self[row] for row in range(len(self))[place]]
        row = range(len(self))[place]
        start = self._ends[row - 1] if row else 0
        try:
            chunk = parsed(self._lines[start : self._ends[row]])
        except BrokenJson as fault:
            raise damaged(self._folder) from fault
        if not _is_chunk(chunk):
            raise damaged(self._folder)
        return cast("Chunk", chunk)


def read_vectors(folder: Path, manifest: Manifest) -> tuple[Vectors | None, ApproximateSearch | None]:
    """The vectors and the approximate search, None without; `UserFault` if they do not agree with the manifest."""
    if not manifest.encoder:
        return None, None
    try:
        with reading:
            mapped = read_array(folder / VECTORS, "float32", [manifest.chunks, manifest.dimension])
        vectors: Vectors = np.asarray(mapped)  # a plain array over the map: its rows are read several times faster
        if manifest.search is None:
            return vectors, None
        return vectors, ApproximateSearch.read(folder / SEARCH, manifest.search, vectors)
    except UNREADABLE as fault:
        raise damaged(folder) from fault


def damaged(folder: Path) -> UserFault:
    """The fault of an index whose files cannot be read."""
    return UserFault(f"The files of the index {shown(folder)} are missing or damaged: {HOW_TO_BUILD}.")


def _is_chunk(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in KEYS)
        and isinstance(value.get("metadata", {}), dict)
    )
