"""What is derived from an index's chunks and kept: a folder with a manifest and the files it speaks of.

A folder appears under its name only once it is whole, so what is killed while it writes leaves none, and of two
processes that write the same folder neither reads a half of the other's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import UserFault
from .corpus import shown

T = TypeVar("T")
M = TypeVar("M", bound="Derived")

MANIFEST = "manifest.json"


class Derived(BaseModel):
    """What a folder was made from; what is derived adds its own settings.

    kind: what is in it; format: how that is laid out; chunks, chunks_sha256: as in the manifest of the index.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    format: int
    chunks: int
    chunks_sha256: str


def cache_folder(cache: Path, manifest: Derived) -> Path:
    """Where in the cache folder what has this manifest is kept."""
    return cache / "derived" / hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:32]


def write(folder: Path, manifest: Derived, fill: Callable[[Path], None], *, replace: bool) -> bool:
    """Write a folder; False if one is there already, with something in it, and is not to be replaced.

    fill: writes the files into a folder that it is given. `UserFault` if the place cannot be written to.
    """
    target = folder.resolve()
    partial = _beside(target, "partial")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return _put_in_place(partial, target, replace=replace)
    except OSError as fault:
        reason = fault.strerror or " ".join(str(fault).split())
        raise UserFault(f"The {manifest.kind} cannot be written to {shown(folder)}: {reason}.") from fault
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_target(folder: Path, kind: str) -> None:
    """`UserFault` if something is there that is neither of this kind nor an empty folder, and would be lost."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        ours = json.loads((folder / MANIFEST).read_bytes())["kind"] == kind
    except (OSError, ValueError, LookupError, TypeError):
        ours = False
    if not ours:
        raise UserFault(f"{shown(folder)} is there and is no {kind}: give the path of a folder that is new or empty.")


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.{what}")


def _put_in_place(partial: Path, target: Path, *, replace: bool) -> bool:
    """Rename the finished folder; what another process puts there meanwhile is as good as ours and stays."""
    try:
        partial.rename(target)  # a folder can be renamed onto an empty one only
    except OSError:
        if not target.is_dir():
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


def read_manifest(folder: Path, model: type[M], kind: str, version: int) -> M:
    """The manifest of a folder of this kind and format; `UserFault` for anything else."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except OSError as fault:
        raise UserFault(f"{shown(folder)} is no {kind}: build one.") from fault
    except ValueError as fault:
        raise _damaged(folder, kind) from fault
    found = content if isinstance(content, dict) else {}
    if found.get("kind") != kind:
        raise UserFault(f"{shown(folder)} is no {kind}: build one.")
    if found.get("format") != version:
        raise UserFault(
            f"The {kind} {shown(folder)} has format {found.get('format')} and this version of dubito reads format "
            f"{version}: build it anew."
        )
    try:
        return model.model_validate(content)
    except ValidationError as fault:
        raise _damaged(folder, kind) from fault


def read_array(folder: Path, kind: str, name: str, dtype: str, shape: Sequence[int | None]) -> NDArray[Any]:
    """A memory-mapped array; `UserFault` unless it has this dtype and shape, where None is any length."""
    try:
        array: NDArray[Any] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as fault:
        raise _damaged(folder, kind) from fault
    fits = len(array.shape) == len(shape) and all(
        due in {None, length} for due, length in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits:
        raise _damaged(folder, kind)
    return array


def _damaged(folder: Path, kind: str) -> UserFault:
    return UserFault(f"The {kind} {shown(folder)} is damaged: delete that folder and build it anew.")


async def kept(
    folder: Path, manifest: Derived, read: Callable[[], T], build: Callable[[], Awaitable[Callable[[Path], None]]]
) -> T:
    """What is read from a folder of the cache, after it was built where there is none, or none that is whole.

    read: raises `UserFault` where it cannot; build: gives what writes the files.
    """
    try:
        return await asyncio.to_thread(read)
    except UserFault:
        damaged = await asyncio.to_thread(folder.exists)
        fill = await build()
        await asyncio.to_thread(lambda: write(folder, manifest, fill, replace=damaged))
        return await asyncio.to_thread(read)
