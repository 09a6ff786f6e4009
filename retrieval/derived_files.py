"""Files derived from an index's chunks and kept in the cache folder."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..json_files import content_of, open_file
from .saved_folder import MANIFEST, FolderManifest, write_folder

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Derived(FolderManifest):
    """The chunks that files were derived from; subclasses add their own settings.

    chunks, chunks_sha256: as in the manifest of the index.
    """

    chunks: int
    chunks_sha256: str


def cache_folder(cache: Path, manifest: Derived) -> Path:
    """The folder in the cache for files with this manifest."""
    return cache / "derived" / hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:32]


def read_array(file: Path, dtype: str, shape: Sequence[int | None]) -> NDArray[Any]:
    """A memory-mapped array; `ValueError` unless it has this dtype and shape, where None is any length."""
    with open_file(file):  # NumPy would wait for a pipe
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    fits = len(array.shape) == len(shape) and all(
        due in {None, length} for due, length in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits:
        raise ValueError(f"{file} has another dtype or shape")
    return array


reading = Lock()
"""NumPy parses the header of an array, and Python 3.11 may fail where two threads parse at once."""

UNREADABLE = (OSError, ValueError, EOFError, LookupError, TypeError)
"""What reading a damaged array may raise."""


def read_derived(cache: Path, manifest: Derived, read: Callable[[Path], T]) -> T:
    """Read the cache's folder with this manifest; `UserFault` if it is missing or damaged."""
    folder = cache_folder(cache, manifest)
    unusable = UserFault(f"The {manifest.kind} {folder} is missing or damaged: delete that folder.")
    try:
        if content_of(folder / MANIFEST) == manifest.content():
            with reading:
                return read(folder)
    except UNREADABLE as fault:
        raise unusable from fault
    raise unusable


async def get_or_build(
    cache: Path, manifest: Derived, read: Callable[[Path], T], build: Callable[[], Awaitable[Callable[[Path], None]]]
) -> T:
    """Read the cache's folder with this manifest, after building it if it is missing or damaged.

    build: returns the function that writes the files into a folder.
    """
    try:
        return await asyncio.to_thread(read_derived, cache, manifest, read)
    except UserFault:
        folder = cache_folder(cache, manifest)
        is_damaged = await asyncio.to_thread(folder.exists)
        fill = await build()
    try:
        await asyncio.to_thread(lambda: write_folder(folder, manifest, fill, replace=is_damaged))
        return await asyncio.to_thread(read_derived, cache, manifest, read)
    except UserFault as fault:
        logger.warning("%s Going on with files that are removed at the end.", fault)
        return await asyncio.to_thread(_elsewhere, manifest, fill, read)


def _elsewhere(manifest: Derived, fill: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """What the files would hold, from a folder for temporary files. What is read keeps its memory maps."""
    try:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            fill(Path(folder))
            return read(Path(folder))
    except OSError as fault:
        reason = fault.strerror or "the disk may be full"
        raise UserFault(f"The {manifest.kind} cannot be written to {gettempdir()} either: {reason}.") from fault
