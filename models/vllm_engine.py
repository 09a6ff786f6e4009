"""A chat model on vLLM's engine in this program: no server, and the hidden states from the engine that samples."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TypeVar

import numpy as np

from ..errors import CapabilityMissing, ContextOverflow, UserFault
from .background import await_in_background
from .completing import completion
from .encoders import check_folder
from .engine_options import EngineOptions, engine_options
from .engine_process import Drawn, Engine, start_engine
from .generation import check_sampling
from .interfaces import Capability, Choice, Introspection, Message, Reply, Sampling, Scores, Token, Tokens

Answer = TypeVar("Answer")


class EngineChat:
    """A `ChatModel` from a local folder or a hub name, on vLLM in processes of this program's own.

    The prompts, the texts and the tokens of a reply are made as `TransformersChat` makes them. Calls run together, from
    whatever event loop they come, and share vLLM's prefix cache: what prompts have in common is read once.

    - `complete`: equal seeds give equal samples, but for close draws that float noise tips. Stop strings are vLLM's:
      one inside a thought ends the reply too.
    - `choose`, `score`: as `TransformersChat`; a request for every distinct next token, all tokens of prompts.
    - `introspect`: the samples of `complete`, then each distinct one is read behind its prompt as a prompt of its own,
      with room for one token more; what that costs is in the reply's tokens. There are no energies.

    Greedy continuations are all equal: one is generated, and counted once.
    """

    def __init__(self, name: str, options: EngineOptions) -> None:
        """The engine starts at the first call."""
        self.name = name
        self._options = options
        self._starting: asyncio.Future[Engine] | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All but energies; hidden states unless the model is compiled."""
        every: frozenset[Capability] = frozenset({"logprobs", "option_probabilities", "score", "seed"})
        return every | {"hidden_states"} if self._options.eager else every

    async def open(self) -> None:
        """Start the engine now rather than at the first call; `UserFault` if that cannot be done."""
        await await_in_background(self._engine())

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        check_sampling(sampling)

        async def ask(engine: Engine) -> Reply:
            return (await self._sample(engine, messages, sampling, room=0))[0]

        return await self._with_engine(ask)

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`: each option as the whole reply, end-of-turn token included."""
        if len(options) < 2 or len(set(options)) < len(options):
            raise UserFault(f"A choice needs at least two options, all distinct, not {list(options)}.")

        async def ask(engine: Engine) -> Choice:
            prompt = await asyncio.to_thread(lambda: engine.text.prompt(messages, thinking=False)[0])
            replies = [[*engine.text.plain(option), *engine.text.end_of_turn] for option in options]
            self._fit(engine, len(prompt), max(map(len, replies)))
            totals = np.array([sum(logprobs) for logprobs in await engine.follow(prompt, replies)])
            shares = np.exp(totals - totals.max())
            chances = (shares / shares.sum()).tolist()
            return Choice(dict(zip(options, chances, strict=True)), _tokens_read(prompt, replies))

        return await self._with_engine(ask)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""

        async def ask(engine: Engine) -> Scores:
            prompt = await asyncio.to_thread(lambda: engine.text.prompt(messages, thinking=False)[0])
            replies = [engine.text.plain(text) for text in continuations]
            self._fit(engine, len(prompt), max(map(len, replies), default=0))
            told = await engine.follow(prompt, replies)
            scored = (
                tuple(map(Token, engine.text.pieces(reply), logprobs))
                for reply, logprobs in zip(replies, told, strict=True)
            )
            return Scores(tuple(scored), _tokens_read(prompt, replies))

        return await self._with_engine(ask)

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        check_sampling(sampling)
        if not self._options.eager:
            raise CapabilityMissing(
                f"{self.name} shows no hidden states, as the layers of a compiled model cannot be read: leave "
                "enforce_eager out."
            )

        async def ask(engine: Engine) -> Introspection:
            at = await engine.layer(layer)
            reply, prompt, drawn = await self._sample(engine, messages, replace(sampling, logprobs=True), room=1)
            distinct = list(dict.fromkeys(one.ids for one in drawn))
            states = await engine.states([(*prompt, *ids) for ids in distinct], at)
            rows = dict(zip(distinct, states, strict=True))
            read = sum(len(prompt) + len(ids) for ids in distinct)
            tokens = Tokens(reply.tokens.prompt + read, reply.tokens.completion + len(distinct))
            return Introspection(replace(reply, tokens=tokens), np.stack([rows[one.ids] for one in drawn]), at)

        return await self._with_engine(ask)

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return (await await_in_background(self._engine())).window

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: exact, special tokens not counted."""
        text = (await await_in_background(self._engine())).text
        return await asyncio.to_thread(lambda: [len(text.plain(one)) for one in texts])

    async def aclose(self) -> None:
        """End the engine's processes, which gives its memory back; the next call starts them anew."""

        async def close() -> None:
            if self._starting is not None:
                starting, self._starting = self._starting, None
                await asyncio.to_thread((await starting).close)

        await await_in_background(close())

    async def _with_engine(self, ask: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        async def asking() -> Answer:
            return await ask(await self._engine())

        return await await_in_background(asking())

    async def _engine(self) -> Engine:
        """The engine, started once; anew where it failed to start or has died. On the background loop alone."""
        known = self._starting
        if known is None or (known.done() and (known.exception() is not None or known.result().dead)):
            dead = known.result() if known is not None and known.exception() is None else None
            self._starting = known = asyncio.ensure_future(asyncio.to_thread(self._start, dead))
        # shielded: a caller that gives up must not cancel what others wait for
        return await asyncio.shield(known)

    def _start(self, dead: Engine | None) -> Engine:
        if dead is not None:
            dead.close()  # what is left of it holds memory
        return start_engine(self.name, self._options)

    async def _sample(
        self, engine: Engine, messages: Sequence[Message], sampling: Sampling, *, room: int
    ) -> tuple[Reply, list[int], list[Drawn]]:
        """room: how many tokens of the window must stay free behind the longest continuation."""
        prompt, starts_thinking = await asyncio.to_thread(engine.text.prompt, messages, thinking=sampling.thinking)
        self._fit(engine, len(prompt), 1 + room)
        distinct = sampling.n if sampling.temperature > 0 else 1
        drawn = await engine.sample(
            prompt,
            n=distinct,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(sampling.max_tokens, engine.window - len(prompt) - room),
            stop=list(sampling.stop),
            stop_token_ids=sorted(engine.text.ends),
            seed=sampling.seed,
            detokenize=bool(sampling.stop),
        )
        written = sum(len(one.ids) for one in drawn)
        copies = sampling.n // distinct

        def completions() -> tuple[Reply, list[int], list[Drawn]]:
            told = tuple(
                completion(
                    engine.text,
                    one.ids,
                    "length" if one.at_limit else "stop",
                    stop_at=lambda text: _first(text, sampling.stop),
                    starts_thinking=starts_thinking,
                    logprobs=one.logprobs if sampling.logprobs else None,
                )
                for one in drawn
            )
            return Reply(told * copies, Tokens(len(prompt), written)), prompt, drawn * copies

        return await asyncio.to_thread(completions)

    def _fit(self, engine: Engine, prompt: int, reply: int) -> None:
        if prompt + reply > engine.window:
            raise ContextOverflow(
                f"The prompt has {prompt:,} tokens and its reply needs {reply:,} or more, but the context window of "
                f"{self.name} has {engine.window:,}: use fewer or shorter chunks, or a longer window "
                "(?max_model_len=N)."
            )


def open_engine(name: str) -> EngineChat:
    """The model of that name; `UserFault` for one that cannot be read, a folder that is not there, and without vLLM."""
    options = engine_options(name)
    check_folder(options.source, "model")
    if find_spec("vllm") is None:
        raise UserFault(
            f'{name} runs on vLLM, which is not installed here: run `pip install "dubito[vllm]"`, or name a server '
            "that runs elsewhere, as in vllm:http://127.0.0.1:8000/v1#model."
        )
    return EngineChat(name, options)


def _first(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string begins."""
    return min((found for stop in stops if (found := text.find(stop)) >= 0), default=None)


def _tokens_read(prompt: list[int], replies: Sequence[list[int]]) -> Tokens:
    return Tokens(prompt=len(prompt) + sum(map(len, replies)))
