"""What people are shown of plain RAG."""

from collections.abc import Iterator

from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import Step, last_update
from .blocks import Block, Cell, Row, Table, Words, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node
from .words import names_of, similarities


def retrieve(step: Step) -> StepSummary:
    """How many chunks were retrieved, and their similarity to the question."""
    return StepSummary(similarities(step.update["evidence"]))


def figures(recording: Recording) -> list[Block]:
    """The retrieved chunks with their scores."""
    retrieval = last_update(recording.steps, "retrieve")
    if "evidence" not in retrieval:
        return [Words("The run ended before chunks were retrieved.")]
    chunks: list[Chunk] = retrieval["evidence"]
    if not chunks:
        return [Words("No chunks were retrieved.")]
    names = names_of(chunks)
    rows = [
        Row([num(rank), Cell(names[chunk["id"]]), num(chunk["score"], f"{chunk['score']:.3f}")])
        for rank, chunk in enumerate(chunks, 1)
    ]
    return [Table(["rank", "chunk", "similarity to the question"], rows, "The retrieved chunks")]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The retrieved chunks."""
    if evidence := last_update(recording.steps, "retrieve").get("evidence"):
        yield RetrievalStep.whole(recording.question, evidence)


presenter = Presenter(
    name="Plain RAG",
    about="Plain RAG retrieves chunks for the question once, and the model answers from them.",
    steps=by_node(retrieve),
    figures=figures,
    retrieval_steps=retrieved,
)
