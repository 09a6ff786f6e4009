"""Files that people name for results: only a result of the same kind is replaced."""

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
