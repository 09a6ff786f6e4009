"""search_first_stage, score_batch, intermediate_answer: neighbourhood-aware retrieval, NAR (SUNAR section 3.1.2)."""

from ..models.answer_stream import show_answer, showing
from ..prompts import answer as prompt
from ..resources.resources import Resources
from ..retrieval.chunking import embedding_text
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState
from ..state.records import Chunk
from .answer_uncertainty import mean_semantic_sets
from .generate import answer_to
from .prepare import check_question
from .update_frontier import ranked


async def take_sub_question(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Put the caller's `query`, or else the question, into `sub_question`. Raises `UserFault` for an empty query."""
    query = state.get("query")
    if query is not None:
        check_question(query)
    return {"sub_question": query or state["question"]}


async def search_first_stage(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Fill the pool R with the first stage's best documents for the first-stage query; the exploration begins."""
    first_stage = await resources.first_stage(context)
    chunks = await first_stage.search(state[context.first_stage_query], context.first_stage_n)
    warnings = [] if chunks else ["The first stage found no documents; the answer is made without evidence."]
    return {
        "documents_by_id": {chunk["id"]: chunk for chunk in chunks},
        "first_stage_name": first_stage.name,
        "first_stage": list(dict.fromkeys(chunk["id"] for chunk in chunks)),
        "next_pool": "first_stage",
        "warnings": warnings,
    }


async def score_batch(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Score each document of the batch for the sub-question with the re-ranker, in (0, 1)."""
    reranker = await resources.reranker(context)
    texts = [embedding_text(state["documents_by_id"][chunk_id]) for chunk_id in state["batch_ids"]]
    return {"raw_scores": await reranker.scores(state["sub_question"], texts), "number_of_semantic_sets": None}


async def intermediate_answer(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> NeighbourhoodState:
    """Answer the sub-question from the k best documents."""
    llm = await resources.llm(context)
    evidence: list[Chunk] = [
        {**state["documents_by_id"][document["chunk_id"]], "score": document["score"]}
        for document in ranked(state["scored"])[: context.k]
    ]
    with showing(prompt.beginning):
        text, warnings = await answer_to(prompt.messages(state["sub_question"], evidence), context, llm)
    show_answer(text)
    uncertainty = mean_semantic_sets([state["scored"]], context)
    return {"answer": text, "evidence": evidence, "uncertainty": uncertainty, "warnings": warnings}
