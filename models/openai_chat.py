"""Chat models behind an OpenAI-compatible HTTP API: vLLM with all its extras, or any plain server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np

from ..errors import CapabilityMissing, ModelFault, UserFault
from .asking import ask_and_parse
from .interfaces import Capability, Choice, Completion, Introspection, Message, Reply, Sampling, Scores, Token, Tokens
from .openai_server import Server, listed, unknown_model
from .option_probabilities import normalised, option_masses, told_apart
from .thinking import CLOSE, OPEN, strip_thinking
from .vllm_states import Drawn, StatesServer, compare, refuse_extraction

Flavour = Literal["vllm", "openai"]
T = TypeVar("T")

_TOP_LOGPROBS = 20  # the most that OpenAI's API and vLLM give
_UNSEEN = 1e-3  # how much of the options' probability `choose` may leave unassigned before it scores each option
_TOKENIZE_AT_ONCE = 32
_STORY: list[Message] = [{"role": "user", "content": "Tell me a story."}]


class OpenAIChat:
    """A `ChatModel` on a server.

    vllm: log-probabilities, option probabilities, scoring and seeds, token counts by the server's own tokenizer.
    openai: what every server has (Ollama, llama.cpp's server, hosted APIs); `choose` reads the reply instead of the
    model's distribution where that is not given, `score` is missing, `count` is an estimate.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        model: str | None = None,
        flavour: Flavour = "vllm",
        *,
        states: StatesServer | None = None,
    ) -> None:
        """Name the server and the model.

        name: what it was opened by; base_url: as in `http://127.0.0.1:8000/v1`; model: None for the only one;
        states: where the hidden states of a vLLM server's continuations are read.
        """
        self._name = name
        self._server = Server(base_url)
        self._model = model
        self._vllm = flavour == "vllm"
        self._tells_logprobs = True
        self._states = states
        self._compared = False

    @property
    def name(self) -> str:
        """See `ChatModel.name`."""
        return self._name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """See `ChatModel.capabilities`."""
        if not self._vllm:
            return frozenset({"logprobs", "seed"})
        every: frozenset[Capability] = frozenset({"logprobs", "option_probabilities", "score", "seed"})
        return every | {"hidden_states"} if self._states else every

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`.

        The tokens are those of the text, a token that a stop string cuts in two with the part that was kept; where the
        server tells of the end mark of a reply that ended itself, that is the last one, with text "". A reasoning
        model's thinking is in neither; there are no tokens if the answer is not the tail of the reply or if one token
        holds both the end of the thought and the start of the answer. Greedy continuations are equal: n cost one.
        """
        n, body = _distinct(sampling), await self._body(messages, sampling)
        replies = [await self._completions({**body, "n": n} if n > 1 else body, sampling)]
        if not self._vllm and (missing := n - len(replies[0].completions)) > 0:  # Ollama and others ignore n
            seeds = [None if sampling.seed is None else sampling.seed + i for i in range(n - missing, n)]
            bodies = [body if seed is None else {**body, "seed": seed} for seed in seeds]
            replies += await asyncio.gather(*(self._completions(b, sampling) for b in bodies))
        completions = self._counted([c for reply in replies for c in reply.completions], sampling)
        return Reply(tuple(completions), _sum(reply.tokens for reply in replies))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`.

        vllm: the probability that decoding confined to the options gives each, read from the alternatives to a confined
        reply's tokens; where an alternative begins several options (`1` of `1` and `10`), these are scored and told
        apart by the tokens in which they differ, the end mark included. Plain: the options are listed after the chat,
        and the probabilities read from the alternatives in a free reply if the options have at least half of it; else
        the option that the reply names has probability 1, and a reply that names none is asked about once.
        """
        options = list(options)
        distinct = {option.strip() for option in options} - {""}
        if len(options) < 2 or len(distinct) < len(options):
            raise UserFault(f"A choice needs at least two different, non-empty options, not {options}.")
        if self._vllm:
            return await self._choose_confined(messages, options)
        return await self._choose_freely(messages, options)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`.

        Exact: the tokens of each continuation follow the very prompt tokens that `complete` would continue (the chat
        template's generation prompt included), so no token straddles the boundary. One request scores them all.
        """
        if not self._vllm:
            raise self._missing("cannot score given replies")
        if not any(continuations):
            return Scores(((),) * len(continuations), Tokens())
        prompt = await self._tokenize(
            {"messages": list(messages), "add_generation_prompt": True, **_without_thinking()}
        )
        return await self._score_ids(prompt, await self._each(continuations, self._text_ids))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """See `ChatModel.introspect`; the layer is the one that the server of hidden states was started for.

        The k continuations are one request; then each distinct one is read behind its prompt on the other server, which
        takes room for one token more. What this costs is in the reply's tokens. Before the first time a little is
        sampled to see that the two servers serve one model; a server that was started for hidden states is not sampled
        from (see `refuse_extraction`).
        """
        if self._states is None:
            raise CapabilityMissing(
                f"{self._name} shows no hidden states: start its server by `dubito serve MODEL --hidden-states`, which "
                "prints the name to use (vllm:URL#model&states=URL)."
            )
        model = await self._model_id()
        await self._states.check(model, layer)
        if not self._compared:
            await refuse_extraction(self._server, model)
            _, prompt, drawn = await self._draw(_STORY, Sampling(n=4, temperature=1.0, max_tokens=16))
            told = await self._states.read(model, [prompt + one.ids for one in drawn], logprobs=True)
            compare(self._server.base_url, drawn, self._states.base_url, told)
            self._compared = True
        reply, prompt, drawn = await self._draw(messages, sampling)
        distinct = list(dict.fromkeys(one.ids for one in drawn))
        readings = await self._states.read(model, [prompt + ids for ids in distinct], layer)
        states = {ids: reading.state for ids, reading in zip(distinct, readings, strict=True)}
        tokens = _sum([reply.tokens, *(reading.tokens for reading in readings)])
        return Introspection(
            replace(reply, tokens=tokens), np.stack([states[one.ids] for one in drawn]), readings[0].layer
        )

    async def window(self) -> int | None:
        """See `ChatModel.window`; vLLM tells it, plain servers do not."""
        if not self._vllm:
            return None
        model = await self._model_id()
        served = await self._server.served()
        if model not in served:
            raise UserFault(unknown_model(self._server.base_url, model, served))
        return served[model]

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`; of a plain server's tokens an upper estimate (see `_estimate`)."""
        if not self._vllm:
            return [_estimate(text) for text in texts]
        return [len(ids) for ids in await self._each(texts, self._text_ids)]

    async def aclose(self) -> None:
        """Close the running event loop's connections; the next call opens new ones."""
        await self._server.aclose()
        if self._states is not None:
            await self._states.aclose()

    async def _model_id(self) -> str:
        if self._model is None:
            served = await self._server.served()
            if len(served) != 1:
                which = f"serves several models, so name one of {listed(served)}" if served else "serves no model"
                raise UserFault(f"{self._server.base_url} {which}.")
            (self._model,) = served
        return self._model

    async def _body(self, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": await self._model_id(),
            "messages": list(messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.logprobs:
            body["logprobs"] = True
        if self._vllm or sampling.top_k:  # vLLM takes an absent top_k from the model's generation_config.json
            body["top_k"] = sampling.top_k
        if self._vllm and not sampling.thinking:
            body |= _without_thinking()
        return body

    async def _completions(self, body: dict[str, Any], sampling: Sampling) -> Reply:
        return self._reply(await self._server.post("/chat/completions", body), sampling)

    async def _draw(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[Reply, tuple[int, ...], list[Drawn]]:
        """As `complete` with log-probabilities, with the token ids of the prompt and of each continuation."""
        sampling = replace(sampling, logprobs=True)
        n, body = _distinct(sampling), await self._body(messages, sampling)
        body |= {"return_token_ids": True, **({"n": n} if n > 1 else {})}
        answer = await self._server.post("/chat/completions", body)
        reply = self._reply(answer, sampling)
        if not answer.get("prompt_token_ids"):
            raise self._missing("tells no token ids, which a newer vLLM does")
        with self._server.reading():
            prompt, drawn = _drawn(answer)
        completions = self._counted(reply.completions, sampling)
        return replace(reply, completions=tuple(completions)), prompt, self._counted(drawn, sampling)

    def _reply(self, reply: Mapping[str, Any], sampling: Sampling) -> Reply:
        with self._server.reading():
            choices = _choices(reply)
            if sampling.logprobs and any(_logprobs(c) is None for c in choices):
                raise self._missing("gives no log-probabilities")
            return Reply(tuple(self._completion(c, sampling) for c in choices), _usage(reply))

    def _counted(self, found: Sequence[T], sampling: Sampling) -> list[T]:
        """As many as were asked for, of those that came; equal greedy ones came once."""
        n = _distinct(sampling)
        if len(found) < n:
            raise ModelFault(self._server.base_url, f"{n} continuations were asked for and {len(found)} came")
        return [*found[:n]] * (sampling.n // n)

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        if (reason := choice.get("finish_reason")) in {"abort", "error"}:
            raise ModelFault(self._server.base_url, f"the reply was broken off ({reason})")
        message, told = choice["message"], _logprobs(choice) or []
        content: str = message.get("content") or ""
        tokens = [Token(t["token"], float(t["logprob"])) for t in told]
        if not content and (message.get("reasoning") or message.get("reasoning_content")):
            tokens = []  # it was cut off while it thought
        # a server of the plain kind does not say whether a stop string ended the reply
        itself = reason == "stop" and choice.get("stop_reason") is None and (self._vllm or not sampling.stop)
        spoken = _answer_tokens(tokens, content, ended_itself=itself)
        return Completion(strip_thinking(content), "length" if reason == "length" else "stop", spoken)

    async def _choose_confined(self, messages: Sequence[Message], options: list[str]) -> Choice:
        body = await self._body(messages, Sampling(max_tokens=_longest(options) + 1, logprobs=True))
        confined = {"structured_outputs": {"choice": options}, "top_logprobs": _TOP_LOGPROBS, "return_token_ids": True}
        reply = await self._server.post("/chat/completions", body | confined)
        with self._server.reading():
            choice, tokens = _choices(reply)[0], _usage(reply)
            masses, shared = option_masses(_logprobs(choice) or [], options)
            if sum(masses.values()) + sum(shared.values()) < 1 - _UNSEEN:  # too many alternatives to be told them all
                masses, shared = dict.fromkeys(options, 0.0), {tuple(options): 1.0}
            if sum(shared.values()) <= _UNSEEN:
                return Choice(normalised(masses), tokens)
            prompt = list(reply["prompt_token_ids"])
            end = choice["token_ids"][-1:] if choice.get("finish_reason") == "stop" else []
        undecided = [o for o in options if any(o in group for group in shared)]
        paths = dict(zip(undecided, await self._each(undecided, self._text_ids), strict=True))
        paths = {option: path + end for option, path in paths.items()}
        scores = await self._score_ids(prompt, list(paths.values()))
        logs = {o: [t.logprob for t in scored] for o, scored in zip(paths, scores.continuations, strict=True)}
        for group, mass in shared.items():
            for option, part in told_apart({o: paths[o] for o in group}, logs).items():
                masses[option] += mass * part
        return Choice(normalised(masses), _sum([tokens, scores.tokens]))

    async def _choose_freely(self, messages: Sequence[Message], options: list[str]) -> Choice:
        used: list[Tokens] = []
        probabilities: dict[str, float] = {}

        async def ask(asked: Sequence[Message], sampling: Sampling) -> Reply:
            reply = await self._ask_freely(asked, replace(sampling, logprobs=self._tells_logprobs))
            with self._server.reading():
                choice = _choices(reply)[0]
                masses, _ = option_masses(_logprobs(choice) or [], options, loose=True)
                text = self._completion(choice, sampling).text
                used.append(_usage(reply))
            if sum(masses.values()) >= 0.5:
                probabilities.update(normalised(masses))
                text = max(masses, key=masses.__getitem__)
            return Reply((Completion(text, "stop"),), used[-1])

        named = await ask_and_parse(ask, messages, options)
        return Choice(probabilities or {option: float(option == named) for option in options}, _sum(used))

    async def _ask_freely(self, messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
        body = await self._body(messages, sampling)
        if not sampling.logprobs:
            return await self._server.post("/chat/completions", body)
        try:
            return await self._server.post("/chat/completions", {**body, "top_logprobs": _TOP_LOGPROBS})
        except UserFault as fault:
            if "logprobs" not in str(fault):
                raise
        self._tells_logprobs = False
        return await self._ask_freely(messages, replace(sampling, logprobs=False))

    async def _score_ids(self, prompt: list[int], continuations: list[list[int]]) -> Scores:
        asked = [ids for ids in continuations if ids]
        reply = await self._server.post(
            "/completions",
            {
                "model": await self._model_id(),
                "prompt": [prompt + ids for ids in asked],
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": 0,
            },
        )
        with self._server.reading():
            rows = (choice["prompt_logprobs"][len(prompt) :] for choice in _choices(reply))
            scored = iter([_scored(ids, row) for ids, row in zip(asked, rows, strict=True)])
            return Scores(tuple(next(scored) if ids else () for ids in continuations), _usage(reply))

    async def _text_ids(self, text: str) -> list[int]:
        return await self._tokenize({"prompt": text, "add_special_tokens": False}) if text else []

    async def _tokenize(self, body: dict[str, Any]) -> list[int]:
        reply = await self._server.post(f"{self._server.root}/tokenize", {"model": await self._model_id(), **body})
        with self._server.reading():
            return [int(token) for token in reply["tokens"]]

    async def _each(self, texts: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
        gate = asyncio.Semaphore(_TOKENIZE_AT_ONCE)

        async def one(text: str) -> T:
            async with gate:
                return await ask(text)

        await self._model_id()  # asked once, not by each
        return await asyncio.gather(*(one(text) for text in texts))

    def _missing(self, what: str) -> CapabilityMissing:
        return CapabilityMissing(f"{self._name} {what}; use a vllm:, hf:, gguf: or embedded model for that.")


def open_server(name: str, address: str, flavour: Flavour) -> OpenAIChat:
    """The model at `URL#model&states=URL&layer=N`, of which only the first URL is needed; `UserFault` for another."""
    url, _, rest = address.partition("#")
    model, *extras = rest.split("&")
    given = dict(extra.partition("=")[::2] for extra in extras)
    if not given:
        return OpenAIChat(name, url, model or None, flavour)
    if flavour != "vllm" or given.keys() - {"states", "layer"} or not given.get("states"):
        raise UserFault(
            f"'{name}' cannot be read: only &states=URL and &layer=N may follow the model of a vllm: name, the first "
            "alone or both, as in vllm:http://127.0.0.1:8000/v1#model&states=http://127.0.0.1:8001/v1."
        )
    layer = given.get("layer")
    if layer is not None and not (layer.isascii() and layer.isdigit() and int(layer)):
        raise UserFault(f"'{name}' cannot be read: the layer is a number from 1, not '{layer}'.")
    states = StatesServer(given["states"], int(layer) if layer else None)
    return OpenAIChat(name, url, model or None, flavour, states=states)


def _without_thinking() -> dict[str, Any]:
    return {"chat_template_kwargs": {"enable_thinking": False}}


def _distinct(sampling: Sampling) -> int:
    """How many continuations to ask for: greedy ones are equal."""
    if sampling.n < 1:
        raise UserFault(f"n must be 1 or more, not {sampling.n}.")
    return 1 if sampling.temperature == 0 else sampling.n


def _drawn(reply: Mapping[str, Any]) -> tuple[tuple[int, ...], list[Drawn]]:
    """The prompt's token ids, and each continuation's with their log-probabilities."""
    drawn = []
    for choice in _choices(reply):
        ids, logprobs = choice["token_ids"], [float(token["logprob"]) for token in _logprobs(choice) or []]
        if len(ids) != len(logprobs):
            raise ValueError(f"a continuation has {len(ids)} tokens and {len(logprobs)} log-probabilities")
        drawn.append(Drawn(tuple(ids), tuple(logprobs)))
    return tuple(reply["prompt_token_ids"]), drawn


def _choices(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = sorted(reply["choices"], key=lambda choice: choice.get("index") or 0)
    if not choices:
        raise ValueError("it has no choices")
    return choices


def _logprobs(choice: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    return (choice.get("logprobs") or {}).get("content")


def _usage(reply: Mapping[str, Any]) -> Tokens:
    usage = reply.get("usage") or {}
    return Tokens(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)


def _sum(parts: Iterable[Tokens]) -> Tokens:
    parts = list(parts)
    return Tokens(sum(p.prompt for p in parts), sum(p.completion for p in parts))


def _scored(ids: list[int], row: list[dict[str, Any]]) -> tuple[Token, ...]:
    entries = [entry[str(token)] for token, entry in zip(ids, row, strict=True)]
    return tuple(Token(entry.get("decoded_token") or "", float(entry["logprob"])) for entry in entries)


def _answer_tokens(tokens: Sequence[Token], content: str, *, ended_itself: bool) -> tuple[Token, ...]:
    """The tokens of the answer in a reply, and its end mark (see `OpenAIChat.complete`)."""
    answer, said = strip_thinking(content), "".join(token.text for token in tokens)
    closed = said.rfind(CLOSE) + len(CLOSE) if CLOSE in said else 0
    if OPEN in said[closed:] or (closed and content.rpartition(CLOSE)[2].strip() != answer.strip()):
        return ()
    tail = said[closed:].lstrip() if closed and answer == answer.lstrip() else said[closed:]
    start = len(said) - len(tail)
    end = start + len(answer) if tail.startswith(answer) else len(said)
    spoken: list[Token] = []
    rest: list[Token] = []
    at = 0
    for token in tokens:
        first, last = max(at, start), min(at + len(token.text), end)
        if first < last and at < closed:
            return ()
        if first < last or (not token.text and start <= at < end):
            spoken.append(Token(token.text[first - at : last - at], token.logprob))
        elif at >= end:
            rest.append(token)
        at += len(token.text)
    if ended_itself and len(rest) == 1:
        spoken.append(Token("", rest[0].logprob))
    return tuple(spoken)


def _longest(options: Iterable[str]) -> int:
    """As many tokens as any option can have: none is shorter than a byte."""
    return max(len(option.encode()) for option in options)


def _estimate(text: str) -> int:
    """Half a token for an ASCII letter or space, one for each byte of anything else: twice the truth for prose."""
    light = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    return len(text.encode()) - light // 2
