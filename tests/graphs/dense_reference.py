"""A reference implementation of DENSE and DENSE-RAG, written from the paper without the package's code.

A world holds the model's responses, rephrasings and self-evaluations, and the judge's entailments. A context is a tuple
of rows of a chunking.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class World:
    """What the algorithm asks of models and retriever.

    `rephrase` gives None if the model fails; `entails` gets two answers in their plain form (`plain`); `sufficient`
    gets the context's texts. Vectors have length 1; chunks are ranked by their cosine to the question.
    """

    answer: Callable[[Sequence[str]], str]
    rephrase: Callable[[str], str | None]
    entails: Callable[[str, str], bool]
    sufficient: Callable[[Sequence[str]], bool]
    question: np.ndarray
    fixed: Chunking
    semantic: Chunking


@dataclass
class Chunking:
    """Texts [n] and vectors [n, d] of one way to cut the corpus."""

    texts: list[str]
    vectors: np.ndarray


@dataclass
class Options:
    k: int = 5
    dse_threshold: float = 0.2
    adaptive: bool = True
    refinement: str = "full"
    self_evaluation: bool = True
    refill_near: str = "necessary"
    half_links: str = "necessary"
    accept: str = "both"
    max_rounds: int = 5
    max_chunks: int | None = None


@dataclass
class Measurement:
    """r_0..r_k, W [k+1, k+1], DSE, which chunks are certain, which could be rephrased at all."""

    answers: list[str]
    links: list[list[float]]
    dse: float
    certain: list[bool]
    probed: list[bool]

    @property
    def counts(self) -> bool:
        """Is there an answer, and could at least one chunk be rephrased?"""
        return bool(self.answers[0].strip()) and any(self.probed)


@dataclass
class Round:
    context: tuple[int, ...]
    measured: Measurement
    sufficient: bool | None = None
    classes: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    answer: str
    evidence: list[str]
    stop: str
    first: Measurement
    rounds: list[Round]
    best: int | None


def plain(answer: str) -> str:
    """The answer without case, articles, punctuation and needless white space."""
    kept = "".join(" " if letter in string.punctuation else letter for letter in answer.lower())
    return " ".join(word for word in kept.split() if word not in {"a", "an", "the"})


def link(world: World, a: str, b: str) -> float:
    """The mean of both directions of entailment: 0, 0.5 or 1."""
    a, b = plain(a), plain(b)
    if a == b:
        return 1.0
    if not a or not b:
        return 0.0
    return (float(world.entails(a, b)) + float(world.entails(b, a))) / 2


def dse(links: Sequence[Sequence[float]]) -> float:
    """Equation 6: minus the mean logarithm of the mean link of each answer."""
    n = len(links)
    return -sum(math.log(sum(row) / n) for row in links) / n


def dense(world: World, texts: Sequence[str]) -> Measurement:
    """Algorithm 1 with r_0 in the set."""
    rephrased = [world.rephrase(text) for text in texts]
    answers = [world.answer(list(texts))]
    for i, rephrasing in enumerate(rephrased):
        if rephrasing is None:
            answers.append(answers[0])
        else:
            answers.append(world.answer([*texts[:i], rephrasing, *texts[i + 1 :]]))
    links = [[link(world, a, b) for b in answers] for a in answers]
    certain = [links[i + 1][0] == 1 for i in range(len(texts))]
    return Measurement(answers, links, dse(links), certain, [rephrasing is not None for rephrasing in rephrased])


def top(world: World, chunking: Chunking, k: int) -> tuple[int, ...]:
    """The k rows nearest to the question, ties by row."""
    similarity = [float(vector @ world.question) for vector in chunking.vectors]
    return tuple(sorted(range(len(similarity)), key=lambda row: (-similarity[row], row))[:k])


def is_certain(measured: Measurement, options: Options) -> bool:
    """Section 5: at most the threshold, if the measurement counts."""
    return measured.dse <= options.dse_threshold and measured.counts


def is_low(measured: Measurement, options: Options) -> bool:
    """Algorithm 3, line 13: below the threshold, if the measurement counts."""
    return measured.dse < options.dse_threshold and measured.counts


def is_better(new: Round, kept: Round) -> bool:
    """Algorithm 3, lines 7-8; a measurement that does not count is no minimum, and no answer is worse than any."""
    if bool(new.measured.answers[0].strip()) != bool(kept.measured.answers[0].strip()):
        return bool(new.measured.answers[0].strip())
    if new.measured.counts != kept.measured.counts:
        return new.measured.counts
    return new.measured.dse < kept.measured.dse and (not kept.sufficient or bool(new.sufficient))


def after_measuring(rounds: list[Round], best: int, all_visited: bool, options: Options) -> tuple[str | None, int]:
    """The reason to stop, if there is one, and the round whose answer is the best."""
    now, kept = rounds[-1], rounds[best]
    if options.refinement == "off":
        return ("certain" if is_certain(now.measured, options) else "not_refined"), best
    if options.accept == "either" and options.self_evaluation:
        if is_low(now.measured, options) or (now.sufficient and now.measured.answers[0]):
            return "accepted", len(rounds) - 1
    elif is_low(kept.measured, options) and (kept.sufficient or not options.self_evaluation):
        return "accepted", best
    if all_visited:
        return "all_visited", best
    return ("max_rounds" if len(rounds) > options.max_rounds else None), best


def classify(world: World, chunking: Chunking, done: Round, options: Options) -> list[str]:
    """Equations 8-10: certain, necessary or unnecessary for each chunk of the context."""
    classes = []
    for i in range(len(done.context)):
        if done.measured.certain[i]:
            classes.append("certain")
            continue
        without = [chunking.texts[row] for j, row in enumerate(done.context) if j != i]
        survives = link(world, done.measured.answers[0], world.answer(without))
        if survives == 1 or (survives == 0.5 and options.half_links == "unnecessary"):
            classes.append("unnecessary")
        else:
            classes.append("necessary")
    return classes


def refine(chunking: Chunking, done: Round, visited: set[int], options: Options) -> tuple[int, ...]:
    """Algorithm 3, lines 28-38: drop the unnecessary chunks, add an unvisited neighbour of each necessary one."""
    paired = list(zip(done.context, done.classes, strict=True))
    context = [row for row, kind in paired if kind != "unnecessary"]
    if options.refinement == "prune":
        return tuple(context)
    free = [row for row in range(len(chunking.texts)) if row not in visited]
    for row, kind in paired:
        if kind != options.refill_near or not free:
            continue
        if options.max_chunks is not None and len(context) >= options.max_chunks:
            break
        near = {other: float(chunking.vectors[other] @ chunking.vectors[row]) for other in free}
        best = min(free, key=lambda other: (-near[other], other))
        context.append(best)
        free.remove(best)
    return tuple(context)


def dense_rag(world: World, options: Options) -> Outcome:
    """Section 5 and Algorithm 3."""
    chunking = world.fixed
    context = top(world, chunking, options.k)
    first = dense(world, [chunking.texts[row] for row in context])
    if is_certain(first, options):
        return Outcome(first.answers[0], [chunking.texts[row] for row in context], "certain", first, [], None)
    if options.adaptive:
        chunking = world.semantic
        context = top(world, chunking, options.k)

    rounds: list[Round] = []
    visited: set[int] = set()
    best, stop = 0, None
    while stop is None:
        texts = [chunking.texts[row] for row in context]
        now = Round(context, dense(world, texts))
        rounds.append(now)
        visited |= set(context)
        if options.self_evaluation and options.refinement != "off":
            now.sufficient = world.sufficient(texts)
        if is_better(now, rounds[best]):
            best = len(rounds) - 1
        stop, best = after_measuring(rounds, best, len(visited) == len(chunking.texts), options)
        if stop is None:
            now.classes = classify(world, chunking, now, options)
            context = refine(chunking, now, visited, options)
            stop = {(): "nothing_left", now.context: "unchanged"}.get(context)
    kept = rounds[best]
    evidence = [chunking.texts[row] for row in kept.context]
    return Outcome(kept.measured.answers[0], evidence, stop, first, rounds, best)
