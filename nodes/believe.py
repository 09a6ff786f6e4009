"""sample, entail, measure: the belief in the right answer with the chunks and without (SePer, Algorithm 1)."""

from __future__ import annotations

from ..models.interfaces import Judge
from ..models.resources import Resources
from ..state.seper import WITH, WITHOUT, Judged, SampleInput, SePerContext, SePerState
from .belief import belief_of, judged_of, likeliest, pairs_of, sampled, unsaid
from .relations import relations_of

NO_CHUNKS = "There are no chunks to measure: the belief with them is the one without."


async def sample_responses(state: SampleInput, context: SePerContext, resources: Resources) -> SePerState:
    """n responses of one side in one request, with their log-probabilities."""
    llm = await resources.llm(context.llm, context.concurrency)
    responses, warnings = await sampled(state["question"], state["evidence"], context, llm)
    return {"samples": {state["side"]: responses}, "warnings": warnings}


async def entail_answers(state: SePerState, context: SePerContext, resources: Resources) -> SePerState:
    """What the judge says of each side's responses and the right answers; each two wordings are judged once."""
    judge = await seper_judge(context, resources)
    wanted = {side: pairs_of(some, state["golds"], context) for side, some in state["samples"].items()}
    relations = await relations_of(judge, state["question"], list(wanted.values()))
    judged: dict[str, Judged] = {
        side: judged_of(state["samples"][side], state["golds"], relation, context)
        for side, relation in zip(wanted, relations, strict=True)
    }
    return {"judged": judged, "warnings": unsaid(judge, list(judged.values()))}


async def measure_belief(state: SePerState, context: SePerContext, resources: Resources) -> SePerState:
    """SePer of each side, and ΔSePer, what the chunks are worth (equation 11)."""
    beliefs = {side: belief_of(some, state["judged"][side], context) for side, some in state["samples"].items()}
    without = beliefs[WITHOUT]
    there = beliefs.get(WITH, without)
    return {
        "answer": likeliest(there["responses"]),
        "seper": there["seper"],
        "seper_without": without["seper"],
        "delta": there["seper"] - without["seper"],
        "with_context": there,
        "without_context": without,
        "warnings": [] if WITH in beliefs else [NO_CHUNKS],
    }


async def seper_judge(context: SePerContext, resources: Resources) -> Judge:
    """The judge that the context names."""
    return await resources.judge(context.judge, context.llm, context.encoder, context.concurrency)
