"""retrieve: one chunk set for the question: top-k, one fixed diversity level λ, or long context."""

from ..errors import UserFault
from ..models.interfaces import ChatModel
from ..prompts import answer, cited_answer, passage
from ..resources.resources import Resources
from ..retrieval.pool import Pool, nearest
from ..state.records import Chunk
from ..state.vanilla_rag import SelectionContext, SelectionState
from .evidence import by_similarity, scored_chunk, select_diverse, selectable
from .search import search

NO_CHUNK_FITS = "Not one chunk fits the model's context window; the answer is made without evidence."

COUNT_BATCH = 64
"""Chunks whose tokens are counted in one call."""

SPARE_TOKENS = 64
"""Tokens of the window left free for the chat template."""


async def retrieve(state: SelectionState, context: SelectionContext, resources: Resources) -> SelectionState:
    """Write the selected chunks to `evidence`, best first; long context keeps the order of the corpus.

    What was re-ranked goes to `first_stage`.
    """
    if context.selection == "top_k":
        found = await search(state["question"], context, resources)
        return {"evidence": found.chunks, "first_stage": found.found, "warnings": found.warnings}
    part = context.is_used("top_n")
    retriever = await (resources.candidates(context) if part else resources.retriever(context))
    pool = await retriever.pool(state["question"], context.top_n if part else None)
    k, warnings = selectable(pool, 1 if context.selection == "long_context" else context.k)
    if not k:
        return {"evidence": [], "warnings": warnings}
    if context.selection == "long_context":
        llm = await resources.llm(context)
        ask = cited_answer.messages if getattr(context, "cite", False) else answer.messages  # as `generate` does
        around = answer.around_passages(state["question"], ask)
        chunks = await chunks_that_fit(around, pool, context.max_answer_tokens, llm)
        return {"evidence": chunks, "warnings": warnings if chunks else [*warnings, NO_CHUNK_FITS]}
    rows = (await select_diverse(pool, context.selection, [context.fixed_lambda], k))[0].tolist()
    return {"evidence": [scored_chunk(pool, row) for row in by_similarity(rows, pool)], "warnings": warnings}


async def chunks_that_fit(around: list[str], pool: Pool, answer_tokens: int, llm: ChatModel) -> list[Chunk]:
    """The most similar chunks that fit the model's window together, in the order of the corpus (DF-RAG section 3.5).

    around: the texts of the prompt without the passages. Raises `UserFault` if the model's window is unknown.
    """
    window = await llm.window()
    if window is None:
        raise UserFault(
            f"long_context needs to know the context window and '{llm.name}' does not tell it: use a vllm:, hf:, gguf: "
            "or embedded model, or selection top_k."
        )
    prompt_tokens = sum(await llm.count(around))
    room = window - answer_tokens - prompt_tokens - SPARE_TOKENS
    order = nearest(pool.vectors, pool.query, len(pool))
    fitting: list[int] = []
    for start in range(0, len(order), COUNT_BATCH):
        batch = order[start : start + COUNT_BATCH]
        for row, tokens in zip(batch, await llm.count([passage(pool.chunk(row)) for row in batch]), strict=True):
            room -= tokens
            if room < 0:
                return [scored_chunk(pool, row) for row in sorted(fitting)]
            fitting.append(row)
    return [scored_chunk(pool, row) for row in sorted(fitting)]
