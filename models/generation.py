"""What a `complete` call is while its samples grow in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .interfaces import Message, Sampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layers = list[tuple["Tensor", "Tensor"]]
"""The keys and the values of each layer, [rows, heads, tokens, head size]."""


@dataclass(eq=False)
class Request:
    """A `complete` call: what was asked, and how far it has come."""

    messages: tuple[Message, ...]
    sampling: Sampling
    prompt: list[int] = field(default_factory=list)
    starts_thinking: bool = False
    most_tokens: int = 0
    rows: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    prefix: Layers = field(default_factory=list)


@dataclass(eq=False)
class Row:
    """One sample of a request while it grows; `finish` is None until it is finished."""

    request: Request
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def position(self) -> int:
        """Where its newest token stands: what is before it, the cache holds."""
        return len(self.request.prompt) + len(self.ids) - 1
