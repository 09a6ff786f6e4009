"""prepare, for the graphs that explore: refuse what cannot be looked up, before any model is called."""

from __future__ import annotations

from typing import Any

from ..models.resources import Resources
from ..state.neighbourhood import NeighbourhoodContext, NeighbourhoodState
from ..state.sunar import SunarContext, SunarState
from .prepare import check_capabilities, check_question
from .sources import first_stage_of, graph_of


async def prepare_neighbourhood(
    state: NeighbourhoodState, context: NeighbourhoodContext, resources: Resources
) -> dict[str, Any]:
    """Open what the look-up needs, take what is asked, begin usage and warnings anew.

    Raises `UserFault` for an empty or overlong question, an unknown model or stage, and a corpus that cannot be read.
    """
    check_question(state.get("question"))
    query = state.get("query")
    if query is not None:
        check_question(query)
    await open_all(context, resources)
    settings = context.model_dump(mode="json")
    return {"asked": query or state["question"], "settings": settings, "usage": None, "warnings": None}


async def prepare_sunar(state: SunarState, context: SunarContext, resources: Resources) -> dict[str, Any]:
    """Open what the run needs and begin anew whatever an earlier question of the thread left; raises as above."""
    check_question(state.get("question"))
    await open_all(context, resources)
    begun = dict.fromkeys(("query", "hops", "usage", "warnings"))
    return {**begun, "library": {}, "meta_evidence": [], "settings": context.model_dump(mode="json")}


async def open_all(context: NeighbourhoodContext, resources: Resources) -> None:
    """Open models, first stage and document graph, which are kept."""
    llm = await resources.llm(context.llm, context.concurrency)
    check_capabilities(llm, context)
    if context.penalty != "none":
        await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
    await resources.reranker(context.reranker, context.llm, context.encoder, context.concurrency)
    await first_stage_of(context, resources)
    await graph_of(context, resources)
