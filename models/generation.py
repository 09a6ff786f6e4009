"""A `complete` or `introspect` call while its samples grow in this process, and checks that backends share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import ContextOverflow, UserFault
from .answer_stream import Pace, TextListener
from .interfaces import Choice, Message, Sampling, Scores, States, Token, Tokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .chat_text import ChatText

Layers = list[tuple["Tensor", "Tensor"]]
"""The keys and values of each layer, [samples, heads, tokens, head size]."""


@dataclass(eq=False)
class Request:
    """A call and its progress.

    layer: None for `complete`; for `introspect`, the layer whose hidden states to return. states: of these. ending: the
    token to read in place of a sample's last one, None for the last one itself. listener: to the only sample.
    most_tokens: of a sample.
    waiting: the samples that have not joined the batch. prefix: the prompt's keys and values, for those.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    layer: int | None = None
    states: States = "residual"
    ending: int | None = None
    listener: TextListener | None = None
    pace: Pace = field(default_factory=Pace)
    prompt: list[int] = field(default_factory=list)
    starts_thinking: bool = False
    most_tokens: int = 0
    rows: list[Sample] = field(default_factory=list)
    waiting: list[Sample] = field(default_factory=list)
    prefix: Layers = field(default_factory=list)


@dataclass(eq=False)
class Sample:
    """A continuation of a request while it grows.

    energies: for each token -logsumexp of the logits it was drawn from. finish: None until the last token is drawn.
    state: [d] float32, the hidden state of the last token, once the model has read that token.
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
        """Whether nothing is left to draw or to read."""
        return self.finish is not None and (self.request.layer is None or self.state is not None)

    @property
    def unread(self) -> int:
        """The token that the model reads next."""
        ending = self.request.ending
        return self.ids[-1] if ending is None or self.finish is None else ending

    @property
    def position(self) -> int:
        """The index of the newest token; the cache holds the tokens before it."""
        return len(self.request.prompt) + len(self.ids) - 1


@dataclass(frozen=True)
class SampledTokens:
    """A sampled continuation: its token ids, their log-probabilities, and whether the length limit ended it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    at_limit: bool = False


def estimated_tokens(text: str) -> int:
    """Half a token per ASCII letter or space and one per other byte: about twice the truth for prose."""
    letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    return len(text.encode("utf-8", "surrogatepass")) - letters // 2


def check_fit(name: str, window: int | None, prompt: int, reply: int, longer: str) -> None:
    """`ContextOverflow` if a prompt and its reply exceed the window, all in tokens; longer: how to get a longer one."""
    if window is not None and prompt + reply > window:
        raise ContextOverflow(
            f"The prompt has {prompt:,} tokens and its reply needs {reply:,} or more, but the context window of "
            f"{name} has {window:,}: use fewer or shorter chunks, or {longer}."
        )


def choice(options: Sequence[str], prompt: list[int], replies: list[list[int]], logprobs: list[list[float]]) -> Choice:
    """The choice among options whose whole replies to a prompt have these tokens with these log-probabilities."""
    totals = np.array([sum(row) for row in logprobs])
    shares = np.exp(totals - totals.max())
    chances = (shares / shares.sum()).tolist()
    return Choice(dict(zip(options, chances, strict=True)), Tokens(len(prompt) + sum(map(len, replies))))


def scores(text: ChatText, prompt: list[int], replies: list[list[int]], logprobs: list[list[float]]) -> Scores:
    """The tokens of given replies to a prompt with their log-probabilities."""
    pairs = zip(replies, logprobs, strict=True)
    scored = tuple(tuple(map(Token, text.pieces(reply), row)) for reply, row in pairs)
    return Scores(scored, Tokens(len(prompt) + sum(map(len, replies))))


def next_tokens(paths: Sequence[Sequence[int]]) -> dict[tuple[int, ...], set[int]]:
    """The tokens that follow each distinct beginning of the paths, the empty one included."""
    found: dict[tuple[int, ...], set[int]] = {}
    for path in paths:
        for i, token in enumerate(path):
            found.setdefault(tuple(path[:i]), set()).add(token)
    return found


def along(paths: Sequence[Sequence[int]], logprobs: Mapping[tuple[int, ...], Mapping[int, float]]) -> list[list[float]]:
    """The log-probability of every token of every path, from those of the tokens behind each beginning."""
    return [[logprobs[tuple(path[:i])][token] for i, token in enumerate(path)] for path in paths]


def layer_to_read(name: str, layers: int, layer: int | None) -> int:
    """The layer to read, 1 to `layers`; None is the middle layer. `UserFault` if the model has no such layer."""
    if layer is None:
        return max(1, layers // 2)
    if not 1 <= layer <= layers:
        raise UserFault(f"{name} has {layers} layers: choose one from 1 to {layers}, not {layer}.")
    return layer


def no_feed_forward(name: str) -> str:
    """The sentence for a model whose layers have no feed-forward block that is known."""
    return f"The layers of {name} have no feed-forward block that could be read: set states=residual."


def check_options(options: Sequence[str]) -> None:
    """`UserFault` unless there are at least two options, and all differ and are not empty."""
    if len(options) < 2 or len({option.strip() for option in options} - {""}) < len(options):
        raise UserFault(f"A choice needs at least two different options, each with text, not {list(options)}.")


def check_sampling(sampling: Sampling) -> None:
    """`UserFault` for impossible sampling settings."""
    if sampling.n < 1 or sampling.max_tokens < 1:
        raise UserFault(f"n and max_tokens must be 1 or more, not {sampling.n} and {sampling.max_tokens}.")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UserFault(
            "temperature and top_k must not be negative, and top_p must be above 0 and at most 1: they are "
            f"{sampling.temperature}, {sampling.top_k} and {sampling.top_p}."
        )
