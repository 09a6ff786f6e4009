"""Models without weights: they answer from a script and remember what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dubito.errors import CapabilityMissing
from dubito.models.interfaces import (
    Capability,
    Choice,
    Completion,
    Message,
    Reply,
    Sampling,
    Scores,
    Token,
    Tokens,
    Vectors,
)
from dubito.models.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.records import Chunk

Answerer = Callable[[str, str], str]
"""(system text, last user text) → reply."""


def _unscripted(system: str, user: str) -> str:
    raise AssertionError(f"no reply was scripted for: {user[:200]}")


@dataclass
class ScriptedChat:
    """A chat model: `reply` answers completions, `pick` choices, `mean_logprob` gives each scored text's mean.

    Faults that are listed in `faults` are raised first, one a call. `under_way_at_most` is the highest number of calls
    that were under way at once.
    """

    reply: Answerer = _unscripted
    pick: Callable[[str, Sequence[str]], str] | None = None
    mean_logprob: Callable[[str, str], float] | None = None
    capabilities: frozenset[Capability] = frozenset({"logprobs", "option_probabilities", "score", "seed"})
    faults: list[Exception] = field(default_factory=list)
    name: str = "scripted"
    context_window: int | None = None
    calls: list[tuple[str, list[Message]]] = field(default_factory=list)
    under_way_at_most: int = 0
    _under_way: int = 0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        texts = [self.reply(messages[0]["content"], messages[-1]["content"]) for _ in range(sampling.n)]
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, 3 * sampling.n))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        await self._begin("choose", messages)
        assert self.pick is not None, "no choice was scripted"
        picked = self.pick(messages[-1]["content"], options)
        return Choice({option: float(option == picked) for option in options}, Tokens(5, 1))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        if "score" not in self.capabilities:
            raise CapabilityMissing("scripted cannot score")
        await self._begin("score", messages)
        assert self.mean_logprob is not None, "no score was scripted"
        user = messages[-1]["content"]
        return Scores(tuple((Token(text, self.mean_logprob(user, text)),) for text in continuations), Tokens(11, 0))

    async def window(self) -> int | None:
        return self.context_window

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    async def _begin(self, verb: str, messages: Sequence[Message]) -> None:
        self.calls.append((verb, list(messages)))
        self._under_way += 1
        self.under_way_at_most = max(self.under_way_at_most, self._under_way)
        await asyncio.sleep(0.002)
        self._under_way -= 1
        if self.faults:
            raise self.faults.pop(0)


@dataclass
class ScriptedRetriever:
    """A retriever over given vectors; chunk i is titled `T{i}` unless `titles` says otherwise."""

    query: Sequence[float]
    vectors: Sequence[Sequence[float]]
    texts: Sequence[str] = ()

    async def pool(self, query: str, top_n: int | None) -> Pool:
        question = unit([self.query])[0]
        vectors = unit(self.vectors) if self.vectors else np.zeros((0, len(question)), dtype=np.float32)
        rows = np.arange(len(vectors))
        if top_n is not None and len(vectors):
            rows = np.argsort(-(vectors @ question), kind="stable")[:top_n]
        return Pool(question, vectors[rows], lambda i: self.chunk(int(rows[i])))

    def chunk(self, row: int) -> Chunk:
        text = self.texts[row] if self.texts else f"text {row}"
        return {"id": f"c{row}", "doc_id": f"d{row}", "title": f"T{row}", "text": text, "start": 0}


class ScriptedEncoder:
    """An encoder whose vectors have nothing to do with meaning: one axis for each letter, as long as it is frequent."""

    name = "scripted"

    async def dimension(self) -> int:
        return 128

    async def max_tokens(self) -> int | None:
        return None

    async def token_counter(self) -> None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        return unit([[float(text.count(chr(code)) + (code == 0)) for code in range(128)] for text in texts])


def unit(rows: Sequence[Sequence[float]]) -> Vectors:
    """Rows scaled to length 1, [n, d] float32."""
    matrix = np.array(rows, dtype=np.float32).reshape(len(rows), -1)
    scaled: Vectors = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    return scaled


QUESTION = "Which river flows past the birthplace of the founder?"
PLAN = "1) Find the founder\n2) Find the birthplace"

# seven chunks around a question along the first axis: near-duplicates 0-4 close to it, 5 and 6 further away
QUERY = [1.0, 0.0, 0.0]
VECTORS = [
    [1.0, 0.10, 0.0],
    [1.0, 0.11, 0.0],
    [1.0, 0.12, 0.0],
    [1.0, 0.13, 0.0],
    [1.0, 0.14, 0.0],
    [0.6, 0.0, 0.8],
    [0.4, -0.9, 0.0],
]


def chat(report: str = "1) score: 3 | answer: Ada\n2) score: 1 | answer: none", **more: Any) -> ScriptedChat:
    """A planner, an evaluator that reports the same on every set, a generator."""

    def reply(system: str, user: str) -> str:
        if "plan how to answer" in system:
            return PLAN
        return report if "how well a set of passages" in system else "the Lune"

    return ScriptedChat(reply=reply, **more)


def resources(llm: ScriptedChat, vectors: list[list[float]] | None = None, texts: list[str] | None = None) -> Resources:
    """The model given and a retriever over the vectors given, by default the seven above."""
    chosen = VECTORS if vectors is None else vectors
    return Resources(llm=llm, retriever=ScriptedRetriever(QUERY, chosen, texts or ()))
