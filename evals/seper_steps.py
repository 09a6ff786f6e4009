"""ΔSePer of each retrieval step of a run: its evidence, compressed evidence, single chunks, and re-ranking."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import ContextOverflow, UserFault
from ..presenters.presenter import RetrievalStep, retrieval_steps
from ..resources.resources import Resources
from ..state.records import Chunk
from ..state.seper import SePerContext
from ..traces.recording import Recording
from .compression import Compression, check_share, compressed, contrasted, informed, question_compressed
from .seper import Piece, SePerResult, measure_pieces, with_retries

EvidenceKind = Literal["known", "compressed", "first_stage", "reranked", "chunk"]
"""known: all evidence up to the step. compressed: a part of its text. first_stage, reranked: equally many
documents in the order of the search and of the re-ranking. chunk: one new chunk alone."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The SePer of one piece of evidence of a run.

    step: the number of the retrieval step, from 1. label: the step's label; for a single chunk its title. result: None
    if the evidence does not fit the model's window.
    """

    step: int
    label: str
    kind: EvidenceKind
    evidence: tuple[Chunk, ...]
    result: SePerResult | None

    @property
    def words(self) -> int:
        """The number of words of the evidence, without titles."""
        return sum(len(chunk["text"].split()) for chunk in self.evidence)


async def score_steps(
    recording: Recording,
    answers: Sequence[str],
    context: SePerContext,
    resources: Resources,
    *,
    chunks: bool = False,
    compress: float | None = None,
    compression: Compression = "selective_context",
) -> list[StepScore]:
    """ΔSePer of every retrieval step of a run, in their order; see `StepScore` and `RetrievalStep`.

    answers: the right answers. chunks: also score each new chunk alone. compress: also score the evidence of each step
    with this share of its text, above 0 to 1: its most informative sentences (`compression` is "selective_context"), or
    the tokens that matter most to the question ("question_aware"). All evidence is measured in one batch; see
    `measure_pieces`.
    Raises `UserFault` for a run without retrieval steps, and as `measure_pieces` and `retrieval_steps` do.
    """
    steps = retrieval_steps(recording)
    if not steps:
        raise UserFault(f"The run of {recording.graph} in '{recording.path}' looked nothing up: there is no step.")
    shorter: Sequence[Sequence[Chunk] | None] = [None] * len(steps)
    if compress is not None:
        shorter = await _compressed(recording, compress, compression, context, resources)
    entries = [
        (number, label, kind, tuple(evidence))
        for number, (step, short) in enumerate(zip(steps, shorter, strict=True), 1)
        for label, kind, evidence in _evidence_of(step, short, chunks=chunks)
    ]
    pieces = [Piece(recording.question, tuple(answers), evidence) for *_, evidence in entries]
    results = await measure_pieces(pieces, context, resources)
    return [
        StepScore(*entry, None if isinstance(result, ContextOverflow) else result)
        for entry, result in zip(entries, results, strict=True)
    ]


def _evidence_of(
    step: RetrievalStep, short: Sequence[Chunk] | None, *, chunks: bool
) -> Iterator[tuple[str, EvidenceKind, Sequence[Chunk]]]:
    yield step.label, "known", step.known
    if short is not None:
        yield step.label, "compressed", short
    if step.first_stage:
        yield step.label, "first_stage", step.first_stage
        yield step.label, "reranked", step.reranked
    if chunks:
        for chunk in step.new:
            yield chunk["title"] or chunk["id"], "chunk", [chunk]


async def _compressed(
    recording: Recording, keep: float, compression: Compression, context: SePerContext, resources: Resources
) -> list[list[Chunk]]:
    """The evidence known up to each step, with this share of its text."""
    check_share(keep)  # before the model is asked
    steps = retrieval_steps(recording)
    llm = await resources.llm(context)
    texts = [chunk["text"] for step in steps for chunk in step.known]
    if compression == "question_aware":
        contrasts = await with_retries(lambda: contrasted(recording.question, texts, llm))
        return [question_compressed(step.known, contrasts, keep) for step in steps]
    information = await with_retries(lambda: informed(texts, llm))
    return [compressed(step.known, information, keep) for step in steps]
