"""Answer metrics by the rules of SQuAD's official evaluation (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, without English articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the normalised prediction equals one of the normalised gold answers, else 0."""
    return float(any(squad_normalised(prediction) == squad_normalised(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the tokens shared with a gold answer, the best of them; in [0, 1]."""
    return max((_f1(squad_normalised(prediction).split(), squad_normalised(gold).split()) for gold in golds), default=0)


def _f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    shared = sum((Counter(prediction) & Counter(gold)).values())
    return 2 * shared / (len(prediction) + len(gold))
