"""Folders with a manifest, written in one go: an index, and everything derived from its chunks.

A folder gets its name only when it is complete. A killed process leaves no folder under that name, and of two processes
that write the same folder neither reads half of the other's files.
"""

import shutil
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
    old = _beside(target, "old")
    target.rename(old)
    placed = _put_in_place(partial, target, replace=False)
    shutil.rmtree(old, ignore_errors=True)
    return placed
