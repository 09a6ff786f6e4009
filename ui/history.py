"""The questions of a browser, kept on disk: a folder for each browser, a trace for each question."""

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from ..errors import UserFault
from ..graphs.registry import technique_of_chat
from ..json_files import parsed
from ..traces.files import write_file
from ..traces.recording import MALFORMED

logger = logging.getLogger(__name__)

KEPT_BYTES = 256_000_000
"""Size of all traces of all browsers; beyond it the oldest are removed."""

MOST_SHOWN = 100
"""Questions in the list of a browser."""

_NAME = re.compile(r"[A-Za-z0-9_-]{22}")
"""What `new_name` gives: a name that cannot be guessed, and that is no path."""


def new_name() -> str:
    """A name for a run or a browser."""
    return secrets.token_urlsafe(16)


def is_name(text: str) -> bool:
    """Can `new_name` have given it?"""
    return _NAME.fullmatch(text) is not None


def folder_name(browser: str) -> str:
    """The name of the folder that holds what is kept for a browser. The browser's own name cannot be read from it."""
    return hashlib.sha256(browser.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Asked:
    """A question of the list. name: of its run; at: when it was asked, in the server's time zone."""

    name: str
    graph: str
    question: str
    at: datetime


class History:
    """The traces of all browsers. A browser finds its own alone; the folder's name is a hash of the browser's."""

    def __init__(self, folder: Path, most: int = KEPT_BYTES) -> None:
        """most: bytes of all traces; the last trace stays even if it is longer."""
        self._folder, self._most = folder, most

    def keep(self, browser: str, name: str, trace: bytes) -> None:
        """Keep a trace, and remove the oldest beyond the limit. A disk that is full costs the trace, not the answer."""
        path = self._path(browser, name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path, trace, "trace")
            self._remove_oldest(path)
        except (OSError, UserFault) as fault:
            logger.warning("The question is not kept: %s", fault)

    def trace(self, browser: str, name: str) -> bytes:
        """A trace; HTTP status 404 if this browser has none of that name."""
        try:
            return self._path(browser, name).read_bytes()
        except OSError as fault:
            raise _not_here() from fault

    def delete(self, browser: str, name: str) -> None:
        """Delete a trace; HTTP status 404 as `trace`."""
        try:
            self._path(browser, name).unlink()
        except OSError as fault:
            raise _not_here() from fault

    def asked(self, browser: str) -> list[Asked]:
        """The questions of a browser, the latest first."""
        paths = sorted(self._folder_of(browser).glob("*.jsonl"), key=_time, reverse=True)[:MOST_SHOWN]
        return [asked for path in paths if (asked := _asked(path)) is not None]

    def _path(self, browser: str, name: str) -> Path:
        if not is_name(name):
            raise _not_here()
        return self._folder_of(browser) / f"{name}.jsonl"

    def _folder_of(self, browser: str) -> Path:
        return self._folder / folder_name(browser)

    def _remove_oldest(self, last: Path) -> None:
        paths = sorted(self._folder.glob("*/*.jsonl"), key=_time)
        total = sum(map(_size, paths))
        for path in paths:
            if total <= self._most:
                return
            if path != last:
                total -= _size(path)
                path.unlink(missing_ok=True)


def _asked(path: Path) -> Asked | None:
    """The question of a trace of any version; None for a file that has none."""
    try:
        with path.open("rb") as file:
            line: Mapping[str, Any] = parsed(file.readline())
        graph = str(line["graph"])
        at = datetime.fromisoformat(line["timestamp"]).astimezone()
        return Asked(path.stem, technique_of_chat(graph) or graph, str(line["question"]), at)
    except (OSError, *MALFORMED):
        return None


def _time(path: Path) -> float:
    return _stat(path).st_mtime


def _size(path: Path) -> int:
    return _stat(path).st_size


def _stat(path: Path) -> os.stat_result:
    """Of a file that another process may have removed since it was listed."""
    try:
        return path.stat()
    except OSError:
        return os.stat_result((0,) * 10)


def _not_here() -> HTTPException:
    return HTTPException(404, "This question is not kept here (any more): ask it again.")
