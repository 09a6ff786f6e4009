"""sample, cluster: do a batch's documents make answers waver? (SUNAR section 3.2, answer semantic uncertainty)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ContractFault, ModelUnavailable
from ..models.interfaces import Judge, Sampling
from ..models.resources import Resources
from ..prompts import answer as prompt
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState
from ..uncertainty import semantic_clusters
from .entail import entailments


async def sample_answers(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Sample m answers in one request from the batch's best documents."""
    llm = await resources.llm(context.llm, context.concurrency)
    order = np.argsort([-raw for raw in state["raw"]], kind="stable")[: context.sampled_documents].tolist()
    chunks = [state["documents"][state["batch"][position]] for position in order]
    sampling = Sampling(
        n=context.samples,
        temperature=context.temperature,
        max_tokens=context.max_answer_tokens,
        thinking=context.thinking,
    )
    reply = await llm.complete(prompt.messages(state["asked"], chunks), sampling)
    return {"answers": [_read(completion.text) for completion in reply.completions]}


def _read(text: str) -> str:
    try:
        return prompt.parse(text)
    except ContractFault:
        return ""


async def cluster(state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources) -> NeighbourhoodState:
    """Count the semantic sets s of the answers, two answers in one set if each entails the other.

    Empty answers are left out. Where nothing is left, the batch keeps its scores, with a warning.
    """
    answers = [text for text in state["answers"] if text]
    if not answers:
        return {
            "sets": None,
            "warnings": [f"Batch {state['iteration'] + 1}: every sampled answer is empty; no penalty."],
        }
    judge = await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
    sets, warnings = await count_sets(judge, state["asked"], answers)
    return {"sets": sets, "warnings": warnings}


def keep_scores(state: NeighbourhoodState, fault: ModelUnavailable) -> NeighbourhoodState:
    """In place of `cluster` when the judge fails for good: the batch keeps its scores, with a warning."""
    return {"sets": None, "warnings": [f"Batch {state['iteration'] + 1}: the judge failed, no penalty ({fault})"]}


async def count_sets(judge: Judge, question: str, answers: Sequence[str]) -> tuple[int, list[str]]:
    """The number of semantic sets, and what the judge could not say."""
    entails, warnings = await entailments(judge, question, answers)
    return len(set(semantic_clusters(entails))), warnings
