"""What is shown of `seper`: each step, the figures of a page, the outcome, the retrieval steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dubito.presenters.blocks import Bars, Table, Words
from dubito.presenters.presenter import StepSummary, figures_of, outcome_of, summary_of
from dubito.state.seper import SePerContext
from dubito.tests.recorded import cells, recorded, retrieved, seper_run
from dubito.tests.scripted import QUESTION
from dubito.traces.recording import Recording
from dubito.traces.steps import NodeRun, Step


@pytest.fixture(params=["soft", "hard"])
def rule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recording(rule: str, tmp_path: Path) -> Recording:
    """With the chunks three of four responses are right, two of them in two spellings; without them none is."""
    return recorded(seper_run(rule=rule), tmp_path)


def said(recording: Recording, node: str) -> StepSummary:
    return next(summary_of(step) for step in recording.steps if step.node == node)


def test_the_responses_of_both_sides(recording: Recording) -> None:
    summary = said(recording, "sample_responses")
    assert summary.words == "4 responses with the chunks, 4 responses without"
    (table,) = summary.blocks
    assert isinstance(table, Table)
    assert table.columns == ["with the chunks", "without", "response"]
    assert cells(table) == [["0.25", "1.00", "three"], ["0.50", "", "one"], ["0.25", "", "two"]]


def test_while_a_side_is_sampled_the_other_is_counted() -> None:
    response = {"text": "", "weight": 1.0}
    runs = [NodeRun("a", 0.0, {}, 1.0, {"responses_by_side": {"without": [response]}}), NodeRun("b", 0.0, {})]
    step = Step(1, "seper", "sample_responses", (), 0, 1, {}, SePerContext(), runs)
    assert summary_of(step) == StepSummary("1 response without")
    runs.pop()
    assert cells(summary_of(step).blocks[0]) == [["1.00", "(no answer)"]]


def test_the_judgement_is_hidden_and_the_measure_says_what_came_of_it(recording: Recording, rule: str) -> None:
    assert said(recording, "judge_responses").hidden
    summary = said(recording, "measure_seper")
    (bars,) = summary.blocks
    assert isinstance(bars, Bars)
    (right, wrong) = bars.bars
    assert right.text.endswith(", most of it from: one")
    assert summary.words.startswith("ΔSePer +0.")
    assert wrong.text == ("0.000" if rule == "hard" else "0.400, most of it from: three")


def test_the_page(recording: Recording, rule: str) -> None:
    bars, *tables = figures_of(recording)
    assert isinstance(bars, Bars)
    assert "how much the chunks raise the belief" in bars.note
    assert [table.title for table in tables if isinstance(table, Table)] == [
        f"{side}: {part}"
        for side in ("With the chunks", "Without the chunks")
        for part in (["responses", "semantic clusters"] if rule == "hard" else ["responses"])
    ]
    responses = tables[0]
    assert isinstance(responses, Table)
    names = ["weight", "response", *(["cluster"] if rule == "hard" else [])]
    assert responses.columns == [*names, "entails one", "entailed by one", "entails 1", "entailed by 1"]
    assert ["0.250", "one", *(["0"] if rule == "hard" else []), "1.00", "1.00", "0.40", "0.40"] in cells(responses)
    assert len(responses.rows) == 4
    if rule == "hard":
        assert cells(tables[1]) == [["0", "0.750", "one", "matches", ""], ["1", "0.250", "three", "", ""]]
        marked = [row.cells[1].text for row in responses.rows if row.marked]
        assert sorted(marked) == ["One.", "one", "two"]


def test_a_pair_that_the_judge_could_not_label_has_a_question_mark(recording: Recording) -> None:
    update: Any = next(step for step in recording.steps if step.node == "measure_seper").update
    update["with_context"]["responses"][0]["entails"] = [None, None]
    assert "?" in [cell for row in cells(figures_of(recording)[1]) for cell in row]


def test_a_run_that_ended_early(recording: Recording) -> None:
    recording.steps.pop()
    assert figures_of(recording) == [Words("The run ended before anything was measured.")]


@pytest.mark.parametrize(("delta", "tone"), [(0.4, "good"), (0.0, "warn"), (-0.2, "warn")])
def test_the_outcome_says_what_the_chunks_did(delta: float, tone: str) -> None:
    output = {"delta": delta, "seper": 0.3 + delta, "seper_without": 0.3, "uncertainty": None}
    (words,) = outcome_of("seper", output, SePerContext())
    assert isinstance(words, Words)
    assert words.tone == tone
    assert words.text == f"ΔSePer {delta:+.2f}: the belief in the right answer goes from 0.30 to {0.3 + delta:.2f}."


def test_the_measured_chunks_are_the_retrieval(recording: Recording) -> None:
    assert retrieved(recording) == [(QUESTION, "c0 c1", "c0 c1")]
    prepare = recording.steps[0].runs[0]
    prepare.update = {**prepare.update, "evidence": recording.steps[1].update["evidence"]}
    recording.steps[1:] = []
    assert retrieved(recording) == [("the given chunks", "c0 c1", "c0 c1")]
