"""decompose, chain_of_query: the next sub-question, or the sequential answer (SUNAR section 3.1).

`decompose` is after self-ask, `chain_of_query` after SearChain (Xu et al., WWW 2024).
"""

from collections.abc import Sequence

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Message
from ..prompts import chain_of_query as chain_prompt
from ..prompts import decompose as prompt
from ..resources.resources import Resources
from ..state.abstention import abstains
from ..state.answer_text import normalised
from ..state.sunar import ChainNode, Hop, SunarContext, SunarState
from .structured_reply import ask_with_retry, reply_within

MAX_TOKENS = 96
"""Of a sub-question or an answer."""

MAX_CHAIN_TOKENS = 384
"""Of a chain of sub-questions with their answers."""

MOST_NODES = 8
"""Of a chain with known answers that a model is kept to; longer ones would make a large automaton on the server."""


async def decompose(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Put the next sub-question into `query`; or null, and the path's answer into `sequential_answer`.

    The path ends when the model answers, repeats a sub-question, or has asked `max_hops` of them. If a reply is
    unreadable twice, the path ends; if nothing was looked up yet, the question itself becomes the sub-question.
    """
    llm = await resources.llm(context)
    hops = state.get("hops", [])
    if len(hops) >= context.max_hops:
        return await _end_path(state, context, llm, _used_up(context))
    try:
        step = await _ask(prompt.messages(state["question"], hops), context, llm, pattern=prompt.pattern())
    except ContractFault as fault:
        return await _unreadable(fault, state, context, llm)
    if step.is_final:
        # an answer needs evidence: before the first look-up, the question itself is looked up
        return {"query": None, "sequential_answer": step.text} if hops else {"query": state["question"]}
    if normalised(step.text) in _asked(hops):
        return await _end_path(state, context, llm, REPEATED)
    return {"query": step.text}


async def chain_of_query(state: SunarState, context: SunarContext, resources: Resources) -> SunarState:
    """Put the next sub-question of the chain into `query`; or null, and the chain's answer into `sequential_answer`.

    A look-up verifies the model's answer to its node. If the look-up's answer occurs in the model's, or the look-up
    found none or does not know, the chain goes on. Otherwise, and after an unsolved node, the model writes the chain
    anew from what was looked up; sub-questions that were looked up before are left out. The path ends as in
    `decompose`. SearChain corrects an answer only if its reader's score exceeds 1.5; SUNAR's intermediate answer has no
    such score.
    """
    llm = await resources.llm(context)
    hops, nodes, answer = state.get("hops", []), state["chain"], state["chain_answer"]
    ahead = _not_asked(nodes, hops)
    if not (nodes and is_verified(nodes[0], hops[-1]) and (ahead or answer)):
        if len(hops) >= context.max_hops:
            return await _end_path(state, context, llm, _used_up(context))
        try:
            nodes, answer = await ask_with_retry(
                llm,
                chain_prompt.messages(state["question"], hops),
                reply_within(MAX_CHAIN_TOKENS, context),
                chain_prompt.parse,
                pattern=chain_prompt.pattern(min(context.max_hops - len(hops), MOST_NODES)),
            )
        except ContractFault as fault:
            return {"chain": [], **await _unreadable(fault, state, context, llm)}
        ahead = _not_asked(nodes, hops)
    chain: SunarState = {"chain": ahead, "chain_answer": answer}
    if not ahead and answer:
        # an answer needs evidence: before the first look-up, the question itself is looked up
        end: SunarState = {"query": None, "sequential_answer": answer} if hops else {"query": state["question"]}
        return {**chain, **end}
    if not ahead or len(hops) >= context.max_hops:
        return {**chain, **await _end_path(state, context, llm, _used_up(context) if ahead else REPEATED)}
    return {**chain, "query": ahead[0]["question"]}


def is_verified(node: ChainNode, hop: Hop) -> bool:
    """Does the look-up leave the model's answer as it is?"""
    found, answer = (f" {normalised(text)} " for text in (hop["answer"], node["answer"]))
    return bool(node["answer"]) and (found in answer or abstains(hop["answer"]))


REPEATED = "The decomposition asked the same sub-question again."


def _used_up(context: SunarContext) -> str:
    return f"The sub-questions are used up (max_hops {context.max_hops})."


def _not_asked(nodes: Sequence[ChainNode], hops: Sequence[Hop]) -> list[ChainNode]:
    return [node for node in nodes if normalised(node["question"]) not in _asked(hops)]


def _asked(hops: Sequence[Hop]) -> set[str]:
    return {normalised(hop["question"]) for hop in hops}


async def _unreadable(fault: ContractFault, state: SunarState, context: SunarContext, llm: ChatModel) -> SunarState:
    """After a reply that cannot be read, end the path; before the first look-up, look up the question itself."""
    warning = f"The decomposition could not be read ({fault.problem})"
    if state.get("hops"):
        return await _end_path(state, context, llm, f"{warning}.")
    return {"query": state["question"], "warnings": [f"{warning}; the question itself is looked up."]}


async def _end_path(state: SunarState, context: SunarContext, llm: ChatModel, warning: str) -> SunarState:
    """Ask for the answer now; if the model gives none, the last intermediate answer stands."""
    messages = prompt.messages(state["question"], state["hops"], must_answer=True)
    try:
        step = await _ask(messages, context, llm, pattern=prompt.pattern(must_answer=True))
    except ContractFault:
        step = prompt.DecompositionStep(is_final=False, text="")
    answer = step.text if step.is_final else state["hops"][-1]["answer"]
    return {"query": None, "sequential_answer": answer, "warnings": [warning]}


async def _ask(
    messages: Sequence[Message], context: SunarContext, llm: ChatModel, pattern: str
) -> prompt.DecompositionStep:
    return await ask_with_retry(llm, messages, reply_within(MAX_TOKENS, context), prompt.parse, pattern=pattern)
