"""What people are shown of ITER-RETGEN."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..state.baselines import Iteration
from ..traces.recording import Recording
from ..traces.steps import Step, updates
from .blocks import Block, Cell, Row, Table, Words, answer_cell
from .presenter import Presenter, RetrievalStep, StepSummary
from .reasoning import SCORE, chunks_found
from .words import NO_ANSWER, counted, names_of

RETRIEVAL, GENERATION = "generation_augmented_retrieval", "retrieval_augmented_generation"


def retrieval(step: Step) -> StepSummary:
    """The chunks of an iteration and their query."""
    return chunks_found(step.update["evidence"], "chunk", step.update["query"])


def generation(step: Step) -> StepSummary:
    """The answer of an iteration."""
    return StepSummary(step.update["answer"] or NO_ANSWER)


def figures(recording: Recording) -> list[Block]:
    """A row an iteration: its query, chunks, reasoning and answer."""
    iterations: list[Iteration] = [i for update in updates(recording.steps, GENERATION) for i in update["iterations"]]
    if not iterations:
        return [Words("The run ended before an iteration was over.")]
    names = names_of(chunk for update in updates(recording.steps, RETRIEVAL) for chunk in update["evidence"])
    seen: set[str] = set()
    rows = []
    for number, iteration in enumerate(iterations, 1):
        ids = iteration["chunk_ids"]
        chunks = "; ".join(names[i] + ("" if i in seen or number == 1 else " (new)") for i in ids)
        seen.update(ids)
        cells = [Cell(f"{number}", number=True), Cell(iteration["query"]), Cell(chunks), Cell(iteration["reasoning"])]
        rows.append(Row([*cells, answer_cell(iteration["answer"])]))
    columns = ["iteration", "searched for", "chunks", "reasoning", "answer"]
    return [Table(columns, rows, "Iterations", "New: no earlier iteration found it.")]


def retrieved(recording: Recording) -> Iterator[RetrievalStep]:
    """The search of each iteration."""
    for update in updates(recording.steps, RETRIEVAL):
        yield RetrievalStep.whole(update["query"], update["evidence"])


def why(output: Mapping[str, Any]) -> str:
    """How the answer changed from one iteration to the next."""
    answers = [iteration["answer"] or NO_ANSWER for iteration in output["iterations"]]
    return f"{counted(len(answers), 'iteration')} of searching and answering gave: {', then '.join(answers)}."


presenter = Presenter(
    name="ITER-RETGEN",
    purpose="Search again with the first answer",
    when="The first answer names what the next search needs.",
    about="ITER-RETGEN retrieves and answers several times. Each search after the first contains the reasoning of the "
    "answer before.",
    steps={RETRIEVAL: retrieval, GENERATION: generation},
    figures=figures,
    retrieval_steps=retrieved,
    why=why,
    score=SCORE,
)
