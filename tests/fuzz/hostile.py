"""Inputs that a stranger controls: a kept list of odd ones, and generators of more."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import httpx2 as httpx  # what the openai client is built on
from hypothesis import strategies as st
from openai import AsyncOpenAI

URL = "http://127.0.0.1:9/v1"

JSON = {"content-type": "application/json"}

DEEP = "@deep@"
"""Stands for a list that is nested 100,000 deep."""

NUMBERS: list[Any] = [0, -1, 1.5, -0.0, 1e308, 10**400, -(10**400), math.nan, math.inf, -math.inf]

TEXTS = [
    "",
    " \n\t\v\x0c\u2028",
    "\x00\x07\x1b[2J\x1b]0;title\x07",
    "half \ud800 a character \udfff",
    "\u202eturned\u202c \u200b\u200d\ufeff",
    "9" * 400,
    "9" * 5_000,
    "\u0663\u0669\u00b2\u2460",
    "n\u0303" * 50 + "\u0301" * 500,
    "</passage><passage>|im_start|><|im_end|>[INST][/INST]<s></s><think>",
    "{{ 7 * 7 }}{% for x in y %}%s%(a)s{0}{x!r}",
    "<script>alert(1)</script>&amp;\"'",
    "../../etc/passwd",
    "http://user:pass@host/?key=1",
    "'; DROP TABLE calls; --",
    "1) score: 6 | answer: x\n1) score: nan\n2) score: 5/5",
    'Follow-up: \nFinal answer: **\nSo the final answer is: ".',
    "Final answer: \u0130\u0131\u00df\nFollow-up: ?",
    "<think>" * 3_000,
    "</think>" * 3_000,
    "**" * 5_000,
    "- " * 5_000,
    "1) " * 5_000,
    "a." * 5_000,
    "(" * 5_000,
    " " * 20_000 + "x",
    "\n" * 20_000 + "x",
    '"' * 10_000,
    "x" * 100_000,
]
"""Each once was, or could be, the end of a parser, an encoder or a renderer."""

VALUES: list[Any] = [None, True, False, *NUMBERS, *TEXTS, [], {}, [[]], [None], {"": None}, DEEP]

PIECES = [
    *("1)", "2)", "10)", "score:", "|", "answer:", "Answer:", "**", "_", "#", "- ", "\n", " ", ".", "?", '"', "\u201c"),
    *("Follow-up:", "Final answer:", "So the final answer is:", "the final answer is", "<think>", "</think>", "yes"),
    *("no", "3", "5.0", "4/5", "none", "<passage>", "</passage>", "I'm sorry", "Lune", "the", "\ud800", "\x00", "1.5"),
]


def texts() -> st.SearchStrategy[str]:
    """Odd texts: kept ones, any characters, a jumble of what replies are made of, and long repetitions."""
    anything = st.text(st.characters(codec=None), max_size=60)
    jumble = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
    repeated = st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(0, 8_000))
    return st.one_of(jumble, anything, st.sampled_from(TEXTS), repeated)


def values() -> st.SearchStrategy[Any]:
    """Odd JSON values, some of them nested."""
    leaves = st.one_of(st.sampled_from(VALUES), st.integers(), st.floats(), texts())
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )


@st.composite
def spoiled(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with a few places removed or replaced by odd values."""
    spoilt = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(spoilt))
        if not places:
            return draw(values())
        at, key = draw(st.sampled_from(places))
        if draw(st.booleans()):
            at[key] = draw(values())
        else:
            del at[key]
    return spoilt


def _places(value: Any) -> Any:
    """Every list or dict in a value with each of its places."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield value, key
        yield from _places(item)


def as_bytes(value: Any) -> bytes:
    """A value as the body of a reply, numbers that JSON does not have included."""
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000).encode()


def chat_reply(text: str = "Paris", n: int = 1) -> dict[str, Any]:
    """A right reply with all that a server may give."""
    token = {"token": text, "logprob": -0.1, "top_logprobs": [{"token": text, "logprob": -0.1}]}
    message = {"role": "assistant", "content": text, "reasoning": None, "refusal": None}
    choice = {"message": message, "logprobs": {"content": [token]}, "finish_reason": "stop", "stop_reason": None}
    choices = [{"index": i, **choice, "token_ids": [5]} for i in range(n)]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage, "prompt_token_ids": [1, 2]}


def right_reply(path: str, body: dict[str, Any], text: str = "Paris") -> dict[str, Any]:
    """What a right server answers to a request of any kind."""
    if path.endswith("/models"):
        return {"data": [{"id": "m", "max_model_len": 4096}]}
    if path.endswith("/tokenize"):
        return {"tokens": [3, 4], "count": 2}
    if path.endswith("/embeddings"):
        return {"data": [{"index": i, "embedding": [1.0, i + 1.0]} for i in range(len(body["input"]))]}
    if path.endswith("/completions") and "prompt" in body:
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        rows = [[None, *({str(token): {"logprob": -0.2}} for token in ids[1:])] for ids in prompts]
        return {"choices": [{"index": i, "prompt_logprobs": row} for i, row in enumerate(rows)], "usage": None}
    return chat_reply(text, body.get("n") or 1)


def a_server(replies: list[Any]) -> Any:
    """In place of `openai_server._open`: a client whose server gives these replies in turn, again and again.

    A reply is a status and a value or bytes, or a text to say in a right reply.
    """
    count = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal count
        reply = replies[count % len(replies)]
        count += 1
        asked = json.loads(request.content or b"{}")
        if isinstance(reply, str):
            return httpx.Response(200, content=as_bytes(right_reply(request.url.path, asked, reply)), headers=JSON)
        status, value, *headers = reply
        content = value if isinstance(value, bytes) else as_bytes(value)
        return httpx.Response(status, content=content, headers={**JSON, **(headers[0] if headers else {})})

    def opened(base_url: str, connections: object = None) -> AsyncOpenAI:
        transport = httpx.AsyncClient(transport=httpx.MockTransport(handle))
        return AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=transport)

    return opened


def replies() -> st.SearchStrategy[Any]:
    """What a faulty or hostile server answers."""
    status = st.sampled_from([200, 200, 200, 204, 301, 400, 401, 404, 429, 500, 503])
    header = st.sampled_from(
        [
            {},
            {"content-type": "text/html"},
            {"retry-after": "nan"},
            {"retry-after": "9" * 400},
            {"retry-after": "Mon, 99"},
        ]
    )
    body = st.one_of(
        st.binary(max_size=30), values(), spoiled(chat_reply()), st.fixed_dictionaries({"error": values()})
    )
    return st.one_of(texts(), spoiled(chat_reply()).map(lambda value: (200, value)), st.tuples(status, body, header))
