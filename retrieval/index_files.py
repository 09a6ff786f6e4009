"""An index on disk: `vectors.faiss`, `chunks.jsonl` (one chunk a line, in vector order) and `manifest.json`.

An index for BM25 alone has no `vectors.faiss`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Self, cast, overload

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..errors import UserFault
from ..json_files import BrokenJson, content_of, open_file, parsed
from ..state.records import Chunk
from .corpus import shown
from .saved_folder import MANIFEST, FolderManifest, write_folder

KIND, FORMAT = "index", 1
VECTORS, CHUNKS = "vectors.faiss", "chunks.jsonl"

KEYS = ("id", "doc_id", "title", "text")
"""The keys that every chunk has."""

SCANNED = 2**20
"""Bytes of the chunks file that are searched for line ends together."""

HOW_TO_BUILD = "build it again with `dubito index`, or in Python with `Index.build`"
"""The advice in a sentence about a folder that cannot be used."""


class Manifest(FolderManifest):
    """The inputs that an index was made from.

    encoder, dimension: of the vectors; empty and 0 without vectors; corpus: the corpus's fingerprint; documents,
    chunks: their numbers; chunks_sha256: the hash of the chunks file.
    """

    kind: str = KIND
    format: int = FORMAT
    encoder: str = ""
    dimension: int = 0
    chunker: str
    corpus: str
    documents: int
    chunks: int
    chunks_sha256: str


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


def write_index(folder: Path, manifest: Manifest, chunks: Iterable[Chunk], vectors: Any, *, replace: bool) -> bool:  # noqa: ANN401
    """Write an index; False if an index is there already and is not to be replaced. vectors: None for an index without.

    `UserFault` if the folder holds anything but an index, or cannot be written to.
    """

    def fill(target: Path) -> None:
        if vectors is not None:
            _write_vectors(vectors, target / VECTORS)
        with (target / CHUNKS).open("wb") as file:
            file.writelines(_line(chunk) for chunk in chunks)

    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not (is_free or is_index(folder)):
        raise UserFault(f"{shown(folder)} exists and is not an index: give a folder that is new or empty.")
    return write_folder(folder, manifest, fill, replace=replace)


def _write_vectors(vectors: Any, path: Path) -> None:  # noqa: ANN401 - faiss has no types
    """Write the vectors; `OSError` if the disk is full, which FAISS by itself tells in words of C++."""
    faults: list[OSError] = []
    with path.open("wb") as file:

        def write(part: bytes) -> None:
            try:
                file.write(part)
            except OSError as fault:
                faults.append(fault)
                raise

        try:
            faiss.write_index(vectors, faiss.PyCallbackIOWriter(write))  # type: ignore[attr-defined]
        except RuntimeError as fault:
            raise (faults or [OSError(0, "FAISS cannot write the vectors")])[0] from fault


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

    def __init__(self, folder: Path) -> None:
        """`UserFault` if there is no chunks file."""
        self._folder = folder
        try:
            with open_file(folder / CHUNKS) as file:
                self._lines = mmap(file.fileno(), 0, access=ACCESS_READ)
        except (OSError, ValueError) as fault:  # an empty file cannot be mapped
            raise _damaged(folder) from fault
        self._ends = _line_ends(self._lines)

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
        start = int(self._ends[row - 1]) + 1 if row else 0
        try:
            chunk = parsed(self._lines[start : self._ends[row]])
        except BrokenJson as fault:
            raise _damaged(self._folder) from fault
        if not _is_chunk(chunk):
            raise _damaged(self._folder)
        return cast("Chunk", chunk)

    def checked(self, manifest: Manifest) -> Self:
        """These chunks; `UserFault` if they are not those of the manifest."""
        if hashlib.sha256(self._lines).hexdigest() != manifest.chunks_sha256:
            raise UserFault(
                f"{shown(self._folder / CHUNKS)} was changed after the index was made, so its vectors do not fit its "
                f"texts: {HOW_TO_BUILD}."
            )
        return self


def _line_ends(lines: mmap) -> NDArray[np.int64]:
    ends = []
    with memoryview(lines) as content:
        for start in range(0, len(content), SCANNED):
            part = np.frombuffer(content[start : start + SCANNED], np.uint8)
            ends.append(start + np.flatnonzero(part == ord("\n")))
            del part  # a view that is alive keeps the map open
    return np.concatenate(ends)


def read_rows(folder: Path, manifest: Manifest) -> tuple[Sequence[Chunk], Any]:
    """The chunks and the faiss.IndexFlatIP, None without one; `UserFault` if they do not agree with the manifest."""
    if not manifest.encoder:
        return read_chunks(folder, manifest), None
    chunks = StoredChunks(folder)
    try:
        with open_file(folder / VECTORS):  # FAISS would wait for a pipe
            vectors = faiss.read_index(str(folder / VECTORS))
    except (OSError, RuntimeError, MemoryError) as fault:
        raise _damaged(folder) from fault
    if not isinstance(vectors, faiss.Index):  # FAISS reads a null index as None
        raise _damaged(folder)
    flat = isinstance(vectors, faiss.IndexFlat) and vectors.metric_type == faiss.METRIC_INNER_PRODUCT
    if not flat or vectors.d != manifest.dimension or not vectors.ntotal == len(chunks) == manifest.chunks:
        raise UserFault(
            f"The index {shown(folder)} has {vectors.ntotal} vectors of length {vectors.d} and {len(chunks)} chunks "
            f"where its manifest says {manifest.chunks} of length {manifest.dimension}: {HOW_TO_BUILD}."
        )
    return chunks.checked(manifest), vectors


def read_chunks(folder: Path, manifest: Manifest) -> Sequence[Chunk]:
    """The chunks alone; `UserFault` if they do not agree with the manifest."""
    return StoredChunks(folder).checked(manifest)


def _damaged(folder: Path) -> UserFault:
    return UserFault(f"The files of the index {shown(folder)} are missing or damaged: {HOW_TO_BUILD}.")


def _is_chunk(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in KEYS)
        and isinstance(value.get("metadata", {}), dict)
    )
