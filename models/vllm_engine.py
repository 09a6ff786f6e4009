"""A chat model on vLLM's engine without a server; hidden states come from the engine that samples."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TypeVar

import numpy as np

from ..errors import CapabilityMissing, UserFault, extra_command
from .answer_stream import Pace, text_listener
from .background import await_in_background
from .engine_options import EngineOptions, engine_options
from .engine_process import Engine, start_engine
from .generation import SampledTokens, check_fit, check_options, check_sampling, choice, scores
from .interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Tokens,
)
from .local_weights import check_folder
from .postprocess import completion
from .thinking import OPEN, first_stop

Answer = TypeVar("Answer")

_LONGER = "a longer window (?max_model_len=N)"


class EngineChat:
    """A `ChatModel` from a local folder or a hub name, on vLLM in worker processes of this program.

    Prompts, texts and tokens of a reply are those of `TransformersChat`. Calls from all event loops run together and
    share vLLM's prefix cache, so that a beginning that prompts share is read once.

    - `complete`: equal seeds give equal samples, except where float noise changes a near tie. vLLM handles stop
      strings: a stop string inside a thought ends the reply too.
    - `choose`, `score`: as `TransformersChat`, with one request for each distinct beginning of an option or reply.
    - `introspect`: the samples of `complete`; then each different sample is read behind its prompt, which needs room
      for one more token. The reply's tokens include this cost. There are no energies.

    Greedy continuations are equal: one is generated and counted.
    """

    def __init__(self, name: str, options: EngineOptions) -> None:
        """The engine starts at the first call."""
        self.name = name
        self._options = options
        self._starting: asyncio.Future[Engine] | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All except energies; hidden states only if the model is not compiled."""
        every: frozenset[Capability] = frozenset({"logprobs", "option_probabilities", "score", "seed", "pattern"})
        return every | {"hidden_states", "inner_states"} if self._options.eager else every

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        check_sampling(sampling)

        async def ask(engine: Engine) -> Reply:
            return (await self._sample(engine, messages, sampling, room=0))[0]

        return await self._with_engine(ask)

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`: each option as the whole reply, end-of-turn token included."""
        check_options(options)

        async def ask(engine: Engine) -> Choice:
            prompt = await asyncio.to_thread(lambda: engine.text.prompt(messages, thinking=False)[0])
            replies = [[*engine.text.plain(option), *engine.text.end_of_turn] for option in options]
            check_fit(self.name, engine.window, len(prompt), max(map(len, replies)), _LONGER)
            return choice(options, prompt, replies, await engine.follow(prompt, replies))

        return await self._with_engine(ask)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""

        async def ask(engine: Engine) -> Scores:
            prompt = await asyncio.to_thread(lambda: engine.text.prompt(messages, thinking=False)[0])
            replies = [engine.text.plain(text) for text in continuations]
            check_fit(self.name, engine.window, len(prompt), max(map(len, replies), default=0), _LONGER)
            return scores(engine.text, prompt, replies, await engine.follow(prompt, replies))

        return await self._with_engine(ask)

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """See `ChatModel.introspect`."""
        check_sampling(sampling)
        if not self._options.eager:
            raise CapabilityMissing(
                f"{self.name} shows no hidden states, as the layers of a compiled model cannot be read: remove "
                "enforce_eager=false from its name."
            )

        async def ask(engine: Engine) -> Introspection:
            layer = await engine.layer(place.layer, place.states)
            ending = [engine.text.eos] if place.at == "eos" else []
            reply, prompt, drawn = await self._sample(engine, messages, replace(sampling, logprobs=True), room=1)
            distinct = list(dict.fromkeys(sample.ids for sample in drawn))
            sequences = [(*prompt, *(ids[:-1] if ending else ids), *ending) for ids in distinct]
            rows = dict(zip(distinct, await engine.states(sequences, layer, place.states), strict=True))
            read = sum(len(prompt) + len(ids) for ids in distinct)
            tokens = Tokens(reply.tokens.prompt + read, reply.tokens.completion + len(distinct))
            return Introspection(replace(reply, tokens=tokens), np.stack([rows[sample.ids] for sample in drawn]), layer)

        return await self._with_engine(ask)

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return (await await_in_background(self._engine())).window

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: exact, special tokens not counted."""
        text = (await await_in_background(self._engine())).text
        return await asyncio.to_thread(lambda: [len(text.plain(each)) for each in texts])

    async def aclose(self) -> None:
        """End the engine's processes and free their memory; the next call starts them again."""

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
        """The engine, started at the first call and again if it failed to start or has died. Background loop only."""
        known = self._starting
        if known is None or (known.done() and (known.exception() is not None or known.result().dead)):
            dead = known.result() if known is not None and known.exception() is None else None
            self._starting = known = asyncio.ensure_future(asyncio.to_thread(self._start, dead))
        # shielded: a cancelled caller must not cancel the start that others wait for
        return await asyncio.shield(known)

    def _start(self, dead: Engine | None) -> Engine:
        if dead is not None:
            dead.close()  # its remaining processes hold memory
        return start_engine(self.name, self._options)

    async def _sample(
        self, engine: Engine, messages: Sequence[Message], sampling: Sampling, *, room: int
    ) -> tuple[Reply, list[int], list[SampledTokens]]:
        """room: tokens of the window that stay free behind the longest continuation."""
        prompt, starts_thinking = await asyncio.to_thread(engine.text.prompt, messages, thinking=sampling.thinking)
        check_fit(self.name, engine.window, len(prompt), 1 + room, _LONGER)
        listener, pace = text_listener(sampling), Pace()

        async def report(ids: list[int]) -> None:
            if listener is not None and pace.is_due():
                listener((OPEN if starts_thinking else "") + await asyncio.to_thread(engine.text.decode, ids))

        drawn = await engine.sample(
            prompt,
            report=None if listener is None else report,
            n=sampling.distinct,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=min(sampling.max_tokens, engine.window - len(prompt) - room),
            stop=list(sampling.stop),
            stop_token_ids=sorted(engine.text.ends),
            seed=sampling.seed,
            detokenize=bool(sampling.stop),
            pattern=None if starts_thinking else sampling.pattern,
        )
        written = sum(len(sample.ids) for sample in drawn)
        copies = sampling.n // sampling.distinct

        def completions() -> tuple[Reply, list[int], list[SampledTokens]]:
            parts = tuple(
                completion(
                    engine.text,
                    sample.ids,
                    "length" if sample.at_limit else "stop",
                    stop_at=lambda text: first_stop(text, sampling.stop),
                    starts_thinking=starts_thinking,
                    logprobs=sample.logprobs if sampling.logprobs else None,
                )
                for sample in drawn
            )
            return Reply(parts * copies, Tokens(len(prompt), written)), prompt, drawn * copies

        return await asyncio.to_thread(completions)


def open_engine(name: str) -> EngineChat:
    """The model of that name; `UserFault` for a malformed name, a missing folder, and without vLLM."""
    options = engine_options(name)
    check_folder(options.source, "model")
    if find_spec("vllm") is None:
        raise UserFault(
            f"{name} needs vLLM, which is not installed: run `{extra_command('vllm')}`, or name a server "
            "instead, as in vllm:http://127.0.0.1:8000/v1#model."
        )
    return EngineChat(name, options)
