"""A reference implementation of SeaKR: one loop over lists, without nodes and states.

It follows SeaKR's sections 3.1 to 3.4, not the graph's code, so that each checks the other. Model and search are
plain functions; white space separates words.

The paper leaves these points open; graph and reference settle them in the same way:

- A U that cannot be measured is null. It counts as above every threshold and loses against every other U.
- A step retrieves if U is above δ or if the draft is empty.
- A repeated query ends the loop; the current step is dropped.
- The search leaves out kept snippets; its next results take their places.
- On a tie of U the search's order decides. A snippet that leads to an empty step is never kept.
- If the search finds nothing new, the draft stands.
- A repeated step ends the loop. It is no rationale, and its U does not count.
- An unknown answer loses against a known one, an empty answer against any other; on a tie the rationales' answer wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STOP_WORDS = {"the", "is", "was", "in", "of", "so", "who"}
"""The stop words among the words of the tests' worlds."""

ENDING = "So the final answer is:"

UNKNOWN = {"unknown", "i do not know"}


@dataclass(frozen=True)
class Settings:
    """The settings of the loop, and its ablations."""

    threshold: float = -6.0
    snippets: int = 3
    max_docs: int = 3
    max_steps: int = 10
    word_uncertainty: float = 0.1
    simple: bool = False
    retrieves_by_uncertainty: bool = True
    ranks_by_uncertainty: bool = True
    reasoning: str = "self_aware"


@dataclass(frozen=True)
class World:
    """A model and a search.

    step: from documents and rationales to the next sentence, its words with their probabilities; uncertainty: its U.
    whole: from documents to the answer of one reply (null if it gives none), and its U.
    end: from rationales to the final answer. search: from a query to document ids, best first.
    """

    question: str
    step: Callable[[Sequence[str], Sequence[str]], list[tuple[str, float]]]
    uncertainty: Callable[[Sequence[str], Sequence[str]], float | None]
    whole: Callable[[Sequence[str]], tuple[str | None, float | None]]
    end: Callable[[Sequence[str]], str]
    search: Callable[[str], list[str]]


@dataclass
class Outcome:
    """The result. calls: the number of model calls, for text or for hidden states."""

    answer: str = ""
    strategy: str = ""
    stop_reason: str = ""
    rationales: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    uncertainties: list[float | None] = field(default_factory=list)
    tried: list[list[tuple[str, float | None]]] = field(default_factory=list)
    calls: int = 0


def seakr(world: World, chosen: Settings) -> Outcome:
    """Answer a question."""
    done = Outcome()
    most = min(chosen.max_docs, 1) if chosen.simple else chosen.max_docs
    steps = 0
    while True:
        words = world.step(done.kept, done.rationales)
        text = " ".join(word for word, _ in words)
        u = None
        done.calls += 1
        if chosen.retrieves_by_uncertainty:
            u = world.uncertainty(done.kept, done.rationales)
            done.calls += 1
        uncertain = not text or u is None or u > chosen.threshold
        if len(done.kept) < most and (uncertain or not chosen.retrieves_by_uncertainty):
            asked = query(
                words, chosen.word_uncertainty, world.question, done.rationales[-1] if done.rationales else ""
            )
            if asked in done.queries:
                done.stop_reason = "query_repeated"
                break
            done.queries.append(asked)
            snippets = [name for name in world.search(asked) if name not in done.kept][: chosen.snippets]
            tries = []
            for name in snippets if chosen.ranks_by_uncertainty else snippets[:1]:
                shown = [*done.kept, name]
                with_it = " ".join(word for word, _ in world.step(shown, done.rationales))
                tries.append((name, with_it, world.uncertainty(shown, done.rationales)))
                done.calls += 2
            done.tried.append([(name, its) for name, _, its in tries])
            usable = [attempt for attempt in tries if attempt[1]]
            if usable:
                measured = [attempt for attempt in usable if attempt[2] is not None]
                best = min(measured, key=lambda attempt: attempt[2] or 0.0) if measured else usable[0]
                done.kept.append(best[0])
                text, u = best[1], best[2]
        steps += 1
        if not text:
            done.stop_reason = "step_empty"
            break
        if text.startswith(ENDING):
            done.stop_reason = "answered"
        elif plain(text) in [plain(rationale) for rationale in done.rationales]:
            done.stop_reason = "step_repeated"
            break
        done.rationales.append(text)
        done.uncertainties.append(u)
        if not done.stop_reason and len(done.kept) >= most > 0:
            done.stop_reason = "max_docs"
        elif not done.stop_reason and steps >= chosen.max_steps:
            done.stop_reason = "max_steps"
        if done.stop_reason:
            break
    conclude(world, chosen, done)
    return done


def conclude(world: World, chosen: Settings, done: Outcome) -> None:
    """The better of the two answers, or the only one."""
    answers = []
    by_knowledge = done.kept and (
        chosen.reasoning == "knowledge" or (chosen.reasoning == "self_aware" and chosen.simple)
    )
    if not by_knowledge:
        measured = [u for u in done.uncertainties if u is not None]
        mean = math.fsum(measured) / len(measured) if measured else None
        last = done.rationales[-1] if done.rationales else ""
        answer = bare(last.removeprefix(ENDING)) if last.startswith(ENDING) else ""
        if not answer:
            answer = world.end(done.rationales)
            done.calls += 1
        answers.append(("rationales", answer, mean))
    if done.kept and chosen.reasoning != "rationales" and (by_knowledge or chosen.reasoning == "self_aware"):
        said, u = world.whole(done.kept)
        done.calls += 2
        if not said:
            said = world.end(["nothing in the end" if said is None else f"Ada left. {ENDING}"])
            done.calls += 1
        answers.append(("knowledge", said, u))
    done.strategy, done.answer, _ = answers[0] if len(answers) == 1 or not loses(*answers) else answers[1]


def loses(rationales: tuple[str, str, float | None], knowledge: tuple[str, str, float | None]) -> bool:
    """Is the rationales' answer the worse one?"""
    worth = [0 if not answer else 1 if plain(answer) in UNKNOWN else 2 for _, answer, _ in (rationales, knowledge)]
    if worth[0] != worth[1]:
        return worth[0] < worth[1]
    if knowledge[2] is None:
        return False
    return rationales[2] is None or knowledge[2] < rationales[2]


def query(words: Sequence[tuple[str, float]], max_uncertainty: float, question: str, previous: str) -> str:
    """What to search for."""
    known = {bare(word).lower() for word in (*question.split(), *previous.split())}
    sure = [bare(word) for word, p in words if not 1 - p > max_uncertainty or bare(word).lower() in known]
    for words_left in (sure, [bare(word) for word in question.split()]):
        content = [word for word in words_left if word.lower() not in STOP_WORDS]
        if content:
            return " ".join(content)
    return question


def bare(word: str) -> str:
    """A word without the marks around it."""
    return word.strip(" .,:?")


def plain(text: str) -> str:
    """A sentence without marks, case and articles."""
    return " ".join(bare(word).lower() for word in text.split() if bare(word).lower() not in {"the", "a", "an"})
