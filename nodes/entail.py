"""entail: how far the responses entail each other (DENSE section 4.2, equation 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..models.interfaces import Judge
from ..models.resources import Resources
from ..state.dense import DenseContext, DenseState
from .measure import responses_of
from .relations import Pairs, is_said, label_of, relations_of


async def entail(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """Link every two responses: W[i,j] = (E(r_i,r_j) + E(r_j,r_i)) / 2, W[i,i] = 1."""
    judge = await judge_of(context, resources)
    responses = responses_of(state)
    pairs = [(a, b) for a in responses for b in responses]
    found, warnings = await links(judge, state["question"], pairs)
    n = len(responses)
    return {"link": [found[row * n : (row + 1) * n] for row in range(n)], "warnings": warnings}


async def judge_of(context: DenseContext, resources: Resources) -> Judge:
    """The judge that the context names."""
    return await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)


async def links(judge: Judge, question: str, pairs: Sequence[tuple[str, str]]) -> tuple[list[float], list[str]]:
    """For each pair of answers (E(a,b) + E(b,a)) / 2, which is 0, 0.5 or 1; E is 1 where entailment is likeliest.

    Answers that are equal but for case, articles, punctuation and white space are linked without being judged, an empty
    one with no other; each two distinct answers are judged once in each direction. What the judge cannot say is no
    entailment, and a warning.
    """
    entails, warnings = await judged(judge, question, pairs)
    return [(entails(a, b) + entails(b, a)) / 2 for a, b in pairs], warnings


async def entailments(judge: Judge, question: str, answers: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """E(a_i, a_j) for n answers, [n, n], true on the diagonal; see `links`."""
    entails, warnings = await judged(judge, question, [(a, b) for a in answers for b in answers])
    return np.array([[entails(a, b) for b in answers] for a in answers], dtype=bool), warnings


async def judged(
    judge: Judge, question: str, pairs: Sequence[tuple[str, str]]
) -> tuple[Callable[[str, str], bool], list[str]]:
    """E for these pairs in both directions, and what the judge could not say; see `links`."""
    wanted = Pairs([ordered for a, b in pairs for ordered in ((a, b), (b, a))])
    (relation,) = await relations_of(judge, question, [wanted])
    unsaid = sum(not is_said(relation(*pair)) for pair in wanted.asked)

    def entails(a: str, b: str) -> bool:
        return label_of(relation(a, b)) == "entailment"

    warning = f"The judge '{judge.name}' could not say of {unsaid} pairs of answers; they count as not entailing."
    return entails, [warning] if unsaid else []
