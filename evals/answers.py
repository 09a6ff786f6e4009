"""Answer metrics: how far an answer says what the gold answers say, by a named standard (docs/metrics.md)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from ..errors import UserFault
from .abstention import abstains
from .questions import GoldQuestion

Standard = Literal["squad", "longbench"]
"""Both normalise alike; where nothing is left of an answer and of a gold one, F1 is 1 in SQuAD and 0 in LongBench."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


class Overlap(NamedTuple):
    """The shares of an answer's tokens that are in a gold one and the other way round, and their harmonic mean."""

    f1: float
    precision: float
    recall: float


def answer_scores(prediction: str, question: GoldQuestion, standard: Standard = "squad") -> dict[str, float]:
    """How good an answer is; each figure is in [0, 1], the best over the gold answers.

    exact_match, f1: see there; precision, recall: of the gold answer with the best F1, the first of equals;
    cover_em, accuracy, rouge_l: see `cover_em`, `accuracy` and `rouge_l`.
    Of a question without an answer all are 1 if the answer abstains, else 0 (SQuAD 2.0, Rajpurkar et al. 2018); of
    another one all are 0 if it abstains, unless it is a gold answer, as "none" can be.
    Raises `UserFault` for an unknown standard.
    """
    if standard not in get_args(Standard):
        raise UserFault(f"There is no standard '{standard}' for answers: use one of {', '.join(get_args(Standard))}.")
    golds = question.answers
    if not question.answerable:
        return dict.fromkeys(NAMES, float(abstains(prediction)))
    if not prediction.strip() or (abstains(prediction) and not exact_match(prediction, golds)):
        return dict.fromkeys(NAMES, 0.0)
    overlap = _best_overlap(prediction, golds, standard)
    return {
        "exact_match": exact_match(prediction, golds),
        "f1": overlap.f1,
        "precision": overlap.precision,
        "recall": overlap.recall,
        "cover_em": cover_em(prediction, golds),
        "accuracy": accuracy(prediction, question),
        "rouge_l": rouge_l(prediction, golds),
    }


NAMES = ("exact_match", "f1", "precision", "recall", "cover_em", "accuracy", "rouge_l")
"""What `answer_scores` tells."""


def squad_normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, without English articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the normalised prediction equals one of the normalised gold answers, else 0."""
    return float(any(squad_normalised(prediction) == squad_normalised(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the tokens shared with a gold answer, the best of them; in [0, 1]."""
    return _best_overlap(prediction, golds, "squad").f1


def cover_em(prediction: str, golds: Sequence[str]) -> float:
    """1 if the words of a gold answer stand together in the prediction, both normalised, else 0.

    A gold answer of which nothing is left is covered only by a prediction of which nothing is left either.
    """
    said = squad_normalised(prediction)
    normal = [squad_normalised(gold) for gold in golds]
    return float(any(f" {gold} " in f" {said} " for gold in normal))


def accuracy(prediction: str, question: GoldQuestion) -> float:
    """1 if the prediction is right, else 0.

    Of a yes_no question: if the first "yes" or "no" in it, as a word, is the gold one. Of others: `cover_em`, after
    Mallen et al. (2023), who call an answer right if a gold one is a part of it; here only whole words count.
    """
    if question.kind == "text":
        return cover_em(prediction, question.answers)
    said = _verdict(prediction)
    return float(said is not None and any(_verdict(gold) == said for gold in question.answers))


def rouge_l(prediction: str, golds: Sequence[str]) -> float:
    """F1 of the longest common subsequence of words with a gold answer (Lin 2004), the best of them; in [0, 1].

    Words are runs of letters and digits in lower case, articles included; they are not stemmed.
    """
    said = _WORD.findall(prediction.lower())
    return max((_rouge_l(said, _WORD.findall(gold.lower())) for gold in golds), default=0.0)


def _best_overlap(prediction: str, golds: Sequence[str], standard: Standard) -> Overlap:
    said = squad_normalised(prediction).split()
    overlaps = (_overlap(said, squad_normalised(gold).split(), standard) for gold in golds)
    return max(overlaps, key=lambda one: one.f1, default=_NONE)


def _overlap(prediction: Sequence[str], gold: Sequence[str], standard: Standard) -> Overlap:
    if standard == "squad" and not prediction and not gold:
        return Overlap(1.0, 1.0, 1.0)
    shared = sum((Counter(prediction) & Counter(gold)).values())
    if not shared:
        return _NONE
    return Overlap(2 * shared / (len(prediction) + len(gold)), shared / len(prediction), shared / len(gold))


_NONE = Overlap(0.0, 0.0, 0.0)


def _verdict(text: str) -> str | None:
    found = _VERDICT.search(text)
    return found[1].lower() if found else None


def _rouge_l(prediction: Sequence[str], gold: Sequence[str]) -> float:
    if not prediction or not gold:
        return 0.0
    return 2 * _longest_common(prediction, gold) / (len(prediction) + len(gold))


def _longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    above = [0] * (len(second) + 1)
    for word in first:
        row = [0]
        for column, other in enumerate(second):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        above = row
    return above[-1]
