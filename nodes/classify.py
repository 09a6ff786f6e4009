"""classify: certain, necessary and unnecessary chunks (DENSE section 5.2, equations 8-10)."""

from __future__ import annotations

from ..models.resources import Resources
from ..state.dense_rag import ChunkClass, Classified, DenseRagContext, DenseRagState
from .entail import judge_of, links


async def classify(state: DenseRagState, context: DenseRagContext, resources: Resources) -> DenseRagState:
    """Tell the chunks apart: certain where W[i,0] = 1; else unnecessary where the answer stays without it."""
    uncertain = uncertain_ids(state)
    judge = await judge_of(context, resources)
    r_0 = state["responses"][0]
    ablation = {one: state["ablations"][one] for one in uncertain}
    found, warnings = await links(judge, state["question"], [(r_0, ablation[one]) for one in uncertain])
    ablation_link = dict(zip(uncertain, found, strict=True))
    classified: list[Classified] = [
        {
            "chunk_id": chunk["id"],
            "kind": kind(ablation_link.get(chunk["id"]), context),
            "response": state["responses"][i],
            "link": state["link"][i][0],
            "ablation": ablation.get(chunk["id"]),
            "ablation_link": ablation_link.get(chunk["id"]),
        }
        for i, chunk in enumerate(state["chunks"], 1)
    ]
    return {"classified": classified, "warnings": warnings}


def uncertain_ids(state: DenseRagState) -> list[str]:
    """The chunks whose rephrasing changes the answer: W[i,0] below 1."""
    return [chunk["id"] for i, chunk in enumerate(state["chunks"], 1) if state["link"][i][0] < 1]


def kind(ablation_link: float | None, context: DenseRagContext) -> ChunkClass:
    """The class of a chunk from the link of r_0 with the answer without it, None where it was not ablated."""
    if ablation_link is None:
        return "certain"
    if ablation_link == 1 or (ablation_link > 0 and context.half_links == "unnecessary"):
        return "unnecessary"
    return "necessary"
