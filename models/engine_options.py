"""The options in a name such as `engine:FOLDER-OR-HUB-NAME?option=value&option=value`, read without vLLM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveInt, StrictBool, TypeAdapter

from ..errors import UserFault

ASK_STATE = "dubito_state"
"""The entry of a request's `extra_args` that asks for a hidden state.

[key to keep it under, layer from 1 to L, `States`].
"""

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class EngineOptions:
    """source: a folder or hub name; given: the vLLM engine arguments in the name."""

    source: str
    given: Mapping[str, Any]

    @property
    def eager(self) -> bool:
        """Whether the engine runs layer by layer, so that hidden states can be read (the default)."""
        return bool(self.given.get("enforce_eager", True))


def engine_options(name: str) -> EngineOptions:
    """Read a model's name; `UserFault` for an unknown, repeated or impossible option."""
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


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "dtype": (TypeAdapter(Dtype).validate_python, f"one of {', '.join(get_args(Dtype))}"),
    "tensor_parallel_size": (TypeAdapter(PositiveInt).validate_json, "a number of GPUs from 1"),
    "gpu_memory_utilization": (TypeAdapter(Share).validate_json, "a share of the memory, above 0 and at most 1"),
    "max_model_len": (TypeAdapter(PositiveInt).validate_json, "a number of tokens from 1"),
    "enforce_eager": (TypeAdapter(StrictBool).validate_json, "true or false"),
}
