"""contexts, respond, repeat, ablate: the contexts of one measurement and the model's responses (DENSE section 4.1)."""

from ..models.answer_stream import show_answer, showing
from ..prompts import answer, unparsed
from ..resources.resources import Resources
from ..state.dense import ORIGINAL, REPEATED, DenseContext, DenseState, ResponseInput, context_key, text_key
from ..state.dense_rag import DenseRagContext, DenseRagState
from ..state.records import Chunk
from .generate import answer_to

PROMPTS = {"answer": answer.messages, "summarise": unparsed.summary}


async def contexts(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """List the original context C_0 and, for each rephrased chunk, C_i with only that chunk replaced (equation 4).

    A chunk that could not be rephrased needs no context of its own: C_i equals C_0, and so does the response.
    """
    chunks = enumerate(state["evidence"], 1)
    rephrased = [context_key(i) for i, chunk in chunks if rephrasing_of(chunk, state) != chunk["text"]]
    return {"context_keys": [ORIGINAL, *rephrased], "response_by_key": None}  # type: ignore[typeddict-item]


def rephrasing_of(chunk: Chunk, state: DenseState) -> str:
    """c'_i, or the chunk's own text if it has no rephrasing."""
    known = chunk.get("rephrasing", chunk["text"])
    return state["rephrased"].get(text_key(chunk["text"]), known)


def context_of(key: str, state: DenseState) -> ResponseInput:
    """The context with one of the `context_keys`."""
    evidence: list[Chunk] = [
        {**chunk, "text": rephrasing_of(chunk, state)} if context_key(i) == key else chunk
        for i, chunk in enumerate(state["evidence"], 1)
    ]
    return {"key": key, "question": state["question"], "evidence": evidence}


async def respond(state: ResponseInput, context: DenseContext, resources: Resources) -> DenseState:
    """r_i: answer the question from one context, greedily (equation 1). r_0 is the answer."""
    if state["key"] != ORIGINAL:
        response, warnings = await response_to(state, context, resources)
        return {"response_by_key": {state["key"]: response}, "warnings": warnings}
    with showing(answer.beginning):
        response, warnings = await response_to(state, context, resources)
    show_answer(response)
    return {"response_by_key": {state["key"]: response}, "warnings": warnings}


async def check_determinism(state: DenseState, context: DenseContext, resources: Resources) -> DenseState:
    """Decide whether `repeat` runs: in the first measurement with a model, if the setting is on."""
    llm = await resources.llm(context)
    return {"repeat": context.check_determinism and llm.name not in resources.is_deterministic}


async def repeat(state: ResponseInput, context: DenseContext, resources: Resources) -> DenseState:
    """Answer from the original context a second time, to check that the model is deterministic (appendix C)."""
    response, _ = await response_to(state, context, resources)
    return {"response_by_key": {REPEATED: response}}


async def ablate(state: ResponseInput, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """ar_i: answer from the context without the uncertain chunk i, whose id is the key (section 5.2, equation 9)."""
    response, warnings = await response_to(state, context, resources)
    return {"ablations": {state["key"]: response}, "warnings": warnings}


async def response_to(state: ResponseInput, context: DenseContext, resources: Resources) -> tuple[str, list[str]]:
    """The model's response to one context, and a warning if it is empty."""
    messages = PROMPTS[context.task](state["question"], state["evidence"])
    return await answer_to(messages, context, await resources.llm(context))
