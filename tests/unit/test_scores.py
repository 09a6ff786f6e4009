"""Outcomes scored: against values found by hand."""

import math
from typing import Any

import pytest
from dubito.evals.bench import System
from dubito.evals.scores import mean_of, paired, scores_of
from dubito.evals.signals import SIGNALS
from dubito.tests.reported import answered, asked, chunk, failed, made, usage, vanilla

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
    assert (one.answer, one.metrics, one.cost, one.doubt) == (None, {}, None, None)
    assert one.error == ("ModelUnavailable", "The server is down.")
    assert mean_of(found.values(), "f1") == 1  # of what was answered


def test_a_failure_cost_what_its_calls_took(tmp_path):
    found = scored(tmp_path, failed("plain", "q1", spent=(2, 30, 4)))
    cost = found["plain", "small/q1"].cost
    assert cost is not None
    assert (cost.calls, cost.prompt_tokens, cost.completion_tokens, cost.stages) == (2, 30, 4, {})


def test_an_empty_answer_is_an_answer(tmp_path):
    one = scored(tmp_path, answered("plain", "q1", ""))["plain", "small/q1"]
    assert not one.failed
    assert one.metrics["f1"] == 0
    assert not one.right


@pytest.mark.parametrize(("answer", "right"), [("Ada", True), ("Ada and two others came", False)])
def test_right_is_half_of_f1(tmp_path, answer: str, right: bool):
    assert scored(tmp_path, answered("plain", "q1", answer))["plain", "small/q1"].right is right


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


def test_what_it_cost(tmp_path):
    spent = usage(retrieve=(0, 0, 0, 0.25), generate=(2, 30, 4, 1.5))
    outcome = answered("plain", "q1", "Ada", usage=spent, seconds=2.0, remembered=1, remembered_seconds=0.75)
    cost = scored(tmp_path, outcome)["plain", "small/q1"].cost
    assert (cost.calls, cost.prompt_tokens, cost.completion_tokens) == (2, 30, 4)
    assert (cost.seconds, cost.remembered, cost.remembered_seconds) == (2.0, 1, 0.75)
    assert list(cost.stages) == ["retrieve", "generate"]
    assert cost.stages["generate"].seconds == 1.5


def test_only_questions_that_both_answered_are_paired(tmp_path):
    found = scored(
        tmp_path,
        answered("plain", "q1", "Ada"),
        answered("plain", "q2", "Paris"),
        failed("plain", "q3"),
        failed("other", "q1"),
        answered("other", "q2", "London"),
        answered("other", "q3", "1978"),
        systems=(vanilla(), vanilla("other")),
    )
    first = [one for (system, _), one in found.items() if system == "plain"]
    second = [one for (system, _), one in found.items() if system == "other"]
    assert paired(first, second, "f1") == ([1.0], [0.0])


# --- each technique's own uncertainty ---


def doubt(graph: str, context: dict[str, Any] | None = None, **output: Any) -> tuple[float | None, float | None]:
    signal = SIGNALS[graph]
    return signal.doubt(output), signal.threshold(output, context or {})


@pytest.mark.parametrize("graph", ["dense", "dense_rag"])
def test_dense_tells_dse_and_its_threshold(graph: str):
    assert doubt(graph, {"threshold": 0.2}, dse=0.45, certain=False) == (0.45, 0.2)
    assert doubt(graph, {"threshold": 0.3}, dse=0.0, certain=True) == (0.0, 0.3)


def test_dse_of_nothing_is_unknown():
    assert doubt("dense", {"threshold": 0.2}, dse=0.0, certain=False) == (None, 0.2)
    assert doubt("dense", {"threshold": 0.2}) == (None, 0.2)


def test_seakr_tells_its_most_uncertain_step_and_delta():
    steps = [{"uncertainty": -6.5}, {"uncertainty": -5.5}, {"uncertainty": -6.0}]
    assert doubt("seakr", steps=steps, threshold=-6.0) == (-5.5, -6.0)


def test_a_step_that_could_not_be_measured_could_be_the_most_uncertain():
    steps = [{"uncertainty": -6.5}, {"uncertainty": None}]
    assert doubt("seakr", steps=steps, threshold=-6.0)[0] is None
    assert doubt("seakr", steps=[], threshold=-6.0)[0] is None


def test_sunar_tells_the_mean_number_of_sets_of_its_batches():
    def documents(*sets: int | None) -> list[dict[str, Any]]:
        return [{"iteration": place, "sets": one} for place, one in enumerate(sets) for _ in range(3)]

    hops = [{"scored": documents(1, 4)}, {"scored": documents(1)}]
    assert doubt("sunar", hops=hops) == (2.0, None)
    assert doubt("neighbourhood", scored=documents(3, 1, None)) == (2.0, None)
    assert doubt("sunar", hops=[{"scored": documents(None)}]) == (None, None)


def test_flare_tells_its_unlikeliest_word():
    steps = [
        {"draft": {"words": [{"probability": 0.9}, {"probability": None}]}},
        {"draft": None},
        {"draft": {"words": [{"probability": 0.25}, {"probability": 0.5}]}},
    ]
    assert doubt("flare", {"likely_from": 0.8}, steps=steps) == pytest.approx((0.75, 0.2))
    assert doubt("flare", {"likely_from": 0.8}, steps=[{"draft": None}])[0] is None


def test_a_doubt_comes_with_the_outcome(tmp_path):
    systems = (System("d", "dense", {"threshold": 0.2}), vanilla())
    found = scored(
        tmp_path,
        answered("d", "q1", "Ada", dse=0.5, certain=False),
        answered("plain", "q1", "Ada", dse=0.5),
        systems=systems,
    )
    one = found["d", "small/q1"]
    assert (one.doubt, one.threshold) == (0.5, 0.2)
    assert found["plain", "small/q1"].doubt is None
