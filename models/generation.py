"""What a `complete` or `introspect` call is while its samples grow in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..errors import UserFault
from .interfaces import Message, Sampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layers = list[tuple["Tensor", "Tensor"]]
"""The keys and the values of each layer, [rows, heads, tokens, head size]."""


@dataclass(eq=False)
class Request:
    """A call: what was asked, and how far it has come.

    layer: None for `complete`; for `introspect`, whose hidden states are wanted.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    layer: int | None = None
    prompt: list[int] = field(default_factory=list)
    starts_thinking: bool = False
    most_tokens: int = 0
    rows: list[Row] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)
    prefix: Layers = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many rows it takes: greedy continuations are all equal, so that one stands for all."""
        return self.sampling.n if self.sampling.temperature > 0 else 1


@dataclass(eq=False)
class Row:
    """One sample of a request while it grows.

    energies: of each token, -logsumexp of the logits that it was drawn from. finish: None until the last token is
    drawn. state: [d] float32, the hidden state of the last token, once that has been read too.
    """

    request: Request
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    energies: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None
    state: Tensor | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to draw or to read."""
        return self.finish is not None and (self.request.layer is None or self.state is not None)

    @property
    def position(self) -> int:
        """Where its newest token stands: what is before it, the cache holds."""
        return len(self.request.prompt) + len(self.ids) - 1


def check_sampling(sampling: Sampling) -> None:
    """`UserFault` for settings that no continuation can be drawn with."""
    if sampling.n < 1 or sampling.max_tokens < 1:
        raise UserFault(f"n and max_tokens must be 1 or more, not {sampling.n} and {sampling.max_tokens}.")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UserFault(
            "temperature and top_k must not be negative, and top_p must be above 0 and at most 1: they are "
            f"{sampling.temperature}, {sampling.top_k} and {sampling.top_p}."
        )
