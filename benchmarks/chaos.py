"""Does every question end, whatever the model server does?

A faulty server answers by a script; each graph is asked over it with each kind of fault. A question ends answered, or
with an error of dubito's own; it is lost if it ends with any other error, and hung if it does not end in time.

    python benchmarks/chaos.py [--questions 8] [--graph NAME ...] [--fault NAME ...] [--outage 60]

The last column is the number of requests per request of the same questions without a fault.
"""

import argparse
import asyncio
import json
import os
import random
import re
import time
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from dubito.errors import DubitoError, UserFault
from dubito.graphs.registry import context_type, graph_named, graph_names, takes_answers
from dubito.resources.resources import Resources
from dubito.settings import settings

TIMEOUT_S = 3.0
HANGS_AFTER_S = 300.0
TEXT = "1) score: 3 | answer: the Lune\nFinal answer: the Lune\nSo the final answer is: the Lune."
SETTINGS = {
    "chunker": "words:100",
    "adaptive": False,
    "evaluator": "report",
    "estimator": "perplexity",
    "retrieval_threshold": 0.5,
}


@dataclass
class FaultyServer:
    """An OpenAI-compatible server whose replies `fault` spoils; requests: how many it was sent."""

    fault: str = "none"
    outage: float = 60.0
    requests: int = 0
    url: str = ""
    chance: random.Random = field(default_factory=lambda: random.Random(2))
    down_until: float = 0.0

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.requests += 1
                if not await self._answer(writer, head.split()[1], json.loads(body or b"{}")):
                    break
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> bool:
        """Answer a request, perhaps badly; returns whether the connection stays open."""
        faulty = self.chance.random() < 0.3
        if self.fault == "outage":
            if self.requests == 20:
                self.down_until = time.monotonic() + self.outage
            faulty = time.monotonic() < self.down_until
        reply = json.dumps(self._reply(path, body, spoiled=faulty)).encode()
        if not faulty or self.fault in {"none", "wrong types", "NaN", "bad usage", "no content", "surrogates"}:
            writer.write(_head(200, len(reply)) + reply)
        elif self.fault in {"5xx", "retry-after"}:
            status = self.chance.choice([500, 503, 429])
            error = b'{"error": {"message": "out of order"}}'
            more = "retry-after: 1\r\n" if self.fault == "retry-after" else ""
            writer.write(_head(status, len(error), more) + error)
        elif self.fault == "outage":
            writer.write(_head(503, 2) + b"{}")
        elif self.fault == "drip":
            writer.write(_head(200, len(reply)))
            for byte in reply:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.5)
        elif self.fault == "truncated":
            writer.write(_head(200, len(reply)) + reply[: len(reply) // 2])
            await writer.drain()
            return False
        elif self.fault == "nested":
            deep = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            writer.write(_head(200, len(deep)) + deep)
        else:  # reset
            writer.transport.abort()
            return False
        await writer.drain()
        return True

    def text(self, prompt: str) -> str:
        """The reply to a prompt: the first of the options that it lists, else one that every parser can read."""
        listed = re.search(r"nothing else: (.*)", prompt)
        return listed[1].split(" | ")[0] if listed else TEXT

    def _reply(self, path: str, body: dict[str, Any], *, spoiled: bool) -> dict[str, Any]:
        if path.endswith("/models"):
            return {"data": [{"id": "stub"}]}
        if "input" in body:
            rows = [_words(text) for text in body["input"]]
            data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
            return {"object": "list", "data": data, "model": "words", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        text = self.text(body["messages"][-1]["content"])
        logprob = -0.1
        usage: Any = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if spoiled and self.fault == "wrong types":
            return self.chance.choice([{"choices": "x"}, {"choices": [None]}, {"choices": [{"message": 3}]}, {}])
        if spoiled and self.fault == "NaN":
            logprob = self.chance.choice([float("nan"), float("-inf"), 0.5])
        if spoiled and self.fault == "bad usage":
            wrong: list[Any] = [{"prompt_tokens": "7"}, {"prompt_tokens": -7, "completion_tokens": 1.5}, [1]]
            usage = self.chance.choice(wrong)
        if spoiled and self.fault == "no content":
            del message["content"]
        if spoiled and self.fault == "surrogates":
            message["content"] = "the \ud800 Lune"
        one: dict[str, Any] = {"message": message, "finish_reason": "stop"}
        if body.get("logprobs"):
            one["logprobs"] = {"content": [{"token": text, "logprob": logprob, "top_logprobs": []}]}
        choices = [{"index": i, **one} for i in range(body.get("n") or 1)]
        return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}


FAULTS = ("none", "5xx", "retry-after", "reset", "drip", "truncated", "wrong types", "NaN", "bad usage", "no content",
          "surrogates", "nested", "outage")  # fmt: skip


def _head(status: int, length: int, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n".encode()


def _words(text: str) -> list[float]:
    row = [0.1] * 64
    for word in text.lower().split():
        row[zlib.crc32(word.encode()) % 64] += 1.0
    return row


def settings_of(graph: str, url: str) -> dict[str, Any]:
    """The settings of the benchmark that the graph has and that have an effect in it."""
    context = context_type(graph_named(graph))
    wished = {"llm": f"openai:{url}#stub", **SETTINGS}
    settings = {name: value for name, value in wished.items() if name in context.model_fields}
    with suppress(UserFault):  # a graph that embeds nothing refuses an encoder
        with_encoder = {**settings, "encoder": f"openai:{url}#words"}
        context(**with_encoder)
        return with_encoder
    return settings


async def ask(graph: str, server: FaultyServer, questions: int) -> Counter[str]:
    """How the questions ended."""
    context = settings_of(graph, server.url)
    runnable = graph_named(graph, Resources())

    async def one(number: int) -> str:
        question: dict[str, Any] = {"question": f"Which river flows through town {number}?"}
        if takes_answers(runnable):
            question["answers"] = ["the Lune"]
        try:
            async with asyncio.timeout(HANGS_AFTER_S):
                await runnable.ainvoke(question, context=context)
        except TimeoutError:
            return "hung"
        except DubitoError as fault:
            if server.fault == "none":
                raise
            return "failed" if len(str(fault)) < 1000 else "lost"
        except Exception as fault:
            print(f"{graph}, {server.fault}: {type(fault).__name__}: {str(fault)[:200]}")
            return "lost"
        return "answered"

    return Counter(await asyncio.gather(*(one(number) for number in range(questions))))


async def main(graphs: list[str], faults: list[str], questions: int, outage: float) -> None:
    """Ask every graph with every fault, and print a row for each pair."""
    print("| graph | fault | answered | failed | lost | hung | seconds | requests |")
    print("|---|---|---|---|---|---|---|---|")
    for graph in graphs:
        plain = 0
        for fault in ["none", *(name for name in faults if name != "none")]:
            async with FaultyServer(fault, outage) as server:
                began = time.monotonic()
                ended = await ask(graph, server, questions)
                seconds = time.monotonic() - began
            plain = plain or server.requests
            counts = " | ".join(str(ended[how]) for how in ("answered", "failed", "lost", "hung"))
            print(f"| {graph} | {fault} | {counts} | {seconds:.1f} | {server.requests / plain:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--graph", action="append", choices=graph_names())
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--outage", type=float, default=60.0, help="its seconds")
    given = parser.parse_args()
    os.environ.update(DUBITO_TIMEOUT_S=str(TIMEOUT_S))
    settings.cache_clear()
    asyncio.run(main(given.graph or list(graph_names()), given.fault or list(FAULTS), given.questions, given.outage))
