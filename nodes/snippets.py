"""The retrieval of a step: its query, the search, and the snippet that is kept (SeaKR sections 3.1 and 3.2)."""

import asyncio

from ..resources.resources import Resources
from ..state.baselines import FlareContext
from ..state.reasoning import Attempt, AttemptInput, Draft, Kept, ReasoningState, SearchingContext
from ..state.seakr import SeaKRContext, SeaKRState
from .query_formulation import query_from
from .reasoning import draft_of, step_prompt
from .uncertainty_estimators import continue_with_uncertainty

NO_STEP = "No snippet leads to a step; the step stands as it was drafted."
CUT = "Only {kept} of the {found} snippets that the first search found are kept: max_docs allows no more."


async def formulate_query(state: ReasoningState, context: SeaKRContext, resources: Resources) -> ReasoningState:
    """SeaKR's query: the pseudo-generated step without its uncertain words. A repeated query ends the reasoning.

    For a reasoning in one pass it is the question.
    """
    query = state["question"]
    if context.mode != "one_pass":
        query = await _without_unlikely_words(state, context.word_uncertainty)
    if query in state["queries"]:
        return {"query": query, "stop_reason": "query_repeated"}
    return {"query": query, "queries": [query]}


async def mask_unlikely_words(state: ReasoningState, context: FlareContext, resources: Resources) -> ReasoningState:
    """FLARE's query: the draft without words less likely than β, whichever they are.

    The same query may come again: where a step is written from all that was kept, the search leaves that out.
    """
    query = await _without_unlikely_words(state, 1 - context.mask_below, spare_known=False)
    return {"query": query, "queries": [query]}


async def query_from_last_rationale(
    state: ReasoningState, context: SearchingContext, resources: Resources
) -> ReasoningState:
    """IRCoT's query: the last rationale; before the first rationale the question."""
    query = state["rationales"][-1] if state["rationales"] else state["question"]
    return {"query": query, "queries": [query], "draft": None, "kept": None}


async def search_snippets(state: ReasoningState, context: SearchingContext, resources: Resources) -> ReasoningState:
    """Retrieve the k best snippets for the query that are not kept yet; without any SeaKR's reasoning may end.

    Where a step is written from its own snippets alone, those that are kept count too.
    """
    query = state["query"]
    assert query is not None  # noqa: S101 - there is a query
    stage = await resources.first_stage(context)
    kept = {chunk["id"] for chunk in state["knowledge"]} if context.shows_collected() else set[str]()
    count = context.k + (len(kept) if context.found_again == "replace" else 0)
    snippets = [chunk for chunk in await stage.search(query, count) if chunk["id"] not in kept][: context.k]
    update: ReasoningState = {"snippets": snippets, "attempts": None, "kept": None}  # type: ignore[typeddict-item]
    if snippets:
        return update
    if context.ends_with_nothing_new():
        return {**update, "stop_reason": "nothing_new"}
    return {**update, "warnings": [f"Nothing new was found for '{query}'; the step is written without it."]}


async def try_snippet(state: AttemptInput, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """The step that the model writes with one more snippet, and U there."""
    knowledge = [*state["knowledge"], state["snippet"]]
    completion, estimate = await continue_with_uncertainty(
        await step_prompt(state["question"], knowledge, state["rationales"], context, resources), context, resources
    )
    attempt: Attempt = {
        "chunk_id": state["snippet"]["id"],
        "rationale": draft_of(completion, whole=context.mode == "one_pass")["rationale"],
        "uncertainty": estimate.uncertainty,
    }
    return {"attempts": [attempt], "warnings": estimate.warnings}


async def rerank_snippets(state: SeaKRState, context: SeaKRContext, resources: Resources) -> SeaKRState:
    """Keep the snippet with the lowest U (self-aware re-ranking); on a tie the search's order decides.

    Snippets with unknown U rank last. A snippet that leads to an empty step is never kept; if none is left, the draft
    step stands.
    """
    usable = [attempt for attempt in state["attempts"] if attempt["rationale"]]
    if not usable:
        draft, warnings = await _measured_draft(state, context, resources)
        return {"kept": None, "draft": draft, "warnings": [*([NO_STEP] if state["attempts"] else []), *warnings]}
    positions = {chunk["id"]: position for position, chunk in enumerate(state["snippets"])}

    def rank(attempt: Attempt) -> tuple[bool, float, int]:
        return attempt["uncertainty"] is None, attempt["uncertainty"] or 0.0, positions[attempt["chunk_id"]]

    best = min(usable, key=rank)
    kept: Kept = {
        "chunk_ids": [best["chunk_id"]],
        "rationale": best["rationale"],
        "uncertainty": best["uncertainty"],
    }
    return {"kept": kept, "knowledge": [state["snippets"][positions[best["chunk_id"]]]]}


async def _measured_draft(state: SeaKRState, context: SeaKRContext, resources: Resources) -> tuple[Draft, list[str]]:
    """The draft that stands, with the U that was not needed before it stood, and warnings."""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    if context.self_aware_retrieval or not draft["rationale"]:
        return draft, []
    prompt = await step_prompt(state["question"], state["knowledge"], state["rationales"], context, resources)
    _, estimate = await continue_with_uncertainty(prompt, context, resources)
    return {**draft, "uncertainty": estimate.uncertainty}, estimate.warnings


async def keep_snippets(state: ReasoningState, context: SearchingContext, resources: Resources) -> ReasoningState:
    """Keep the snippets of the search, as many as may be kept; `write_step` then writes the step with them.

    A snippet that was kept for an earlier step enters the knowledge once. A warning says if `max_docs` keeps fewer than
    a search finds from the first search on.
    """
    known = {chunk["id"] for chunk in state["knowledge"]}
    new = [chunk for chunk in state["snippets"] if chunk["id"] not in known][: context.documents() - len(known)]
    ids = known | {chunk["id"] for chunk in new}
    best = [chunk["id"] for chunk in state["snippets"] if chunk["id"] in ids]
    if not best:
        return {"kept": None}
    cut = not known and len(new) < len(state["snippets"])
    return {
        "kept": {"chunk_ids": best, "rationale": "", "uncertainty": None},
        "knowledge": new,
        "warnings": [CUT.format(kept=len(new), found=len(state["snippets"]))] if cut else [],
    }


async def _without_unlikely_words(state: ReasoningState, max_uncertainty: float, *, spare_known: bool = True) -> str:
    """The query of the draft; spare_known: with the unlikely words of the question and of the step before."""
    draft = state["draft"]
    assert draft is not None  # noqa: S101 - a step was drafted
    spared = [state["question"], *state["rationales"][-1:]] if spare_known else []
    # in a thread: the first call loads the list of stop words
    return await asyncio.to_thread(query_from, draft["words"], max_uncertainty, state["question"], spared)
