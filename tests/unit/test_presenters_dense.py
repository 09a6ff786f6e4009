"""What DENSE and DENSE-RAG show of their steps and runs, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from dubito.graphs import dense
from dubito.presenters import dense as shown_of_dense
from dubito.presenters.blocks import Bars, Fold, Gauge, Table, Words
from dubito.presenters.dense_rag import STOP_REASONS
from dubito.presenters.presenter import (
    StepSummary,
    figures_of,
    outcome_of,
    presenter_of,
    summary_of,
)
from dubito.resources.resources import Resources
from dubito.state.context import BaseContext
from dubito.state.dense import DenseContext
from dubito.state.dense_rag import DenseRagContext, StopReason
from dubito.tests.recorded import cells, recorded, recording_of, retrieved
from dubito.tests.scripted import QUESTION, Reader, ScriptedEncoder, ScriptedJudge
from dubito.traces.events import NodeEnd, NodeStart, Progress
from dubito.traces.recording import Recording
from dubito.traces.run import Run
from dubito.traces.steps import NodeRun, Step, Steps


def summaries(recording: Recording) -> list[tuple[str, StepSummary]]:
    """Each step's name, with the node around it, and its summary."""
    return [("/".join([*path, step.node]), summary_of(step)) for path, step in recording.walk()]


def step_of(graph: str, node: str, settings: BaseContext | None, state: dict[str, Any], update: dict[str, Any]) -> Step:
    """A step that has read `state` and is done."""
    return Step(1, graph, node, (), 0, 1, state, settings, [NodeRun("t", 0.0, state, 1.0, update)])


# --- DENSE ---


def test_the_steps_of_a_measurement() -> None:
    found = dict(summaries(recording_of("dense")))
    assert {node: summary.words for node, summary in found.items() if not summary.hidden} == {
        "prepare": "",
        "retrieve_top_k": "3 chunks, similarity 0.99 to 1.00",
        "rephrase": "3 of 3 chunks rephrased",
        "respond": "3 wordings of the answer from 4 contexts",
        "repeat": "the original context again: is the model deterministic?",
        "entail": "3 of 6 pairs of responses entail each other, 1 in one direction only",
        # degrees 3, 3.5, 3 and 1.5 of 4
        "measure_dse": "DSE 0.42 (uncertain: above 0.2)",
    }
    assert cells(found["respond"].blocks[0]) == [
        ["r_0", "the original context", "", "one"],
        ["r_1", "T0", "≠", "two"],
        ["r_2", "T1", "=", "one"],
        ["r_3", "T2", "≠", "three"],
    ]
    assert found["repeat"].blocks == [Words("one")]
    links, chunks = found["measure_dse"].blocks
    assert isinstance(links, Table)
    assert links.matrix
    levels = [[cell.level for cell in row.cells[1:]] for row in links.rows]
    assert levels == [[1, 1, 1, 0], [1, 1, 1, 0.5], [1, 1, 1, 0], [0, 0.5, 0, 1]]
    assert cells(chunks)[3] == ["r_3", "T2", "0.245"]


def test_responses_show_up_as_they_arrive() -> None:
    chunks = [{"id": f"c{i}", "doc_id": "d", "title": ["Salt", ""][i], "text": "t"} for i in range(2)]
    steps = Steps("dense")
    for key in ("r_0", "r_1", "r_2"):
        read_ = {"key": key, "question": "?", "evidence": chunks}
        steps.on(NodeStart(namespace=(), at=0.0, node="respond", task=key, input=read_))

    def rows() -> list[list[str]]:
        return cells(summary_of(steps.steps[0]).blocks[0])

    def arrives(key: str, response: str) -> None:
        update = {"response_by_key": {key: response}}
        steps.on(NodeEnd(namespace=(), at=1.0, node="respond", task=key, seconds=1.0, update=update))

    assert rows() == [["r_0", "the original context", "", "..."], ["r_1", "Salt", "", "..."], ["r_2", "c1", "", "..."]]
    arrives("r_2", "a Lune!")
    assert rows()[2] == ["r_2", "c1", "", "a Lune!"], "no mark before r_0 is there"
    arrives("r_0", "The Lune")
    assert [row[2:] for row in rows()] == [["", "The Lune"], ["", "..."], ["=", "a Lune!"]]
    assert summary_of(steps.steps[0]).words == ""
    arrives("r_1", "  ")
    assert rows()[1] == ["r_1", "Salt", "≠", "(no answer)"]


def test_responses_like_r_0_are_left_out_first_of_a_long_table() -> None:
    names = {key: (key, "") for key in ("r_0", "r_1", "r_2")}
    table = shown_of_dense.responses_table(names, {"r_0": "the Lune", "r_1": "Lune", "r_2": "the Wyre"}, "r_0")
    assert [row.minor for row in table.rows] == [False, True, False]


def test_a_chunk_that_could_not_be_rephrased_is_named() -> None:
    chunk = {"id": "c0", "title": "T0", "text": "t"}
    update = {"rephrased": {"k": "t"}, "warnings": ["Chunk 'c0' was not rephrased: it is empty."]}
    summary = summary_of(step_of("dense", "rephrase", None, {"evidence": [chunk]}, update))
    assert summary.words == "0 of 1 chunk rephrased"
    assert summary.blocks == [Words("Chunk 'c0' was not rephrased: it is empty.", "warn")]
    state = {"evidence": [chunk], "link": [[1.0, 1.0]] * 2, "responses": ["a", "a"]}
    measured = {"rephrasings": ["t"], "shares": [0.0], "dse": 0.0, "certain": False, "warnings": ["not steady"]}
    measured["answer"] = "a"
    measured["uncertainty"] = {"signal": "DSE", "value": None, "threshold": 0.2}
    summary = summary_of(step_of("dense", "measure_dse", None, state, measured))
    assert summary.words == "DSE 0.00 (uncertain: no chunk was rephrased)"
    assert cells(summary.blocks[1])[1][1] == "T0 (not rephrased)"
    assert summary.blocks[2] == Words("not steady", "warn")
    summary = summary_of(step_of("dense", "measure_dse", None, state, {**measured, "answer": ""}))
    assert summary.words == "DSE 0.00 (uncertain: there is no answer)"


def test_the_figures_of_a_measurement() -> None:
    recording = recording_of("dense")
    assert recording.output is not None
    links, chunks, rephrasings = figures_of(recording)
    assert [[float(text) for text in row[1:]] for row in cells(links)] == recording.output["link"]
    shares = [float(row[4]) for row in cells(chunks)]
    assert sum(shares) == pytest.approx(recording.output["dse"], abs=2e-3)
    assert shares[1:] == pytest.approx(recording.output["shares"], abs=1e-3)
    assert isinstance(chunks, Table)
    assert [row.cells[4].level == 1 for row in chunks.rows] == [share == max(shares) for share in shares]
    assert isinstance(rephrasings, Fold)
    assert cells(rephrasings.blocks[0])[0] == ["r_1", "text 0", "other text 0"]
    assert outcome_of("dense", recording.output, DenseContext()) == [Words("DSE 0.42 (uncertain: above 0.2).", "warn")]


def test_the_retrieval_steps_of_a_measurement(tmp_path: Path) -> None:
    assert retrieved(recording_of("dense")) == [(QUESTION, "c0 c1 c2", "c0 c1 c2")]
    graph: Any = dense.build(Resources(Reader(), ScriptedEncoder(), judge=ScriptedJudge())).compile(name="dense")
    given = recorded(Run(graph, QUESTION, DenseContext(), {"chunks": ["one", "two"]}), tmp_path)
    assert retrieved(given) == [("the given chunks", "given#1 given#2", "given#1 given#2")]
    empty = recorded(Run(graph, QUESTION, DenseContext(), {"chunks": []}), tmp_path)
    assert retrieved(empty) == []


ONE_ROUND: Any = [{"pruned": [], "refilled": []}]


# --- DENSE-RAG ---


def test_the_steps_of_a_refinement() -> None:
    found = summaries(recording_of("dense_rag"))
    outer = [(name, summary.words) for name, summary in found if "/" not in name]
    assert outer[1:9] == [
        ("retrieve_context", "2 of 6 chunks (tokens:128/16), similarity 0.99 to 1.00"),
        ("dense", "context 1, 2 chunks: DSE 1.10 (uncertain: above 0.2)"),
        ("self_evaluate", "the model finds the context insufficient"),
        ("update_best", "best so far: DSE 1.10"),
        ("ablate", "2 uncertain chunks left out in turn"),
        ("classify", "1 necessary, 1 unnecessary"),
        ("refine", "1 dropped, 1 added"),
        ("dense", "context 2, 2 chunks: DSE 0.64 (uncertain: above 0.2)"),
    ]
    assert outer[-1] == (
        "give_best_answer",
        "the rounds of refinement are used up: DSE 0.56 (uncertain: above 0.2)",
    )
    reused = [summary.words for name, summary in found if name == "dense/rephrase"]
    assert reused[1] == "1 of 1 chunk rephrased, 1 rephrasing reused"
    [update_best, ablate, classify, refine] = [summary.blocks for name, summary in found if "/" not in name][4:8]
    assert update_best == [
        Words("not accepted: its DSE is not below 0.2 and its context is judged insufficient; the context is refined")
    ]
    assert cells(ablate[0]) == [["c_1", "T0", "≠", "four"], ["c_2", "T1", "=", "one"]]
    assert cells(classify[0]) == [
        ["c_1", "T0", "necessary", "four", "0", "four", "0"],
        ["c_2", "T1", "unnecessary", "three", "0", "one", "1"],
    ]
    assert cells(refine[0]) == [["dropped", "T1", ""], ["added", "T2", "cosine 1.00 to T0"]]


def test_the_figures_of_a_refinement() -> None:
    recording = recording_of("dense_rag")
    assert recording.output is not None
    bars, reason, *folds = figures_of(recording)
    rounds = recording.output["rounds"]
    assert isinstance(bars, Bars)
    assert [bar.value for bar in bars.bars] == [measured["dse"] for measured in rounds]
    assert bars.limit == 0.2
    assert reason == Words("The run ended because the rounds of refinement are used up.")
    for fold, measured in zip(folds, rounds, strict=True):
        assert isinstance(fold, Fold)
        assert fold.blocks[0] == Words(f"The model finds the context {'in' * (not measured['sufficient'])}sufficient.")
        assert [[float(text) for text in row[1:]] for row in cells(fold.blocks[1])] == measured["link"]
        classes = [row[5] for row in cells(fold.blocks[2])[1:] if len(row) > 5]
        assert classes == [chunk["kind"] for chunk in measured["classified"]]
    [first, *_] = folds
    assert isinstance(first, Fold)
    assert isinstance(first.blocks[1], Table)
    heads = [(row.cells[0].tone, row.cells[0].tip) for row in first.blocks[1].rows]
    assert heads[1:] == [("warn", "T0, necessary"), ("bad", "T1, unnecessary")]
    assert isinstance(first.blocks[-1], Table)
    assert first.blocks[-1].title == "Refined"


def test_the_outcome_of_a_refinement() -> None:
    output = recording_of("dense_rag").output
    assert output is not None
    assert outcome_of("dense_rag", output, DenseRagContext()) == [
        Words("DSE 0.56 (uncertain: above 0.2).", "warn"),
        Words(
            "3 contexts measured; it ended because the rounds of refinement are used up. "
            "The model finds the context sufficient."
        ),
    ]
    certain = {"certain": True, "dse": 0.0, "sufficient": None, "stop_reason": "certain", "rounds": ONE_ROUND}
    certain["uncertainty"] = {"signal": "DSE", "value": 0.0, "threshold": 0.2}
    assert outcome_of("dense_rag", certain, DenseRagContext()) == [
        Words("DSE 0.00 (certain: at most 0.2).", "good"),
        Words("1 context measured; it ended because the answer is certain without refinement."),
    ]


def test_the_retrieval_steps_of_a_refinement() -> None:
    assert retrieved(recording_of("dense_rag")) == [
        ("retrieve (tokens:128/16)", "c0 c1", "c0 c1"),
        ("refine, round 1", "c2", "c0 c2"),
        ("refine, round 2", "c3", "c0 c2 c3"),
    ]


def best(dse: float, *, sufficient: bool | None = True, probed: bool = True) -> dict[str, Any]:
    return {"answer": "a", "chunk_ids": ["c"], "dse": dse, "probed": probed, "sufficient": sufficient}


def measured(dse: float, before: dict[str, Any] | None, *, sufficient: bool | None = True) -> dict[str, Any]:
    chunk = {"id": "c", "doc_id": "d", "title": "T", "text": "t"}
    figures = {"answer": "a", "rephrasings": ["u"], "dse": dse, "sufficient": sufficient}
    return {"context_chunks": [chunk], **figures, "best": before}


@pytest.mark.parametrize(
    ("before", "after", "stop_reason", "words", "reason"),
    [
        (None, best(0.1), "accepted", "best so far: DSE 0.10, accepted", None),
        (
            best(0.4),
            best(0.3),
            None,
            "best so far: DSE 0.30, before it was 0.40",
            "not accepted: its DSE is not below 0.2; the context is refined",
        ),
        (
            best(0.1, sufficient=False),
            best(0.1, sufficient=False),
            "all_visited",
            "best so far: DSE 0.10 of an earlier context",
            "not accepted: its context is judged insufficient; the run ends: every chunk of the corpus has been tried",
        ),
        (
            None,
            best(0.0, probed=False),
            None,
            "best so far: DSE 0.00",
            "not accepted: no chunk was rephrased; the context is refined",
        ),
    ],
)
def test_the_decision_about_the_best_answer(
    before: dict[str, Any] | None, after: dict[str, Any], stop_reason: str | None, words: str, reason: str | None
) -> None:
    update = {"best": after, "stop_reason": stop_reason}
    summary = summary_of(step_of("dense_rag", "update_best", DenseRagContext(), measured(0.5, before), update))
    assert summary.words == words
    assert list(summary.blocks) == ([] if reason is None else [Words(reason)])


def test_if_one_reason_is_enough_the_latest_context_is_judged() -> None:
    before = best(0.3, sufficient=True)
    settings = DenseRagContext(accept="either", dse_threshold=0.4)
    state = measured(0.5, before, sufficient=False)
    summary = summary_of(step_of("dense_rag", "update_best", settings, state, {"best": before, "stop_reason": None}))
    reasons = "its DSE is not below 0.4 and its context is judged insufficient"
    assert summary.blocks == [Words(f"not accepted: {reasons}; the context is refined")]


def test_a_self_evaluation_that_says_neither_yes_nor_no() -> None:
    summary = summary_of(step_of("dense_rag", "self_evaluate", None, {}, {"sufficient": False, "warnings": ["..."]}))
    assert summary.words == "the model said neither yes nor no: the context counts as insufficient"


def test_a_refinement_that_ends_the_run_says_why() -> None:
    update = {"rounds": ONE_ROUND, "stop_reason": "unchanged"}
    summary = summary_of(step_of("dense_rag", "refine", None, {"context_chunks": []}, update))
    assert (summary.words, list(summary.blocks)) == (
        "0 dropped, 0 added; the run ends: refinement changed nothing",
        [],
    )


def test_every_stop_reason_has_words() -> None:
    assert set(STOP_REASONS) == set(get_args(StopReason))


def test_rechunking_shows_how_far_it_is() -> None:
    steps = Steps("dense_rag")
    steps.on(NodeStart(namespace=(), at=0.0, node="rechunk", task="t", input={}))
    step = steps.on(Progress(namespace=(), at=0.1, node="rechunk", what="comparing sentences", done=30, total=1200))
    assert step is not None
    assert summary_of(step) == StepSummary("comparing sentences", [Gauge(30, 1200, "sentences")])


@pytest.mark.parametrize(
    ("dse", "kept"), [(0.3, "the most certain context"), (0.5, "the context that was kept as the best")]
)
def test_the_answer_is_said_to_be_of_the_most_certain_context_if_it_is(dse: float, kept: str) -> None:
    uncertainty = {"signal": "DSE", "value": dse, "threshold": 0.2}
    output = {"stop_reason": "max_rounds", "dse": dse, "certain": False, "uncertainty": uncertainty}
    said = presenter_of("dense_rag").why({**output, "rounds": [{"dse": 0.5}, {"dse": 0.3}]})
    assert f"the answer is that of {kept}: DSE {dse:.2f}" in said
