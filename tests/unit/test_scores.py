"""Outcomes scored: against values found by hand."""

import math
from typing import Any

import pytest
from dubito.evals.scores import scores_of, values_of
from dubito.tests.reported import answered, asked, chunk, failed, made, vanilla

QUESTIONS = [
    asked("q1", "Ada Lovelace", gold=["d2"]),
    asked("q2", "Paris", "City of Light"),
    asked("q3", "1978"),
    asked("q4", "yes", kind="yes_no"),
]

ONE = (vanilla(),)


def scored(tmp_path, *outcomes: Any, systems: Any = ONE, standard: Any = "squad", beliefs: Any = ()) -> Any:
    bench, store = made(tmp_path / "run", systems, QUESTIONS, outcomes)
    with store:
        for system, question, value in beliefs:
            store.measured(system, f"small/{question}", "seper", value)
        return scores_of(bench, store, standard)


def test_an_answer_and_its_evidence(tmp_path):
    evidence = [chunk("d1"), chunk("d1"), chunk("d2"), chunk("d3")]
    found = scored(tmp_path, answered("plain", "q1", "the Ada", evidence=evidence))
    metrics = found["plain", "small/q1"].metrics
    wanted = {
        "exact_match": 0,
        "precision": 1,
        "recall": 1 / 2,
        "f1": 2 / 3,
        "accuracy": 0,
        "recall@1": 0,
        "recall@5": 1,
        "precision@5": 1 / 5,
        "mrr": 1 / 2,  # the same document twice is in the first place once
        "ndcg@10": 1 / math.log2(3),
    }
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


def test_without_gold_documents_there_is_no_retrieval_to_score(tmp_path):
    found = scored(tmp_path, answered("plain", "q2", "paris", evidence=[chunk("d1")]))
    metrics = found["plain", "small/q2"].metrics
    assert not [name for name in metrics if "@" in name or name == "mrr"]
    assert metrics["exact_match"] == 1


def test_a_failure_has_a_reason_and_nothing_else(tmp_path):
    found = scored(tmp_path, failed("plain", "q1", "The server is down."), answered("plain", "q2", "Paris"))
    one = found["plain", "small/q1"]
    assert one.failed
    assert (one.answer, one.metrics, one.cost, one.uncertainty) == (None, {}, None, None)
    assert one.error == ("ModelUnavailable", "The server is down.")
    assert values_of(found.values(), "f1") == [1]  # of what was answered


def test_an_empty_answer_is_an_answer(tmp_path):
    one = scored(tmp_path, answered("plain", "q1", ""))["plain", "small/q1"]
    assert not one.failed
    assert one.metrics["f1"] == 0
    assert not one.right


def test_what_belongs_to_no_system_or_question_of_the_run_is_passed_over(tmp_path):
    found = scored(tmp_path, answered("gone", "q1", "Ada"), answered("plain", "gone", "Ada"))
    assert found == {}


def test_the_standard_is_passed_on(tmp_path):
    bench, store = made(tmp_path / "run", [vanilla()], [asked("q", "the")], [answered("plain", "q", "a!")])
    with store:
        squad, longbench = (
            scores_of(bench, store, one)["plain", "small/q"].metrics["f1"] for one in ("squad", "longbench")
        )
    assert (squad, longbench) == (1, 0)


def test_belief_is_a_metric_where_it_was_measured(tmp_path):
    measured = {"seper": 0.75, "seper_without": 0.25, "delta": 0.5}
    found = scored(
        tmp_path,
        answered("plain", "q1", "Ada"),
        answered("plain", "q2", "Paris"),
        failed("plain", "q3"),
        beliefs=[("plain", "q1", measured), ("plain", "q3", measured), ("plain", "q2", {"seper": None})],
    )
    metrics = found["plain", "small/q1"].metrics
    assert (metrics["seper"], metrics["seper_without"], metrics["delta_seper"]) == (0.75, 0.25, 0.5)
    assert "seper" not in found["plain", "small/q2"].metrics
    assert found["plain", "small/q3"].metrics == {}


def test_an_uncertainty_is_read_from_the_output(tmp_path):
    dse = {"signal": "DSE", "value": 0.5, "threshold": 0.2}
    found = scored(
        tmp_path,
        answered("plain", "q1", "Ada", uncertainty=dse),
        answered("plain", "q2", "Paris", uncertainty={**dse, "value": None}),
        answered("plain", "q3", "1978", uncertainty=None),
    )
    told = [(one.uncertainty, one.threshold) for one in found.values()]
    assert told == [(0.5, 0.2), (None, 0.2), (None, None)]


def test_citations_are_metrics_where_they_were_asked_for(tmp_path):
    def marks(*verdicts: str | None) -> dict[str, Any]:
        found = [{"exists": verdict is not None, "verdict": verdict} for verdict in verdicts]
        return {"cited_answer": "so [1]", "citations": found}

    found = scored(
        tmp_path,
        answered("plain", "q1", "Ada", **marks("supported", "unsupported", "unsupported", "unchecked", None)),
        answered("plain", "q2", "Paris", **marks(None)),
        answered("plain", "q3", "1978", **marks()),
        answered("plain", "q4", "", cited_answer="", citations=[]),
    )
    names = ("cited", "marks_exist", "marks_supported")
    told = [{name: one.metrics[name] for name in names if name in one.metrics} for one in found.values()]
    assert told == [
        {"cited": 1.0, "marks_exist": 4 / 5, "marks_supported": 1 / 3},
        {"cited": 0.0, "marks_exist": 0.0},
        {"cited": 0.0},
        {},
    ]
