"""Folders with a manifest, written in one go: an index, and everything derived from its chunks.

A folder gets its name only when it is complete. A killed process leaves no folder under that name, and of two processes
that write the same folder neither reads half of the other's files.
"""

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import UserFault
from .corpus import shown

MANIFEST = "manifest.json"


class FolderManifest(BaseModel):
    """The inputs that a folder was made from. kind: of the folder's content; format: version of its layout."""

    model_config = ConfigDict(frozen=True)

    kind: str
    format: int


M = TypeVar("M", bound=FolderManifest)


def write_folder(folder: Path, manifest: FolderManifest, fill: Callable[[Path], None], *, replace: bool) -> bool:
    """Write a folder; False if a folder that is not empty is there already and is not to be replaced.

    fill: writes the files into the folder that it is given. `UserFault` if the place cannot be written to.
    """
    target = folder.resolve()
    partial = _beside(target, "partial")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return _put_in_place(partial, target, replace=replace)
    except (OSError, RuntimeError) as fault:  # faiss raises RuntimeError
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else " ".join(str(fault).split())
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


def read_manifest(folder: Path, model: type[M]) -> M:
    """The manifest of a folder of this model's kind and format; `UserFault` for every other folder."""
    kind, version = model.model_fields["kind"].default, model.model_fields["format"].default
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except OSError as fault:
        raise UserFault(f"{shown(folder)} is not {_a(kind)}: {how_to_build(kind)}.") from fault
    except ValueError as fault:
        raise damaged(folder, kind) from fault
    fields = content if isinstance(content, dict) else {"kind": None}
    if fields.get("kind", "index") != kind:  # manifests of indexes had no kind at first
        raise UserFault(f"{shown(folder)} is not {_a(kind)}: {how_to_build(kind)}.")
    if fields.get("format") != version:
        raise UserFault(
            f"The {kind} {shown(folder)} has format {fields.get('format')} and this version of dubito reads format "
            f"{version}: {how_to_build(kind)}."
        )
    try:
        return model.model_validate(content)
    except ValidationError as fault:
        raise damaged(folder, kind) from fault


def damaged(folder: Path, kind: str) -> UserFault:
    """The fault of a folder that cannot be read."""
    return UserFault(f"The {kind} {shown(folder)} is damaged: delete that folder and {how_to_build(kind)}.")


def how_to_build(kind: str) -> str:
    """The advice in a sentence about a folder that cannot be used."""
    return "build it again" + (" with `dubito index`, or in Python with `Index.build`" if kind == "index" else "")


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
