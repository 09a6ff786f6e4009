"""The messages of a chat model's request, and its finished call."""

from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict


class Message(TypedDict):
    """One message."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Call:
    """A finished model call as JSON values: request, reply and cost.

    reused: an earlier rung of the cascade has its reply, so it was not made and cost nothing (see `QuestionMemory`).
    """

    verb: str
    model: str
    request: dict[str, Any]
    reply: dict[str, Any]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    reused: bool = False
