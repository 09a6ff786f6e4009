"""A language model as the judge of answers and of their evidence (Dai et al., SePer, appendix B.2)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from ..concurrency import gather_or_cancel
from ..models.interfaces import ChatModel, Message
from ..prompts import unparsed
from ..state.context import BaseContext, Presets
from ..state.records import Chunk
from .seper import with_retries

LOWEST, HIGHEST = int(unparsed.RATINGS[0]), int(unparsed.RATINGS[-1])


class LlmJudgeContext(BaseContext):
    """Settings of the metric `llm-judge`: the judge is the chat model `llm`."""

    presets: ClassVar[Presets] = {"embedded": {"llm": "embedded"}}

    evaluation: Literal["both", "direct", "reduction"] = Field(
        default="both",
        title="Evaluation",
        description="direct: the judge rates how much the evidence contributes to the answer. reduction: it rates how "
        "right the answer is with the evidence and without it. both: the two of them.",
    )


async def judge_answer(
    question: str, answer: str, chunks: Sequence[Chunk], context: LlmJudgeContext, llm: ChatModel
) -> dict[str, float]:
    """The judge's ratings, 1 to 10 in the paper, mapped to [0, 1] by (rating − 1) / 9.

    contribution: of the evidence to the answer (direct). correctness, correctness_without: of the answer with the
    evidence and without it; delta_correctness: their difference, −1 to 1 (reduction). An empty answer and an answer
    without evidence are rated without the judge: an empty answer is wrong, and no evidence contributes nothing.
    Raises `ContractFault` if the judge names no rating, `ContextOverflow` and `ModelUnavailable`.
    """

    async def rated(messages: Sequence[Message]) -> float:
        choice = await with_retries(lambda: llm.choose(messages, unparsed.RATINGS))
        return (int(choice.best) - LOWEST) / (HIGHEST - LOWEST)

    async def contribution() -> dict[str, float]:
        if not answer or not chunks:
            return {"contribution": 0.0}
        return {"contribution": await rated(unparsed.contribution(question, chunks, answer))}

    async def correctness() -> dict[str, float]:
        shown = [chunks, []] if chunks else [[]]
        ratings = (
            await gather_or_cancel(rated(unparsed.correctness(question, part, answer)) for part in shown)
            if answer
            else [0.0]
        )
        return {
            "correctness": ratings[0],
            "correctness_without": ratings[-1],
            "delta_correctness": ratings[0] - ratings[-1],
        }

    parts = {"direct": [contribution], "reduction": [correctness], "both": [contribution, correctness]}
    found = await gather_or_cancel(part() for part in parts[context.evaluation])
    return {name: value for part in found for name, value in part.items()}
