"""SeaKR in a straight line: one loop over lists, no nodes and no states.

Written from what SeaKR (sections 3.1 to 3.4) says, not from the graph's code, so that the two can check each other.
What is asked of the model and of the search are plain functions; words are what white space separates.

Readings the paper leaves open, settled the same way for both:

- U that cannot be measured (null here) counts as above every threshold, and below no other.
- A step is retrieved for where U is above δ, or where there is no text at all.
- What was searched for before ends the loop, and the step under way is dropped.
- Snippets that are kept already are passed over; the next ones of the search take their places.
- Of snippets with equal U the one that the search ranks higher wins; one with which nothing is written only if all are.
- Where the search finds nothing new, the step stands as it was written without.
- A step that says what an earlier one said ends the loop and is no part of the rationales, nor of their mean U.
- An answer that is empty loses, one that only says so loses too, unless the other is empty; of equals the rationales'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STOP_WORDS = {"the", "is", "was", "in", "of", "so", "who"}
"""Those of the words of the tests' worlds that say nothing."""

ENDING = "So the final answer is:"

UNKNOWN = {"unknown", "i do not know"}


@dataclass(frozen=True)
class Settings:
    """The numbers of the loop, and its ablations."""

    threshold: float = -6.0
    snippets: int = 3
    max_docs: int = 3
    max_steps: int = 10
    doubt: float = 0.1
    simple: bool = False
    retrieves_by_uncertainty: bool = True
    ranks_by_uncertainty: bool = True
    reasoning: str = "self_aware"


@dataclass(frozen=True)
class World:
    """A model and a search.

    step: of the documents shown and the sentences so far, the next sentence as words and their probabilities;
    uncertainty: U of that; whole: of the documents, an answer (null: none was given) from one reply, and U of that;
    end: the answer that sentences lead to; search: the ids that a query finds, best first.
    """

    question: str
    step: Callable[[Sequence[str], Sequence[str]], list[tuple[str, float]]]
    uncertainty: Callable[[Sequence[str], Sequence[str]], float | None]
    whole: Callable[[Sequence[str]], tuple[str | None, float | None]]
    end: Callable[[Sequence[str]], str]
    search: Callable[[str], list[str]]


@dataclass
class Outcome:
    """What came of it; calls: how often the model was asked, for text or for its states."""

    answer: str = ""
    strategy: str = ""
    ended: str = ""
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
        doubtful = not text or u is None or u > chosen.threshold
        if len(done.kept) < most and (doubtful or not chosen.retrieves_by_uncertainty):
            asked = query(words, chosen.doubt, world.question, done.rationales[-1] if done.rationales else "")
            if asked in done.queries:
                done.ended = "query_repeated"
                break
            done.queries.append(asked)
            found = [one for one in world.search(asked) if one not in done.kept][: chosen.snippets]
            tries = []
            for one in found if chosen.ranks_by_uncertainty else found[:1]:
                shown = [*done.kept, one]
                with_it = " ".join(word for word, _ in world.step(shown, done.rationales))
                tries.append((one, with_it, world.uncertainty(shown, done.rationales)))
                done.calls += 2
            done.tried.append([(one, its) for one, _, its in tries])
            usable = [one for one in tries if one[1]]
            if usable:
                measured = [one for one in usable if one[2] is not None]
                best = min(measured, key=lambda one: one[2] or 0.0) if measured else usable[0]
                done.kept.append(best[0])
                text, u = best[1], best[2]
        steps += 1
        if not text:
            done.ended = "nothing_found"
            break
        if text.startswith(ENDING):
            done.ended = "answered"
        elif plain(text) in [plain(one) for one in done.rationales]:
            done.ended = "repeated"
            break
        done.rationales.append(text)
        done.uncertainties.append(u)
        if not done.ended and len(done.kept) >= most > 0:
            done.ended = "max_docs"
        elif not done.ended and steps >= chosen.max_steps:
            done.ended = "max_steps"
        if done.ended:
            break
    conclude(world, chosen, done)
    return done


def conclude(world: World, chosen: Settings, done: Outcome) -> None:
    """The better of two answers, or the only one."""
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


def query(words: Sequence[tuple[str, float]], doubt: float, question: str, previous: str) -> str:
    """What to search for."""
    known = {bare(word).lower() for word in (*question.split(), *previous.split())}
    sure = [bare(word) for word, p in words if not 1 - p > doubt or bare(word).lower() in known]
    for some in (sure, [bare(word) for word in question.split()]):
        telling = [word for word in some if word.lower() not in STOP_WORDS]
        if telling:
            return " ".join(telling)
    return question


def bare(word: str) -> str:
    """A word without the marks around it."""
    return word.strip(" .,:?")


def plain(text: str) -> str:
    """A sentence without marks, case and articles."""
    return " ".join(bare(word).lower() for word in text.split() if bare(word).lower() not in {"the", "a", "an"})
