"""Chat models behind an OpenAI-compatible HTTP API: vLLM with all its extras, or any plain server."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

import numpy as np

from ..concurrency import gather_or_cancel, map_or_cancel
from ..errors import CapabilityMissing, ModelFault, UserFault
from ..server_url import each_url, with_path
from ..state.capability import MEANING
from .answer_stream import TextListener, text_listener
from .choose_by_prompt import ask_and_parse
from .generation import SampledTokens, check_options, check_sampling, estimated_tokens, next_tokens
from .interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Token,
    Tokens,
)
from .openai_server import RequestRefused, choices_of, listed, log_probability, unknown_model, usage
from .option_probabilities import OptionMasses, normalised, option_masses, told_apart
from .postprocess import tokens_within
from .replicas import open_servers
from .server_list import PATIENT_S, WAIT_S
from .thinking import CLOSE, OPEN, strip_thinking, why_empty
from .vllm_scores import NO_PENALTIES, ScoringWay, by_next_tokens, by_prompts, prefix_block
from .vllm_states import StatesServer, compare, refuse_extraction

Flavour = Literal["vllm", "ollama", "openai"]
FLAVOURS: Mapping[str, Flavour] = {"vllm": "vllm", "ollama": "ollama", "openai": "openai"}
"""By the beginning of a name; of any other name the server's list of models says it."""

T = TypeVar("T")

_TOP_LOGPROBS = 20  # the most that OpenAI's API and vLLM return
_UNSEEN = 1e-3  # the most probability that `choose` leaves unassigned; with more it scores each option
_TOKENIZE_AT_ONCE = 32
_NO_THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
_TRIAL: list[Message] = [{"role": "user", "content": "Say yes."}]
_STORY: list[Message] = [{"role": "user", "content": "Tell me a story."}]


class OpenAIChat:
    """A `ChatModel` on a server.

    vllm: log-probabilities, option probabilities, scoring, seeds, and token counts by the server's own tokenizer.
    openai: any compatible server (Ollama, llama.cpp's server, hosted APIs). If the server returns no log-probabilities,
    `choose` reads the reply's text; `score` is missing; `count` is an estimate.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        model: str | None = None,
        flavour: Flavour | None = "vllm",
        *,
        states: StatesServer | None = None,
    ) -> None:
        """Open a model on a server.

        name: the name it was opened by; base_url: as in `http://127.0.0.1:8000/v1`, several of them between commas;
        model: None for the only model on the server; flavour: None if the server's list of models is to say it; states:
        the server that reads hidden states of the continuations.
        """
        self.name = name
        self._server = open_servers(base_url)
        self._model = model
        self._flavour = flavour
        self._is_met = False
        self._tried: set[Capability] = set()
        self._takes_patterns = True
        self._block: int | None = None
        self._lacks: dict[Capability, str] = {}
        self._states = states
        self._compared = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """See `ChatModel.capabilities`."""
        every: frozenset[Capability] = frozenset({"logprobs", "seed"})
        if self._vllm:
            every |= {"option_probabilities", "score"}
        if self._vllm and self._takes_patterns:
            every |= {"pattern"}
        if self._states:
            every |= {"hidden_states"}
        return every - self._lacks.keys()

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """See `Checkable.lacks`."""
        return dict(self._lacks)

    async def check(self, claimed: frozenset[Capability]) -> Mapping[Capability, str]:
        """See `Checkable.check`: one request for a few tokens for log-probabilities, one to score a word."""
        await self._meet()
        failed: dict[Capability, str] = {}
        trials: dict[Capability, Callable[[], Awaitable[object]]] = {
            "logprobs": lambda: self.complete(_TRIAL, Sampling(max_tokens=8, logprobs=True)),
            "score": lambda: self.score(_TRIAL, ["Yes"]),
        }
        for capability, trial in trials.items():
            if capability in claimed - self._tried:
                try:
                    await trial()
                except (RequestRefused, CapabilityMissing) as fault:
                    said = f" ({fault})".replace(".)", ")") if isinstance(fault, RequestRefused) else ""
                    failed[capability] = f"'{self.name}' gives no {MEANING[capability]}{said}"
                self._tried.add(capability)
        self._lacks |= failed
        return failed

    @property
    def _vllm(self) -> bool:
        return self._flavour == "vllm"

    async def _meet(self) -> None:
        """Ask the server, once, whether it is there, whether it has the model, and what it is if that is not known."""
        if self._is_met:
            return
        models = await self._server.reach(WAIT_S if self._flavour else PATIENT_S)
        if self._states is not None:
            await self._states.reach()
        if self._flavour is None:
            self._flavour = "vllm" if any(model.get("owned_by") == "vllm" for model in models.values()) else "openai"
        model = await self._model_id()
        names = {model, f"{model}:latest"} if self._flavour == "ollama" else {model}
        if models and self._flavour != "openai" and names.isdisjoint(models):  # others may list less than they serve
            raise UserFault(unknown_model(self._server.base_url, model, models))
        self._is_met = True

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`.

        `tokens` are those of the text; of a token that a stop string cuts in two, the kept part. If the model ended the
        reply and the server lists its end mark, that is the last token, with text "". Thinking is in neither text nor
        tokens. There are no tokens if the answer is not the end of the reply, or if one token holds the end of the
        thought and the beginning of the answer. Greedy continuations are equal: one is requested for all.
        """
        check_sampling(sampling)
        await self._know_flavour()
        n, body = sampling.distinct, await self._body(messages, sampling)
        replies = [await self._completions({**body, "n": n} if n > 1 else body, sampling, text_listener(sampling))]
        if not self._vllm and (missing := n - len(replies[0].completions)) > 0:  # Ollama and others ignore n
            seeds = [None if sampling.seed is None else sampling.seed + i for i in range(n - missing, n)]
            bodies = [body if seed is None else {**body, "seed": seed} for seed in seeds]
            replies += await gather_or_cancel(self._completions(b, sampling) for b in bodies)
        completions = self._counted([c for reply in replies for c in reply.completions], sampling)
        return Reply(tuple(completions), sum((reply.tokens for reply in replies), Tokens()))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`.

        vllm: the options' probabilities under decoding that is confined to them, read from the alternatives to the
        tokens of a confined reply. Options that share an alternative (`1` begins `1` and `10`) are scored, and share
        its probability by the tokens in which they differ, the end mark included. openai: the options are listed after
        the chat. Their probabilities are read from the alternatives in a free reply if they sum to at least half; else
        the option that the reply names has probability 1, and a reply that names none is asked again once.
        """
        check_options(options)
        await self._know_flavour()
        if self._vllm:
            return await self._choose_confined(messages, list(options))
        return await self._choose_freely(messages, list(options))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`.

        Exact: the tokens of each continuation follow the prompt tokens that `complete` would continue, the generation
        prompt included, so no token straddles the boundary. Behind a long prompt, a server with a prefix cache is asked
        for the next token of every beginning of a continuation, and the tokens have no texts; else for the
        log-probabilities of its prompt, for which vLLM reads all of it again.
        """
        await self._know_flavour()
        if not self._vllm:
            raise self._missing("cannot score given replies")
        if not any(continuations):
            return Scores(((),) * len(continuations), Tokens())
        prompt = await self._tokenize({"messages": list(messages), "add_generation_prompt": True, **_NO_THINKING})
        return await self._score_ids(prompt, await self._ids_of(continuations))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """See `ChatModel.introspect`; the layer is fixed when the server of hidden states is started.

        One request samples the continuations; then the other server reads each different continuation behind its
        prompt, which needs room for one more token. The reply's tokens include this cost. The first call samples a
        little text to check that both servers serve the same model. A server that was started for hidden states is
        refused for sampling (see `refuse_extraction`).
        """
        if self._states is None:
            raise CapabilityMissing(
                f"{self.name} shows no hidden states: start its server by `dubito serve MODEL --hidden-states`, which "
                "prints the name to use (vllm:URL#model&states=URL)."
            )
        if place.is_inner:
            raise CapabilityMissing(
                f"{self.name} shows the residual stream at the last token alone, because vLLM's server gives nothing "
                "else: set states=residual and at=last, or use engine:, hf: or gguf:."
            )
        check_sampling(sampling)
        model = await self._model_id()
        await self._states.check(model, place.layer)
        if not self._compared:
            await refuse_extraction(self._server, model)
            _, prompt, drawn = await self._draw(_STORY, Sampling(n=4, temperature=1.0, max_tokens=16))
            readings = await self._states.read(model, [prompt + sample.ids for sample in drawn], logprobs=True)
            compare(self._server.base_url, drawn, self._states.base_url, readings)
            self._compared = True
        reply, prompt, drawn = await self._draw(messages, sampling)
        distinct = list(dict.fromkeys(sample.ids for sample in drawn))
        readings = await self._states.read(model, [prompt + ids for ids in distinct], place.layer)
        rows = {ids: reading.state for ids, reading in zip(distinct, readings, strict=True)}
        tokens = sum((reading.tokens for reading in readings), reply.tokens)
        return Introspection(
            replace(reply, tokens=tokens), np.stack([rows[sample.ids] for sample in drawn]), readings[0].layer
        )

    async def window(self) -> int | None:
        """See `ChatModel.window`; None on an openai server."""
        await self._know_flavour()
        if not self._vllm:
            return None
        model = await self._model_id()
        served = await self._server.served()
        if model not in served:
            raise UserFault(unknown_model(self._server.base_url, model, served))
        return served[model]

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`; on an openai server an upper estimate (see `estimated_tokens`)."""
        await self._know_flavour()
        if not self._vllm:
            return [estimated_tokens(text) for text in texts]
        return [len(ids) for ids in await self._ids_of(texts)]

    async def _know_flavour(self) -> None:
        if self._flavour is None:
            await self._meet()

    async def _model_id(self) -> str:
        if self._model is None:
            served = await self._server.served()
            if len(served) != 1:
                which = "serves no model"
                if served:
                    name = f"{self.name.partition('#')[0]}#{min(served)}"
                    which = f"serves several models: name one of {listed(served)}, as in {name}"
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
        if self._vllm:  # vLLM takes what a request leaves out from the model's generation_config.json
            body |= NO_PENALTIES
        if self._vllm or sampling.top_k:
            body["top_k"] = sampling.top_k
        if self._vllm and not sampling.thinking:
            body |= _NO_THINKING
        if sampling.pattern is not None and "pattern" in self.capabilities:
            body["structured_outputs"] = {"regex": sampling.pattern}
        return body

    async def _completions(
        self, body: dict[str, Any], sampling: Sampling, listener: TextListener | None = None
    ) -> Reply:
        def read(reply: dict[str, Any]) -> Reply:
            return self._reply(reply, sampling)

        try:
            return await self._server.request("/chat/completions", body, read, listener)
        except RequestRefused:
            if "structured_outputs" not in body:
                raise
        # a proxy may refuse what it does not know, and a server may run without structured outputs
        free = {name: value for name, value in body.items() if name != "structured_outputs"}
        reply = await self._server.request("/chat/completions", free, read, listener)
        self._takes_patterns = False
        return reply

    async def _draw(
        self, messages: Sequence[Message], sampling: Sampling
    ) -> tuple[Reply, tuple[int, ...], list[SampledTokens]]:
        """`complete` with log-probabilities; also the token ids of the prompt and of each continuation."""
        sampling = replace(sampling, logprobs=True)
        n, body = sampling.distinct, await self._body(messages, sampling)
        body |= {"return_token_ids": True, **({"n": n} if n > 1 else {})}

        def read(answer: dict[str, Any]) -> tuple[Reply, tuple[int, ...], list[SampledTokens]]:
            reply = self._reply(answer, sampling)
            if not answer.get("prompt_token_ids"):
                raise self._missing("returns no token ids, which needs a newer vLLM")
            return reply, *_drawn(answer)

        reply, prompt, drawn = await self._server.request("/chat/completions", body, read)
        completions = self._counted(reply.completions, sampling)
        return replace(reply, completions=tuple(completions)), prompt, self._counted(drawn, sampling)

    def _reply(self, reply: Mapping[str, Any], sampling: Sampling) -> Reply:
        choices = choices_of(reply)
        if sampling.logprobs and any(_logprobs(c) is None for c in choices):
            raise self._missing("gives no log-probabilities")
        return Reply(tuple(self._completion(c, sampling) for c in choices), usage(reply))

    def _counted(self, continuations: Sequence[T], sampling: Sampling) -> list[T]:
        """n continuations; a greedy one is repeated. `ModelFault` if the server returned too few."""
        n = sampling.distinct
        if len(continuations) < n:
            raise ModelFault(self._server.base_url, f"it returned {len(continuations)} continuations instead of {n}")
        return [*continuations[:n]] * (sampling.n // n)

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        if (reason := choice.get("finish_reason")) in {"abort", "error"}:
            raise ModelFault(self._server.base_url, f"the reply was broken off ({reason})")
        message = choice["message"]
        reasoned = message.get("reasoning") or message.get("reasoning_content")
        refusal = message.get("refusal")
        content: str = (message.get("content", "") if reasoned or refusal else message["content"]) or ""
        tokens = [Token(t["token"], t["logprob"]) for t in _logprobs(choice) or []]
        # half a character, such as a lone surrogate, could be neither printed nor kept
        "".join([content, *(token.text for token in tokens)]).encode()
        if not content and reasoned:
            tokens = []  # the reply was cut while the model thought
        # an openai server does not say whether a stop string ended the reply
        has_end_mark = reason == "stop" and choice.get("stop_reason") is None and (self._vllm or not sampling.stop)
        answer_tokens = _answer_tokens(tokens, content, has_end_mark=has_end_mark)
        text = strip_thinking(content)
        thinks = bool(reasoned) or text != content
        why = "" if text.strip() else why_empty(reason, has_thoughts=thinks, refusal=refusal)
        return Completion(text, "length" if reason == "length" else "stop", answer_tokens, why)

    async def _choose_confined(self, messages: Sequence[Message], options: list[str]) -> Choice:
        most_tokens = max(len(option.encode()) for option in options)  # a token has at least one byte
        body = await self._body(messages, Sampling(max_tokens=most_tokens + 1, logprobs=True))
        confined = {"structured_outputs": {"choice": options}, "top_logprobs": _TOP_LOGPROBS, "return_token_ids": True}

        def read(reply: dict[str, Any]) -> tuple[OptionMasses, Tokens, list[int], list[int]]:
            choice = choices_of(reply)[0]
            masses, shared = option_masses(_logprobs(choice) or [], options)
            if sum(masses.values()) + sum(shared.values()) < 1 - _UNSEEN:
                # there are more alternatives than the server returns
                masses, shared = dict.fromkeys(options, 0.0), {tuple(options): 1.0}
            if sum(shared.values()) <= _UNSEEN:
                return (masses, {}), usage(reply), [], []
            end = choice["token_ids"][-1:] if choice.get("finish_reason") == "stop" else []
            return (masses, shared), usage(reply), list(reply["prompt_token_ids"]), end

        (masses, shared), tokens, prompt, end = await self._server.request("/chat/completions", body | confined, read)
        if not shared:
            return Choice(normalised(masses), tokens)
        undecided = [o for o in options if any(o in group for group in shared)]
        paths = dict(zip(undecided, await self._ids_of(undecided), strict=True))
        paths = {option: path + end for option, path in paths.items()}
        scores = await self._score_ids(prompt, list(paths.values()))
        logs = {o: [t.logprob for t in scored] for o, scored in zip(paths, scores.continuations, strict=True)}
        for group, mass in shared.items():
            for option, part in told_apart({o: paths[o] for o in group}, logs).items():
                masses[option] += mass * part
        return Choice(normalised(masses), tokens + scores.tokens)

    async def _choose_freely(self, messages: Sequence[Message], options: list[str]) -> Choice:
        probabilities: dict[str, float] = {}

        async def ask(request: Sequence[Message], sampling: Sampling) -> Reply:
            def read(reply: dict[str, Any]) -> tuple[dict[str, float], str, Tokens]:
                choice = choices_of(reply)[0]
                masses, _ = option_masses(_logprobs(choice) or [], options, loose=True)
                return masses, self._completion(choice, sampling).text, usage(reply)

            sampling = replace(sampling, logprobs="logprobs" in self.capabilities)
            masses, text, tokens = await self._ask_freely(request, sampling, read)
            if sum(masses.values()) >= 0.5:
                probabilities.update(normalised(masses))
                text = max(masses, key=masses.__getitem__)
            return Reply((Completion(text, "stop"),), tokens)

        choice = await ask_and_parse(ask, messages, options)
        return Choice(probabilities or choice.probabilities, choice.tokens)

    async def _ask_freely(
        self, messages: Sequence[Message], sampling: Sampling, read: Callable[[dict[str, Any]], T]
    ) -> T:
        body = await self._body(messages, sampling)
        if not sampling.logprobs:
            return await self._server.request("/chat/completions", body, read)
        try:
            return await self._server.request("/chat/completions", {**body, "top_logprobs": _TOP_LOGPROBS}, read)
        except UserFault as fault:
            if "logprobs" not in str(fault):
                raise
        self._lacks["logprobs"] = f"'{self.name}' gives no {MEANING['logprobs']}"
        return await self._ask_freely(messages, replace(sampling, logprobs=False), read)

    async def _score_ids(self, prompt: list[int], continuations: list[list[int]]) -> Scores:
        paths, model = [ids for ids in continuations if ids], await self._model_id()
        if self._block is None:
            self._block = prefix_block(await self._server.page("/../metrics"))
        # what is read anew is about a block for each beginning, or else the prompt for each continuation
        is_short = len(next_tokens(paths)) * self._block < sum(len(prompt) + len(ids) for ids in paths)
        ways: tuple[ScoringWay, ...] = (by_next_tokens, by_prompts) if is_short else (by_prompts, by_next_tokens)
        ways = ways if self._block else (by_prompts,)
        for way in ways:
            try:
                scored = await way(self._server, model, prompt, paths)
            except RequestRefused:
                if way is ways[-1]:
                    raise
                scored = None
            if scored is not None:
                break
            if way is by_next_tokens:
                self._block = 0
        else:
            raise self._missing("returns no log-probabilities of given text")
        each = iter(scored.continuations)
        return replace(scored, continuations=tuple(next(each) if ids else () for ids in continuations))

    async def _text_ids(self, text: str) -> list[int]:
        return await self._tokenize({"prompt": text, "add_special_tokens": False}) if text else []

    async def _tokenize(self, body: dict[str, Any]) -> list[int]:
        body = {"model": await self._model_id(), **body}
        return await self._server.request("/../tokenize", body, lambda reply: [int(token) for token in reply["tokens"]])

    async def _ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        await self._model_id()  # requested once, not by each task
        return await map_or_cancel(self._text_ids, texts, _TOKENIZE_AT_ONCE)

    def _missing(self, what: str) -> CapabilityMissing:
        return CapabilityMissing(f"{self.name} {what}; use a vllm:, hf:, gguf: or embedded model for that.")


def open_server(name: str, address: str, flavour: Flavour | None) -> OpenAIChat:
    """The model at `URL#model&states=URL&layer=N`; only the first URL is required, and its path may be left out.

    In place of the first URL there may be several between commas, for servers of the same model.

    Raises `UserFault` for another form.
    """
    url, _, rest = address.partition("#")
    url = ",".join(each_url(url))
    model, *extras = rest.split("&")
    given = dict(extra.partition("=")[::2] for extra in extras)
    if not given:
        return OpenAIChat(name, url, model or None, flavour)
    if flavour not in {"vllm", None} or given.keys() - {"states", "layer"} or not given.get("states"):
        raise UserFault(
            f"'{name}' cannot be read: after the model of a vllm: name write &states=URL, and &layer=N behind it if "
            "needed, as in vllm:http://127.0.0.1:8000/v1#model&states=http://127.0.0.1:8001/v1."
        )
    if "," in url:
        raise UserFault(f"'{name}' cannot be read: hidden states come from one server, so name one in place of {url}.")
    layer = given.get("layer")
    if layer is not None and not (layer.isascii() and layer.isdigit() and int(layer)):
        raise UserFault(f"'{name}' cannot be read: the layer must be a number from 1, not '{layer}'.")
    states = StatesServer(with_path(given["states"]), int(layer) if layer else None)
    return OpenAIChat(name, url, model or None, flavour, states=states)


def _drawn(reply: Mapping[str, Any]) -> tuple[tuple[int, ...], list[SampledTokens]]:
    """The prompt's token ids; the token ids of each continuation with their log-probabilities."""
    drawn = []
    for choice in choices_of(reply):
        ids, logprobs = choice["token_ids"], [token["logprob"] for token in _logprobs(choice) or []]
        if len(ids) != len(logprobs):
            raise ValueError(f"a continuation has {len(ids)} tokens and {len(logprobs)} log-probabilities")
        drawn.append(SampledTokens(tuple(ids), tuple(logprobs)))
    return tuple(reply["prompt_token_ids"]), drawn


def _logprobs(choice: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tokens of a continuation with checked log-probabilities; None if the server gives none."""
    given = (choice.get("logprobs") or {}).get("content")
    return None if given is None else [_checked(token) for token in given]


def _checked(token: Mapping[str, Any]) -> dict[str, Any]:
    # an alternative that cannot come may be given as impossible
    possible = [other for other in token.get("top_logprobs") or [] if other["logprob"] not in {None, -math.inf}]
    others = [{**other, "logprob": log_probability(other["logprob"])} for other in possible]
    return {**token, "logprob": log_probability(token["logprob"]), "top_logprobs": others}


def _answer_tokens(tokens: Sequence[Token], content: str, *, has_end_mark: bool) -> tuple[Token, ...]:
    """The tokens of a reply's answer, and the end mark if there is one (see `OpenAIChat.complete`)."""
    answer, text = strip_thinking(content), "".join(token.text for token in tokens)
    closed = text.rfind(CLOSE) + len(CLOSE) if CLOSE in text else 0
    if OPEN in text[closed:] or (closed and content.rpartition(CLOSE)[2].strip() != answer.strip()):
        return ()
    tail = text[closed:].lstrip() if closed and answer == answer.lstrip() else text[closed:]
    start = len(text) - len(tail)
    end = start + len(answer) if tail.startswith(answer) else len(text)
    ends = list(accumulate(len(token.text) for token in tokens))
    begins = [0, *ends[:-1]]
    if start < end and any(begin < closed and last > start for begin, last in zip(begins, ends, strict=False)):
        return ()
    rest = [token for begin, token in zip(begins, tokens, strict=False) if begin >= end]
    end_mark = [Token("", rest[0].logprob)] if has_end_mark and len(rest) == 1 else []
    return (*tokens_within(start, end - start, tokens), *end_mark)
