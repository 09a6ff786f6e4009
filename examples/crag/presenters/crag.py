"""What people are shown of CRAG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..traces.recording import Recording
from ..traces.steps import Step, last_update, updates
from .blocks import Block, Cell, Row, Table, Words, num
from .presenter import Presenter, RetrievalStep, StepSummary, by_node
from .words import counted, title_of, titles_of


def retrieve(step: Step) -> StepSummary:
    """How many chunks were found."""
    return StepSummary(counted(len(step.update["evidence"]), "chunk"))


def grade(step: Step) -> StepSummary:
    """A row a chunk, filled in as the grades arrive."""
    rows = []
    for run in step.runs:
        chunk = run.input["chunk"]
        grades = run.update.get("grades")
        if grades is None:
            rows.append(Row([Cell(title_of(chunk)), Cell("...", tone="dim")]))
        else:
            rows.append(Row([Cell(title_of(chunk)), _grade(grades[chunk["id"]])]))
    return StepSummary("", [Table(["chunk", "grade"], rows)])


def keep_relevant(step: Step) -> StepSummary:
    """How many chunks are kept."""
    return StepSummary(f"{counted(len(step.update['evidence']), 'chunk')} kept")


def figures(recording: Recording) -> list[Block]:
    """Every retrieved chunk with its similarity and its grade."""
    retrieved = last_update(recording.steps, "retrieve").get("evidence")
    if not retrieved:
        return [Words("The run ended before a chunk was found.")]
    grades = {key: value for update in updates(recording.steps, "grade") for key, value in update["grades"].items()}
    rows = [
        Row([Cell(title_of(chunk)), num(chunk["score"]), _grade(grades[chunk["id"]])], marked=grades[chunk["id"]])
        for chunk in retrieved
        if chunk["id"] in grades
    ]
    return [Table(["chunk", "similarity", "grade"], rows, "The retrieved chunks")]


def _grade(relevant: bool) -> Cell:
    return Cell("relevant", tone="good") if relevant else Cell("irrelevant", tone="warn")


def retrieval_steps(recording: Recording) -> Iterator[RetrievalStep]:
    """The search, then the relevant chunks."""
    for node, label in (("retrieve", recording.question), ("keep_relevant", "the relevant chunks")):
        update = last_update(recording.steps, node)
        if "evidence" in update:
            yield RetrievalStep.whole(label, update["evidence"])


def why(output: Mapping[str, Any]) -> str:
    """The chunks that the model found relevant."""
    return f"The answer was written from the chunks that the model found relevant: {titles_of(output['evidence'])}."


presenter = Presenter(
    name="CRAG",
    purpose="Answer from passages that were checked",
    when="Retrieval finds passages that have little to do with the question.",
    about="CRAG retrieves chunks and lets the model grade each as relevant or not. The answer comes from the relevant "
    "chunks; the more chunks were irrelevant, the less sure it is.",
    steps=by_node(retrieve, keep_relevant),
    live_steps=by_node(grade),
    figures=figures,
    retrieval_steps=retrieval_steps,
    why=why,
)
