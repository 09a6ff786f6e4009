"""entail: the semantic adjacency matrix W of the responses (DENSE section 4.2, equation 5)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.interfaces import Judge
from ..resources.resources import Resources
from ..state.dense import ORIGINAL, DenseContext, DenseState, context_key
from .entailment_pairs import AnswerPairs, is_judged, judge_pairs, likeliest_label


async def entail(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """List r_0..r_k and link every two of them: W[i,j] = (E(r_i,r_j) + E(r_j,r_i)) / 2, W[i,i] = 1.

    The response to a context whose chunk could not be rephrased is r_0.
    """
    judge = await resources.judge(context)
    by_key = state["response_by_key"]
    keys = [ORIGINAL, *(context_key(i) for i in range(1, len(state["evidence"]) + 1))]
    responses = [by_key.get(key, by_key[ORIGINAL]) for key in keys]
    pairs = [(a, b) for a in responses for b in responses]
    link, warnings = await links(judge, state["question"], pairs)
    n = len(responses)
    return {"responses": responses, "link": [link[i * n : (i + 1) * n] for i in range(n)], "warnings": warnings}


async def links(judge: Judge, question: str, pairs: Sequence[tuple[str, str]]) -> tuple[list[float], list[str]]:
    """(E(a,b) + E(b,a)) / 2 for each pair of answers: 0, 0.5 or 1. E is 1 if entailment is the likeliest label.

    Answers that differ only in case, articles, punctuation and white space have link 1 without a judgement. An empty
    answer has link 0 with every other answer. Two distinct answers are judged once in each direction. A pair that the
    judge cannot label counts as no entailment, and a warning counts these pairs.
    """
    entails, warnings = await _entailment(judge, question, pairs)
    return [(entails(a, b) + entails(b, a)) / 2 for a, b in pairs], warnings


async def entailments(judge: Judge, question: str, answers: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """E(a_i, a_j) for n answers, [n, n], true on the diagonal; the rules and warnings of `links` hold."""
    entails, warnings = await _entailment(judge, question, [(a, b) for a in answers for b in answers])
    return np.array([[entails(a, b) for b in answers] for a in answers], dtype=bool), warnings


async def contradictions(judge: Judge, question: str, answers: Sequence[str]) -> tuple[int, list[str]]:
    """The number of pairs of distinct answers of which one contradicts the other, and warnings.

    Distinct is as in `links`. One contradicts the other if contradiction is the likeliest label in either direction. A
    pair that the judge cannot label counts as no contradiction, and a warning counts these pairs.
    """
    pairs = AnswerPairs([(a, b) for a in answers for b in answers])
    (probabilities,) = await judge_pairs(judge, question, [pairs])
    labels = {pair: likeliest_label(probabilities(*pair)) for pair in pairs.to_judge}
    found = {frozenset(pair) for pair, label in labels.items() if label == "contradiction"}
    return len(found), _warnings(judge, sum(label is None for label in labels.values()), "contradicting")


async def _entailment(
    judge: Judge, question: str, pairs: Sequence[tuple[str, str]]
) -> tuple[Callable[[str, str], bool], list[str]]:
    both_ways = AnswerPairs([ordered for a, b in pairs for ordered in ((a, b), (b, a))])
    (probabilities,) = await judge_pairs(judge, question, [both_ways])
    unjudged = sum(not is_judged(probabilities(*pair)) for pair in both_ways.to_judge)

    def entails(a: str, b: str) -> bool:
        return likeliest_label(probabilities(a, b)) == "entailment"

    return entails, _warnings(judge, unjudged, "entailing")


def _warnings(judge: Judge, unjudged: int, what: str) -> list[str]:
    warning = f"The judge '{judge.name}' could not label {unjudged} pairs of answers; they count as not {what}."
    return [warning] if unjudged else []
