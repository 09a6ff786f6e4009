"""A reference implementation of SeaKR: one loop over lists, without nodes and states.

It follows SeaKR's sections 3.1 to 3.4, not the graph's code, so that each checks the other. Model and search are
plain functions; white space separates words.

The paper leaves these points open; graph and reference settle them in the same way:

- A U that cannot be measured is null. It counts as above every threshold and loses against every other U.
- A draft that states the final answer ends the loop; nothing is looked up for it (the authors' order). Else a step
  retrieves if U is above δ or if the draft is empty.
- A repeated query ends the loop; the current step is dropped.
- The search leaves out kept snippets; its next results take their places.
- On a tie of U the search's order decides. A snippet that leads to an empty step is never kept.
- If the search finds nothing new, the draft stands.
- A repeated step ends the loop. It is no rationale, and its U does not count.
- Where every step retrieves, U of a draft is measured once it is the step. The mean with an unknown U is unknown.
- An unknown answer loses against a known one, an empty answer against any other; on a tie the rationales' answer wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STOP_WORDS = {"the", "is", "was", "in", "of", "so", "who"}
"""The stop words among the words of the tests' worlds."""

ENDING = "So the final answer is:"

ANNOUNCING = {"answer", "so", "thus", "therefore"}
"""Words that never enter a query."""

UNKNOWN = {"unknown", "it is unknown", "cannot be determined"}


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
    stops_with_nothing_new: bool = False
    skips_kept: bool = False
    measures_anew: bool = False
    always_from_knowledge: bool = False
    one_pass: bool = False


@dataclass(frozen=True)
class World:
    """A model and a search.

    step: from documents and rationales to the next sentence, its words with their probabilities; uncertainty: its U.
    whole: from documents to the answer of one reply (null if it gives none), and its U.
    end: from rationales to the final answer; end_uncertainty: its U. search: from a query to document ids, best first.
    """

    question: str
    step: Callable[[Sequence[str], Sequence[str]], list[tuple[str, float]]]
    uncertainty: Callable[[Sequence[str], Sequence[str]], float | None]
    whole: Callable[[Sequence[str]], tuple[str | None, float | None]]
    end: Callable[[Sequence[str]], str]
    end_uncertainty: Callable[[Sequence[str]], float | None]
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


def seakr(world: World, chosen: Settings) -> Outcome:  # noqa: PLR0912 - a straight line
    """Answer a question."""
    if chosen.one_pass:
        return in_one_pass(world, chosen)
    done = Outcome()
    most = min(chosen.max_docs, 1) if chosen.simple else chosen.max_docs
    steps = 0
    while True:
        words = world.step(done.kept, done.rationales)
        text = " ".join(word for word, _ in words)
        u = None
        done.calls += 1
        may_look = stated(text) is None and len(done.kept) < most
        if chosen.retrieves_by_uncertainty or not may_look:
            u = world.uncertainty(done.kept, done.rationales)
            done.calls += 1
        uncertain = not text or u is None or u > chosen.threshold
        if may_look and (uncertain or not chosen.retrieves_by_uncertainty):
            asked = query(
                words, chosen.word_uncertainty, world.question, done.rationales[-1] if done.rationales else ""
            )
            if asked in done.queries:
                done.stop_reason = "query_repeated"
                break
            done.queries.append(asked)
            found = world.search(asked)
            if chosen.skips_kept:
                found = found[: chosen.snippets]
            snippets = [name for name in found if name not in done.kept][: chosen.snippets]
            if not snippets and chosen.stops_with_nothing_new:
                done.stop_reason = "nothing_new"
                break
            tries = []
            for name in snippets if chosen.ranks_by_uncertainty else snippets[:1]:
                shown = [*done.kept, name]
                with_it = " ".join(word for word, _ in world.step(shown, done.rationales))
                tries.append((name, with_it, world.uncertainty(shown, done.rationales)))
                done.calls += 2
            done.tried.append([(name, its) for name, _, its in tries])
            usable = [attempt for attempt in tries if attempt[1]]
            if usable:
                best = least_uncertain(usable)
                done.kept.append(best[0])
                text, u = best[1], best[2]
            elif text and not chosen.retrieves_by_uncertainty:
                u = world.uncertainty(done.kept, done.rationales)
                done.calls += 2
        steps += 1
        if not text:
            done.stop_reason = "step_empty"
            break
        if stated(text) is not None:
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


def least_uncertain(tries: Sequence[tuple[str, str, float | None]]) -> tuple[str, str, float | None]:
    """The attempt with the lowest U, the first of equals; the first one if no U is known."""
    measured = [attempt for attempt in tries if attempt[2] is not None]
    return min(measured, key=lambda attempt: attempt[2] or 0.0) if measured else tries[0]


def in_one_pass(world: World, chosen: Settings) -> Outcome:
    """The authors' code for simple questions: one whole reasoning, or the least uncertain of those with a snippet."""
    done = Outcome(strategy="rationales", calls=1)
    answer, u = world.whole([])
    drafted = u
    if chosen.retrieves_by_uncertainty or not chosen.max_docs:
        done.calls += 1
    else:
        u = None
    if chosen.max_docs and (not chosen.retrieves_by_uncertainty or u is None or u > chosen.threshold):
        done.queries.append(world.question)
        snippets = world.search(world.question)[: chosen.snippets]
        if not snippets and chosen.stops_with_nothing_new:
            done.stop_reason, done.answer = "nothing_new", world.end([])
            done.calls += 1
            return done
        tries = [(name, "", world.whole([name])[1]) for name in snippets[: None if chosen.ranks_by_uncertainty else 1]]
        done.calls += 2 * len(tries)
        done.tried.append([(name, its) for name, _, its in tries])
        if tries:
            name, _, u = least_uncertain(tries)
            done.kept.append(name)
            answer = world.whole([name])[0]
        elif not chosen.retrieves_by_uncertainty:
            u = drafted
            done.calls += 2
    done.stop_reason = "answered" if answer is not None else "max_docs" if done.kept else "max_steps"
    done.rationales, done.uncertainties = [text_of(answer)], [u]
    done.answer = answer or world.end(done.rationales)
    done.calls += not answer
    return done


def text_of(answer: str | None) -> str:
    """The whole reasoning that gives this answer."""
    return "nothing in the end" if answer is None else f"Ada left. {ENDING} {answer}".strip()


def conclude(world: World, chosen: Settings, done: Outcome) -> None:
    """The better of the two answers, or the only one."""
    answers = []
    has_ending = bool(done.kept) or chosen.always_from_knowledge
    by_knowledge = has_ending and (
        chosen.reasoning == "knowledge" or (chosen.reasoning == "self_aware" and chosen.simple and bool(done.kept))
    )
    if not by_knowledge and chosen.measures_anew:
        left = done.rationales
        if left and stated(left[-1]) is not None:
            left = left[:-1]
        answers.append(("rationales", world.end(left), world.end_uncertainty(left)))
        done.calls += 2
    elif not by_knowledge:
        measured = [u for u in done.uncertainties if u is not None]
        mean = math.fsum(measured) / len(measured) if measured and None not in done.uncertainties else None
        answer = stated(done.rationales[-1]) if done.rationales else None
        if not answer:
            answer = world.end(done.rationales)
            done.calls += 1
        answers.append(("rationales", answer, mean))
    if has_ending and chosen.reasoning != "rationales" and (by_knowledge or chosen.reasoning == "self_aware"):
        said, u = world.whole(done.kept)
        done.calls += 2
        if not said:
            said = world.end([text_of(said)])
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


def stated(text: str) -> str | None:
    """The final answer in a step; None if it states none."""
    for opening in (ENDING, "So the answer is:", "The answer is"):
        if text.startswith(opening):
            return bare(text.removeprefix(opening))
    return text.removesuffix(" is the answer.") if text.endswith(" is the answer.") else None


def query(words: Sequence[tuple[str, float]], max_uncertainty: float, question: str, previous: str) -> str:
    """What to search for."""
    known = {bare(word).lower() for word in (*question.split(), *previous.split())}
    sure = [bare(word) for word, p in words if not 1 - p > max_uncertainty or bare(word).lower() in known]
    for words_left in (sure, [bare(word) for word in question.split()]):
        content = [word for word in words_left if word.lower() not in STOP_WORDS | ANNOUNCING]
        if content:
            return " ".join(content)
    return question


def bare(word: str) -> str:
    """A word without the marks around it."""
    return word.strip(" .,:?")


def plain(text: str) -> str:
    """A sentence without marks, case and articles."""
    return " ".join(bare(word).lower() for word in text.split() if bare(word).lower() not in {"the", "a", "an"})
