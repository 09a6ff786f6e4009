"""Files that people name for results: only a result of the same kind is replaced."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserFault


@contextmanager
def writing(path: Path, what: str, beginning: bytes = b"") -> Iterator[None]:
    """Around writing a file. what: names the file in messages; beginning: how a file begins that may be replaced.

    Raises `UserFault` if the path cannot be written, or holds another file.
    """
    try:
        if beginning and path.is_file() and path.stat().st_size:
            with path.open("rb") as there:
                if there.read(len(beginning)).lower() != beginning.lower():
                    raise UserFault(f"'{path}' exists and is not a {what}: give another name.")
        yield
    except OSError as fault:
        raise UserFault(f"The {what} cannot be written to '{path}' ({fault.strerror}): give another path.") from fault


def write_file(path: Path, content: bytes, what: str, beginning: bytes = b"") -> int:
    """Write a file in one go and return its size; the file that it replaces stays if the disk is full.

    what, beginning: see `writing`, whose `UserFault` it raises.
    """
    with writing(path, what, beginning):
        target = path.resolve()
        if target.exists() and not target.is_file():
            return target.write_bytes(content)  # a folder fails; a terminal or a pipe has nothing to keep
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
        try:
            size = partial.write_bytes(content)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return size
