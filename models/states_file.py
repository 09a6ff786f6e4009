"""The file in which a vLLM server hands over the hidden states of one request.

`PATH` is a safetensors file with `hidden_states` [tokens, layers, d] and `token_ids` [tokens]. While the server writes
it, the server holds an exclusive flock on `PATH.lock`.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import UserFault
from .interfaces import Vectors

_KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
_LONGEST_HEADER = 1_000_000
_PATIENCE_S = 5.0


def last_states(path: str, tokens: Sequence[int]) -> Vectors | None:
    """The last token's states [layers, d] from a file that must hold these tokens; None while it is being written.

    `UserFault` if the file cannot be reached from here, `ValueError` or `LookupError` if it is malformed.
    """
    import fcntl  # noqa: PLC0415 - not on every system, nor is vLLM

    try:
        with Path(f"{path}.lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            with Path(path).open("rb") as file:
                return _read(file, tokens)
    except PermissionError:
        raise UserFault(
            f"The server of hidden states wrote {path}, which this process may not read: run both as the same user."
        ) from None
    except FileNotFoundError as missing:
        if Path(f"{path}.lock").exists():
            raise ValueError(f"nothing was written to {path}; is its folder full?") from missing
        raise UserFault(
            f"The server of hidden states named {path}, which is not on this machine: the server and dubito must share "
            "that folder, and the server must keep vLLM's use_synchronization_lock on."
        ) from missing


def remove(path: str) -> None:
    """Remove both files when the server has released its lock, at the latest after `_PATIENCE_S` seconds.

    A file without a lock file is left alone: no server of hidden states has written it.
    """
    import fcntl  # noqa: PLC0415

    lock, end = Path(f"{path}.lock"), time.monotonic() + _PATIENCE_S
    try:
        with lock.open("rb") as held:
            while time.monotonic() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        Path(path).unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except PermissionError:
        raise UserFault(
            f"The server of hidden states wrote {path}, which this process may not remove: run both as the same user, "
            "or such files accumulate."
        ) from None


def _read(file: IO[bytes], tokens: Sequence[int]) -> Vectors:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size, _LONGEST_HEADER):
        raise ValueError(f"{file.name} is not a safetensors file")
    header = json.loads(file.read(length))
    start = 8 + length
    ids = _rows(file, start, header["token_ids"], 0)
    if ids.tolist() != list(tokens):
        raise ValueError(f"{file.name} holds {len(ids)} other tokens than the {len(tokens)} that were sent")
    states = header["hidden_states"]
    if len(states["shape"]) != 3 or not all(states["shape"]):
        raise ValueError(f"{file.name} holds states of shape {states['shape']}")
    (last,) = _rows(file, start, states, states["shape"][0] - 1)
    if states["dtype"] == "BF16":
        last = (last.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(last, dtype=np.float32)


def _rows(file: IO[bytes], start: int, tensor: dict[str, Any], first: int) -> np.ndarray[Any, Any]:
    """The rows of a tensor from `first` on."""
    kind, shape = np.dtype(_KINDS[tensor["dtype"]]), tensor["shape"]
    row = kind.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    file.seek(start + tensor["data_offsets"][0] + first * row)
    rows = np.frombuffer(file.read((shape[0] - first) * row), kind)
    return rows.reshape(-1, *shape[1:])
