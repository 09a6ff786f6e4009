"""The weights at work: samples of many requests that grow together on one cache of keys and values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from ..errors import ContextOverflow
from .chat_text import ChatText
from .completing import completion
from .generation import Layers, Request, Row
from .hidden_states import HiddenStates
from .interfaces import Completion, Introspection, Reply, Sampling, Tokens
from .prefix_cache import PrefixCache
from .thinking import CLOSE, OPEN

MOST_ROWS = {"cpu": 16, "cuda": 64}
"""The most samples that run together, unless told otherwise."""
CPU_CACHE_BYTES = 2 << 30
CUDA_CACHE_SHARE = 0.5
"""What keys and values may take: so much on a CPU, this share of what the weights left free on CUDA."""
PREFIX_SHARE = 0.25
"""What of it is for the prompts that were read last."""


class Decoder:
    """The weights, and the batch of samples that grow on them by a token each at every step (see `batching.Batch`).

    The rows' keys and values lie in one cache, padded on the left to the longest. A prompt is read from where it first
    differs from those read lately. A sample whose hidden state is wanted stays for one step more, which reads its last
    token.
    """

    def __init__(self, name: str, model: Any, text: ChatText, most_rows: int | None) -> None:  # noqa: ANN401
        """name: for messages; model: of transformers; most_rows: the most samples that run together."""
        self.text = text
        self.states = HiddenStates(name, model)
        self.window: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._name = name
        self._model = model
        self._rows: list[Row] = []
        self._requests: list[Request] = []
        self._cache = DynamicCache()
        on_cuda = model.device.type == "cuda"
        self._most_rows = most_rows or MOST_ROWS["cuda" if on_cuda else "cpu"]
        most_bytes = CUDA_CACHE_SHARE * torch.cuda.mem_get_info(model.device)[0] if on_cuda else CPU_CACHE_BYTES
        self._cache_bytes = (1 - PREFIX_SHARE) * most_bytes
        self._prefixes = PrefixCache(0)
        self._token_bytes = sum(part.nbytes for layer in self._read([0])[0] for part in layer)
        self._prefixes = PrefixCache(PREFIX_SHARE * most_bytes)

    def join(self, request: Request) -> bool:
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
            request.rows = [Row(request, self._source(request.sampling.seed, i)) for i in range(request.samples)]
            self._requests.append(request)
            self._grow(request.rows, logits.expand(request.samples, -1))
            request.waiting = [row for row in request.rows if not row.done]
        self._add(request.waiting[:room], request.prefix)
        request.waiting = request.waiting[room:]
        if not request.waiting:
            request.prefix = []
        return not request.waiting

    def step(self) -> list[tuple[Request, Reply | Introspection]]:
        """Read every running row's newest token and draw the next one, if it was not the last."""
        if self._rows:
            positions = [row.position for row in self._rows]
            ending = {i: row.request.layer for i, row in enumerate(self._rows) if row.finish and row.request.layer}
            with self.states.seen(set(ending.values())) as states:
                logits = self._forward(
                    [[row.ids[-1]] for row in self._rows],
                    self._cache,
                    position_ids=self._tensor(positions)[:, None],
                    attention_mask=self._unpadded(positions),
                )
            for i, layer in ending.items():
                self._rows[i].state = states[layer][i]
            growing = [i for i in range(len(self._rows)) if i not in ending]
            self._grow([self._rows[i] for i in growing], logits[growing, -1])
            self._keep([row for row in self._rows if not row.done])
        done = [request for request in self._requests if all(row.done for row in request.rows)]
        self._requests = [request for request in self._requests if request not in done]
        return [(request, self._result(request)) for request in done]

    def leave(self, requests: Sequence[Request]) -> None:
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

    def _prepare(self, request: Request) -> None:
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

    def _grow(self, rows: list[Row], logits: Tensor) -> None:
        """Give each row the token that its sampling draws from its logits, and see whether that finishes it."""
        drawn = draw(logits, [row.request.sampling for row in rows], [row.source for row in rows])
        totals = logits.logsumexp(-1)
        logprobs = (logits.gather(-1, drawn[:, None])[:, 0] - totals).tolist()
        for row, token, logprob, total in zip(rows, drawn.tolist(), logprobs, totals.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.energies.append(-total)
            if token in self.text.ends or self._has_stopped(row):
                row.finish = "stop"
            elif len(row.ids) >= row.request.most_tokens:
                row.finish = "length"

    def _has_stopped(self, row: Row) -> bool:
        stop = row.request.sampling.stop
        if not stop:
            return False
        # a stop string that the newest token completes lies within its last few tokens; to decode all of them at every
        # step would take ever longer
        tail = self.text.decode(row.ids[-4 - max(len(text.encode()) for text in stop) :])
        return any(text in tail for text in stop) and self._stop(row.request, self.text.decode(row.ids)) is not None

    def _stop(self, request: Request, text: str) -> int | None:
        """Where the first stop string begins; one inside a thought that was asked for is none."""
        start = 0
        if request.sampling.thinking and (request.starts_thinking or text.lstrip().startswith(OPEN)):
            start = text.find(CLOSE)
            if start < 0:
                return None
        return min((found for stop in request.sampling.stop if (found := text.find(stop, start)) >= 0), default=None)

    def _result(self, request: Request) -> Reply | Introspection:
        written = sum(len(row.ids) for row in request.rows)
        copies = request.sampling.n // request.samples
        completions = tuple(map(self._completion, request.rows)) * copies
        reply = Reply(completions, Tokens(len(request.prompt), written))
        if request.layer is None:
            return reply
        states = torch.stack([row.state for row in request.rows if row.state is not None]).repeat(copies, 1)
        energies = tuple(sum(row.energies) / len(row.energies) for row in request.rows) * copies
        return Introspection(reply, states.cpu().numpy().astype(np.float32), request.layer, energies)

    def _completion(self, row: Row) -> Completion:
        request = row.request
        return completion(
            self.text,
            row.ids,
            row.finish or "length",
            stop_at=partial(self._stop, request),
            starts_thinking=request.starts_thinking,
            logprobs=row.logprobs if request.sampling.logprobs else None,
        )

    def _read(self, prompt: list[int]) -> tuple[Layers, Tensor]:
        """Keys and values of a prompt, one row, and the logits [vocabulary] of the token after it."""
        known, layers = self._prefixes.longest(prompt)
        cache = _cache_of(layers)
        logits = self._forward([prompt[known:]], cache, logits_to_keep=1)
        layers = _layers(cache)
        self._prefixes.keep(prompt, layers)
        return layers, logits[0, -1]

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

    def _add(self, rows: list[Row], prefix: Layers) -> None:
        """Let rows run that all stand at the end of one prefix."""
        if rows:
            new = _repeat(prefix, len(rows))
            self._cache = _cache_of([*map(_stack, _layers(self._cache), new)] if self._rows else new)
            self._rows = self._rows + rows

    def _keep(self, rows: list[Row]) -> None:
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
