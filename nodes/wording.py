"""From what a model writes to a step and its words, and from those to a query (SeaKR section 3.1)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from ..models.interfaces import Completion, Token
from ..retrieval.sentences import sentences
from ..retrieval.stop_words import stop_words
from ..state.reasoning import Word

_WORD = re.compile(r"\w+(?:['’.,&/-]\w+)*")
_LINE = re.compile(r"[^\n]+")
_LABEL = re.compile(r"\s*(?:(?:[-*•>]+|\d{1,2}[.)]|(?:next )?(?:step|sentence)(?: \d+)?:)\s+)*", re.IGNORECASE)


def first_sentence(text: str) -> tuple[int, int]:
    """Where the first sentence of a reply is, without a list mark or number before it; start = end if it has none.

    It ends with its line, as not every model stops there.
    """
    label = _LABEL.match(text)
    for line in _LINE.finditer(text, label.end() if label else 0):
        for first, last in sentences(line[0]):
            sentence = line[0][first:last]
            if _WORD.search(sentence):
                start = line.start() + first
                return start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip())
    return len(text), len(text)


def words_of(said: Completion, start: int, end: int) -> list[Word]:
    """The words of said.text[start:end], each with the lowest probability of a token that has a letter of it.

    Tokens and words need not begin or end together. The probabilities are null where the tokens are not told, or are
    not those of the text.
    """
    probabilities = _by_character(said)
    words: list[Word] = []
    for found in _WORD.finditer(said.text, start, end):
        lowest = min(probabilities[found.start() : found.end()], default=None) if probabilities else None
        words.append({"text": found[0], "probability": lowest})
    return words


def _by_character(said: Completion) -> list[float]:
    """For each character of the text the probability of its token; empty if that is not known."""
    at = "".join(token.text for token in said.tokens).find(said.text) if said.tokens else -1
    if at < 0:
        return []
    return [p for p, length in _spread(said.tokens) for _ in range(length)][at : at + len(said.text)]


def _spread(tokens: Sequence[Token]) -> Iterable[tuple[float, int]]:
    """Probability and length of each stretch of text; bytes without a text of their own count for what comes next."""
    waiting = 0.0
    for token in tokens:
        waiting = min(waiting, token.logprob)
        if token.text:
            yield math.exp(waiting), len(token.text)
            waiting = 0.0


def content_words(text: str) -> list[str]:
    """The words of a text that say what it is about, in order."""
    return [found[0] for found in _WORD.finditer(text) if found[0].lower() not in stop_words()]


def query_from(words: Sequence[Word], doubt: float, question: str, previous: str) -> str:
    """What to search for: the content words that the model is sure of (section 3.1).

    A word goes if its probability p has 1 - p > doubt, unless the question or the previous rationale has it. If none is
    left, the question's content words; if it has none, the question.
    """
    known = {found[0].lower() for text in (question, previous) for found in _WORD.finditer(text)}
    sure = [
        word["text"]
        for word in words
        if word["probability"] is None or 1 - word["probability"] <= doubt or word["text"].lower() in known
    ]
    return " ".join(content_words(" ".join(sure)) or content_words(question)) or question
