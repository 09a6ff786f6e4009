"""From a model's reply to a sentence and its words, and from the words to a query (SeaKR section 3.1)."""

import logging
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

from ..models.interfaces import Completion, Token
from ..retrieval.sentences import sentences
from ..state.reasoning import Word

_WORD = re.compile(r"\w+(?:['’.,&/-]\w+)*")
_FINAL_ANSWER = re.compile(r"\bfinal answers?\b", re.IGNORECASE)
_ANNOUNCING = frozenset({"answer", "so", "thus", "therefore"})
_LINE = re.compile(r"[^\n]+")
_LABEL = re.compile(r"\s*(?:(?:[-*•>]+|\d{1,2}[.)]|(?:next )?(?:step|sentence)(?: \d+)?:)\s+)*", re.IGNORECASE)


def first_sentence(text: str) -> tuple[int, int]:
    """Start and end of a reply's first sentence, without a list mark or number before it; equal if it has no sentence.

    A sentence ends at its line's end at the latest: not every model stops there.
    """
    label = _LABEL.match(text)
    for line in _LINE.finditer(text, label.end() if label else 0):
        for first, last in sentences(line[0]):
            sentence = line[0][first:last]
            if _WORD.search(sentence):
                start = line.start() + first
                return start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip())
    return len(text), len(text)


def words_of(completion: Completion, start: int, end: int) -> list[Word]:
    """The words of completion.text[start:end]; a word's probability is the lowest of the tokens that overlap it.

    All probabilities are null if the tokens are missing or do not spell the text.
    """
    probabilities = _by_character(completion)
    words: list[Word] = []
    for match in _WORD.finditer(completion.text, start, end):
        lowest = min(probabilities[match.start() : match.end()], default=None) if probabilities else None
        words.append({"text": match[0], "probability": lowest})
    return words


def tokens_before(completion: Completion, end: int) -> Sequence[Token]:
    """The tokens that overlap completion.text[:end]; all if they do not spell the text."""
    offset = _offset(completion)
    if offset < 0:
        return completion.tokens
    ends = list(accumulate(len(token.text) for token in completion.tokens))
    overlapping = zip(completion.tokens, [0, *ends], ends, strict=False)
    return [token for token, first, last in overlapping if first < offset + end and (first >= offset or last > offset)]


def _by_character(completion: Completion) -> list[float]:
    """For each character of the text the probability of its token; empty if the tokens do not spell the text."""
    offset = _offset(completion)
    if offset < 0:
        return []
    by_character = [p for p, length in _stretches(completion.tokens) for _ in range(length)]
    return by_character[offset : offset + len(completion.text)]


def _offset(completion: Completion) -> int:
    """Where the text begins among the characters of its tokens; -1 if they do not spell it."""
    return "".join(token.text for token in completion.tokens).find(completion.text) if completion.tokens else -1


def _stretches(tokens: Sequence[Token]) -> Iterable[tuple[float, int]]:
    """Probability and length of each token's text. A token without text is a byte of the next token's character."""
    lowest = 0.0
    for token in tokens:
        lowest = min(lowest, token.logprob)
        if token.text:
            yield math.exp(lowest), len(token.text)
            lowest = 0.0


@cache
def stop_words() -> frozenset[str]:
    """179 English stop words in lower case: NLTK's list, from bm25s."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS  # noqa: PLC0415 - a second of import

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return frozenset(STOPWORDS_EN_PLUS)


def content_words(text: str) -> list[str]:
    """The words of a text that are no stop words, in order, without those that announce an answer."""
    return [
        match[0]
        for match in _WORD.finditer(_FINAL_ANSWER.sub("", text))
        if match[0].lower() not in _ANNOUNCING | stop_words()
    ]


def query_from(words: Sequence[Word], max_uncertainty: float, question: str, spared: Sequence[str]) -> str:
    """The query of a step: its content words that the model is sure of (section 3.1).

    A word of probability p is dropped if 1 − p > max_uncertainty, unless it occurs in one of the texts `spared`: for
    SeaKR the question and the rationale before. If no word is left, the query is the question's content words; if it
    has none, the question.
    """
    certain = {match[0].lower() for text in spared for match in _WORD.finditer(text)}
    sure = [
        word["text"]
        for word in words
        if word["probability"] is None or 1 - word["probability"] <= max_uncertainty or word["text"].lower() in certain
    ]
    return " ".join(content_words(" ".join(sure)) or content_words(question)) or question
