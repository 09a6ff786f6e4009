"""The two halves of an iteration of ITER-RETGEN (Shao et al. 2023, section 3)."""

from contextlib import nullcontext

from ..models.answer_stream import show_answer, showing
from ..models.interfaces import Sampling
from ..prompts import reasoning as prompt
from ..resources.resources import Resources
from ..state.baselines import IterRetgenContext, IterRetgenState
from .final_answer import ask_final_answer
from .search import search
from .structured_reply import NO_ANSWER
from .uncertainty_estimators import ONE_LINE


async def generation_augmented_retrieval(
    state: IterRetgenState, context: IterRetgenContext, resources: Resources
) -> IterRetgenState:
    """Search for the question; from the second iteration on for the last reasoning and the question."""
    iterations = state["iterations"]
    query = f"{iterations[-1]['reasoning']} {state['question']}".strip() if iterations else state["question"]
    found = await search(query, context, resources)
    warnings = [] if found.chunks else [f"Nothing was found for '{query}'; the answer is made without evidence."]
    return {"query": query, "evidence": found.chunks, "warnings": warnings}


async def retrieval_augmented_generation(
    state: IterRetgenState, context: IterRetgenContext, resources: Resources
) -> IterRetgenState:
    """Reason from the chunks to an answer; a reasoning without an answer leaves the previous iteration's."""
    llm = await resources.llm(context)
    is_last = len(state["iterations"]) + 1 == context.max_iterations
    messages = prompt.whole_messages(state["question"], state["evidence"], await resources.examples(context))
    with showing(prompt.beginning_of_answer) if is_last else nullcontext():
        reply = await llm.complete(messages, Sampling(max_tokens=context.max_reasoning_tokens, stop=ONE_LINE))
    reasoning = reply.text.strip()
    previous = state["iterations"][-1]["answer"] if state["iterations"] else ""
    answer = prompt.final_answer(reasoning) or previous
    warnings: list[str] = []
    if is_last and not answer:
        with showing(prompt.beginning_of_answer):
            answer, problem = await ask_final_answer(
                state["question"], state["evidence"], [reasoning] if reasoning else [], context, resources
            )
        warnings = [] if answer else [NO_ANSWER.format(problem=problem)]
    if is_last:
        show_answer(answer)
    return {
        "answer": answer,
        "iterations": [
            {
                "query": state["query"],
                "chunk_ids": [chunk["id"] for chunk in state["evidence"]],
                "reasoning": reasoning,
                "answer": answer,
            }
        ],
        "warnings": warnings,
    }
