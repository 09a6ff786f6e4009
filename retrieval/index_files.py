"""An index on disk: `vectors.faiss`, `chunks.jsonl` (a chunk a line, in the order of the vectors) and `manifest.json`.

An index appears under its name only once it is whole, so a build that is killed leaves none; what is read is checked
against the manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import faiss
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import UserFault
from ..state.records import Chunk
from .corpus import shown

FORMAT = 1
VECTORS, CHUNKS, MANIFEST = "vectors.faiss", "chunks.jsonl", "manifest.json"


class Manifest(BaseModel):
    """What an index was made from.

    corpus: the corpus's fingerprint; documents, chunks: how many; chunks_sha256: the hash of the chunks file.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    encoder: str
    dimension: int
    chunker: str
    corpus: str
    documents: int
    chunks: int
    chunks_sha256: str


def is_index(folder: Path) -> bool:
    """Whether a folder was written as an index, whole or not."""
    return sum((folder / name).exists() for name in (VECTORS, CHUNKS, MANIFEST)) > 1


def build_command(folder: Path, encoder: str | None = None) -> str:
    """What to run to make the index anew."""
    choice = f" --encoder {encoder}" if encoder else ""
    force = " --force" if is_index(folder) else ""
    return f"`dubito index CORPUS --out {shown(folder)}{choice}{force}`"


def sha256_of(chunks: Iterable[Chunk]) -> str:
    """The hash of a chunks file."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(_line(chunk))
    return digest.hexdigest()


def _line(chunk: Chunk) -> bytes:
    return json.dumps(chunk, ensure_ascii=False).encode() + b"\n"


def write(folder: Path, manifest: Manifest, chunks: Iterable[Chunk], vectors: Any, *, replace: bool) -> bool:  # noqa: ANN401
    """Write an index; False if one is there already and is not to be replaced.

    `UserFault` if the place is taken by anything but an index or an empty folder, or cannot be written to.
    """
    target = folder.resolve()
    if target.exists() and not is_index(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UserFault(f"{shown(folder)} is there and is no index: give the path of a folder that is new or empty.")
    partial = _beside(target, "partial")
    try:
        partial.mkdir(parents=True)
        faiss.write_index(vectors, str(partial / VECTORS))
        with (partial / CHUNKS).open("wb") as file:
            file.writelines(_line(chunk) for chunk in chunks)
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return _put_in_place(partial, target, replace=replace)
    except (OSError, RuntimeError) as fault:  # faiss raises RuntimeError
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else " ".join(str(fault).split())
        raise UserFault(f"The index cannot be written to {shown(folder)}: {reason}.") from fault
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.{what}")


def _put_in_place(partial: Path, target: Path, *, replace: bool) -> bool:
    try:
        partial.rename(target)  # a folder can be renamed onto an empty one only
    except OSError:
        if not is_index(target):
            raise
    else:
        return True
    if not replace:
        return False
    old = _beside(target, "old")
    target.rename(old)
    placed = _put_in_place(partial, target, replace=False)
    shutil.rmtree(old, ignore_errors=True)
    return placed


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index of this format; `UserFault` for anything else."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except OSError as fault:
        raise UserFault(f"{shown(folder)} is no index: make one with {build_command(folder)}.") from fault
    except ValueError as fault:
        raise UserFault(f"The manifest of {shown(folder)} is damaged: run {build_command(folder)}.") from fault
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise UserFault(
            f"The index {shown(folder)} has format {found} and this version of dubito reads format {FORMAT}: run "
            f"{build_command(folder)}."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as fault:
        raise UserFault(f"The manifest of {shown(folder)} is damaged: run {build_command(folder)}.") from fault


def read_rows(folder: Path, manifest: Manifest) -> tuple[Sequence[Chunk], Any]:
    """The chunks and the faiss.IndexFlatIP; `UserFault` unless both are as the manifest says."""
    try:
        vectors = faiss.read_index(str(folder / VECTORS))
        lines = (folder / CHUNKS).read_bytes()
    except (OSError, RuntimeError) as fault:
        raise UserFault(
            f"The files of the index {shown(folder)} are missing or damaged: run {build_command(folder)}."
        ) from fault
    count = lines.count(b"\n")
    flat = isinstance(vectors, faiss.IndexFlat) and vectors.metric_type == faiss.METRIC_INNER_PRODUCT
    if not flat or vectors.d != manifest.dimension or not vectors.ntotal == count == manifest.chunks:
        raise UserFault(
            f"The index {shown(folder)} has {vectors.ntotal} vectors of length {vectors.d} and {count} chunks where "
            f"its manifest says {manifest.chunks} of length {manifest.dimension}: run {build_command(folder)}."
        )
    if hashlib.sha256(lines).hexdigest() != manifest.chunks_sha256:
        raise UserFault(
            f"{shown(folder / CHUNKS)} was changed after the index was made: run {build_command(folder)}, so that its "
            "vectors fit its texts."
        )
    return cast("list[Chunk]", [json.loads(line) for line in lines.splitlines()]), vectors
