"""What a judge is asked of the answers to a question, and what it says: distinct wordings, each direction once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.answer_text import normalised
from ..models.interfaces import LABELS, Judge

Row = NDArray[np.float64]
"""The probabilities of `LABELS`, [3]; NaN where the judge could not say."""

Relation = Callable[[str, str], Row]
"""What is said of an ordered pair of answers."""

_SAME: Row = np.array([label == "entailment" for label in LABELS], dtype=np.float64)
_NOTHING: Row = np.array([label == "neutral" for label in LABELS], dtype=np.float64)


class Pairs:
    """Ordered pairs of answers, without those that need no judge.

    Answers that are equal but for case, articles, punctuation and white space entail each other for certain; an empty
    one entails, and is entailed by, no other. `asked` is what is left, each two wordings once a direction.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """pairs: any, equal ones too."""
        self._forms = {text: normalised(text) for pair in pairs for text in pair}
        # one wording for each form, the first
        spoken = {form: text for text, form in reversed(self._forms.items()) if form}
        self._distinct = list(dict.fromkeys(form for pair in pairs if _differ(*(form := self._form(pair)))))
        self.asked = [(spoken[one], spoken[other]) for one, other in self._distinct]

    def read(self, said: Sequence[Row]) -> Relation:
        """What is said of each of the pairs, from a row for each that was asked."""
        rows = dict(zip(self._distinct, said, strict=True))

        def relation(one: str, other: str) -> Row:
            forms = self._form((one, other))
            if forms[0] == forms[1]:
                return _SAME
            return rows[forms] if _differ(*forms) else _NOTHING

        return relation

    def _form(self, pair: tuple[str, str]) -> tuple[str, str]:
        return self._forms[pair[0]], self._forms[pair[1]]


async def relations_of(judge: Judge, question: str, wanted: Sequence[Pairs]) -> list[Relation]:
    """What a judge says of each of these, in one call; a pair that several ask for is judged once."""
    asked = list(dict.fromkeys(pair for pairs in wanted for pair in pairs.asked))
    said = dict(zip(asked, await judge.judge(question, asked) if asked else [], strict=True))
    return [pairs.read([said[pair] for pair in pairs.asked]) for pairs in wanted]


def is_said(row: Row) -> bool:
    """Could the judge say?"""
    return bool(np.isfinite(row).all())


def label_of(row: Row) -> str | None:
    """The likeliest label, the first of equals; None where the judge could not say."""
    return LABELS[int(row.argmax())] if is_said(row) else None


def _differ(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one != other
