"""What is shown of `vanilla_rag`: the retrieval on the terminal and on the page, the retrieval step."""

from dubito.presenters.blocks import Table, Words
from dubito.presenters.presenter import StepSummary, figures_of, outcome_of, retrieval_steps, summary_of
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import cells, recording_of, retrieved
from dubito.tests.scripted import QUESTION
from dubito.traces.steps import NodeRun, Step


def test_the_chunks_and_their_similarity() -> None:
    recording = recording_of("vanilla_rag")
    said = {step.node: summary_of(step) for step in recording.steps}
    assert said["retrieve"] == StepSummary("2 chunks, similarity 0.98 to 1.00")
    assert said["generate"] == StepSummary()
    (table,) = figures_of(recording)
    assert cells(table) == [["1", "T0", "0.995"], ["2", "T1", "0.981"]]
    assert retrieved(recording) == [(QUESTION, "c0 c1", "c0 c1")]
    assert recording.output is not None
    assert outcome_of("vanilla_rag", recording.output, VanillaRagContext()) == []


def test_a_run_that_found_nothing_or_ended_early() -> None:
    recording = recording_of("vanilla_rag")
    nothing = Step(2, "vanilla_rag", "retrieve", (), 0, 2, {}, None, [NodeRun("t", 0.0, {}, 1.0, {"evidence": []})])
    recording.steps[1:] = [nothing]
    assert summary_of(nothing) == StepSummary("no chunks")
    assert figures_of(recording) == [Words("No chunks were retrieved.")]
    recording.steps[1:] = []
    assert figures_of(recording) == [Words("The run ended before chunks were retrieved.")]
    assert retrieved(recording) == []


def test_a_reranking_shows_both_orders() -> None:
    recording = recording_of("vanilla_rag")
    (run,) = next(step for step in recording.steps if step.node == "retrieve").runs
    near, far = run.update["evidence"]
    best = [{**far, "score": 0.9}, {**near, "score": 0.2}]
    update = {"evidence": best[:1], "first_stage": [near, far], "warnings": []}
    recording.steps[1:2] = [
        Step(2, "vanilla_rag", "retrieve", (), 0, 2, {}, None, [NodeRun("t", 0.0, {}, 1.0, update)])
    ]
    step = recording.steps[1]
    assert summary_of(step) == StepSummary("1 of 2 chunks, similarity 0.98 to 1.00, re-ranked: 0.90 to 0.90")
    (table,) = figures_of(recording)
    assert isinstance(table, Table)
    assert (table.columns[2], cells(table)) == ("score of the re-ranker", [["1", "T1", "0.900"]])
    (found,) = retrieval_steps(recording)
    orders = [[chunk["id"] for chunk in chunks] for chunks in (found.known, found.first_stage, found.reranked)]
    assert orders == [["c1"], ["c0"], ["c1"]], "equally many in both orders"
