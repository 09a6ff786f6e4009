"""Sequences of records that are on the disk where they would fill the memory."""

import json
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar, overload

from ..errors import UserFault
from ..settings import settings

IN_MEMORY = 2**25
"""Bytes of JSON up to which records stay in memory."""

BATCH = 256
"""Records that are read at a time."""

T = TypeVar("T")


def spooled(
    records: Iterable[T], encode: Callable[[T], Any] = lambda it: it, decode: Callable[[Any], T] = lambda it: it
) -> Sequence[T]:
    """The records, read once: a list, or a `Spool` if they are larger than `IN_MEMORY`.

    encode, decode: between a record and what JSON holds. `UserFault` if the disk is full.
    """
    first: list[T] = []
    size, spool = 0, None
    for record in records:
        line = json.dumps(encode(record)).encode()
        if spool is None:
            first.append(record)
            size += len(line)
            if size > IN_MEMORY:
                spool = Spool(decode)
                for one in first:
                    spool.append(json.dumps(encode(one)).encode())
                first.clear()
        else:
            spool.append(line)
    return first if spool is None else spool


class Spool(Sequence[T], Generic[T]):
    """Records in a nameless file of the cache folder, which ends with the process; 8 bytes of each are in memory."""

    def __init__(self, decode: Callable[[Any], T]) -> None:
        """See `spooled`."""
        self._decode, self._ends, self._turn = decode, array("Q", [0]), Lock()
        folder = settings().cache
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as this object
        except OSError:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115

    def append(self, line: bytes) -> None:
        """Add a record, as JSON; none may be added once one was read."""
        try:
            self._file.write(line)
        except OSError as fault:
            raise _no_room(fault) from fault
        self._ends.append(self._ends[-1] + len(line))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), BATCH):
            yield from self._read(start, min(start + BATCH, len(self)))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        rows = range(len(self))[place]
        if isinstance(rows, int):
            return self._read(rows, rows + 1)[0]
        return self._read(rows.start, rows.stop) if rows.step == 1 else [self[row] for row in rows]

    def _read(self, start: int, stop: int) -> list[T]:
        """The records of these rows, which follow each other."""
        if stop <= start:
            return []
        begin = self._ends[start]
        try:
            with self._turn:
                self._file.seek(begin)
                content = self._file.read(self._ends[stop] - begin)
        except OSError as fault:  # what was not yet written is written before
            raise _no_room(fault) from fault
        ends = [end - begin for end in self._ends[start : stop + 1]]
        return [self._decode(json.loads(content[ends[i] : ends[i + 1]])) for i in range(stop - start)]


def _no_room(fault: OSError) -> UserFault:
    return UserFault(
        f"The documents cannot be kept in the cache folder '{settings().cache}' ({fault.strerror}): make room there, "
        "or name another with DUBITO_CACHE_DIR."
    )
