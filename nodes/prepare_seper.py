"""prepare, for the graph that measures what chunks are worth: refuse what cannot be measured, before any model call."""

from __future__ import annotations

from typing import Any

from ..models.resources import Resources
from ..state.seper import SePerContext, SePerState
from .belief import right_answers
from .believe import seper_judge
from .prepare import check_capabilities, check_question
from .prepare_dense import given_chunks


async def prepare_seper(state: SePerState, context: SePerContext, resources: Resources) -> dict[str, Any]:
    """Open what the measurement needs, take the right answers and the chunks that were given, begin anew.

    Raises `UserFault` for an empty or overlong question, for right answers or chunks that have no text, for an unknown
    model, and for a corpus that cannot be read where no chunks were given; `CapabilityMissing` for a chat model that
    gives no log-probabilities.
    """
    check_question(state.get("question"))
    golds = right_answers(state.get("answers"))
    given = state.get("chunks")
    evidence = [] if given is None else given_chunks(given)
    check_capabilities(await resources.llm(context.llm, context.concurrency), context)
    await seper_judge(context, resources)
    if given is None:
        await resources.retriever(context.corpus, context.chunker, context.encoder, context.on_bad_record)
    return {
        "golds": golds,
        "evidence": evidence,
        "given": given is not None,
        "samples": None,
        "usage": None,
        "warnings": None,
    }
