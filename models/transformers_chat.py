"""A chat model that runs in this process on `transformers`: exact log-probabilities, seeds and scores.

All of a model's work is done by one thread (see `batching`); its calls share one batch, whatever loop they come from.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from jinja2 import TemplateError

from ..errors import ContextOverflow, DubitoError, ModelFault, UserFault
from .batching import Worker
from .interfaces import Capability, Choice, Completion, Message, Reply, Sampling, Scores, Token, Tokens
from .thinking import CLOSE, OPEN, strip_thinking

_missing = ""
try:
    import huggingface_hub
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
except ImportError as absent:
    _missing = str(absent)

if TYPE_CHECKING:
    from torch import Tensor

Answer = TypeVar("Answer")
Layers = list[tuple["Tensor", "Tensor"]]
"""The keys and the values of each layer, [rows, heads, tokens, head size]."""

MOST_ROWS = {"cpu": 16, "cuda": 64}
"""The most samples that run together, unless told otherwise."""
CPU_CACHE_BYTES = 2 << 30
CUDA_CACHE_SHARE = 0.5
"""What keys and values may take: so much on a CPU, this share of what the weights left free on CUDA."""


class TransformersChat:
    """A `ChatModel` from a local folder, a hub name or a .gguf file.

    - `complete`: where log-probabilities were asked for, a reply that the model ended itself has its end-of-turn token
      as the last one, with text "". Otherwise the tokens are those of the text: what a stop string cuts off is gone,
      and a token that it cuts in two has the text that was kept. `Tokens.completion` counts all that was generated.
    - `choose`: each option is scored as the whole reply, end-of-turn token included, and the scores are normalised.
    - `score`: the tokens of the continuations alone. What `choose` and `score` read are all prompt tokens.

    Equal seeds give equal samples whatever runs beside them, as every sample has a random source of its own. (Numbers
    from a batch of another make-up differ by float noise, which can tip a close draw: ~1e-6 in float32, ~1e-2 in
    bfloat16.) No text inside a message becomes a control token of the model's chat template.
    """

    def __init__(self, name: str, source: str, *, dtype: str | None = None, rows: int | None = None) -> None:
        """dtype: None for float32 on a CPU and bfloat16 on CUDA; rows: the most samples that run together."""
        self.name = name
        self._worker = Worker(partial(_open, name, source, dtype, rows))
        self._decoder: _Decoder | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All there are."""
        return frozenset({"logprobs", "option_probabilities", "score", "seed"})

    async def open(self) -> None:
        """Load the weights now rather than at the first call; `UserFault` if that cannot be done."""
        await self._opened()

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`."""
        _check(sampling)
        with self._naming_faults():
            reply: Reply = await self._worker.generate(_Request(tuple(messages), sampling))
        return reply

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`."""
        if len(options) < 2 or len(set(options)) < len(options):
            raise UserFault(f"A choice needs at least two options, all distinct, not {list(options)}.")

        def work(decoder: _Decoder) -> Choice:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [[*decoder.text.plain(option), *decoder.text.end_of_turn] for option in options]
            totals = [sum(logprobs) for logprobs in decoder.score(prompt, replies)]
            shares = torch.tensor(totals, dtype=torch.float64).softmax(-1).tolist()
            return Choice(dict(zip(options, shares, strict=True)), _tokens_read(prompt, replies))

        return await self._run(work)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """See `ChatModel.score`."""

        def work(decoder: _Decoder) -> Scores:
            prompt = decoder.text.prompt(messages, thinking=False)[0]
            replies = [decoder.text.plain(text) for text in continuations]
            scored = tuple(
                tuple(map(Token, decoder.text.pieces(reply), logprobs))
                for reply, logprobs in zip(replies, decoder.score(prompt, replies), strict=True)
            )
            return Scores(scored, _tokens_read(prompt, replies))

        return await self._run(work)

    async def window(self) -> int | None:
        """See `ChatModel.window`."""
        return (await self._opened()).window

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: exact, special tokens not counted."""
        text = (await self._opened()).text
        return await asyncio.to_thread(lambda: [len(text.plain(one)) for one in texts])

    async def _opened(self) -> _Decoder:
        if self._decoder is None:
            self._decoder = await self._run(lambda decoder: decoder)
        return self._decoder

    async def _run(self, work: Callable[[_Decoder], Answer]) -> Answer:
        with self._naming_faults():
            return await self._worker.run(work)

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except DubitoError:  # a RuntimeError too, and says already whose fault it is
            raise
        except RuntimeError as fault:  # out of memory, a device that failed
            raise ModelFault(self.name, f"torch failed: {_first_line(fault)}") from fault


@dataclass(eq=False)
class _Request:
    """A `complete` call: what was asked, and how far it has come."""

    messages: tuple[Message, ...]
    sampling: Sampling
    prompt: list[int] = field(default_factory=list)
    starts_thinking: bool = False
    most_tokens: int = 0
    rows: list[_Row] = field(default_factory=list)
    waiting: list[_Row] = field(default_factory=list)
    prefix: Layers = field(default_factory=list)


@dataclass(eq=False)
class _Row:
    """One sample of a request while it grows; `finish` is None until it is finished."""

    request: _Request
    source: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def position(self) -> int:
        """Where its newest token stands: what is before it, the cache holds."""
        return len(self.request.prompt) + len(self.ids) - 1


class _Decoder:
    """The weights, and the batch of samples that grow on them by a token each at every step (see `batching.Batch`).

    The rows' keys and values lie in one cache, padded on the left to the longest.
    """

    def __init__(self, name: str, model: Any, text: _Text, most_rows: int | None) -> None:  # noqa: ANN401
        self.text = text
        self.window: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._name = name
        self._model = model
        self._rows: list[_Row] = []
        self._requests: list[_Request] = []
        self._cache = DynamicCache()
        on_cuda = model.device.type == "cuda"
        self._most_rows = most_rows or MOST_ROWS["cuda" if on_cuda else "cpu"]
        self._cache_bytes = CUDA_CACHE_SHARE * torch.cuda.mem_get_info(model.device)[0] if on_cuda else CPU_CACHE_BYTES
        self._token_bytes = sum(part.nbytes for layer in self._read([0])[0] for part in layer)

    def join(self, request: _Request) -> bool:
        """Read the prompt, draw the first token of every sample, and let as many run on as there is room for."""
        if not request.prompt:
            self._prepare(request)
        running = [row.request for row in self._rows]
        longest = max(len(one.prompt) + one.most_tokens for one in (request, *running))
        room = self._affordable(longest) - len(running)
        if room < 1 and running:
            return False
        if not request.rows:
            request.prefix, logits = self._read(request.prompt)
            request.rows = [_Row(request, self._source(request.sampling.seed, i)) for i in range(request.sampling.n)]
            self._requests.append(request)
            self._grow(request.rows, logits.expand(request.sampling.n, -1))
            request.waiting = [row for row in request.rows if row.finish is None]
        self._add(request.waiting[:room], request.prefix)
        request.waiting = request.waiting[room:]
        if not request.waiting:
            request.prefix = []
        return not request.waiting

    def step(self) -> list[tuple[_Request, Reply]]:
        """Give every running row its next token."""
        if self._rows:
            positions = [row.position for row in self._rows]
            logits = self._forward(
                [[row.ids[-1]] for row in self._rows],
                self._cache,
                position_ids=self._tensor(positions)[:, None],
                attention_mask=self._unpadded(positions),
            )
            self._grow(self._rows, logits[:, -1])
            self._keep([row for row in self._rows if row.finish is None])
        done = [request for request in self._requests if all(row.finish for row in request.rows)]
        self._requests = [request for request in self._requests if request not in done]
        return [(request, self._reply(request)) for request in done]

    def leave(self, requests: Sequence[_Request]) -> None:
        """Take requests out."""
        self._requests = [request for request in self._requests if request not in requests]
        self._keep([row for row in self._rows if row.request not in requests])

    def score(self, prompt: list[int], replies: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of every reply; the prompt is read once."""
        self._fit(len(prompt), max(map(len, replies), default=0))
        scores: list[list[float]] = [[] for _ in replies]
        waiting = sorted((i for i, reply in enumerate(replies) if reply), key=lambda i: len(replies[i]))
        if not waiting:
            return scores
        prefix, logits = self._read(prompt)
        first = logits.log_softmax(-1).tolist()
        while waiting:
            longest = len(replies[waiting[-1]])
            # the logits of a row, as the model gives them and in float32
            rows = self._affordable(len(prompt) + longest, 8 * longest * len(first))
            group, waiting = waiting[-rows:], waiting[:-rows]
            for i, rest in zip(group, self._score_rest(prefix, [replies[i] for i in group]), strict=True):
                scores[i] = [first[replies[i][0]], *rest]
        return scores

    def _score_rest(self, prefix: Layers, replies: list[list[int]]) -> list[list[float]]:
        width = max(map(len, replies)) - 1
        if width == 0:
            return [[] for _ in replies]
        # padded on the right, where no real token looks: the causal mask is all that is needed
        padded = self._tensor([reply + [0] * (width + 1 - len(reply)) for reply in replies])
        logits = self._forward(padded[:, :-1], _cache_of(_repeat(prefix, len(replies))))
        logprobs = logits.gather(-1, padded[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        return [row[: len(reply) - 1] for row, reply in zip(logprobs.tolist(), replies, strict=True)]

    def _prepare(self, request: _Request) -> None:
        prompt, request.starts_thinking = self.text.prompt(request.messages, thinking=request.sampling.thinking)
        self._fit(len(prompt), 1)
        room = request.sampling.max_tokens if self.window is None else self.window - len(prompt)
        request.most_tokens = min(request.sampling.max_tokens, room)
        request.prompt = prompt

    def _fit(self, prompt: int, reply: int) -> None:
        if self.window is not None and prompt + reply > self.window:
            raise ContextOverflow(
                f"The prompt has {prompt:,} tokens and its reply needs {reply:,} or more, but the context window of "
                f"{self._name} has {self.window:,}: use fewer or shorter chunks, or a model with a longer window."
            )

    def _affordable(self, tokens: int, more_bytes: int = 0) -> int:
        """How many rows of so many tokens, each with so many bytes beside its cache, may run together: at least 1."""
        return max(1, min(self._most_rows, int(self._cache_bytes // (self._token_bytes * tokens + more_bytes))))

    def _grow(self, rows: list[_Row], logits: Tensor) -> None:
        """Give each row the token that its sampling draws from its logits, and see whether that finishes it."""
        drawn = draw(logits, [row.request.sampling for row in rows], [row.source for row in rows])
        logprobs = [0.0] * len(rows)
        if any(row.request.sampling.logprobs for row in rows):
            logprobs = (logits.gather(-1, drawn[:, None])[:, 0] - logits.logsumexp(-1)).tolist()
        for row, token, logprob in zip(rows, drawn.tolist(), logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if token in self.text.ends or self._has_stopped(row):
                row.finish = "stop"
            elif len(row.ids) >= row.request.most_tokens:
                row.finish = "length"

    def _has_stopped(self, row: _Row) -> bool:
        stop = row.request.sampling.stop
        if not stop:
            return False
        # a stop string that the newest token completes lies within its last few tokens; to decode all of them at every
        # step would take ever longer
        tail = self.text.decode(row.ids[-4 - max(len(text.encode()) for text in stop) :])
        return any(text in tail for text in stop) and self._stop(row.request, self.text.decode(row.ids)) is not None

    def _stop(self, request: _Request, text: str) -> int | None:
        """Where the first stop string begins; one inside a thought that was asked for is none."""
        start = 0
        if request.sampling.thinking and (request.starts_thinking or text.lstrip().startswith(OPEN)):
            start = text.find(CLOSE)
            if start < 0:
                return None
        return min((found for stop in request.sampling.stop if (found := text.find(stop, start)) >= 0), default=None)

    def _reply(self, request: _Request) -> Reply:
        written = sum(len(row.ids) for row in request.rows)
        return Reply(tuple(map(self._completion, request.rows)), Tokens(len(request.prompt), written))

    def _completion(self, row: _Row) -> Completion:
        ended = row.ids[-1] in self.text.ends
        ids = row.ids[:-1] if ended else row.ids
        text = self.text.decode(ids)
        kept = text[: self._stop(row.request, text)]
        answer = strip_thinking(OPEN + kept if row.request.starts_thinking else kept)
        tokens: list[Token] = []
        if row.request.sampling.logprobs:
            tokens = _within(max(0, kept.rfind(answer)), len(answer), self.text.pieces(ids), row.logprobs)
            tokens += [Token("", row.logprobs[-1])] if ended else []
        return Completion(answer, row.finish or "length", tuple(tokens))

    def _read(self, prompt: list[int]) -> tuple[Layers, Tensor]:
        """Keys and values of a prompt, one row, and the logits [vocabulary] of the token after it."""
        cache = DynamicCache()
        logits = self._forward([prompt], cache, logits_to_keep=1)
        return _layers(cache), logits[0, -1]

    def _forward(self, ids: list[list[int]] | Tensor, cache: DynamicCache, **more: object) -> Tensor:
        """Read tokens that follow the cached ones, and cache them: float32 logits [rows, tokens, vocabulary]."""
        with torch.inference_mode():
            ids = self._tensor(ids) if isinstance(ids, list) else ids
            logits: Tensor = self._model(input_ids=ids, past_key_values=cache, use_cache=True, **more).logits
            return logits.float()

    def _unpadded(self, lengths: list[int]) -> Tensor | None:
        """What the next token of each row may look at, [rows, longest + 1]: the row's own, and itself."""
        longest = max(lengths)
        if min(lengths) == longest:
            return None
        padding = longest - self._tensor(lengths)
        return (torch.arange(longest + 1, device=padding.device) >= padding[:, None]).long()

    def _add(self, rows: list[_Row], prefix: Layers) -> None:
        """Let rows run that all stand at the end of one prefix."""
        if rows:
            new = _repeat(prefix, len(rows))
            self._cache = _cache_of([*map(_stack, _layers(self._cache), new)] if self._rows else new)
            self._rows = self._rows + rows

    def _keep(self, rows: list[_Row]) -> None:
        """Let only these rows run on, and cut off the padding that none of them needs."""
        if not rows:
            self._cache = DynamicCache()
        elif len(rows) < len(self._rows):
            at = self._tensor([self._rows.index(row) for row in rows])
            longest = max(row.position for row in rows)
            self._cache = _cache_of([(k[at, :, -longest:], v[at, :, -longest:]) for k, v in _layers(self._cache)])
        self._rows = rows

    def _source(self, seed: int | None, sample: int) -> torch.Generator:
        """A random source for one sample of a request."""
        numbers = random.Random(None if seed is None else f"{seed}/{sample}")  # noqa: S311 - no secret
        return torch.Generator(self._model.device).manual_seed(numbers.getrandbits(32))

    def _tensor(self, numbers: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._model.device)


class _Text:
    """A model's tokenizer and chat template, safe to use from any thread."""

    def __init__(self, name: str, tokenizer: Any, ends: frozenset[int]) -> None:  # noqa: ANN401
        """ends: the ids of the tokens that end a reply."""
        self.ends = ends
        self._name = name
        self._tokenizer = tokenizer
        self._lock = Lock()  # a tokenizer that is told how to treat special tokens is written to
        controls = {str(token): token for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._controls = {token: tokenizer.convert_tokens_to_ids(token) for token in controls}
        self._strips_left = {token for token, how in controls.items() if how.lstrip}
        self._strips_right = {token for token, how in controls.items() if how.rstrip}
        longest_first = sorted(filter(None, controls), key=len, reverse=True)
        self._control = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    @cached_property
    def end_of_turn(self) -> list[int]:
        """The token that the template puts after a reply; empty if it has none."""
        mark = "\ue000"
        chat: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = self._render(chat, add_generation_prompt=False).rpartition(mark)[2]
        found = [self._controls[piece] for piece in self._control.split(after) if piece in self._controls]
        ends = [token for token in found if token in self.ends] or [self._tokenizer.eos_token_id]
        return [token for token in ends[:1] if token is not None]

    def prompt(self, messages: Sequence[Message], *, thinking: bool) -> tuple[list[int], bool]:
        """The ids of a chat up to where the reply begins, and whether it begins inside a thought.

        Whatever stands in a message is text. A control token can only be where the template put it: the characters that
        one could begin or end with are swapped for stand-ins in the messages until the template's own are cut out.
        """
        edges = {edge for token in self._controls if token for edge in (token[0], token[-1])}
        written = "".join(message["content"] for message in messages)
        spare = (mark for code in range(0xF0000, 0xFFFFE) if (mark := chr(code)) not in written)
        hide = {ord(edge): mark for edge, mark in zip(sorted(edges), spare, strict=False)}
        show = {ord(mark): chr(edge) for edge, mark in hide.items()}
        hidden: list[Message] = [{**message, "content": message["content"].translate(hide)} for message in messages]
        rendered = self._render(hidden, add_generation_prompt=True, enable_thinking=thinking)
        pieces = [piece.translate(show) for piece in self._control.split(rendered)]
        whole = rendered.translate(show)
        starts_thinking = whole.rstrip().endswith(OPEN)
        if self._control.split(whole) == pieces:  # nothing in a message looks like a control token
            with self._lock:
                return self._ids(whole, split_special_tokens=False), starts_thinking
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2:  # what the pattern matched stands at the odd places
                ids.append(self._controls[piece])
                continue
            text = piece.lstrip() if i and pieces[i - 1] in self._strips_right else piece
            text = text.rstrip() if i + 1 < len(pieces) and pieces[i + 1] in self._strips_left else text
            ids += self.plain(text)
        return ids, starts_thinking

    def plain(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a control token."""
        with self._lock:
            return self._ids(text, split_special_tokens=True)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, control tokens left out."""
        with self._lock:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            return text

    def pieces(self, ids: list[int]) -> list[str]:
        """The text of each id; together they are the text of all. A letter spread over several is the last one's."""
        pieces: list[str] = []
        start = end = 0  # ids[start:end] were told last: what they are followed by can depend on them
        for i in range(len(ids)):
            told, text = self.decode(ids[start:end]), self.decode(ids[start : i + 1])
            if len(text) > len(told) and (not text.endswith("\ufffd") or i + 1 == len(ids)):
                pieces.append(text[len(told) :])
                start, end = end, i + 1
            else:
                pieces.append("")
        return pieces

    def _ids(self, text: str, *, split_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=split_special_tokens, verbose=False
        )["input_ids"]
        return ids

    def _render(self, messages: Sequence[Message], **how: bool) -> str:
        if self._tokenizer.chat_template is None:
            raise UserFault(f"The model {self._name} has no chat template: use one that was trained to chat.")
        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
        except TemplateError as fault:
            raise UserFault(
                f"The chat template of {self._name} refuses these messages: {_first_line(fault)}."
            ) from fault
        return text


def draw(logits: Tensor, samplings: Sequence[Sampling], sources: Sequence[torch.Generator]) -> Tensor:
    """Draw a token from each row of float32 logits [rows, vocabulary] with its own sampling and source: ids [rows].

    A row of temperature 0 takes the likeliest. The others race: of exponential variables with the tokens' probabilities
    as rates, the smallest is each token's with just its probability. Noise in the logits only decides a photo finish,
    where with one number and the cumulative probabilities it would move the borders of the whole vocabulary.
    """
    drawn = logits.argmax(-1)
    hot = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
    if hot:
        chosen = [samplings[i] for i in hot]
        column = partial(torch.tensor, dtype=torch.float32, device=logits.device)
        scaled = logits[hot] / column([[sampling.temperature] for sampling in chosen])
        if any(sampling.top_k or sampling.top_p < 1 for sampling in chosen):
            top_k = column([[sampling.top_k or scaled.shape[-1]] for sampling in chosen])
            top_p = column([[sampling.top_p] for sampling in chosen])
            scaled = _cut(scaled, top_k, top_p)
        times = torch.empty_like(scaled)
        for row, i in zip(times, hot, strict=True):
            row.exponential_(generator=sources[i])
        drawn[hot] = (scaled - times.clamp_(min=torch.finfo(times.dtype).tiny).log_()).argmax(-1)
    return drawn


def _cut(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Leave only the k likeliest tokens, and of these the fewest that hold a share p of their probability."""
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    ranked = ranked.masked_fill(torch.arange(scaled.shape[-1], device=scaled.device) >= top_k, -torch.inf)
    shares = ranked.softmax(-1)
    likelier = shares.cumsum(-1) - shares
    ranked = ranked.masked_fill((likelier >= top_p) & (top_p < 1), -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, ranked)


def _within(start: int, length: int, pieces: Sequence[str], logprobs: Sequence[float]) -> list[Token]:
    """The tokens that have a part in text[start : start + length], each with the text of that part."""
    tokens: list[Token] = []
    at = 0
    for piece, logprob in zip(pieces, logprobs, strict=False):
        first, last = max(at, start), min(at + len(piece), start + length)
        if first < last or (not piece and start <= at < start + length):
            tokens.append(Token(piece[first - at : last - at], logprob))
        at += len(piece)
    return tokens


def _layers(cache: Any) -> Layers:  # noqa: ANN401 - its layers are typed as any kind there is
    return [(layer.keys, layer.values) for layer in cache.layers]


def _cache_of(layers: Layers) -> DynamicCache:
    cache = DynamicCache()
    for i, (keys, values) in enumerate(layers):
        cache.update(keys, values, i)
    return cache


def _repeat(layers: Layers, rows: int) -> Layers:
    return [(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)) for keys, values in layers]


def _stack(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One layer's rows above another's, the shorter ones padded on the left."""
    width = max(old[0].shape[2], new[0].shape[2])
    pad = torch.nn.functional.pad
    keys, values = (
        torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])
        for parts in zip(old, new, strict=True)
    )
    return keys, values


def _tokens_read(prompt: list[int], replies: Sequence[list[int]]) -> Tokens:
    return Tokens(prompt=len(prompt) + sum(map(len, replies)))


def _check(sampling: Sampling) -> None:
    if sampling.n < 1 or sampling.max_tokens < 1:
        raise UserFault(f"n and max_tokens must be 1 or more, not {sampling.n} and {sampling.max_tokens}.")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UserFault(
            "temperature and top_k must not be negative, and top_p must be above 0 and at most 1: they are "
            f"{sampling.temperature}, {sampling.top_k} and {sampling.top_p}."
        )


def _open(name: str, source: str, dtype: str | None, most_rows: int | None) -> _Decoder:
    if _missing:
        reason = _missing.partition("\n")[0].rstrip(".")
        raise UserFault(f'{name} runs on torch and transformers ({reason}): run `pip install "dubito[local]"`.')
    folder, gguf = _located(name, source)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with _quietly():
            config = AutoConfig.from_pretrained(folder, **gguf)
            tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
            kind = getattr(torch, dtype or ("bfloat16" if device == "cuda" else "float32"))
            safe = {} if gguf else {"use_safetensors": True}  # nothing is unpickled
            model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=kind, **gguf, **safe)
            model = model.to(device).eval()
    except torch.OutOfMemoryError:
        raise
    except Exception as fault:
        raise UserFault(
            f"{name} cannot be loaded from {source} ({_first_line(fault)}): "
            "give the path of a local model folder or .gguf file, or the name of a model on a hub that can be reached."
        ) from fault
    if getattr(model, "_is_stateful", False):
        raise UserFault(
            f"{name} keeps a state that is no cache of keys and values: serve it with vLLM (vllm:URL#model)."
        )
    ends = {tokenizer.eos_token_id}
    for settings in (model.generation_config, model.config.get_text_config()):
        told = getattr(settings, "eos_token_id", None)
        ends.update(told if isinstance(told, list) else [told])
    return _Decoder(name, model, _Text(name, tokenizer, frozenset(ends - {None})), most_rows)


def _located(name: str, source: str) -> tuple[str, dict[str, str]]:
    """The folder or hub name that `from_pretrained` takes, and its argument for a GGUF."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserFault(f"{name} cannot be loaded: there is no file {path}.")
        if absent := [package for package in ("gguf", "accelerate") if find_spec(package) is None]:
            raise UserFault(
                f"{name} is a GGUF, which takes two more packages to read: run `pip install {' '.join(absent)}`."
            )
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return str(path), {}
    if path.is_absolute() or source.startswith((".", "~")):
        raise UserFault(f"{name} cannot be loaded: there is no folder {path}.")
    return source, {}


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the progress bars and the notes of loading off stderr."""
    ours: Any = transformers.logging
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")  # it has a bar of its own
    bars, bar = ours.is_progress_bar_enabled(), reader.tqdm
    levels = [(notes, notes.get_verbosity()) for notes in (ours, huggingface_hub.logging)]
    ours.disable_progress_bar()
    reader.tqdm = lambda items, **_: items
    for notes, _ in levels:
        notes.set_verbosity_error()
    try:
        yield
    finally:
        reader.tqdm = bar
        for notes, level in levels:
            notes.set_verbosity(level)
        if bars:
            ours.enable_progress_bar()


def _first_line(fault: BaseException) -> str:
    return (str(fault) or type(fault).__name__).partition("\n")[0].rstrip(".: ")
