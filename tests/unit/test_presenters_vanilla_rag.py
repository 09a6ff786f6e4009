"""What is shown of `vanilla_rag`: the retrieval on the terminal and on the page, the retrieval step."""

from __future__ import annotations

from pathlib import Path

import pytest
from dubito.presenters.blocks import Gauge, Table, Words
from dubito.presenters.presenter import StepSummary, figures_of, outcome_of, retrieval_steps, summary_of
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import record, vanilla_run
from dubito.tests.scripted import QUESTION
from dubito.traces.events import Progress
from dubito.traces.recording import Recording, read
from dubito.traces.steps import NodeRun, Step


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    record(vanilla_run(), tmp_path / "t.jsonl")
    return read(tmp_path / "t.jsonl")


def test_the_chunks_and_their_similarity(recording: Recording) -> None:
    said = {step.node: summary_of(step) for step in recording.steps}
    assert said["retrieve"] == StepSummary("2 chunks, similarity 0.98 to 1.00")
    assert said["generate"] == StepSummary()
    (table,) = figures_of(recording)
    assert isinstance(table, Table)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [["1", "T0", "0.995"], ["2", "T1", "0.981"]]
    (step,) = retrieval_steps(recording)
    assert (step.label, [chunk["id"] for chunk in step.new]) == (QUESTION, ["c0", "c1"])
    assert recording.output is not None
    assert outcome_of("vanilla_rag", recording.output, VanillaRagContext()) == []


def test_a_run_that_found_nothing_or_ended_early(recording: Recording) -> None:
    nothing = Step(2, "vanilla_rag", "retrieve", (), 0, 2, {}, None, [NodeRun("t", 0.0, {}, 1.0, {"evidence": []})])
    recording.steps[1:] = [nothing]
    assert summary_of(nothing) == StepSummary("no chunks")
    assert figures_of(recording) == [Words("No chunks were retrieved.")]
    recording.steps[1:] = []
    assert figures_of(recording) == [Words("The run ended before chunks were retrieved.")]
    assert retrieval_steps(recording) == []


def test_a_long_search_shows_how_far_it_is() -> None:
    progress = Progress(namespace=(), at=0.5, node="retrieve", what="indexing notes", done=30, total=1200)
    step = Step(1, "vanilla_rag", "retrieve", (), 0, 1, {}, None, [NodeRun("t", 0.0, {})], progress=progress)
    assert summary_of(step) == StepSummary("indexing notes", [Gauge(30, 1200)])
