"""Models without weights: they answer from a script and remember what they were asked."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dubito.errors import CapabilityMissing, ModelFault
from dubito.models.answer_stream import AnswerStream, Shown, current_answer, showing
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Completion,
    Introspection,
    Judgements,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Token,
    Tokens,
    Vectors,
)
from dubito.prompts import answer, chain_of_query, decompose, reasoning, rephrase, unparsed
from dubito.resources.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.mixins import CorpusContext
from dubito.state.records import Chunk

ANSWERED = frozenset(
    {
        *("answer", "evidence", "uncertainty", "signals", "abstained", "withheld_answer", "certificate", "chosen"),
        *("usage", "warnings", "cited_answer", "citations"),
    }
)
"""The keys that every graph's output has."""

Answerer = Callable[[str, str], str | Completion]
"""(system text, last user text) → reply."""


_A_CHUNK: Chunk = {"id": "", "doc_id": "", "title": "", "text": ""}

ASKING = [answer.messages("", chunks)[0] for chunks in ([], [_A_CHUNK])]
"""The system's turn of the prompt for an answer, without passages and with them."""


@contextmanager
def listening() -> Iterator[list[str]]:
    """Somebody listens to the answer, which the calls within write: the pieces that they show."""
    pieces: list[str] = []
    token = current_answer.set(AnswerStream(Shown(), lambda piece, _: pieces.append(piece)))
    try:
        with showing(lambda text: text):
            yield pieces
    finally:
        current_answer.reset(token)


def _unscripted(system: str, user: str) -> str:
    raise AssertionError(f"no reply was scripted for: {user[:200]}")


@dataclass
class ScriptedChat:
    """A chat model: `reply` answers completions, `pick` choices, `mean_logprob` gives each scored text's mean.

    Faults that are listed in `faults` are raised first, one a call. `under_way_at_most` is the highest number of calls
    that were under way at once; each takes `seconds`, long ones where a test wants them to overlap on any machine.
    `patterns` are those that a reply was kept to.
    """

    reply: Answerer = _unscripted
    pick: Callable[[str, Sequence[str]], str] | None = None
    mean_logprob: Callable[[str, str], float] | None = None
    capabilities: frozenset[Capability] = frozenset({"logprobs", "option_probabilities", "score", "seed"})
    faults: list[Exception] = field(default_factory=list)
    name: str = "scripted"
    context_window: int | None = None
    seconds: float = 0.002
    calls: list[tuple[str, list[Message]]] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    under_way_at_most: int = 0
    _under_way: int = 0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        self.patterns += [sampling.pattern] if sampling.pattern else []
        said = [self.reply(messages[0]["content"], messages[-1]["content"]) for _ in range(sampling.n)]
        completions = [one if isinstance(one, Completion) else Completion(one, "stop") for one in said]
        return Reply(tuple(completions), Tokens(7, 3 * sampling.n))

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

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        raise CapabilityMissing("scripted shows no hidden states")

    async def window(self) -> int | None:
        return self.context_window

    async def count(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    async def _begin(self, verb: str, messages: Sequence[Message]) -> None:
        self.calls.append((verb, list(messages)))
        self._under_way += 1
        self.under_way_at_most = max(self.under_way_at_most, self._under_way)
        await asyncio.sleep(self.seconds)
        self._under_way -= 1
        if self.faults:
            raise self.faults.pop(0)


def _other_words(text: str, again: bool) -> str:
    return f"other {text}"


@dataclass
class Reader(ScriptedChat):
    """A model for DENSE: what it does depends on the texts of the passages it is shown.

    `answer` gets a context's texts, `rephrasing` a text and whether it is asked for the second time, `sufficient` a
    context's texts.
    """

    answer: Callable[[Sequence[str]], str] = lambda texts: "the Lune"
    rephrasing: Callable[[str, bool], str | Completion] = _other_words
    sufficient: Callable[[Sequence[str]], bool] = lambda texts: True

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        assert sampling.temperature == 0
        assert sampling.n == 1
        if rephrases(messages):
            said = self.rephrasing(passages(messages)[0], len(messages) > 2)
        else:
            said = self.answer(titled(passages(messages)))
        completion = said if isinstance(said, Completion) else Completion(said, "stop")
        return Reply((completion,), Tokens(7, 3))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        await self._begin("choose", messages)
        yes = float(self.sufficient(titled(passages(messages))))
        return Choice(dict(zip(options, (yes, 1 - yes), strict=True)), Tokens(5, 1))

    @property
    def rephrased(self) -> list[str]:
        """The texts it was asked to rephrase."""
        return [passages(messages)[0] for verb, messages in self.calls if verb == "complete" and rephrases(messages)]

    @property
    def answered(self) -> list[list[str]]:
        """The contexts it was asked to answer from."""
        asked = [messages for verb, messages in self.calls if verb == "complete" and not rephrases(messages)]
        return [titled(passages(messages)) for messages in asked]

    @property
    def evaluated(self) -> list[list[str]]:
        """The contexts whose sufficiency it was asked for."""
        return [titled(passages(messages)) for verb, messages in self.calls if verb == "choose"]


def rephrases(messages: Sequence[Message]) -> bool:
    """Is this a prompt for a rephrasing?"""
    return messages[0] == rephrase.messages("")[0]


def passages(messages: Sequence[Message]) -> list[str]:
    """What stands between the marks of the passages of a prompt."""
    return re.findall(r"<passage[^>]*>\n(.*?)\n</passage>", messages[1]["content"], re.DOTALL)


def titled(bodies: Sequence[str]) -> list[str]:
    """The passages' texts, without the line of their titles."""
    return [body.split("\n", 1)[1] for body in bodies]


@dataclass
class ScriptedJudge:
    """An entailment judge: `entails` answers for an ordered pair of answers, None for what it could not say.

    Faults are raised first, one a call. `batches` are the pairs it was asked, call by call.
    """

    entails: Callable[[str, str], bool | None] = lambda one, other: False
    faults: list[Exception] = field(default_factory=list)
    name: str = "judge"
    batches: list[list[tuple[str, str]]] = field(default_factory=list)

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        self.batches.append(list(pairs))
        if self.faults:
            raise self.faults.pop(0)
        rows = {True: [0.45, 0.35, 0.2], False: [0.4, 0.5, 0.1], None: [np.nan] * 3}
        return np.array([rows[self.entails(one, other)] for one, other in pairs], dtype=np.float64).reshape(-1, 3)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Every pair it was asked."""
        return [pair for batch in self.batches for pair in batch]


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


def document(name: str) -> Chunk:
    """The document of that id, its title another word than its text."""
    return {"id": name, "doc_id": name, "title": f"T{name}", "text": name}


@dataclass
class ListedRetriever:
    """A first stage that finds what `found` lists for a query, in that order, and remembers what it was asked."""

    found: Callable[[str], Sequence[str]]
    asked: list[str] = field(default_factory=list)

    async def pool(self, query: str, top_n: int | None) -> Pool:
        self.asked.append(query)
        names = list(self.found(query))[:top_n]
        vectors = np.ones((len(names), 1), dtype=np.float32)
        return Pool(np.ones(1, dtype=np.float32), vectors, lambda row: document(names[row]))


@dataclass
class ScriptedReranker:
    """A re-ranker: `relevance` of a query and the name of a document; `asked` are its queries and documents."""

    relevance: Callable[[str, str], float]
    faults: list[Exception] = field(default_factory=list)
    name: str = "scripted re-ranker"
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        names = titled(texts)
        assert list(texts) == [f"T{name}\n{name}" for name in names]
        self.asked.append((query, names))
        if self.faults:
            raise self.faults.pop(0)
        return [self.relevance(query, name) for name in names]


@dataclass
class ScriptedGraph:
    """A document graph: `near` has the neighbours of some documents, nearest first."""

    near: Mapping[str, Sequence[str]]

    def neighbours(self, chunk_id: str) -> list[tuple[str, float]]:
        return [(other, 1.0 / (1 + place)) for place, other in enumerate(self.near.get(chunk_id, ()))]

    def chunk(self, chunk_id: str) -> Chunk:
        return document(chunk_id)


@dataclass
class Explorer(ScriptedChat):
    """A model for SUNAR. `asked` are the kinds of its calls: step, chain, sample, answer, reason.

    step: of the question, the hops' lines and whether it must answer, the reply; chain: of the question and the hops'
    lines, the reply; samples: of a query and the documents
    shown, the answers, repeated until there are as many as are asked for; answer: of the same, the answer; reason: of
    the question, the line of reasoning and the documents, the answer.
    """

    step: Callable[[str, Sequence[str], bool], str] = lambda question, lines, must: "Final answer: Ada"
    chain: Callable[[str, Sequence[str]], str] = lambda question, lines: "Final answer: Ada"
    samples: Callable[[str, Sequence[str]], Sequence[str]] = lambda query, names: ["same"]
    answer: Callable[[str, Sequence[str]], str] = lambda query, names: "found"
    reason: Callable[[str, str, Sequence[str]], str] = lambda question, line, names: "Ada"
    asked: list[str] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    shown: list[tuple[str, str, list[str]]] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        kind = self._kind(messages, sampling)
        self.asked.append(kind)
        await self._begin("complete", messages)
        self.patterns += [sampling.pattern] if sampling.pattern else []
        texts = [self._greedy(kind, messages)] if kind != "sample" else self._sampled(messages, sampling)
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, 3 * len(texts)))

    def of(self, kind: str) -> list[tuple[str, list[str]]]:
        """What calls of a kind were about, and the documents they were shown."""
        return [(query, names) for one, query, names in self.shown if one == kind]

    def _kind(self, messages: Sequence[Message], sampling: Sampling) -> str:
        if messages[0] == decompose.messages("", [])[0]:
            kind = "step"
        elif messages[0] == chain_of_query.messages("", [])[0]:
            kind = "chain"
        elif messages[0] == unparsed.meta_evidence("", [], "", [])[0]:
            kind = "reason"
        else:
            assert messages[0] in ASKING
            kind = "sample" if sampling.temperature > 0 else "answer"
        assert kind == "sample" or (sampling.n, sampling.temperature) == (1, 0.0)
        return kind

    def _greedy(self, kind: str, messages: Sequence[Message]) -> str:
        if kind in {"step", "chain"}:
            told = next(one["content"] for one in reversed(messages) if one["content"].startswith("Question: "))
            question, _, rest = told.partition("\n")
            lines = [line.removeprefix("- ") for line in rest.splitlines() if line.startswith("- ")]
            question = question.removeprefix("Question: ")
            self.shown.append((kind, question, lines))
            if kind == "chain":
                return self.chain(question, lines)
            return self.step(question, lines, "Give the final answer now" in told)
        query, names = self._question(messages)
        self.shown.append((kind, query, names))
        if kind == "answer":
            return self.answer(query, names)
        return self.reason(query, messages[1]["content"].partition("The line of reasoning\n")[2], names)

    def _sampled(self, messages: Sequence[Message], sampling: Sampling) -> list[str]:
        query, names = self._question(messages)
        self.shown.append(("sample", query, names))
        self.samplings.append(sampling)
        some = self.samples(query, names)
        return [some[number % len(some)] for number in range(sampling.n)]

    def _question(self, messages: Sequence[Message]) -> tuple[str, list[str]]:
        return messages[1]["content"].rpartition("in a few words: ")[2].strip(), titled(passages(messages))


@dataclass(frozen=True)
class Asked:
    """A call of a `Reasoner`.

    kind: step, end, whole or knows; shown: the documents; rationales: the sentences said so far; sampling: how it was
    to go on, null for a choice; read: whether it was to show its states.
    """

    kind: str
    question: str
    shown: tuple[str, ...]
    rationales: tuple[str, ...]
    sampling: Sampling | None
    read: bool = False

    @property
    def greedy(self) -> bool:
        """Is it asked for the one continuation that is used?"""
        return self.sampling is not None and self.sampling.temperature == 0 and not self.read


@dataclass
class Reasoner(ScriptedChat):
    """A model for SeaKR and its baselines: what it says depends on the documents shown and the sentences so far.

    step, whole, end: its greedy replies. uncertainty: of a kind, the documents and the sentences, the U that the
    estimator gram finds at α = 0.001; null where every sample is empty. sampled: the texts of samples whose states are
    not asked for, repeated until there are enough. unsure: how likely it finds that it does not know. energy: of every
    continuation.
    """

    step: Callable[[Sequence[str], Sequence[str]], str | Completion] = lambda shown, said: (
        "So the final answer is: Ada."
    )
    whole: Callable[[Sequence[str]], str | Completion] = lambda shown: "So the final answer is: Ada."
    end: Callable[[Sequence[str]], str | Completion] = lambda said: "Ada"
    uncertainty: Callable[[str, Sequence[str], Sequence[str]], float | None] = lambda kind, shown, said: -6.5
    sampled: Callable[[str, Sequence[str], Sequence[str]], Sequence[str | Completion]] = lambda kind, shown, said: ["x"]
    unsure: Callable[[Sequence[str], Sequence[str]], float] = lambda shown, said: 0.0
    energy: float = 0.0
    capabilities: frozenset[Capability] = frozenset(
        {"logprobs", "option_probabilities", "score", "seed", "hidden_states", "inner_states", "energy"}
    )
    asked: list[Asked] = field(default_factory=list)
    layers: list[int | None] = field(default_factory=list)
    quantities: list[tuple[str, str]] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        one = self._heard(messages, sampling)
        await self._begin("complete", messages)
        if sampling.temperature > 0:
            some = self.sampled(one.kind, one.shown, one.rationales)
            texts: list[str | Completion] = [some[number % len(some)] for number in range(sampling.n)]
        else:
            assert sampling.n == 1
            replies = {
                "step": lambda: self.step(one.shown, one.rationales),
                "whole": lambda: self.whole(one.shown),
                "end": lambda: self.end(one.rationales),
            }
            texts = [replies[one.kind]()]
        return Reply(tuple(spoken(text, sampling) for text in texts), Tokens(7, 3 * sampling.n))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        told = messages[1]["content"]
        said = tuple(re.findall(r"^- (.*)$", told, re.MULTILINE))
        question = re.findall(r"^Question: (.*)$", told, re.MULTILINE)[-1]
        one = Asked("knows", question, tuple(titled(passages(messages))), said, None)
        self.asked.append(one)
        await self._begin("choose", messages)
        assert tuple(options) == ("yes", "no")
        no = self.unsure(one.shown, one.rationales)
        return Choice({"yes": 1 - no, "no": no}, Tokens(5, 1))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        one = self._heard(messages, sampling, read=True)
        self.layers.append(place.layer)
        self.quantities.append((place.states, place.at))
        await self._begin("introspect", messages)
        wanted = self.uncertainty(one.kind, one.shown, one.rationales)
        text = "" if wanted is None else "a sample"
        reply = Reply(tuple(spoken(text, sampling) for _ in range(sampling.n)), Tokens(7, 3 * sampling.n))
        energies = (self.energy,) * sampling.n if "energy" in self.capabilities else None
        return Introspection(reply, alike(sampling.n, -6.5 if wanted is None else wanted), place.layer or 15, energies)

    def of(self, kind: str, *, read: bool = False) -> list[Asked]:
        """The calls of a kind, for text or for states."""
        return [one for one in self.asked if one.kind == kind and one.read == read]

    def _heard(self, messages: Sequence[Message], sampling: Sampling, *, read: bool = False) -> Asked:
        whole = messages[0] == reasoning.whole_messages("", [])[0]
        assert whole or messages[0] == reasoning.step_messages("", [], [])[0]
        begin = len(reasoning.whole_messages("", []) if whole else reasoning.step_messages("", [], [])) - 1
        own = messages[begin:]
        question, _, ask = own[0]["content"].rpartition("Question: ")[2].partition("\n")
        ends = ask == reasoning.LAST or own[-1]["content"] == reasoning.LAST
        assert ends or own[-1]["content"] == (own[0]["content"] if len(own) == 1 else reasoning.NEXT)
        shown = tuple(titled(re.findall(r"<passage[^>]*>\n(.*?)\n</passage>", own[0]["content"], re.DOTALL)))
        said = tuple(one["content"] for one in own if one["role"] == "assistant")
        kind = "whole" if whole else "end" if ends else "step"
        one = Asked(kind, question, shown, said, sampling, read)
        self.asked.append(one)
        return one


@dataclass
class Believer(ScriptedChat):
    """A model for SePer: `believes` gives its responses to a question from the documents shown, repeated until there
    are enough; texts are tokens of probability 1. `sampled` are the questions and documents it was asked about.
    """

    believes: Callable[[str, Sequence[str]], Sequence[str | Completion]] = lambda question, shown: ["Ada"]
    sampled: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        assert messages[0] in ASKING
        question = messages[1]["content"].rpartition("in a few words: ")[2]
        shown = titled(passages(messages))
        self.sampled.append((question, tuple(shown)))
        self.samplings.append(sampling)
        await self._begin("complete", messages)
        some = self.believes(question, shown)
        said = [spoken(some[number % len(some)], sampling) for number in range(sampling.n)]
        return Reply(tuple(said), Tokens(7, 3 * sampling.n))


def spoken(said: str | Completion, sampling: Sampling) -> Completion:
    """A continuation; each of its words is a token that is certain, where log-probabilities are asked for."""
    if isinstance(said, Completion):
        return said
    tokens = tuple(Token(part, 0.0) for part in re.findall(r"\s*\S+|\s+$", said)) if sampling.logprobs else ()
    return Completion(said, "stop", tokens)


def doubted(text: str, **probabilities: float) -> Completion:
    """A continuation that has a token for each word; those that are named have that probability, others 1."""
    parts = re.findall(r"\s*\S+", text)
    return Completion(
        text, "stop", tuple(Token(part, math.log(probabilities.get(part.strip(" .,:"), 1.0))) for part in parts)
    )


def alike(k: int, uncertainty: float, alpha: float = 1e-3) -> Vectors:
    """k equal hidden states s·[1, −1] whose U is as told: ((k − 1) log α + log(α + 2 k s²)) / k, at least log α."""
    s = math.sqrt((math.exp(k * uncertainty - (k - 1) * math.log(alpha)) - alpha) / (2 * k))
    return np.array([[s, -s]] * k, dtype=np.float32)


QUESTION = "Which river flows past the birthplace of the founder?"
PLAN = "1) Find the founder\n2) Find the birthplace"

# seven chunks around a question along the first axis: near-duplicates 0-4 close to it, 5 and 6 further away
CERTIFIED: dict[str, Any] = {
    "made_with": {"questions": "questions.jsonl"},
    "guarantee": "risk",
    "signal": "semantic entropy",
    "alpha": 0.2,
    "confidence": 0.9,
    "right": "exact",
    "n": 50,
    "answered": 30,
    "errors": 2,
    "failed": 0,
}
"""What a calibration file says of its questions, beside what it holds for."""

THE_CORPUS = "the scripted corpus"
"""By what a `KnownCorpus` is known again."""


class KnownCorpus(Resources):
    """Resources whose live retriever searches a corpus that is known again."""

    async def known_by(self, context: CorpusContext) -> str | None:
        """The same for every context."""
        return THE_CORPUS


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


async def walk(
    graph: Any, given: Any, context: Any = None, config: Any = None
) -> tuple[Any, list[str], list[list[str]]]:
    """The final state, the nodes that ran, step by step, and those of each run of a subgraph.

    A step is named by its nodes: `one`, `one*3` where it ran three times at once, `one+other` where both did. Every
    update of a node is seen to be plain JSON, but for a conversation's messages.
    """
    state: Any = None
    ran: dict[tuple[str, ...], dict[int, Counter[str]]] = {}
    modes = ["debug", "values"]
    stream = graph.astream(given, config, context=context, stream_mode=modes, subgraphs=True)
    async for namespace, mode, part in stream:
        if mode == "values" and not namespace:
            state = part
        elif mode == "debug" and part["type"] == "task_result":
            task = part["payload"]
            plain = {key: value for key, value in task["result"].items() if key != "messages"}
            assert json.loads(json.dumps(plain)) == plain
            ran.setdefault(namespace, {}).setdefault(part["step"], Counter())[task["name"]] += 1
    paths = {where: [_step(nodes) for _, nodes in sorted(steps.items())] for where, steps in ran.items()}
    return state, paths.pop((), []), list(paths.values())


def _step(nodes: Counter[str]) -> str:
    return "+".join(name if times == 1 else f"{name}*{times}" for name, times in sorted(nodes.items()))


AGREE, DIFFER = ("the Lune", "the Lune"), ("the Wyre", "the Ribble")
"""What two samples say."""


@dataclass
class Rungs(ScriptedChat):
    """Reasons to "the Lune" without passages, and answers "the Lune" from them; samples differ or agree by rung."""

    name: str = "embedded"
    alone: Sequence[str] = DIFFER
    with_passages: Sequence[str] = AGREE
    broken: bool = False
    sampled: list[str] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        text = messages[-1]["content"]
        if messages[0] == reasoning.step_messages("", [], [])[0]:
            if self.broken:
                raise ModelFault("http://x", "connection refused", attempts=3)
            return Reply((Completion("So the final answer is the Lune.", "stop"),), Tokens(7, 3))
        if not sampling.temperature:
            return Reply((Completion("the Lune", "stop"),), Tokens(7, 3))
        rung = "with" if "<passage" in text else "alone"
        self.sampled.append(rung)
        said = self.with_passages if rung == "with" else self.alone
        return Reply(tuple(Completion(one, "stop") for one in said), Tokens(7, 6))
