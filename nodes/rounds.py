"""retrieve, generate: a round of ITER-RETGEN (Shao et al. 2023, section 3)."""

from __future__ import annotations

from ..models.interfaces import Sampling
from ..models.resources import Resources
from ..prompts import reasoning as prompt
from ..state.baselines import IterRetgenContext, IterRetgenState
from .doubt import ONE_LINE
from .strategies import NO_ANSWER


async def retrieve_round(state: IterRetgenState, context: IterRetgenContext, resources: Resources) -> IterRetgenState:
    """Search for the question, from the second round on together with the last reasoning."""
    rounds = state["rounds"]
    asked = f"{rounds[-1]['reasoning']} {state['question']}".strip() if rounds else state["question"]
    stage = await resources.first_stage(
        context.first_stage, context.corpus, context.chunker, context.encoder, context.on_bad_record
    )
    found = await stage.search(asked, context.k)
    warnings = [] if found else [f"Nothing was found for '{asked}'; the answer is made without evidence."]
    return {"query": asked, "evidence": found, "warnings": warnings}


async def generate_round(state: IterRetgenState, context: IterRetgenContext, resources: Resources) -> IterRetgenState:
    """Reason from what was found to an answer; a reasoning without one leaves the last round's."""
    llm = await resources.llm(context.llm, context.concurrency)
    messages = prompt.whole_messages(state["question"], state["evidence"])
    reply = await llm.complete(messages, Sampling(max_tokens=context.max_reasoning_tokens, stop=ONE_LINE))
    reasoning = reply.text.strip()
    before = state["rounds"][-1]["answer"] if state["rounds"] else ""
    answer = prompt.final_answer(reasoning) or before
    last = len(state["rounds"]) + 1 == context.rounds
    if last and not answer:
        asked = prompt.end_messages(state["question"], [reasoning] if reasoning else [])
        ending = Sampling(max_tokens=context.max_answer_tokens, stop=ONE_LINE)
        answer = prompt.end_of((await llm.complete(asked, ending)).text)
    return {
        "answer": answer,
        "rounds": [
            {
                "query": state["query"],
                "chunk_ids": [chunk["id"] for chunk in state["evidence"]],
                "reasoning": reasoning,
                "answer": answer,
            }
        ],
        "warnings": [NO_ANSWER] if last and not answer else [],
    }
