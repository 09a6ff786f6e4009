"""classify: certain, necessary and unnecessary chunks (DENSE section 5.2, equations 8-10)."""

from ..resources.resources import Resources
from ..state.dense_rag import ChunkClass, ClassifiedChunk, DenseRagContext, DenseRagState
from .entail import links


async def classify(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Classify each chunk of the context from W[i,0] and from the link of r_0 with ar_i."""
    uncertain, ablations, r_0 = uncertain_ids(state), state["ablations"], state["responses"][0]
    judge = await resources.judge(context)
    pairs = [(r_0, ablations[chunk_id]) for chunk_id in uncertain]
    links_with_r_0, warnings = await links(judge, state["question"], pairs)
    ablation_links = dict(zip(uncertain, links_with_r_0, strict=True))
    classified: list[ClassifiedChunk] = []
    for i, chunk in enumerate(state["context_chunks"], 1):
        ablation_link = ablation_links.get(chunk["id"])
        classified.append(
            {
                "chunk_id": chunk["id"],
                "kind": class_of(ablation_link, context),
                "response": state["responses"][i],
                "link": state["link"][i][0],
                "ablation": None if ablation_link is None else ablations[chunk["id"]],
                "ablation_link": ablation_link,
            }
        )
    return {"classified": classified, "warnings": warnings}


def uncertain_ids(state: DenseRagState) -> list[str]:
    """The ids of the uncertain chunks: W[i,0] < 1 (equation 8)."""
    return [chunk["id"] for i, chunk in enumerate(state["context_chunks"], 1) if state["link"][i][0] < 1]


def class_of(ablation_link: float | None, context: DenseRagContext) -> ChunkClass:
    """The class of a chunk from the link of r_0 with ar_i (equation 10), which is None for a certain chunk."""
    if ablation_link is None:
        return "certain"
    if ablation_link == 1 or (ablation_link > 0 and context.half_links == "unnecessary"):
        return "unnecessary"
    return "necessary"
