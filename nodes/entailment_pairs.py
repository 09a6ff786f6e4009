"""The entailment of pairs of answers: which pairs go to the judge, and how its labels are read."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.interfaces import LABELS, Judge
from ..state.answer_text import normalised

LabelProbabilities = NDArray[np.float64]
"""The probabilities of `LABELS`, [3]; NaN if the judge could not label the pair."""

PairProbabilities = Callable[[str, str], LabelProbabilities]
"""Maps an ordered pair of answers to its label probabilities."""

_ENTAILMENT: LabelProbabilities = np.array([label == "entailment" for label in LABELS], dtype=np.float64)
_NEUTRAL: LabelProbabilities = np.array([label == "neutral" for label in LABELS], dtype=np.float64)


class AnswerPairs:
    """Ordered pairs of answers.

    `to_judge` lists the pairs that need a judge, each distinct pair once. Answers that differ only in case, articles,
    punctuation and white space entail each other. An empty answer is neutral to every other answer.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        """pairs: any ordered pairs of answers, also repeated or equal ones."""
        self._forms = {answer: normalised(answer) for pair in pairs for answer in pair}
        first_answer = {form: answer for answer, form in reversed(self._forms.items()) if form}
        self._distinct = list(dict.fromkeys(forms for pair in pairs if _needs_judge(*(forms := self._form(pair)))))
        self.to_judge = [(first_answer[a], first_answer[b]) for a, b in self._distinct]

    def read(self, judged: Sequence[LabelProbabilities]) -> PairProbabilities:
        """The label probabilities of all pairs, from those of `to_judge`."""
        by_forms = dict(zip(self._distinct, judged, strict=True))

        def probabilities(a: str, b: str) -> LabelProbabilities:
            forms = self._form((a, b))
            if forms[0] == forms[1]:
                return _ENTAILMENT
            return by_forms[forms] if _needs_judge(*forms) else _NEUTRAL

        return probabilities

    def _form(self, pair: tuple[str, str]) -> tuple[str, str]:
        return self._forms[pair[0]], self._forms[pair[1]]


async def judge_pairs(judge: Judge, question: str, groups: Sequence[AnswerPairs]) -> list[PairProbabilities]:
    """The label probabilities of each group of pairs, in one call; a pair in several groups is judged once."""
    pairs = list(dict.fromkeys(pair for group in groups for pair in group.to_judge))
    judged = dict(zip(pairs, await judge.judge(question, pairs) if pairs else [], strict=True))
    return [group.read([judged[pair] for pair in group.to_judge]) for group in groups]


def is_judged(probabilities: LabelProbabilities) -> bool:
    """Could the judge label the pair?"""
    return bool(np.isfinite(probabilities).all())


def likeliest_label(probabilities: LabelProbabilities) -> str | None:
    """The likeliest label, the first of equals; None if the judge could not label the pair."""
    return LABELS[int(probabilities.argmax())] if is_judged(probabilities) else None


def _needs_judge(a: str, b: str) -> bool:
    return bool(a) and bool(b) and a != b
