"""A chat's turns."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str
