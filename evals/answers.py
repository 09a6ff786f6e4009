"""Answer metrics: how well an answer matches the gold answers, by a named standard (docs/metrics.md)."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from ..errors import UserFault
from ..state.abstention import abstains
from .questions import GoldQuestion

Standard = Literal["squad", "longbench"]
"""Both normalise alike. If nothing is left of both answer and gold answer, F1 is 1 in SQuAD and 0 in LongBench."""

MEASURED = {"correctness": "llm-judge", "bertscore": "bertscore:model=NAME"}
"""Metrics that a model measures of a run's answers, so that a rule can read them there only, and what `--metric` is."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


class Overlap(NamedTuple):
    """precision: share of the answer's tokens in the gold answer; recall: the reverse; f1: their harmonic mean."""

    f1: float
    precision: float
    recall: float


def answer_scores(prediction: str, question: GoldQuestion, standard: Standard = "squad") -> dict[str, float]:
    """The scores of an answer, each in [0, 1] and the best over the gold answers.

    exact_match, f1, cover_em, accuracy, rouge_l, bleu: see the functions; precision, recall: of the first gold answer
    with the best F1.
    For an unanswerable question, all scores are 1 if the answer abstains and 0 if it does not (SQuAD 2.0, Rajpurkar et
    al. 2018). For an answerable question, abstaining scores 0, unless the text is a gold answer, as "none" can be.
    Raises `UserFault` for an unknown standard.
    """
    if standard not in get_args(Standard):
        raise UserFault(f"There is no standard '{standard}' for answers: use one of {', '.join(get_args(Standard))}.")
    gold_answers = question.answers
    if not question.answerable:
        return dict.fromkeys(NAMES, float(abstains(prediction)))
    if not prediction.strip() or (abstains(prediction) and not exact_match(prediction, gold_answers)):
        return dict.fromkeys(NAMES, 0.0)
    overlap = _best_overlap(prediction, gold_answers, standard)
    return {
        "exact_match": exact_match(prediction, gold_answers),
        "f1": overlap.f1,
        "precision": overlap.precision,
        "recall": overlap.recall,
        "cover_em": cover_em(prediction, gold_answers),
        "accuracy": accuracy(prediction, question),
        "rouge_l": rouge_l(prediction, gold_answers),
        "bleu": bleu(prediction, gold_answers),
    }


NAMES = ("exact_match", "f1", "precision", "recall", "cover_em", "accuracy", "rouge_l", "bleu")
"""The keys of `answer_scores`."""


class AnswerRule(NamedTuple):
    """An answer is right if this metric of it is at least this number."""

    metric: str
    least: float


def answer_rule(name: str) -> AnswerRule:
    """The rule that tells right answers: "exact" (SQuAD's exact match) or "METRIC:T" (at least T, 0 < T ≤ 1).

    Raises `UserFault` for another name.
    """
    metric, _, least = name.partition(":")
    if name == "exact":
        return AnswerRule("exact_match", 1.0)
    try:
        bound = float(least) if metric in (*_RULES, *MEASURED) else 0.0
    except ValueError:
        bound = 0.0
    if not 0 < bound <= 1:
        raise UserFault(
            f"There is no rule '{name}' for right answers: use exact, or METRIC:T with T above 0 and at most 1. The "
            f"metrics are {', '.join([*_RULES, *MEASURED])}."
        )
    return AnswerRule(metric, bound)


def is_right(
    answer: str, question: GoldQuestion, rule: AnswerRule, measured: Mapping[str, float | None] | None = None
) -> bool:
    """Is an answer right, by the rule of a calibration?

    An empty answer never is, and an unanswerable question has no right answer. measured: the metrics `MEASURED` of the
    answer; without that of the rule it counts as wrong.
    """
    if not question.answerable or not answer.strip():
        return False
    if rule.metric in MEASURED:
        return ((measured or {}).get(rule.metric) or 0.0) >= rule.least
    return _RULES[rule.metric](answer, question) >= rule.least


def squad_normalised(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold_answers: Sequence[str]) -> float:
    """1 if the normalised prediction equals a normalised gold answer, else 0."""
    return float(any(squad_normalised(prediction) == squad_normalised(gold) for gold in gold_answers))


def f1(prediction: str, gold_answers: Sequence[str]) -> float:
    """The best F1 over the tokens shared with a gold answer, in [0, 1]."""
    return _best_overlap(prediction, gold_answers, "squad").f1


def cover_em(prediction: str, gold_answers: Sequence[str]) -> float:
    """1 if the prediction contains a gold answer as consecutive words, both normalised, else 0.

    A gold answer that is empty after normalising is covered only by a prediction that is empty too.
    """
    words = squad_normalised(prediction)
    normalised = [squad_normalised(gold) for gold in gold_answers]
    return float(any(f" {gold} " in f" {words} " for gold in normalised))


def accuracy(prediction: str, question: GoldQuestion) -> float:
    """1 if the prediction is right, else 0.

    A yes_no question: the first word "yes" or "no" in the prediction must be the gold one. Other questions: `cover_em`,
    after Mallen et al. (2023), who accept a gold answer as a substring; here only whole words count.
    """
    if question.kind == "text":
        return cover_em(prediction, question.answers)
    verdict = _verdict(prediction)
    return float(verdict is not None and any(_verdict(gold) == verdict for gold in question.answers))


def rouge_l(prediction: str, gold_answers: Sequence[str]) -> float:
    """The best F1 of the longest common subsequence of words with a gold answer (Lin 2004), in [0, 1].

    Words are runs of letters and digits in lower case, articles included and not stemmed.
    """
    words = _WORD.findall(prediction.lower())
    return max((_rouge_l(words, _WORD.findall(gold.lower())) for gold in gold_answers), default=0.0)


def bleu(prediction: str, gold_answers: Sequence[str]) -> float:
    """The best BLEU with a gold answer (Papineni et al. 2002), in [0, 1].

    The geometric mean of the precisions of n-grams, n = 1 to 4, times the brevity penalty. The precisions of n > 1 are
    smoothed by one (Lin and Och 2004), so that an answer of fewer than four words can have one. Words as in `rouge_l`.
    """
    words = _WORD.findall(prediction.lower())
    return max((_bleu(words, _WORD.findall(gold.lower())) for gold in gold_answers), default=0.0)


def _best_overlap(prediction: str, gold_answers: Sequence[str], standard: Standard) -> Overlap:
    tokens = squad_normalised(prediction).split()
    overlaps = (_overlap(tokens, squad_normalised(gold).split(), standard) for gold in gold_answers)
    return max(overlaps, key=lambda overlap: overlap.f1, default=_NONE)


def _overlap(prediction: Sequence[str], gold: Sequence[str], standard: Standard) -> Overlap:
    if standard == "squad" and not prediction and not gold:
        return Overlap(1.0, 1.0, 1.0)
    shared = sum((Counter(prediction) & Counter(gold)).values())
    if not shared:
        return _NONE
    return Overlap(2 * shared / (len(prediction) + len(gold)), shared / len(prediction), shared / len(gold))


_NONE = Overlap(0.0, 0.0, 0.0)


def _verdict(text: str) -> str | None:
    match = _VERDICT.search(text)
    return match[1].lower() if match else None


def _rouge_l(prediction: Sequence[str], gold: Sequence[str]) -> float:
    if not prediction or not gold:
        return 0.0
    return 2 * _longest_common(prediction, gold) / (len(prediction) + len(gold))


def _bleu(prediction: Sequence[str], gold: Sequence[str]) -> float:
    precisions = []
    for n in (1, 2, 3, 4):
        said, wanted = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (prediction, gold))
        added = int(n > 1)
        precisions.append(((said & wanted).total() + added) / (said.total() + added) if prediction else 0.0)
    brevity = min(1.0, math.exp(1 - len(gold) / len(prediction))) if prediction else 0.0
    return float(brevity * math.prod(precisions) ** 0.25)


def _longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    above = [0] * (len(second) + 1)
    for word in first:
        row = [0]
        for column, other in enumerate(second):
            row.append(above[column] + 1 if word == other else max(above[column + 1], row[column]))
        above = row
    return above[-1]


_RULES: Mapping[str, Callable[[str, GoldQuestion], float]] = {
    "exact_match": lambda answer, question: exact_match(answer, question.answers),
    "f1": lambda answer, question: f1(answer, question.answers),
    "cover_em": lambda answer, question: cover_em(answer, question.answers),
    "accuracy": accuracy,
    "rouge_l": lambda answer, question: rouge_l(answer, question.answers),
    "bleu": lambda answer, question: bleu(answer, question.answers),
}
"""The metrics that a rule may name beside `MEASURED`."""
