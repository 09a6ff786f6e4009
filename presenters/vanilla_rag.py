"""What people are shown of plain RAG."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..state.records import Chunk
from ..traces.recording import Recording
from ..traces.steps import Step, last_update
from .blocks import Block, Cell, Row, Table, Words, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node
from .words import MOST_TITLES, counted, measure, names_of, similarities, titles_of


def retrieve(step: Step) -> StepSummary:
    """How many chunks were retrieved, and their scores, or what the re-ranker made of them."""
    chunks = step.update["evidence"]
    if found := step.update.get("first_stage"):
        kept = f"{len(chunks)} of {similarities(found, measure(step.settings, reranked=False))}"
        return StepSummary(f"{kept}, re-ranked: {min(c['score'] for c in chunks):.2f} to {chunks[0]['score']:.2f}")
    return StepSummary(similarities(chunks, measure(step.settings)))


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
    own = "score" if measure(recording.settings) == "score" else "similarity to the question"
    score = "score of the re-ranker" if retrieval.get("first_stage") else own
    return [Table(["rank", "chunk", score], rows, "The retrieved chunks")]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The retrieved chunks."""
    retrieval = last_update(recording.steps, "retrieve")
    if evidence := tuple(retrieval.get("evidence", ())):
        found = tuple(retrieval.get("first_stage") or ())[: len(evidence)]
        yield RetrievalStep(recording.question, evidence, evidence, found, evidence if found else ())


def why(output: Mapping[str, Any]) -> str:
    """What was retrieved."""
    evidence: Sequence[Chunk] = output["evidence"]
    if not evidence:
        return "Nothing was retrieved."
    return f"The answer was written from {counted(len(evidence), 'chunk')}: {titles_of(evidence, MOST_TITLES)}."


presenter = Presenter(
    name="Plain RAG",
    purpose="Answer from similar passages",
    when="A question whose answer stands in one or two passages.",
    about="Plain RAG retrieves chunks for the question once, and the model answers from them.",
    steps=by_node(retrieve),
    figures=figures,
    retrieval_steps=retrieved,
    why=why,
)
