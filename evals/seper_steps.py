"""ΔSePer of what a run retrieved: each step, each chunk alone, compressed evidence, before and after re-ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import ContextOverflow, UserFault
from ..models.resources import Resources
from ..state.records import Chunk
from ..state.seper import SePerContext
from ..traces.recording import Recording
from .compression import compressed, informed
from .retrieval_steps import RetrievalStep, retrieval_steps
from .seper import Piece, Worth, beliefs, patiently

What = Literal["known", "compressed", "first_stage", "reranked", "chunk"]
"""What was measured: the evidence known up to the step; its most informative sentences; as many documents in the order
of the search, and of the re-ranking; a new chunk alone."""


@dataclass(frozen=True, slots=True)
class StepWorth:
    """What one piece of evidence of a run is worth.

    step: its number, from 1; label: of the step, for a chunk its title; words: how many the evidence has; worth: None
    where it does not fit the model's window.
    """

    step: int
    label: str
    what: What
    evidence: tuple[Chunk, ...]
    worth: Worth | None

    @property
    def words(self) -> int:
        """How many words the evidence has, titles left out."""
        return sum(len(chunk["text"].split()) for chunk in self.evidence)


async def worth_of_steps(
    recording: Recording,
    answers: Sequence[str],
    context: SePerContext,
    resources: Resources,
    *,
    chunks: bool = False,
    compress: float | None = None,
) -> list[StepWorth]:
    """ΔSePer of every retrieval step of a run, in their order; see `StepWorth` and `RetrievalStep`.

    answers: the right ones. chunks: each new chunk alone too; compress: the evidence of each step too with this share
    of its sentences, above 0 to 1. All is sampled and judged together; see `beliefs`.
    Raises `UserFault` for a run that looked nothing up, and as `beliefs` and `retrieval_steps` do.
    """
    steps = retrieval_steps(recording)
    if not steps:
        raise UserFault(f"The run of {recording.graph} in '{recording.path}' looked nothing up: there is no step.")
    wanted: list[tuple[int, str, What, Sequence[Chunk]]] = []
    shorter = [] if compress is None else await _shorter(steps, compress, context, resources)
    for number, step in enumerate(steps, 1):
        wanted.append((number, step.label, "known", step.known))
        if shorter:
            wanted.append((number, step.label, "compressed", shorter[number - 1]))
        if step.first_stage:
            wanted.append((number, step.label, "first_stage", step.first_stage))
            wanted.append((number, step.label, "reranked", step.reranked))
        if chunks:
            wanted += [(number, chunk["title"] or chunk["id"], "chunk", [chunk]) for chunk in step.new]
    pieces = [Piece(recording.question, tuple(answers), tuple(evidence)) for *_, evidence in wanted]
    found = await beliefs(pieces, context, resources)
    return [
        StepWorth(number, label, what, tuple(evidence), None if isinstance(worth, ContextOverflow) else worth)
        for (number, label, what, evidence), worth in zip(wanted, found, strict=True)
    ]


async def _shorter(
    steps: Sequence[RetrievalStep], keep: float, context: SePerContext, resources: Resources
) -> list[list[Chunk]]:
    """The evidence known up to each step, with this share of its sentences."""
    compressed([], {}, keep)  # a share that is none is refused before the model is asked
    llm = await resources.llm(context.llm, context.concurrency)
    texts = [chunk["text"] for step in steps for chunk in step.known]
    information = await patiently(lambda: informed(texts, llm))
    return [compressed(step.known, information, keep) for step in steps]
