"""sample_answers, count_semantic_sets: answer semantic uncertainty, ASU (SUNAR section 3.2)."""

from collections.abc import Sequence

import numpy as np

from ..errors import ModelUnavailable
from ..prompts import answer as prompt
from ..resources.resources import Resources
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState, ScoredDocument
from ..state.records import Uncertainty
from ..uncertainty import semantic_clusters
from .entail import contradictions, entailments
from .generate import sampled_answers

COUNTED = {"semantic_sets": "semantic sets", "contradictions": "contradictions"}
"""What s counts, by the setting `asu`."""


async def sample_answers(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Sample m answers to the sub-question in one request, from the batch's best documents or the whole batch."""
    llm = await resources.llm(context)
    best_first = np.argsort([-score for score in state["raw_scores"]], kind="stable").tolist()
    whole_batch = range(len(state["batch_ids"]))
    shown = best_first[: context.sampled_documents] if context.sampled_documents else whole_batch
    chunks = [state["documents_by_id"][state["batch_ids"][position]] for position in shown]
    reply = await llm.complete(prompt.messages(state["sub_question"], chunks), sampled_answers(context))
    return {"sampled_answers": [prompt.parse_or_empty(completion.text) for completion in reply.completions]}


async def count_semantic_sets(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Count the semantic sets s of the sampled answers: two answers are in one set if each entails the other.

    With asu=contradictions, s is the number of pairs of which one contradicts the other, at least 1. Empty answers are
    left out. If all are empty, the batch keeps its scores, with a warning.
    """
    answers = [text for text in state["sampled_answers"] if text]
    if not answers:
        warning = f"Batch {state['iteration'] + 1}: every sampled answer is empty; no penalty."
        return {"number_of_semantic_sets": None, "warnings": [warning]}
    judge = await resources.judge(context)
    if context.asu == "contradictions":
        count, warnings = await contradictions(judge, state["sub_question"], answers)
        return {"number_of_semantic_sets": max(count, 1), "warnings": warnings}
    entails, warnings = await entailments(judge, state["sub_question"], answers)
    return {"number_of_semantic_sets": len(set(semantic_clusters(entails))), "warnings": warnings}


def keep_scores(state: NeighbourhoodState, fault: ModelUnavailable) -> NeighbourhoodState:
    """In place of `count_semantic_sets` if the judge is unavailable: the batch keeps its scores, with a warning."""
    warning = f"Batch {state['iteration'] + 1}: the judge failed, no penalty ({fault})"
    return {"number_of_semantic_sets": None, "warnings": [warning]}


def mean_semantic_sets(look_ups: Sequence[Sequence[ScoredDocument]], context: NeighbourhoodContext) -> Uncertainty:
    """SUNAR's uncertainty: the mean of s over the batches of all look-ups that have a number.

    look_ups: each look-up's scored documents. The value is at least 1; null if no batch has a number.
    """
    by_batch = {
        (position, document["iteration"]): document["number_of_semantic_sets"]
        for position, scored in enumerate(look_ups)
        for document in scored
    }
    counts = [count for count in by_batch.values() if count is not None]
    mean = sum(counts) / len(counts) if counts else None
    return {"signal": f"mean number of {COUNTED[context.asu]}", "value": mean, "threshold": None}
