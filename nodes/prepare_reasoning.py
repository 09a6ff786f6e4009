"""prepare, for the graphs that reason step by step: refuse what cannot be answered, before any model is called."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import CapabilityMissing
from ..models.interfaces import ChatModel
from ..models.resources import Resources
from ..state.baselines import IterRetgenContext, IterRetgenState
from ..state.reasoning import ReasoningContext, ReasoningState, SearchingContext
from ..state.seakr import NEEDS, SeaKRContext, SeaKRState
from .prepare import check_capabilities, check_question
from .thresholds import threshold_of

JUDGED = frozenset({"semantic_entropy", "degree_entropy"})
"""The estimators that ask a judge."""


async def prepare_reasoning(state: ReasoningState, context: ReasoningContext, resources: Resources) -> dict[str, Any]:
    """Open what the run needs and begin anew whatever an earlier question of the thread left.

    Raises `UserFault` for an empty or overlong question, an unknown model, a corpus that cannot be read, and
    `CapabilityMissing` for a chat model that cannot do what the settings ask.
    """
    check_question(state.get("question"))
    check_capabilities(await resources.llm(context.llm, context.concurrency), context)
    if isinstance(context, SearchingContext):
        await _open_first_stage(context, resources)
    return _afresh(context)


async def prepare_seakr(state: SeaKRState, context: SeaKRContext, resources: Resources) -> dict[str, Any]:
    """The same, and δ; the message for a model that cannot do what the estimator needs names those that it can."""
    check_question(state.get("question"))
    llm = await resources.llm(context.llm, context.concurrency)
    _check_estimator(llm, context)
    threshold = await asyncio.to_thread(threshold_of, context, llm.name)  # which may read a file
    await open_seakr(context, resources)
    return {**_afresh(context), "threshold": threshold, "conclusions": None}


async def open_seakr(context: SeaKRContext, resources: Resources) -> None:
    """Open model, judge and first stage, which are kept; raises as `prepare_seakr` does."""
    _check_estimator(await resources.llm(context.llm, context.concurrency), context)
    if context.estimator in JUDGED:
        await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
    await _open_first_stage(context, resources)


async def prepare_rounds(state: IterRetgenState, context: IterRetgenContext, resources: Resources) -> dict[str, Any]:
    """The same for ITER-RETGEN."""
    check_question(state.get("question"))
    await resources.llm(context.llm, context.concurrency)
    await _open_first_stage(context, resources)
    return {"rounds": None, "settings": context.model_dump(mode="json"), "usage": None, "warnings": None}


async def _open_first_stage(context: SearchingContext | IterRetgenContext, resources: Resources) -> None:
    await resources.first_stage(
        context.first_stage, context.corpus, context.chunker, context.encoder, context.on_bad_record
    )


def _check_estimator(llm: ChatModel, context: SeaKRContext) -> None:
    missing = context.needs() - llm.capabilities
    if not missing:
        return
    possible = ", ".join(name for name, needs in NEEDS.items() if needs <= llm.capabilities)
    raise CapabilityMissing(
        f"The uncertainty estimator '{context.estimator}' needs {' and '.join(sorted(missing))}, which the chat model "
        f"'{llm.name}' does not give: use estimator {possible}; or a model that does: embedded, hf:, gguf:, or for "
        "hidden states engine:, or a vllm: server started by `dubito serve --hidden-states`."
    )


def _afresh(context: ReasoningContext) -> dict[str, Any]:
    lists = ("rationales", "knowledge", "steps", "queries", "attempts", "usage", "warnings")
    begun: dict[str, Any] = {"draft": None, "query": None, "kept": None, "snippets": [], "ended": None}
    return {**dict.fromkeys(lists), **begun, "settings": context.model_dump(mode="json")}
