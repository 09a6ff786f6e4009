"""Batched decoding with transformers: samples of many requests grow together on one cache of keys and values."""

import random
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from .chat_text import ChatText
from .generation import Layers, Request, Sample, check_fit
from .hidden_states import HiddenStates
from .interfaces import Completion, Introspection, Reply, Sampling, Tokens
from .postprocess import completion
from .prefix_cache import PrefixCache
from .thinking import CLOSE, OPEN, first_stop

MOST_ROWS = {"cpu": 16, "cuda": 64}
"""The default for the most samples that run together."""
CPU_CACHE_BYTES = 2 << 30
CUDA_CACHE_SHARE = 0.5
"""Memory for keys and values: these bytes on a CPU, this share of the memory beside the weights on CUDA."""
PREFIX_SHARE = 0.25
"""The share of that memory for recently read prompts."""

_LONGER = "a model with a longer window"


class Decoder:
    """A model and the batch of samples that grow by a token each at every step (see `batching.Batch`).

    The keys and values of all samples are in one cache, padded on the left. The beginning that a prompt shares with a
    recently read prompt is not read again. A sample whose hidden state is requested stays for one more step, in which
    the model reads the sample's last token.
    """

    def __init__(self, name: str, model: Any, text: ChatText, most_rows: int | None) -> None:  # noqa: ANN401
        """name: for messages; model: a transformers model; most_rows: the most samples that run together."""
        self.text = text
        self.states = HiddenStates(name, model)
        self.window: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._name = name
        self._model = model
        # transformers 5.24 gave the argument another name
        self._cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self._rows: list[Sample] = []
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
        """Read the prompt, draw each sample's first token, and let as many samples run as there is room for."""
        if not request.prompt:
            self._prepare(request)
        running = [row.request for row in self._rows]
        longest = max(len(each.prompt) + each.most_tokens for each in (request, *running))
        room = self._affordable(longest) - len(running)
        if room < 1 and running:
            return False
        if not request.rows:
            request.prefix, logits = self._read(request.prompt)
            n = request.sampling.distinct
            request.rows = [Sample(request, self._source(request.sampling.seed, i)) for i in range(n)]
            self._requests.append(request)
            self._grow(request.rows, logits.expand(n, -1))
            request.waiting = [row for row in request.rows if not row.done]
        self._add(request.waiting[:room], request.prefix)
        request.waiting = request.waiting[room:]
        if not request.waiting:
            request.prefix = []
        return not request.waiting

    def step(self) -> list[tuple[Request, Reply | Introspection]]:
        """Read each running sample's newest token and draw its next token, unless that was the last."""
        if self._rows:
            positions = [row.position for row in self._rows]
            ending = {
                i: (layer, row.request.states)
                for i, row in enumerate(self._rows)
                if row.finish and (layer := row.request.layer)
            }
            with self.states.seen(set(ending.values())) as states:
                logits = self._forward(
                    [[row.unread] for row in self._rows],
                    self._cache,
                    position_ids=self._tensor(positions)[:, None],
                    attention_mask=self._unpadded(positions),
                )
            for i, wanted in ending.items():
                self._rows[i].state = states[wanted][i]
            growing = [i for i in range(len(self._rows)) if i not in ending]
            self._grow([self._rows[i] for i in growing], logits[growing, -1])
            self._keep([row for row in self._rows if not row.done])
        done = [request for request in self._requests if all(row.done for row in request.rows)]
        self._requests = [request for request in self._requests if request not in done]
        return [(request, self._result(request)) for request in done]

    def leave(self, requests: Sequence[Request]) -> None:
        """Remove requests."""
        self._requests = [request for request in self._requests if request not in requests]
        self._keep([row for row in self._rows if row.request not in requests])

    def score(self, prompt: list[int], replies: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of every reply; the prompt is read once."""
        check_fit(self._name, self.window, len(prompt), max(map(len, replies), default=0), _LONGER)
        scores: list[list[float]] = [[] for _ in replies]
        waiting = sorted((i for i, reply in enumerate(replies) if reply), key=lambda i: len(replies[i]))
        if not waiting:
            return scores
        prefix, logits = self._read(prompt)
        first = logits.log_softmax(-1).tolist()
        while waiting:
            longest = len(replies[waiting[-1]])
            # each row holds its logits twice: as the model gives them, and in float32
            rows = self._affordable(len(prompt) + longest, 8 * longest * len(first))
            group, waiting = waiting[-rows:], waiting[:-rows]
            for i, rest in zip(group, self._score_rest(prefix, [replies[i] for i in group]), strict=True):
                scores[i] = [first[replies[i][0]], *rest]
        return scores

    def _score_rest(self, prefix: Layers, replies: list[list[int]]) -> list[list[float]]:
        width = max(map(len, replies)) - 1
        if width == 0:
            return [[] for _ in replies]
        # padding on the right needs no mask: no real token attends to later tokens
        padded = self._tensor([reply + [0] * (width + 1 - len(reply)) for reply in replies])
        logits = self._forward(padded[:, :-1], _cache_of(_repeat(prefix, len(replies))))
        logprobs = logits.gather(-1, padded[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        return [row[: len(reply) - 1] for row, reply in zip(logprobs.tolist(), replies, strict=True)]

    def _prepare(self, request: Request) -> None:
        prompt, request.starts_thinking = self.text.prompt(request.messages, thinking=request.sampling.thinking)
        check_fit(self._name, self.window, len(prompt), 1, _LONGER)
        room = request.sampling.max_tokens if self.window is None else self.window - len(prompt)
        request.most_tokens = min(request.sampling.max_tokens, room)
        request.prompt = prompt

    def _affordable(self, tokens: int, more_bytes: int = 0) -> int:
        """How many samples of this length may run together, each with this memory beside its cache: at least 1."""
        return max(1, min(self._most_rows, int(self._cache_bytes // (self._token_bytes * tokens + more_bytes))))

    def _grow(self, rows: list[Sample], logits: Tensor) -> None:
        """Draw the next token of each row from its logits, and see whether that finishes the row."""
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
            else:
                self._report(row)

    def _report(self, row: Sample) -> None:
        """Tell the listener, if there is one, the text so far."""
        request = row.request
        if request.listener is not None and request.pace.is_due():
            request.listener((OPEN if request.starts_thinking else "") + self.text.decode(row.ids))

    def _has_stopped(self, row: Sample) -> bool:
        stop = row.request.sampling.stop
        if not stop:
            return False
        # the stop string that the newest token completes lies within the last tokens; decoding all tokens at every step
        # would take quadratic time
        tail = self.text.decode(row.ids[-4 - max(len(text.encode()) for text in stop) :])
        return any(text in tail for text in stop) and self._stop(row.request, self.text.decode(row.ids)) is not None

    def _stop(self, request: Request, text: str) -> int | None:
        """Where the first stop string begins; stop strings inside a requested thought do not count."""
        start = 0
        if request.sampling.thinking and (request.starts_thinking or text.lstrip().startswith(OPEN)):
            start = text.find(CLOSE)
            if start < 0:
                return None
        return first_stop(text, request.sampling.stop, start)

    def _result(self, request: Request) -> Reply | Introspection:
        written = sum(len(row.ids) for row in request.rows)
        copies = request.sampling.n // request.sampling.distinct
        completions = tuple(map(self._completion, request.rows)) * copies
        reply = Reply(completions, Tokens(len(request.prompt), written))
        if request.layer is None:
            return reply
        states = torch.stack([row.state for row in request.rows if row.state is not None]).repeat(copies, 1)
        energies = tuple(sum(row.energies) / len(row.energies) for row in request.rows) * copies
        return Introspection(reply, states.cpu().numpy().astype(np.float32), request.layer, energies)

    def _completion(self, row: Sample) -> Completion:
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
        """Read a prompt: its keys and values, and the logits [vocabulary] of the next token."""
        known, layers = self._prefixes.longest(prompt)
        cache = _cache_of(layers)
        logits = self._forward([prompt[known:]], cache, logits_to_keep=1)
        layers = _layers(cache)
        self._prefixes.keep(prompt, layers)
        return layers, logits[0, -1]

    def _forward(self, ids: list[list[int]] | Tensor, cache: DynamicCache, **more: object) -> Tensor:
        """Read and cache tokens that follow the cached ones: float32 logits [rows, tokens, vocabulary]."""
        with torch.inference_mode():
            ids = self._tensor(ids) if isinstance(ids, list) else ids
            logits: Tensor = self._model(input_ids=ids, use_cache=True, **{self._cache_name: cache}, **more).logits
            return logits.float()

    def _unpadded(self, lengths: list[int]) -> Tensor | None:
        """The attention mask of each row's next token, [rows, longest + 1]: the row's own tokens and itself."""
        longest = max(lengths)
        if min(lengths) == longest:
            return None
        padding = longest - self._tensor(lengths)
        return (torch.arange(longest + 1, device=padding.device) >= padding[:, None]).long()

    def _add(self, rows: list[Sample], prefix: Layers) -> None:
        """Let new rows run after one prefix."""
        if rows:
            new = _repeat(prefix, len(rows))
            self._cache = _cache_of([*map(_stack, _layers(self._cache), new)] if self._rows else new)
            self._rows = self._rows + rows

    def _keep(self, rows: list[Sample]) -> None:
        """Keep only these rows running, and cut the padding that none of them needs."""
        if not rows:
            self._cache = DynamicCache()
        elif len(rows) < len(self._rows):
            at = self._tensor([self._rows.index(row) for row in rows])
            longest = max(row.position for row in rows)
            self._cache = _cache_of([(k[at, :, -longest:], v[at, :, -longest:]) for k, v in _layers(self._cache)])
        self._rows = rows

    def _source(self, seed: int | None, sample: int) -> torch.Generator:
        """The random source of one sample of a request."""
        numbers = random.Random(None if seed is None else f"{seed}/{sample}")  # noqa: S311 - no secret
        return torch.Generator(self._model.device).manual_seed(numbers.getrandbits(32))

    def _tensor(self, numbers: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._model.device)


def draw(logits: Tensor, samplings: Sequence[Sampling], sources: Sequence[torch.Generator]) -> Tensor:
    """Draw a token from each row of float32 logits [rows, vocabulary] with its own sampling and source: ids [rows].

    A row of temperature 0 takes the likeliest token. Other rows race exponential variables that have the tokens'
    probabilities as rates: each token comes first with exactly its probability. So float noise in the logits changes a
    draw only in a near tie; with a uniform number and cumulative probabilities it would shift every token's boundary.
    """
    drawn = logits.argmax(-1)
    hot = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
    if hot:
        sampled = [samplings[i] for i in hot]
        column = partial(torch.tensor, dtype=torch.float32, device=logits.device)
        scaled = logits[hot] / column([[sampling.temperature] for sampling in sampled])
        if any(sampling.top_k or sampling.top_p < 1 for sampling in sampled):
            top_k = column([[sampling.top_k or scaled.shape[-1]] for sampling in sampled])
            top_p = column([[sampling.top_p] for sampling in sampled])
            scaled = _cut(scaled, top_k, top_p)
        times = torch.empty_like(scaled)
        for row, i in zip(times, hot, strict=True):
            row.exponential_(generator=sources[i])
        drawn[hot] = (scaled - times.clamp_(min=torch.finfo(times.dtype).tiny).log_()).argmax(-1)
    return drawn


def _cut(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Top-k, then top-p: keep the k likeliest tokens, and of these the fewest with probability p together."""
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
    """The rows of one layer above those of another, padded on the left to one length."""
    width = max(old[0].shape[2], new[0].shape[2])
    pad = torch.nn.functional.pad
    keys, values = (
        torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])
        for parts in zip(old, new, strict=True)
    )
    return keys, values
