"""What `engine:FOLDER-OR-HUB-NAME?option=value&option=value` asks of a vLLM engine, read without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserFault

ASK_STATE = "dubito_state"
"""The entry of a request's `extra_args` that asks for a state: [the key to keep it under, the layer, 1 to L]."""

DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True)
class EngineOptions:
    """source: a folder or hub name; given: vLLM's engine arguments, those that were named."""

    source: str
    given: Mapping[str, Any]

    @property
    def eager(self) -> bool:
        """Does the engine run layer by layer, so that their outputs can be read? It does unless told otherwise."""
        return bool(self.given.get("enforce_eager", True))


def engine_options(name: str) -> EngineOptions:
    """Read a model's name; `UserFault` for an option that is unknown, named twice or out of range."""
    source, _, rest = name.partition(":")[2].partition("?")
    given: dict[str, Any] = {}
    for part in rest.split("&") if rest else ():
        option, _, value = part.partition("=")
        if option not in _READERS:
            raise UserFault(f"'{name}' cannot be read: there is no option '{option}', only {', '.join(_READERS)}.")
        if option in given:
            raise UserFault(f"'{name}' cannot be read: it names {option} twice.")
        read, what = _READERS[option]
        try:
            given[option] = read(value)
        except ValueError:
            raise UserFault(f"'{name}' cannot be read: {option} is {what}, not '{value}'.") from None
    return EngineOptions(source, given)


def _count(value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value)):
        raise ValueError
    return int(value)


def _share(value: str) -> float:
    share = float(value)
    if not 0 < share <= 1:
        raise ValueError
    return share


def _dtype(value: str) -> str:
    if value not in DTYPES:
        raise ValueError
    return value


def _yes(value: str) -> bool:
    if value not in {"true", "false"}:
        raise ValueError
    return value == "true"


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "dtype": (_dtype, f"one of {', '.join(DTYPES)}"),
    "tensor_parallel_size": (_count, "a number of GPUs from 1"),
    "gpu_memory_utilization": (_share, "a share of the memory, above 0 and at most 1"),
    "max_model_len": (_count, "a number of tokens from 1"),
    "enforce_eager": (_yes, "true or false"),
}
