"""rechunk: adaptive semantic chunking of an uncertain question's corpus (DENSE section 5.1, Algorithm 2)."""

from ..errors import UserFault
from ..resources.resources import Resources
from ..state.dense_rag import DenseRagContext, DenseRagState
from .refine import round_record
from .retrieve_top_k import top_k_context


async def check_rechunker(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Refuse a semantic chunker that does not exist, or that this encoder cannot serve."""
    from ..retrieval.chunkers import chunker_for  # noqa: PLC0415 - faiss loads when first needed

    if not context.adaptive:
        return {}
    if not context.rechunker.strip().startswith("semantic:"):
        raise UserFault(
            f"'{context.rechunker}' is not a semantic chunker: set rechunker to semantic:TAU/TMAX, such as "
            "semantic:0.6/512, or adaptive to false."
        )
    try:
        await chunker_for(context.rechunker, await resources.encoder(context))
    except UserFault as fault:
        raise UserFault(f"{fault} Without semantic chunks: set adaptive to false.") from fault
    return {}


async def rechunk(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Chunk the corpus by meaning (equation 7) and make the k chunks nearest to the question the context C."""
    new_context = await top_k_context(state["question"], context.rechunker, context, resources)
    return {**new_context, "rounds": [round_record(state)], "rechunked": True}
