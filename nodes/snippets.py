"""query, search, try_snippet, rerank: what is looked up for a step, and what of it is kept (SeaKR 3.1 and 3.2)."""

from __future__ import annotations

import asyncio

from ..models.resources import Resources
from ..prompts import reasoning as prompt
from ..state.baselines import FlareContext
from ..state.reasoning import Attempt, AttemptInput, ReasoningState, SearchingContext
from ..state.records import Chunk
from ..state.seakr import SeaKRContext, SeaKRState
from .doubt import ONE_SENTENCE, Prompt, think
from .reasoning import drafted
from .wording import query_from

NO_STEP = "None of the snippets leads to a step; it stands as it was drafted."


async def query(state: ReasoningState, context: SeaKRContext, resources: Resources) -> ReasoningState:
    """What to search for: the step that the model would write, without the words it is unsure of.

    What has been searched for already ends the reasoning.
    """
    asked = await _query(state, context.word_doubt)
    if asked in state["queries"]:
        return {"query": asked, "ended": "query_repeated"}
    return {"query": asked, "queries": [asked]}


async def query_by_doubt(state: ReasoningState, context: FlareContext, resources: Resources) -> ReasoningState:
    """FLARE's query: the same, with its own bound, and again if need be, as what is kept is not found twice."""
    asked = await _query(state, 1 - context.mask_below)
    return {"query": asked, "queries": [asked]}


async def query_by_rationale(state: ReasoningState, context: SearchingContext, resources: Resources) -> ReasoningState:
    """IRCoT's query: the last rationale, at first the question."""
    asked = state["rationales"][-1] if state["rationales"] else state["question"]
    return {"query": asked, "queries": [asked], "draft": None, "kept": None}


async def search(state: ReasoningState, context: SearchingContext, resources: Resources) -> ReasoningState:
    """Find the query's k best snippets that are not kept yet."""
    asked = state["query"]
    assert asked is not None  # noqa: S101 - there is a query
    stage = await resources.first_stage(
        context.first_stage, context.corpus, context.chunker, context.encoder, context.on_bad_record
    )
    known = {chunk["id"] for chunk in state["knowledge"]}
    found = [chunk for chunk in await stage.search(asked, context.k + len(known)) if chunk["id"] not in known]
    warnings = [] if found else [f"Nothing new was found for '{asked}'; the step is written without it."]
    return {"snippets": found[: context.k], "attempts": None, "kept": None, "warnings": warnings}  # type: ignore[typeddict-item]


async def try_snippet(state: AttemptInput, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The step that the model writes with one snippet added to what was kept, and U there."""
    chunks = [*state["knowledge"], state["snippet"]]
    messages = prompt.step_messages(state["question"], chunks, state["rationales"])
    thought = await think(
        Prompt(state["question"], chunks, state["rationales"], messages, ONE_SENTENCE, context.max_step_tokens),
        context,
        resources,
    )
    attempt: Attempt = {
        "chunk_id": state["snippet"]["id"],
        "rationale": drafted(thought.said)["rationale"],
        "uncertainty": thought.uncertainty,
    }
    return {"attempts": [attempt], "warnings": thought.warnings}


async def rerank(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """Keep the snippet with the lowest U; of equals the one that the search ranks higher.

    One of which U is unknown is kept only if all are so; one with which nothing is written is not: the step then stands
    as the model would have written it.
    """
    tried = [attempt for attempt in state["attempts"] if attempt["rationale"]]
    if not tried:
        return {"kept": None, "warnings": [NO_STEP] if state["attempts"] else []}
    places = {chunk["id"]: place for place, chunk in enumerate(state["snippets"])}

    def rank(attempt: Attempt) -> tuple[bool, float, int]:
        unknown = attempt["uncertainty"] is None
        return unknown, attempt["uncertainty"] or 0.0, places[attempt["chunk_id"]]

    best = min(tried, key=rank)
    chunk: Chunk = state["snippets"][places[best["chunk_id"]]]
    return {"kept": best, "knowledge": [chunk]}


async def keep_first(state: ReasoningState, context: SearchingContext, resources: Resources) -> ReasoningState:
    """Keep the search's best snippet, for the step that is to be written."""
    if not state["snippets"]:
        return {"kept": None}
    first = state["snippets"][0]
    return {"kept": {"chunk_id": first["id"], "rationale": "", "uncertainty": None}, "knowledge": [first]}


async def _query(state: ReasoningState, doubt: float) -> str:
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    previous = state["rationales"][-1] if state["rationales"] else ""
    # in a thread: the list of stop words may have to be loaded
    return await asyncio.to_thread(query_from, draft["words"], doubt, state["question"], previous)
