"""What a graph asks of a model, whatever runs it: three verbs for a chat LLM, one each for an encoder and a judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..state.capability import Capability
from ..state.messages import Message

__all__ = [
    "LABELS",
    "Capability",
    "ChatModel",
    "Choice",
    "Completion",
    "Encoder",
    "Introspection",
    "Judge",
    "Judgements",
    "Message",
    "Reply",
    "Sampling",
    "Scores",
    "Token",
    "Tokens",
    "Vectors",
]

Vectors = NDArray[np.float32]

Judgements = NDArray[np.float64]

LABELS = ("entailment", "neutral", "contradiction")
"""What a judge says of a pair; the columns of `Judgements`."""


@dataclass(frozen=True)
class Sampling:
    """How to continue a prompt.

    temperature 0 is greedy; top_k 0 keeps every token; `logprobs` asks for each token's log-probability under the
    model (before temperature, top-p and top-k); `thinking` lets a reasoning model think before it answers.
    """

    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    thinking: bool = False


@dataclass(frozen=True)
class Token:
    """A token and its log-probability (natural logarithm) given everything before it."""

    text: str
    logprob: float


@dataclass(frozen=True)
class Completion:
    """One sampled continuation. `tokens` is empty unless log-probabilities were asked for."""

    text: str
    finish_reason: Literal["stop", "length"]
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """Tokens read and written by one call."""

    prompt: int = 0
    completion: int = 0


@dataclass(frozen=True)
class Reply:
    """The n continuations of one `complete` call, in the order the model gave them."""

    completions: tuple[Completion, ...]
    tokens: Tokens

    @property
    def text(self) -> str:
        """The first continuation's text."""
        return self.completions[0].text


@dataclass(frozen=True)
class Choice:
    """A probability for each option, in the caller's order, summing to 1."""

    probabilities: Mapping[str, float]
    tokens: Tokens

    @property
    def best(self) -> str:
        """The most probable option; the first listed one of equals."""
        return max(self.probabilities, key=lambda option: self.probabilities[option])


@dataclass(frozen=True)
class Scores:
    """For each given continuation its tokens with their log-probabilities, in the caller's order."""

    continuations: tuple[tuple[Token, ...], ...]
    tokens: Tokens

    @property
    def means(self) -> list[float]:
        """Mean log-probability per token of each continuation, in nats (0 for an empty one)."""
        return [sum(t.logprob for t in c) / len(c) if c else 0.0 for c in self.continuations]


@dataclass(frozen=True)
class Introspection:
    """n sampled continuations and what the model's own states say where each of them ends (SeaKR, section 3.4).

    reply: as `complete` gives it, with log-probabilities; greedy continuations are equal.
    states: [n, d] float32, in the order of the continuations: the hidden state of each one's last token, which is the
    last that was generated, whatever ended it: the end-of-turn token, the one that completed a stop string, or the one
    at the length limit. An empty continuation has a row too, that of its end-of-turn token.
    layer: whose output they are, 1 to L; the middle one is L // 2.
    energies: [n], the mean over a continuation's tokens of -logsumexp(logits), nats; None where the logits are unknown.
    """

    reply: Reply
    states: Vectors
    layer: int
    energies: tuple[float, ...] | None = None

    @property
    def tokens(self) -> Tokens:
        """What it cost."""
        return self.reply.tokens


class ChatModel(Protocol):
    """A chat LLM. Every verb is async; what blocks runs in a thread of the backend's own.

    All verbs raise `ContextOverflow` for a prompt that does not fit, `ModelFault` for what a retry may mend,
    `UserFault` for what it will not (unknown model, refused key), `CapabilityMissing` for what this backend cannot do.
    """

    @property
    def name(self) -> str:
        """The name it was opened by, such as `embedded` or `vllm:http://127.0.0.1:8000/v1#smollm2`."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do beyond plain completion."""
        ...

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Continue a chat n times."""
        ...

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """Choose among at least two distinct options; raises `ContractFault` where a parsed reply names none."""
        ...

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """Score given assistant replies to one chat; the shared prompt is read once where the backend can."""
        ...

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """Continue a chat n times and read the hidden states at `layer`; None stands for the middle one, L // 2."""
        ...

    async def window(self) -> int | None:
        """The context window in tokens, prompt and reply together; None if the backend does not tell."""
        ...

    async def count(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text; an upper estimate where the backend has no tokenizer at hand."""
        ...


class Encoder(Protocol):
    """A text encoder."""

    @property
    def name(self) -> str:
        """The name it was opened by; stored in index manifests."""
        ...

    async def dimension(self) -> int:
        """The length d of its vectors."""
        ...

    async def max_tokens(self) -> int | None:
        """The longest text it reads whole, in tokens; None if unknown."""
        ...

    async def token_counter(self) -> Callable[[str], int] | None:
        """Counts a text's tokens, special ones left out, in any thread; None if it has no tokenizer at hand."""
        ...

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """Texts → [n, d] float32, L2-normalised. `query` selects the encoder's query side where it has two."""
        ...


class Judge(Protocol):
    """An entailment judge."""

    @property
    def name(self) -> str:
        """The name it was opened by, such as `nli:/path/to/folder`."""
        ...

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """Does the first answer to the question entail the second? n ordered pairs → [n, 3] label probabilities.

        Columns as `LABELS`, rows summing to 1; a row is NaN where the judge could not say.
        """
        ...
