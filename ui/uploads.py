"""Files that a browser has uploaded, as a corpus of its own."""

import filecmp
import math
import os
import re
import shutil
import time
import unicodedata
from asyncio import to_thread, wait_for
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock

from starlette.exceptions import HTTPException

from ..errors import UserFault, either
from ..resources.opening import OWN_CACHE
from ..retrieval.corpus import LOADED, PROSE, read_corpus
from .history import folder_name

OWN_FILES = "uploads:"
"""The corpus that a question names for the files of its own browser."""

ENDINGS = (*PROSE, *LOADED)

LONGEST_NAME = 200
"""Bytes of a file's name."""

MOST_AT_ONCE = 4
"""Uploads under way at a time."""

PAUSE_S = 60.0
"""The longest wait for the next piece of a file, in seconds."""

MOST_OPEN = 4
"""Corpora of browsers that stay open without a question that uses them."""

ALL_BYTES = 10_000_000_000
"""Size of the files of all browsers."""

KEPT_DAYS = 30
"""Days without a visit after which a browser's files may be removed."""

_NEW = ".new-"
"""The beginning of the name of a folder that is being filled."""

_BROWSER = re.compile(r"[0-9a-f]{32}")
"""The name of a browser's folder. The operator's folder may hold other things, which stay as they are."""


@dataclass(frozen=True)
class Limits:
    """Bytes: of one file, and of all files of a browser."""

    file: int = 20_000_000
    browser: int = 100_000_000


@dataclass(frozen=True)
class Upload:
    """A file of the list; size: in bytes."""

    name: str
    size: int


class Uploads:
    """The files of all browsers. A browser finds its own alone; the folder's name is a hash of the browser's.

    Every change makes a new folder of hard links, whose path is the corpus. So a question that is being answered reads
    the files as they were, and no index of before answers the next one. A folder that is out of date is removed with
    all that was computed from it, at the latest after the last question that uses it.
    """

    def __init__(self, folder: Path, limits: Limits, forget: Callable[[str], None]) -> None:
        """folder: no other process may use it; forget: closes what is open of a corpus."""
        self.limits = limits
        self._folder, self._forget = folder.expanduser().resolve(), forget
        self._lock = Lock()
        self._under_way = 0
        self._used: Counter[Path] = Counter()
        """How many questions use each open corpus; the last used is the last."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tidy()

    def files(self, browser: str) -> list[Upload]:
        """The files of a browser, by name."""
        with self._lock:
            return [Upload(file.name, file.stat().st_size) for file in _files(self._current(browser))]

    async def add(self, browser: str, name: str, pieces: AsyncIterator[bytes], announced: int) -> None:
        """Keep a file; a refusal is a `UserFault` or an HTTP status with one sentence, and nothing is kept then.

        pieces: the content; announced: its length as the request says it, 0 if it does not.
        """
        name = _checked_name(name)
        too_large = HTTPException(413, f"{name} is too large: a file may have {shown_size(self.limits.file)}.")
        if announced > self.limits.file:
            raise too_large
        if self._under_way >= MOST_AT_ONCE:
            raise HTTPException(429, f"{MOST_AT_ONCE} files are on their way already: wait until one has arrived.")
        self._under_way += 1
        staging = None
        try:
            staging = Path(await to_thread(mkdtemp, prefix=_NEW, dir=self._folder))
            file = await to_thread((staging / name).open, "wb")
            try:
                size = 0
                while piece := await wait_for(anext(pieces, b""), PAUSE_S):
                    size += len(piece)
                    if size > self.limits.file:
                        raise too_large
                    await to_thread(file.write, piece)
            finally:
                await to_thread(file.close)
            await to_thread(_check_readable, staging)
            await to_thread(self._keep, browser, staging / name)
        except TimeoutError as fault:  # such as of a browser that sleeps
            said = f"{name} did not arrive: nothing more of it came for {PAUSE_S:.0f} seconds. Add it again."
            raise HTTPException(408, said) from fault
        except OSError as fault:
            raise HTTPException(507, f"{name} cannot be kept ({fault.strerror}): tell the operator.") from fault
        finally:
            self._under_way -= 1
            if staging is not None:
                await to_thread(shutil.rmtree, staging, ignore_errors=True)

    def delete(self, browser: str, name: str) -> None:
        """Delete a file; HTTP status 404 if this browser has none of that name."""
        with self._lock:
            files = _files(self._current(browser))
            left = [file for file in files if file.name != name]
            if len(left) == len(files):
                raise HTTPException(404, f"{name} is not here (any more).")
            self._change(browser, left)

    def corpus(self, browser: str) -> str:
        """The browser's files as a corpus; `UserFault` if it has none."""
        if not _files(folder := self._current(browser)):
            raise UserFault("You have no files here: add one, or choose another corpus.")
        return str(folder)

    def lend(self, corpus: str) -> Callable[[], None]:
        """Keep a corpus until the function is called that this returns.

        `UserFault` if the files have changed since the corpus was named.
        """
        folder = Path(corpus)
        with self._lock:
            if not folder.is_dir():
                raise UserFault("Your files have just changed: ask again.")
            self._used[folder] += 1
            os.utime(folder.parent)
        return partial(self._give_back, folder)

    def _give_back(self, folder: Path) -> None:
        """End a use. Of the corpora without a use, those that were used last stay open, unless they are out of date."""
        with self._lock:
            self._used[folder] = self._used.pop(folder) - 1
            if not self._used[folder] and folder != _latest(folder.parent):
                self._remove(folder)
            for unused in [one for one, users in self._used.items() if not users][:-MOST_OPEN]:
                self._close(unused)

    def _keep(self, browser: str, staged: Path) -> None:
        """Add a file that has arrived."""
        with self._lock:
            there = _files(self._current(browser))
            if there:
                os.utime(there[0].parent.parent)
            for known in there:
                if filecmp.cmp(known, staged, shallow=False):
                    also = "" if known.name == staged.name else f" as {known.name}"
                    raise HTTPException(409, f"{staged.name} is here already{also}.")
                if known.name.casefold() == staged.name.casefold():
                    raise HTTPException(
                        409, f"Another file named {known.name} is here: delete it first, or rename the new one."
                    )
            if _size([*there, staged]) > self.limits.browser:
                most = shown_size(self.limits.browser)
                raise HTTPException(413, f"{staged.name} does not fit: all your files may have {most}, so delete one.")
            if not self._has_room(staged):
                raise HTTPException(507, f"{staged.name} does not fit: this server has no room for more files.")
            self._change(browser, [*there, staged])

    def _has_room(self, staged: Path) -> bool:
        """Do the files of all browsers fit? Those of browsers that have not been here for long are removed if not."""
        oldest = time.time() - KEPT_DAYS * 86_400
        ages = {browser: browser.stat().st_mtime for browser in self._browsers()}
        abandoned = sorted(
            (browser for browser, used in ages.items() if used < oldest), key=lambda one: ages[one], reverse=True
        )
        while _size([staged, *(file for browser in ages for file in _files(_latest(browser)))]) > ALL_BYTES:
            if not abandoned:
                return False
            for version in _versions(abandoned.pop()):
                self._retire(version)
        return True

    def _change(self, browser: str, files: list[Path]) -> None:
        """Put a folder with these files in the place of the browser's folder."""
        new = Path(mkdtemp(prefix=_NEW, dir=self._folder))
        try:
            (new / OWN_CACHE).mkdir()
            for file in files:
                _link(file, new / file.name)
            home = self._folder / folder_name(browser)
            home.mkdir(mode=0o700, exist_ok=True)
            before = _versions(home)
            new.rename(home / str(int(before[-1].name) + 1 if before else 1))
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        for folder in before:
            self._retire(folder)

    def _retire(self, folder: Path) -> None:
        """Remove a folder, unless a question uses it: then it goes when the question has ended."""
        if not self._used[folder]:
            self._remove(folder)

    def _remove(self, folder: Path) -> None:
        self._close(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _close(self, folder: Path) -> None:
        self._used.pop(folder, None)
        self._forget(str(folder))

    def _tidy(self) -> None:
        """Remove what a server left that was killed."""
        for left in self._folder.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        for browser in self._browsers():
            for folder in _versions(browser)[:-1]:
                shutil.rmtree(folder, ignore_errors=True)

    def _browsers(self) -> list[Path]:
        return [one for one in self._folder.iterdir() if _BROWSER.fullmatch(one.name)]

    def _current(self, browser: str) -> Path | None:
        return _latest(self._folder / folder_name(browser))


def shown_size(size: int) -> str:
    """A size in bytes for people."""
    if size < 1_000_000:
        return f"{math.ceil(size / 1_000)} kB"
    return f"{size / 1_000_000:,.1f} MB".replace(".0 MB", " MB")


def _checked_name(name: str) -> str:
    """A file name in Unicode's composed form; `UserFault` for one that is a path, and for a kind that is not read."""
    name = unicodedata.normalize("NFC", name)
    shown = name if name.isprintable() else repr(name)
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise UserFault(f"'{shown}' is no plain file name: rename the file.")
    if len(name.encode()) > LONGEST_NAME:
        raise UserFault(f"The name {name[:40]}... is too long: rename the file.")
    if Path(name).suffix.lower() not in ENDINGS:
        raise UserFault(f"{name} is not of a kind that can be read here: add a file that ends in {either(ENDINGS)}.")
    return name


def _check_readable(folder: Path) -> None:
    """Raise `UserFault`, which names no folder, if the documents in a folder cannot be read."""
    try:
        read_corpus(folder)
    except UserFault as fault:
        raise UserFault(str(fault).replace(f"{folder}{os.sep}", "")) from fault


def _files(folder: Path | None) -> list[Path]:
    """The files in a folder of a browser; none if another request has removed it."""
    try:
        return [] if folder is None else sorted(file for file in folder.iterdir() if file.name != OWN_CACHE)
    except OSError:
        return []


def _latest(browser: Path) -> Path | None:
    """The folder with a browser's files as they are now."""
    versions = _versions(browser)
    return versions[-1] if versions else None


def _versions(browser: Path) -> list[Path]:
    """The folders of a browser, the latest last."""
    try:
        return sorted(
            (one for one in browser.iterdir() if one.name.isascii() and one.name.isdecimal()),
            key=lambda one: int(one.name),
        )
    except OSError:
        return []


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())


def _link(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file)
    except OSError:  # a file system without links
        shutil.copy2(file, target)
