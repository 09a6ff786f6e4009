"""The interfaces of chat models, encoders and entailment judges, and the records they return."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..state.capability import At
from ..state.capability import Capability as Capability  # noqa: PLC0414 - exported again
from ..state.capability import States as States  # noqa: PLC0414
from ..state.messages import Message as Message  # noqa: PLC0414

Vectors = NDArray[np.float32]

Judgements = NDArray[np.float64]

LABELS = ("entailment", "neutral", "contradiction")
"""The labels of a pair; the columns of `Judgements`."""


@dataclass(frozen=True)
class Sampling:
    """How to continue a prompt.

    temperature: 0 is greedy; top_k: 0 keeps every token; logprobs: return each token's log-probability under the model
    (before temperature, top-p and top-k); thinking: let a reasoning model think before it answers; pattern: a regular
    expression for the whole reply, for models with the capability `pattern`. A server of any version must be able to
    read it: literals, sets, groups, alternatives and repetition.
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
    pattern: str | None = None

    @property
    def distinct(self) -> int:
        """The number of continuations to draw: greedy ones are equal, so one is drawn for all."""
        return self.n if self.temperature > 0 else 1


@dataclass(frozen=True)
class Token:
    """A token and its log-probability (natural logarithm) given everything before it."""

    text: str
    logprob: float


@dataclass(frozen=True)
class Completion:
    """One sampled continuation. `tokens` is empty unless log-probabilities were asked for.

    why_empty: why there is no text although the model did not end an empty reply, as a clause about the reply (see
    `thinking.why_empty`); else empty.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    tokens: tuple[Token, ...] = ()
    why_empty: str = ""


@dataclass(frozen=True)
class Tokens:
    """Tokens read (prompt) and written (completion)."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True)
class Reply:
    """The n continuations of one `complete` call, in the model's order."""

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
        """The most probable option; among equals the first listed."""
        return max(self.probabilities, key=lambda option: self.probabilities[option])


@dataclass(frozen=True)
class Scores:
    """The tokens of each given continuation with their log-probabilities, in the caller's order."""

    continuations: tuple[tuple[Token, ...], ...]
    tokens: Tokens

    @property
    def means(self) -> list[float]:
        """Mean log-probability per token of each continuation, in nats (0 for an empty one)."""
        return [
            sum(token.logprob for token in tokens) / len(tokens) if tokens else 0.0 for tokens in self.continuations
        ]


@dataclass(frozen=True)
class StatePlace:
    """Where in a model a hidden state is read.

    layer: 1 to L; None is the middle layer, L // 2. Other values of `states` and `at` than the defaults need the
    capability `inner_states`.
    """

    layer: int | None = None
    states: States = "residual"
    at: At = "last"

    @property
    def is_inner(self) -> bool:
        """Does it need the capability `inner_states`?"""
        return (self.states, self.at) != ("residual", "last")


MIDDLE_LAYER = StatePlace()
"""The residual stream at the last token of the middle layer."""


@dataclass(frozen=True)
class Introspection:
    """n sampled continuations with the model's hidden state at the end of each (SeaKR, section 3.4).

    reply: as `complete` returns it, with log-probabilities; greedy continuations are equal.
    states: [n, d] float32, in the order of the continuations: the hidden state of the last token that was generated.
    That is the end-of-turn token, the token that completed a stop string, or the token at the length limit; an empty
    continuation has the state of its end-of-turn token. With at="eos" the model's end-of-sequence token is read in
    place of that token.
    layer: the layer of these states, 1 to L; the middle layer is L // 2.
    energies: [n], the mean of -logsumexp(logits) over a continuation's tokens, nats; None if the logits are unknown.
    """

    reply: Reply
    states: Vectors
    layer: int
    energies: tuple[float, ...] | None = None

    @property
    def tokens(self) -> Tokens:
        """Tokens read and written."""
        return self.reply.tokens


class ChatModel(Protocol):
    """A chat LLM. Every method is async; blocking work runs in the backend's own threads.

    All methods raise `ContextOverflow` if the prompt does not fit, `ModelFault` if a retry may help, `UserFault` if it
    cannot (unknown model, refused key) and `CapabilityMissing` if the backend lacks the method.
    """

    @property
    def name(self) -> str:
        """The name it was opened by, such as `embedded` or `vllm:http://127.0.0.1:8000/v1#smollm2`."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The model's capabilities beyond plain completion."""
        ...

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Continue a chat n times."""
        ...

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """Choose among two or more different options; `ContractFault` if a reply that must name one names none."""
        ...

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """Log-probabilities of given assistant replies to one chat; most backends read the shared prompt once."""
        ...

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """Continue a chat n times and read the hidden state of each continuation at this place."""
        ...

    async def window(self) -> int | None:
        """The context window in tokens, prompt and reply together; None if unknown."""
        ...

    async def count(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text; an upper estimate if the backend has no tokenizer."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """A chat model that can tell only by asking whether it is there and what it can do."""

    async def check(self, claimed: frozenset[Capability]) -> Mapping[Capability, str]:
        """Try the capabilities once; `capabilities` leaves out those that failed from then on.

        The result has a clause for each of `claimed` that failed now. The first call also asks whether the model is
        there. Raises `ModelFault` if it is not, `UserFault` for a model that is not served.
        """
        ...

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """The capabilities that were tried and failed, each with a clause that says how."""
        ...


class Encoder(Protocol):
    """A text encoder."""

    @property
    def name(self) -> str:
        """The name it was opened by; stored in index manifests."""
        ...

    async def dimension(self) -> int:
        """The length d of the vectors."""
        ...

    async def max_tokens(self) -> int | None:
        """The longest text that is not truncated, in tokens; None if unknown."""
        ...

    async def token_counter(self) -> Callable[[str], int] | None:
        """A function that counts a text's tokens without special tokens, in any thread; None without a tokenizer."""
        ...

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """Texts → [n, d] float32, L2-normalised. query: use the query side of an encoder that has two."""
        ...


def weights_of(model: object) -> str:
    """What tells an encoder from others of its name, such as those that lay in its folder before; "" if unknown."""
    return str(getattr(model, "weights", ""))


def are_other_weights(one: str, other: str) -> bool:
    """Are both known, and not the same?"""
    return bool(one and other) and one != other


class Judge(Protocol):
    """An entailment judge."""

    @property
    def name(self) -> str:
        """The name it was opened by, such as `nli:/path/to/folder`."""
        ...

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """Does the first answer to the question entail the second? n ordered pairs → [n, 3] label probabilities.

        Columns as `LABELS`; rows sum to 1, or are NaN where the judge could not say.
        """
        ...
