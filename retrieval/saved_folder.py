"""Folders with a manifest, written in one go: an index, and everything derived from its chunks.

A folder gets its name only when it is complete. A killed process leaves no folder under that name, and of two processes
that write the same folder neither reads half of the other's files. A folder is replaced in one step on Linux and macOS;
where the file system cannot do that, it has no folder for a moment, and the old one lies beside it.
"""

import ctypes
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ..errors import UserFault
from .corpus import shown

MANIFEST = "manifest.json"


class FolderManifest(BaseModel):
    """The inputs that a folder was made from. kind: of the folder's content; format: version of its layout."""

    model_config = ConfigDict(frozen=True)

    kind: str
    format: int

    def content(self) -> bytes:
        """The content of its file."""
        return f"{self.model_dump_json(indent=2)}\n".encode()


def write_folder(folder: Path, manifest: FolderManifest, fill: Callable[[Path], None], *, replace: bool) -> bool:
    """Write a folder; False if a folder that is not empty is there already and is not to be replaced.

    fill: writes the files into the folder that it is given. `UserFault` if the place cannot be written to.
    """
    target = folder.resolve()
    partial = _beside(target, "partial")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        (partial / MANIFEST).write_bytes(manifest.content())
        return _put_in_place(partial, target, replace=replace)
    except OSError as fault:
        reason = fault.strerror or "the disk may be full"  # NumPy's OSError says how many bytes were written
        raise UserFault(f"The {manifest.kind} cannot be written to {shown(folder)}: {reason}.") from fault
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.{ending}")


def _put_in_place(partial: Path, target: Path, *, replace: bool) -> bool:
    """Rename the finished folder; a folder that another process has put there meanwhile is equally good and stays."""
    try:
        partial.rename(target)  # a folder can be renamed onto an empty one only
    except OSError:
        if not target.is_dir():
            raise
    else:
        return True
    if not replace:
        return False
    if _exchanged(partial, target):
        return True
    old = _beside(target, "old")
    target.rename(old)
    placed = _put_in_place(partial, target, replace=False)
    shutil.rmtree(old, ignore_errors=True)
    return placed


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system or the file system cannot."""
    here, exchange = -100, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform not in {"linux", "darwin"}:
        return False
    system = ctypes.CDLL(None)
    try:
        if sys.platform == "darwin":
            return bool(system.renamex_np(*names, exchange) == 0)
        return bool(system.renameat2(here, names[0], here, names[1], exchange) == 0)
    except AttributeError:  # an old C library
        return False


def tidy_beside(folder: Path) -> None:
    """Remove what killed processes left beside a folder, or put the old folder back; nobody else may be writing it."""
    target = folder.resolve()
    for left in [*target.parent.glob(".*.partial"), *target.parent.glob(".*.old")]:
        if not re.fullmatch(rf"\.{re.escape(target.name)}\.[0-9a-f]{{32}}\.\w+", left.name):
            continue
        if left.suffix == ".old" and not target.exists():
            left.rename(target)
        else:
            shutil.rmtree(left, ignore_errors=True)
