"""generate: the Generator (DF-RAG section 3.4)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import ContractFault
from ..models.answer_stream import show_answer, showing
from ..models.interfaces import ChatModel, Message, Sampling
from ..prompts import answer as prompt
from ..prompts import cited_answer
from ..resources.resources import Resources
from ..state.flow import Grounded
from ..state.mixins import ThinkingContext
from ..state.neighbourhood import NeighbourhoodContext
from ..state.seper import SePerContext
from .structured_reply import NO_ANSWER, ask_with_retry


async def generate(state: Grounded, context: ThinkingContext, resources: Resources) -> dict[str, Any]:
    """Answer the question from the evidence and, if the state has one, the `incremental_context`; greedy decoding.

    With the setting `cite` the model writes the answer with marks, which `cite` reads.
    """
    llm = await resources.llm(context)
    question, evidence = state["question"], state["evidence"]
    notes: Sequence[str] = state.get("incremental_context", [])
    if getattr(context, "cite", False) and evidence:
        with showing(partial(cited_answer.beginning, passages=len(evidence))):
            messages = cited_answer.messages(question, evidence, notes)
            text, warnings = await answer_to(messages, context, llm, cited_answer.parse)
        cited = cited_answer.read(text)
        show_answer(cited.shown(len(evidence)))
        return {"answer": cited.text, "cited_answer": text, "warnings": warnings}
    with showing(prompt.beginning):
        answer, warnings = await answer_to(prompt.messages(question, evidence, notes), context, llm)
    show_answer(answer)
    return {"answer": answer, "warnings": warnings}


def sampled_answers(context: NeighbourhoodContext | SePerContext) -> Sampling:
    """The sampling of several answers to one prompt."""
    return Sampling(
        n=context.samples,
        temperature=context.temperature,
        max_tokens=context.max_answer_tokens,
        thinking=context.thinking,
    )


async def answer_to(
    messages: Sequence[Message], context: ThinkingContext, llm: ChatModel, parse: Callable[[str], str] = prompt.parse
) -> tuple[str, list[str]]:
    """The model's answer and the warnings. After two replies without one: an empty answer, and why."""
    sampling = Sampling(max_tokens=context.max_answer_tokens, thinking=context.thinking)
    try:
        return await ask_with_retry(llm, messages, sampling, parse), []
    except ContractFault as fault:
        return "", [NO_ANSWER.format(problem=fault.problem)]
