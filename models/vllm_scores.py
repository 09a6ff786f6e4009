"""The log-probabilities of given texts on a vLLM server: token by token from its prefix cache, or of whole prompts."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..concurrency import gather_or_cancel
from .generation import along, next_tokens
from .interfaces import Scores, Token, Tokens
from .openai_server import Server, choices_of, log_probability, usage

NO_PENALTIES = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""vLLM takes what a request leaves out from the model's generation_config.json."""

NAMED_TOKENS = 128
"""The most different tokens whose log-probabilities one request to vLLM may ask for."""

Nexts = Mapping[tuple[int, ...], set[int]]
"""The tokens behind each beginning of the paths."""

ScoringWay = Callable[[Server, str, list[int], list[list[int]]], Awaitable[Scores | None]]
"""Scores paths behind a prompt for a model; None if the server does not give what it takes."""

_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def prefix_block(metrics: str) -> int:
    """The tokens of a block of the prefix cache, by vLLM's page of metrics; 0 if an engine has no such cache."""
    engines = [dict(_LABEL.findall(labels)) for labels in _CACHE.findall(metrics)]
    sizes = [one.get("block_size", "") if one.get("enable_prefix_caching") == "True" else "" for one in engines]
    return max(map(int, sizes)) if sizes and all(size.isdecimal() for size in sizes) else 0


async def by_next_tokens(
    server: Server, model: str, prompt: Sequence[int], paths: Sequence[Sequence[int]]
) -> Scores | None:
    """The tokens of each path behind the prompt, without their texts: each beginning is asked for its next tokens.

    The prompt is read once, and then comes from the prefix cache. None from a server that does not give the
    log-probabilities of named tokens.
    """

    async def ask(nexts: Nexts) -> dict[tuple[int, ...], dict[int, float]] | None:
        body = {
            "model": model,
            "prompt": [[*prompt, *beginning] for beginning in nexts],
            "max_tokens": 1,
            "temperature": 0,
            **NO_PENALTIES,
            "logprobs": 1,
            "logprob_token_ids": sorted(set().union(*nexts.values())),
            "return_tokens_as_token_ids": True,
        }
        return await server.request("/completions", body, lambda reply: _named(reply, nexts))

    replies = await gather_or_cancel(ask(nexts) for nexts in _requests(next_tokens(paths)))
    logprobs: dict[tuple[int, ...], dict[int, float]] = {}
    for found in replies:
        if found is None:
            return None
        logprobs |= found
    tokens = (tuple(Token("", logprob) for logprob in row) for row in along(paths, logprobs))
    return Scores(tuple(tokens), Tokens(len(prompt) + sum(map(len, paths))))


async def by_prompts(server: Server, model: str, prompt: list[int], paths: Sequence[list[int]]) -> Scores | None:
    """The tokens of each path behind the prompt, by the log-probabilities of prompts; None if there are none."""
    body = {
        "model": model,
        "prompt": [prompt + ids for ids in paths],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 0,
    }

    def read(reply: dict[str, Any]) -> Scores | None:
        if any(choice.get("prompt_logprobs") is None for choice in choices_of(reply)):
            return None
        rows = (choice["prompt_logprobs"][len(prompt) :] for choice in choices_of(reply))
        return Scores(tuple(_scored(ids, row) for ids, row in zip(paths, rows, strict=True)), usage(reply))

    return await server.request("/completions", body, read)


def _requests(nexts: Nexts) -> list[dict[tuple[int, ...], set[int]]]:
    """The beginnings of each request."""
    requests: list[dict[tuple[int, ...], set[int]]] = [{}]
    named: set[int] = set()
    for beginning, tokens in nexts.items():
        if len(named | tokens) > NAMED_TOKENS:
            requests.append({})
            named = set()
        requests[-1][beginning] = tokens
        named |= tokens
    return requests


def _named(reply: Mapping[str, Any], nexts: Nexts) -> dict[tuple[int, ...], dict[int, float]] | None:
    """The log-probabilities of the named tokens behind each beginning; None if one is missing."""
    found: dict[tuple[int, ...], dict[int, float]] = {}
    for (beginning, tokens), choice in zip(nexts.items(), choices_of(reply), strict=True):
        (given, *_) = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
        names = {token: f"token_id:{token}" for token in tokens}
        if not set(names.values()) <= given.keys():
            return None
        found[beginning] = {token: log_probability(given[name]) for token, name in names.items()}
    return found


def _scored(ids: list[int], row: list[dict[str, Any]]) -> tuple[Token, ...]:
    entries = [entry[str(token)] for token, entry in zip(ids, row, strict=True)]
    return tuple(Token(entry.get("decoded_token") or "", log_probability(entry["logprob"])) for entry in entries)
