"""The reasoning path's record, and the meta evidence reasoner, MER, that reads it all again (SUNAR section 3.2)."""

from ..models.answer_stream import show_answer, showing
from ..prompts import answer as answer_prompt
from ..prompts import unparsed
from ..resources.resources import Resources
from ..state.answer_text import normalised
from ..state.records import Uncertainty
from ..state.sunar import SunarContext, SunarState
from .answer_uncertainty import mean_semantic_sets
from .evidence import by_reranker
from .generate import answer_to


async def record_hop(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Add the finished look-up to the reasoning path and keep its best documents."""
    assert state["query"] is not None  # noqa: S101 - the look-up before this node had a sub-question
    best = state["evidence"][: context.documents_per_hop]
    return {
        "hops": [
            {
                "question": state["query"],
                "answer": state["answer"],
                "evidence_ids": [chunk["id"] for chunk in state["evidence"]],
                "scored": state["scored"],
                "stop_reason": state["stop_reason"],
            }
        ],
        "evidence_by_id": {**state["evidence_by_id"], **{chunk["id"]: chunk for chunk in best}},
    }


async def rerank_all_evidence(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Rank the best documents of all sub-questions for the question itself and keep `meta_documents` of them."""
    chunks = list(state["evidence_by_id"].values())
    if not chunks:
        return {"meta_evidence": []}
    reranker = await resources.reranker(context)
    return {"meta_evidence": (await by_reranker(state["question"], chunks, reranker))[: context.meta_documents]}


async def reason_over_all_evidence(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Answer from the reasoning path and the meta evidence; if that answer is empty, keep the sequential one."""
    llm = await resources.llm(context)
    sequential = state["sequential_answer"]
    messages = unparsed.meta_evidence(state["question"], state["hops"], sequential, state["meta_evidence"])
    with showing(answer_prompt.beginning):
        text, warnings = await answer_to(messages, context, llm)
    answer = text or sequential
    show_answer(answer)
    return {
        "answer": answer,
        "evidence": state["meta_evidence"],
        "changed": normalised(answer) != normalised(sequential),
        "uncertainty": _uncertainty(state, context),
        "warnings": warnings,
    }


async def keep_sequential_answer(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Without the meta evidence reasoner: the sequential answer, with the last sub-question's evidence."""
    show_answer(state["sequential_answer"])
    return {"answer": state["sequential_answer"], "changed": False, "uncertainty": _uncertainty(state, context)}


def _uncertainty(state: SunarState, context: SunarContext) -> Uncertainty:
    return mean_semantic_sets([hop["scored"] for hop in state["hops"]], context)
