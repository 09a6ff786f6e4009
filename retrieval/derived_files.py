"""Files derived from an index's chunks and kept in the cache folder."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from .saved_folder import FolderManifest, damaged, write_folder

T = TypeVar("T")


class Derived(FolderManifest):
    """The chunks that files were derived from; subclasses add their own settings.

    chunks, chunks_sha256: as in the manifest of the index.
    """

    chunks: int
    chunks_sha256: str


def cache_folder(cache: Path, manifest: Derived) -> Path:
    """The folder in the cache for files with this manifest."""
    return cache / "derived" / hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:32]


def read_array(folder: Path, kind: str, name: str, dtype: str, shape: Sequence[int | None]) -> NDArray[Any]:
    """A memory-mapped array; `UserFault` unless it has this dtype and shape, where None is any length."""
    try:
        array: NDArray[Any] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as fault:
        raise damaged(folder, kind) from fault
    fits = len(array.shape) == len(shape) and all(
        due in {None, length} for due, length in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits:
        raise damaged(folder, kind)
    return array


async def get_or_build(
    folder: Path, manifest: Derived, read: Callable[[], T], build: Callable[[], Awaitable[Callable[[Path], None]]]
) -> T:
    """Read a folder of the cache, after building it if it is missing or damaged.

    read: raises `UserFault` if it cannot; build: returns the function that writes the files into a folder.
    """
    try:
        return await asyncio.to_thread(read)
    except UserFault:
        is_damaged = await asyncio.to_thread(folder.exists)
        fill = await build()
        await asyncio.to_thread(lambda: write_folder(folder, manifest, fill, replace=is_damaged))
        return await asyncio.to_thread(read)
