"""A run in numbers: means, differences, failures, cost and calibration against values found by hand."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.evals.comparison import Comparison, comparison_of
from dubito.evals.reliability import auroc_interval
from dubito.evals.reports.about import differing
from dubito.evals.reports.inputs import ReportInputs
from dubito.evals.reports.oracle import best_level
from dubito.evals.reports.plots import by_place, frontier, overlaps, plots_of
from dubito.evals.reports.summary import Failure, Pair, Section, SystemFigures, summary_of
from dubito.evals.reports.tables import section_blocks
from dubito.evals.reports.words import too_few
from dubito.evals.run_folder import EvaluationRun, System
from dubito.evals.statistics import Figure, paired_permutation
from dubito.evals.store import Store
from dubito.tests.reported import answered, asked, dse, failed, made, usage, vanilla

NAMES = ["q1", "q2", "q3", "q4", "q5"]
QUESTIONS = [asked(name, "right") for name in NAMES]
DENSE = System("d", "dense", {"dse_threshold": 0.2})
TWO = (vanilla("a"), vanilla("b"))


def outcomes(system: str, pattern: str, **more: Any) -> list[Any]:
    """A question for each letter: r(ight), w(rong), h(alf right, F1 2/3), f(ailed), . (not asked)."""
    said = {"r": "right", "w": "wrong", "h": "right so"}
    return [
        failed(system, name) if letter == "f" else answered(system, name, said[letter], **more)
        for name, letter in zip(NAMES, pattern, strict=True)
        if letter != "."
    ]


def section(tmp_path, *found: Any, systems: Any = TWO, metric: str = "f1") -> Section:
    bench, store = made(tmp_path / "run", systems, QUESTIONS, found)
    with store:
        (only,) = summary_of(bench, store, metric).sections
    return only


def row(found: Section, label: str) -> SystemFigures:
    return next(one for one in [*found.systems, *found.oracles] if one.label == label)


def test_means_are_over_answered_questions_and_failures_stand_beside(tmp_path):
    found = section(tmp_path, *outcomes("a", "rhwf."), *outcomes("b", "fffff"))
    one = row(found, "a")
    assert (one.answered, one.failed, one.left) == (3, 1, 1)
    assert one.metrics["f1"].mean == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert one.metrics["exact_match"].mean == pytest.approx(1 / 3)
    assert one.metrics["f1"].n == 3
    assert one.metrics["f1"].low <= one.metrics["f1"].mean <= one.metrics["f1"].high
    other = row(found, "b")
    assert (other.answered, other.failed, other.left, other.metrics) == (0, 5, 0, {})


def test_the_best_is_the_highest_that_is_shown(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrw.."), *outcomes("b", "rww.."))
    assert found.is_best(row(found, "a"), "f1")
    assert not found.is_best(row(found, "b"), "f1")


def test_a_setting_that_was_auto_is_shown_as_what_was_taken(tmp_path):
    def taken(value: str) -> dict[str, Any]:
        return {"chosen": {"judge": {"value": value, "because": "it can"}}}

    systems = [vanilla("a", judge="auto"), vanilla("b", judge="llm"), vanilla("c", judge="auto")]
    found = [
        answered("a", "q1", "x", **taken("llm")),
        answered("c", "q1", "x", **taken("embedded")),
        answered("c", "q2", "x", **taken("llm")),
    ]
    bench, store = made(tmp_path / "run", systems, QUESTIONS, found)
    with store:
        summary = summary_of(bench, store)
    shown = [system.context["judge"] for system in summary.run.systems]
    assert shown == ["llm", "llm", "embedded, llm"]
    assert "judge" in differing(summary.run)["a"]
    assert bench.systems[0].context["judge"] == "auto"


def test_of_one_system_nothing_is_the_best(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrw.."))
    assert not found.is_best(row(found, "a"), "f1")


def p_of(differences: list[float]) -> float:
    """The share of sign changes whose mean is as far from 0 as the observed one."""
    observed = abs(sum(differences))
    swapped = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in
               product((1, -1), repeat=len(differences))]  # fmt: skip
    return sum(one >= observed - 1e-9 for one in swapped) / len(swapped)


def pairs(found: Section) -> dict[tuple[str, str], Pair]:
    return {(one.first, one.second): one for one in found.pairs}


def test_systems_are_compared_on_what_both_answered(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrrhf"), *outcomes("b", "wwwrr"))
    pair = pairs(found)["a", "b"]
    assert pair.n == 4
    assert pair.difference is not None
    assert pair.difference.mean == pytest.approx((3 - 1 / 3) / 4)
    assert pair.difference.low < pair.difference.mean < pair.difference.high <= 1
    assert pair.p == pytest.approx(p_of([1, 1, 1, -1 / 3]))


def test_another_metric_is_compared_where_it_is_asked_for(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrrhf"), *outcomes("b", "wwwrr"), metric="exact_match")
    difference = pairs(found)["a", "b"].difference
    assert difference is not None
    assert difference.mean == pytest.approx((3 - 1) / 4)


def test_several_differences_are_corrected_by_holm(tmp_path):
    systems = (vanilla("a"), vanilla("b"), vanilla("c"))
    found = section(
        tmp_path, *outcomes("a", "rrrrr"), *outcomes("b", "wwwww"), *outcomes("c", "wwwrr"), systems=systems
    )
    plain = {("a", "b"): p_of([1] * 5), ("a", "c"): p_of([1] * 3), ("b", "c"): p_of([-1] * 2)}
    assert plain == {("a", "b"): 1 / 16, ("a", "c"): 1 / 4, ("b", "c"): 1 / 2}
    corrected = {names: pair.p for names, pair in pairs(found).items()}
    # 3/16, then the larger of that and 2/4, then the larger of that and 1/2
    assert corrected == pytest.approx({("a", "b"): 3 / 16, ("a", "c"): 1 / 2, ("b", "c"): 1 / 2})


def test_several_datasets_are_also_summed_up_together(tmp_path):
    questions = [asked("q1", "right"), replace(asked("q2", "right"), dataset="other"), asked("q3", "right")]
    given = [*(answered("a", name, "right") for name in NAMES[:3]), *(answered("b", name, "no") for name in NAMES[:3])]
    bench, store = made(tmp_path / "run", TWO, questions, given)
    with store:
        summary = summary_of(bench, store)
    both = summary.together
    assert both is not None
    assert [section.dataset for section in summary.shown] == ["small", "other", "all datasets"]
    assert [len(section.questions) for section in summary.shown] == [2, 1, 3]
    assert row(both, "a").metrics["f1"] == Figure(3, 1.0, 1.0, 1.0)
    # 3 questions in one direction: 2 of the 8 ways to swap them are as far apart
    assert both.pairs == [Pair("a", "b", 3, Figure(3, 1.0, 1.0, 1.0), 1 / 4)]


def test_fewer_tests_are_made_against_one_system(tmp_path):
    systems = (vanilla("a"), vanilla("b"), vanilla("c"))
    found = [*outcomes("a", "rrrrr"), *outcomes("b", "wwwww"), *outcomes("c", "wwwff")]
    bench, store = made(tmp_path / "run", systems, QUESTIONS, found)
    with store:
        (only,) = summary_of(bench, store, against="b").sections
        with pytest.raises(UserFault, match="has no system 'd': use a, b or c"):
            summary_of(bench, store, against="d")
    # twice 1/16, of two tests; between c and b nothing differs
    assert [(one.first, one.second, one.n, one.p) for one in only.pairs] == [("a", "b", 5, 1 / 8), ("c", "b", 3, 1)]


def test_systems_with_no_question_in_common_are_not_compared(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrfff"), *outcomes("b", "ffrrr"))
    assert pairs(found)["a", "b"] == Pair("a", "b", 0, None, None)


def test_failures_are_counted_by_reason(tmp_path):
    reasons = ["It is down.", "It is down.", "The prompt is too long."]
    found = section(
        tmp_path,
        failed("a", NAMES[0], reasons[0], "Fault", spent=(2, 300, 40)),
        failed("a", NAMES[1], reasons[1], "Fault", spent=(1, 10, 5)),
        failed("a", NAMES[2], reasons[2], "Fault"),
        *outcomes("b", "rrrrr"),
    )
    assert found.failures == [
        Failure("a", "Fault", "It is down.", 2, 3, 355),
        Failure("a", "Fault", "The prompt is too long.", 1, 0, 0),
    ]


def test_cost_is_the_mean_of_answered_questions(tmp_path):
    found = section(
        tmp_path,
        failed("a", "q3", spent=(9, 900, 90)),
        answered("a", "q1", "right", usage=usage(plan=(1, 10, 2, 0.5), generate=(3, 40, 6, 1.0)), seconds=2.0),
        answered("a", "q2", "right", usage=usage(generate=(4, 20, 2, 3.0)), seconds=1.0, remembered=2,
                 remembered_seconds=5.0),
        failed("a", "q3"),
    )  # fmt: skip
    (spent,) = found.costs
    assert (spent.n, spent.calls, spent.prompt_tokens, spent.completion_tokens) == (2, 4, 35, 5)
    assert (spent.seconds, spent.remembered, spent.remembered_seconds) == (1.5, 2 / 8, 2.5)
    # a question that had no such stage spent nothing on it
    assert (spent.stages["plan"].calls, spent.stages["plan"].seconds) == (0.5, 0.25)
    assert (spent.stages["generate"].calls, spent.stages["generate"].prompt_tokens) == (3.5, 30)


def doubtful(*found: tuple[str, float | None]) -> list[Any]:
    return [
        answered("d", name, answer, uncertainty=dse(value)) for name, (answer, value) in zip(NAMES, found, strict=False)
    ]


def test_a_systems_doubt_is_held_against_what_was_right(tmp_path):
    found = section(
        tmp_path,
        *doubtful(("right", 0.1), ("wrong", 0.2), ("right so", 0.5), ("wrong", 0.9), ("right", None)),
        systems=(DENSE,),
    )
    (doubt,) = found.uncertainties
    assert (doubt.signal, doubt.n, doubt.unmeasured, doubt.threshold) == ("DSE", 4, 1, 0.2)
    # wrong by F1 < 0.5: 0.2 and 0.9 against 0.1 and 0.5, three of four pairs in order; by EM 0.5 is wrong too
    assert doubt.auroc == 3 / 4
    assert doubt.auroc_interval == auroc_interval(3 / 4, 2, 2)
    assert doubt.auroc_em == 1
    risks = [0, 1, 1 / 3, 1]
    assert doubt.mean_risk == pytest.approx(sum(risks) / 4)
    assert doubt.aurc == pytest.approx(sum(sum(risks[:k]) / k for k in range(1, 5)) / 4)
    assert doubt.ece is None
    assert doubt.certain is not None
    assert doubt.uncertain is not None
    assert (doubt.certain.questions, doubt.certain.score) == (2, 0.5)
    assert (doubt.uncertain.questions, doubt.uncertain.score) == pytest.approx((2, 1 / 3))


def test_each_signal_that_was_measured_beside_the_own_one_is_held_against_what_was_right(tmp_path):
    """The own one is among the signals, and has its threshold; another is unknown of one answer."""
    found = [
        answered("d", name, said, uncertainty=dse(own), signals={"DSE": own, "disagreement": other})
        for name, (said, own, other) in zip(
            NAMES, [("right", 0.1, 0.7), ("wrong", 0.2, 0.1), ("right", 0.3, None)], strict=False
        )
    ]
    found.append(answered("d", NAMES[3], "wrong", uncertainty=dse(0.4)))
    doubts = section(tmp_path, *found, systems=(DENSE,)).uncertainties
    figures = [(doubt.signal, doubt.n, doubt.unmeasured, doubt.auroc, doubt.threshold) for doubt in doubts]
    assert figures == [("DSE", 4, 0, 3 / 4, 0.2), ("disagreement", 2, 2, 0, None)]


def test_a_system_without_doubts_of_its_own_has_none(tmp_path):
    found = section(tmp_path, *outcomes("a", "rrw.."), *doubtful(("right", None)), systems=(vanilla("a"), DENSE))
    assert found.uncertainties == []


def test_enough_answers_have_a_calibration_error(tmp_path):
    def errors(name, first):
        questions = [asked(f"q{i}", "right") for i in range(20)]
        found = [answered("d", f"q{i}", "right", uncertainty=dse(0.1 * i)) for i in range(1, 20)]
        found.append(answered("d", "q0", first, uncertainty=dse(2.5)))
        bench, store = made(tmp_path / name, [DENSE], questions, found)
        with store:
            doubt = summary_of(bench, store).sections[0].uncertainties[0]
        return doubt.ece, doubt.chance_ece

    # all right: every fit says 1. The fit to the others does not see that the most uncertain one is wrong
    assert errors("right", "right") == (0, (0, 0))
    ece, chance = errors("wrong", "wrong")
    assert ece >= 1 / 20
    assert 0 <= chance[0] <= chance[1] <= 1


def test_datasets_are_apart(tmp_path):
    questions = [asked("q1", "right"), asked("q1", "right", dataset="other")]
    bench, store = made(tmp_path / "run", [vanilla("a")], questions, [answered("a", "q1", "right")])
    with store:
        first, second = summary_of(bench, store).sections
    assert (first.dataset, first.of, row(first, "a").answered) == ("small", 9, 1)
    assert (second.dataset, row(second, "a").left) == ("other", 1)


def test_a_metric_that_the_run_has_not_is_refused(tmp_path):
    with pytest.raises(UserFault, match="metric 'seper': use exact_match, f1"):
        section(tmp_path, *outcomes("a", "r...."), metric="seper")
    bench, store = made(tmp_path / "other", [vanilla("a")], QUESTIONS)
    with store, pytest.raises(UserFault, match="metric 'f2'"):
        summary_of(bench, store, "f2")


# --- the Oracle ---


@pytest.mark.parametrize(
    ("f1", "level"),
    [
        ({0.3: 0.5, 0.5: 1.0, 0.7: 0.2}, 0.5),
        ({0.3: 1.0, 0.5: 0.0, 0.7: 1.0, 0.9: 1.0}, 0.7),
        ({0.1: 1.0, 0.3: 1.0}, 0.3),
        ({0.9: 0.0, 0.1: 0.0, 0.5: 0.0, 0.7: 0.0}, 0.7),
    ],
)
def test_of_equally_good_levels_the_upper_median_is_the_oracles(f1: dict[float, float], level: float):
    assert best_level(f1) == level


def gmmr(level: float, **more: Any) -> System:
    return vanilla(f"g{level}", selection="gmmr", fixed_lambda=level, **more)


def test_the_oracle_takes_the_best_level_of_each_question(tmp_path):
    found = section(
        tmp_path,
        *outcomes("g0.3", "rwff."),
        *outcomes("g0.7", "wwrf."),
        *outcomes("plain", "rrrrr"),
        systems=(gmmr(0.7), gmmr(0.3), vanilla("plain", fixed_lambda=0.1)),
    )
    (oracle,) = found.chosen
    assert oracle.levels == {0.3: "g0.3", 0.7: "g0.7"}
    assert oracle.chosen == {"small/q1": 0.3, "small/q2": 0.7, "small/q3": 0.7}
    one = row(found, "oracle")
    assert (one.answered, one.failed, one.left) == (3, 1, 1)
    assert one.metrics["f1"].mean == pytest.approx(2 / 3)
    # it knows the gold answers: it is compared with nobody and is never the best
    assert "oracle" not in {name for pair in found.pairs for name in (pair.first, pair.second)}
    assert not found.is_best(one, "f1")


def test_how_much_of_the_gap_to_the_oracle_a_system_closes(tmp_path):
    """Of five questions: plain RAG has 1 right, the oracle 4, the system 3; one of its answers failed."""
    systems = (gmmr(0.3), gmmr(0.7), vanilla("plain", fixed_lambda=0.1), System("diverse", "df_rag", {}))
    said = [*outcomes("g0.3", "rrwww"), *outcomes("g0.7", "wwrrw"), *outcomes("plain", "rwwww")]
    found = section(tmp_path, *said, *outcomes("diverse", "rrrwf"), systems=systems)
    (gap,) = found.gaps
    assert (gap.system, gap.oracle, gap.baseline, gap.n) == ("diverse", "oracle", "plain", 4)
    assert (gap.plain, gap.f1, gap.best) == (0.25, 0.75, 1.0)
    assert gap.share == pytest.approx(2 / 3)


def test_without_plain_rag_the_gap_begins_at_the_level_of_1(tmp_path):
    said = [*outcomes("g0.3", "rrwww"), *outcomes("g1.0", "rwwww"), *outcomes("diverse", "wwwww")]
    systems = (gmmr(0.3), gmmr(1.0), System("diverse", "df_rag", {}))
    (gap,) = section(tmp_path, *said, systems=systems).gaps
    assert gap.baseline == "g1.0"
    assert gap.share == pytest.approx(-1.0)


def test_where_nothing_stands_for_plain_rag_there_is_no_gap(tmp_path):
    said = [*outcomes("g0.3", "rw..."), *outcomes("g0.7", "rw..."), *outcomes("diverse", "rw...")]
    systems = (gmmr(0.3), gmmr(0.7), System("diverse", "df_rag", {}))
    assert section(tmp_path, *said, systems=systems).gaps == []


def test_the_mean_length_of_the_plans(tmp_path):
    said = [answered("a", name, "right", plan=["step"] * steps) for name, steps in (("q1", 2), ("q2", 5))]
    found = section(tmp_path, *said, *outcomes("b", "rr..."))
    assert row(found, "a").metrics["plan_length"].mean == 3.5
    assert "plan_length" not in row(found, "b").metrics


def test_one_level_has_no_oracle(tmp_path):
    assert section(tmp_path, *outcomes("g0.3", "rw..."), systems=(gmmr(0.3), vanilla())).chosen == []


def test_levels_under_other_settings_have_oracles_of_their_own(tmp_path):
    systems = [gmmr(0.3), gmmr(0.7), *(System(f"k{level}", "vanilla_rag", {**gmmr(level).context, "k": 9}) for level in
               (0.3, 0.7))]  # fmt: skip
    said = [one for system in systems for one in outcomes(system.label, "rw...")]
    found = section(tmp_path, *said, systems=systems)
    assert [list(one.levels.values()) for one in found.chosen] == [["g0.3", "g0.7"], ["k0.3", "k0.7"]]
    assert [one.label for one in found.chosen] == ["oracle 1", "oracle 2"]


# --- what plots are made of ---


def test_the_overlap_of_chunk_sets():
    first = {0.1: frozenset("ab"), 0.5: frozenset("bc"), 1.0: frozenset("cd")}
    second = {0.1: frozenset("ab"), 0.5: frozenset("ab"), 0.9: frozenset("z")}
    levels, shares = overlaps([first, second])
    assert levels == [0.1, 0.5]
    assert shares.ravel().tolist() == pytest.approx([1, (1 / 3 + 1) / 2, (1 / 3 + 1) / 2, 1])


def test_steps_by_their_place():
    assert by_place([[1, 2], [3], [4, 5, 6]]) == [[1, 3, 4], [2, 5], [6]]


def test_the_frontier_leaves_out_what_is_dearer_and_no_better():
    points = [(300, 0.5), (100, 0.4), (100, 0.3), (200, 0.4), (900, 0.45), (1000, 0.6)]
    assert frontier(points) == [(100, 0.4), (300, 0.5), (1000, 0.6)]


# --- two runs ---


def compared(tmp_path, before: Any, after: Any, questions: Any = QUESTIONS, **about: Any) -> Comparison:
    first = made(tmp_path / "first", [vanilla("a"), vanilla("gone")], QUESTIONS, before)
    second = made(tmp_path / "second", [vanilla("new"), vanilla("a", k=9)], questions, after, **about)
    with first[1], second[1]:
        return comparison_of(first, second)


def test_two_runs_are_compared_on_what_both_answered(tmp_path):
    found = compared(tmp_path, outcomes("a", "rwhfr"), outcomes("a", "wrhrf"), seed=6)
    (one,) = found.systems
    assert (one.label, one.answered, one.failed) == ("a", 3, (1, 1))
    assert [asked.id for asked in one.to_wrong] == ["small/q1"]
    assert [asked.id for asked in one.to_right] == ["small/q2"]
    change = next(change for change in one.changes if change.metric == "f1")
    assert (change.n, change.first, change.second) == pytest.approx((3, 5 / 9, 5 / 9))
    assert change.difference.mean == pytest.approx(0)
    assert change.p == 1
    assert one.settings == {"k": (None, "9")}
    assert found.about == {"seed": ("5", "6")}
    assert found.alone == (["gone"], ["new"])
    assert found.questions == (5, 0, 0)


def test_a_change_is_the_second_run_less_the_first(tmp_path):
    found = compared(tmp_path, outcomes("a", "wwww."), outcomes("a", "rrrh."))
    change = next(change for change in found.systems[0].changes if change.metric == "f1")
    assert change.difference.mean == pytest.approx((3 + 2 / 3) / 4)
    assert change.p == pytest.approx(p_of([1, 1, 1, 2 / 3]))


def test_what_each_run_cost_is_of_the_questions_that_both_answered(tmp_path):
    before = [answered("a", "q1", "right", seconds=1.0), answered("a", "q2", "right", seconds=9.0)]
    found = compared(tmp_path, before, [answered("a", "q1", "right", seconds=3.0), failed("a", "q2")])
    spent = found.systems[0].spent
    assert spent is not None
    assert [one.seconds for one in spent] == [1.0, 3.0]


def test_questions_are_the_same_by_what_is_asked_and_not_by_id(tmp_path):
    questions = [asked("x", "right", question="What is q2?"), asked("q3", "other answer")]
    after = [answered("a", "x", "right"), answered("a", "q3", "right")]
    found = compared(tmp_path, outcomes("a", "rwrrr"), after, questions)
    assert found.questions == (1, 4, 1)
    assert [asked.id for asked in found.systems[0].to_right] == ["small/q2"]


def in_datasets(folder: Path, name: str = "q", **said: str) -> tuple[EvaluationRun, Store]:
    """One question, asked in several datasets. said: the answer by dataset."""
    questions = [asked(name, "right", dataset=dataset, question="Which?") for dataset in said]
    found = [replace(answered("a", name, answer), question=f"{dataset}/{name}") for dataset, answer in said.items()]
    return made(folder, [vanilla("a")], questions, found)


@pytest.mark.parametrize(
    ("before", "after", "common", "changed"),
    [
        ({"x": "wrong", "y": "right"}, {"x": "wrong", "y": "right"}, (2, 0, 0), []),
        ({"x": "wrong", "y": "right"}, {"y": "right", "x": "wrong"}, (2, 0, 0), []),
        ({"x": "wrong", "y": "right"}, {"y": "right"}, (1, 1, 0), []),
        ({"x": "wrong", "y": "right"}, {"z": "right"}, (1, 1, 0), ["x/q"]),
        ({"x": "wrong"}, {"y": "wrong", "z": "right"}, (1, 0, 1), []),
    ],
)
def test_a_question_of_several_datasets_is_compared_once_and_with_its_own_dataset_first(
    tmp_path, before, after, common, changed
):
    first, second = in_datasets(tmp_path / "first", **before), in_datasets(tmp_path / "second", **after)
    with first[1], second[1]:
        found = comparison_of(first, second)
    assert found.questions == common
    assert [asked.id for asked in (*found.systems[0].to_wrong, *found.systems[0].to_right)] == changed


def test_a_question_whose_id_has_changed_is_compared_with_its_own_dataset(tmp_path):
    first = in_datasets(tmp_path / "first", "q1", x="right", y="wrong")
    second = in_datasets(tmp_path / "second", "q2", y="wrong", x="right")
    with first[1], second[1]:
        assert not comparison_of(first, second).systems[0].to_wrong


def test_runs_with_nothing_in_common_are_refused(tmp_path):
    with pytest.raises(UserFault, match="no question in common"):
        compared(tmp_path, [], [], [asked("z", "right")])
    first = made(tmp_path / "x", [vanilla("a")], QUESTIONS)
    second = made(tmp_path / "y", [vanilla("b")], QUESTIONS)
    with first[1], second[1], pytest.raises(UserFault, match="no system in common"):
        comparison_of(first, second)


def test_the_answers_that_a_calibrated_system_gives_are_counted_with_the_interval_of_their_risk(tmp_path):
    certificate = {"sentence": "At most 20%.", "holds": True, "signal": "DSE", "threshold": 0.5}
    certified: dict[str, Any] = {"certificate": certificate, "uncertainty": dse(0.1)}
    given = [
        answered("a", name, said, **certified, abstained=not said)
        for name, said in zip(NAMES, ["right", "right so", "wrong", "", ""], strict=True)
    ]
    found = section(tmp_path, *given)
    (one,) = found.given
    assert (one.system, one.n, one.given, one.wrong, one.promise) == ("a", 5, 3, 1, "At most 20%.")
    # exact: 1 - (1 - p)^3 = 0.05, and (1 - p)^3 + 3 p (1 - p)^2 = 0.05
    assert one.interval == pytest.approx((1 - 0.95 ** (1 / 3), 0.86465), abs=1e-4)
    assert (one.right, one.uncertified) == ("", 0)


def test_answers_of_which_nothing_is_certified_are_not_counted_among_those_given(tmp_path):
    void: dict[str, Any] = {"certificate": {"sentence": "cot failed.", "holds": False}, "abstained": False}
    holds: dict[str, Any] = {
        "certificate": {"sentence": "At most 20%.", "holds": True, "right": "exact"},
        "abstained": False,
    }
    given = [answered("a", "q1", "wrong", **void), answered("a", "q2", "right", **holds)]
    (one,) = section(tmp_path, *given, answered("b", "q1", "wrong", **void)).given[:1]
    assert (one.n, one.given, one.wrong, one.promise, one.uncertified) == (1, 1, 0, "At most 20%.", 1)


def test_where_no_certificate_holds_nothing_is_promised(tmp_path):
    void: dict[str, Any] = {"certificate": {"sentence": "cot failed.", "holds": False}, "abstained": False}
    bench, store = made(tmp_path / "run", TWO, QUESTIONS, outcomes("a", "rrw..", **void))
    with store:
        summary = summary_of(bench, store)
    (one,) = summary.sections[0].given
    assert (one.n, one.given, one.interval, one.promise, one.uncertified) == (0, 0, None, "", 3)
    table = next(block for block in section_blocks(summary.sections[0], summary) if "Answers given" in str(block))
    assert "a: 3 further answers, of which nothing is certified." in str(table)


@pytest.mark.parametrize(("rule", "wrong"), [("exact", 2), ("f1:0.8", 2), ("f1:0.6", 1)])
def test_the_answers_given_are_judged_by_the_rule_of_their_calibration(tmp_path, rule: str, wrong: int):
    certificate = {"sentence": "At most 20%.", "holds": True, "right": rule}
    (one,) = section(tmp_path, *outcomes("a", "rhw..", certificate=certificate, abstained=False)).given
    assert (one.wrong, one.right) == (wrong, rule)


@pytest.mark.parametrize(("rated", "wrong", "right"), [(True, 1, "correctness:0.7"), (False, 2, "")])
def test_the_answers_given_are_judged_by_what_was_measured_of_them_or_by_f1(
    tmp_path, rated: bool, wrong: int, right: str
):
    """By F1 the second and the third answer are wrong; the judge takes the second for right, if it was asked."""
    certificate = {"sentence": "At most 20%.", "holds": True, "right": "correctness:0.7"}
    given = outcomes("a", "rww..", certificate=certificate, abstained=False)
    bench, store = made(tmp_path / "run", TWO, QUESTIONS, given)
    with store:
        for one, rating in zip(given[:3] if rated else [], (0.9, 0.8, 0.1), strict=rated):
            store.measured(one.system, one.question, "llm_judge", {"correctness": rating})
        (one,) = summary_of(bench, store).sections[0].given
    assert (one.given, one.wrong, one.right) == (3, wrong, right)


def test_an_unanswerable_question_has_no_right_answer_in_a_calibration(tmp_path):
    certificate = {"sentence": "At most 20%.", "holds": True, "right": "f1:0.5"}
    unknown = answered("a", "q1", "unknown", certificate=certificate, abstained=False)
    bench, store = made(tmp_path / "run", TWO, [asked("q1", answerable=False)], [unknown])
    with store:
        (one,) = summary_of(bench, store).sections[0].given
    assert (one.given, one.wrong) == (1, 1)


@pytest.mark.parametrize("certificate", [None, {"sentence": "At most 20%.", "holds": True, "right": "f1:0.5"}])
def test_a_withheld_answer_is_scored_as_if_given_where_its_uncertainty_is_judged(tmp_path, certificate: Any):
    """Scored as empty it would be wrong, and an uninformative uncertainty would have an AUROC of 1."""
    said = [("right", 0.1), ("wrong", 0.1), ("right", 0.9), ("wrong", 0.9)]
    found = [
        answered(
            "d",
            name,
            "" if value > 0.2 else text,
            withheld_answer=text if value > 0.2 else "",
            abstained=value > 0.2,
            uncertainty=dse(value),
            certificate=certificate,
        )
        for name, (text, value) in zip(NAMES, said, strict=False)
    ]
    bench, store = made(tmp_path / "run", [DENSE], QUESTIONS, found)
    with store:
        summary = summary_of(bench, store)
    (doubt,) = summary.sections[0].uncertainties
    assert (doubt.auroc, doubt.auroc_em, doubt.mean_risk, doubt.aurc) == (0.5, 0.5, 0.5, 0.5)
    assert doubt.uncertain is not None
    assert doubt.uncertain.score == 0.5
    assert row(summary.sections[0], "d").metrics["f1"].mean == 0.25, "beside it the scores are of what was given"
    plots = {plot.name: plot.draw() for plot in plots_of(summary, ReportInputs({}, {}, {}))}
    (curve,) = plots["1-small-risk-coverage"].axes[0].lines
    assert np.asarray(curve.get_ydata()).tolist() == [0.5, 0.5, 0.5, 0.5]


def test_the_curve_of_risk_and_coverage_ends_where_no_uncertainty_is_known(tmp_path):
    found = [
        answered("d", name, "right", uncertainty=dse(value)) for name, value in zip(NAMES, (0.1, None), strict=False)
    ]
    bench, store = made(tmp_path / "run", [DENSE], QUESTIONS, found)
    with store:
        plots = plots_of(summary_of(bench, store), ReportInputs({}, {}, {}))
    (curve,) = next(plot for plot in plots if plot.name == "1-small-risk-coverage").draw().axes[0].lines
    assert np.asarray(curve.get_xdata()).tolist() == [0.5]


@pytest.mark.parametrize(
    ("pairs", "n", "said"),
    [
        (1, 5, " With 5 questions p cannot fall below 0.06: ask at least 6."),  # 2 / 2⁵
        (1, 6, ""),
        (3, 6, " With 6 questions p cannot fall below 0.09: ask at least 7."),  # 3 · 2 / 2⁶
        (3, 7, ""),
        (0, 0, ""),
    ],
)
def test_questions_that_are_too_few_for_any_difference_are_told(pairs: int, n: int, said: str) -> None:
    assert too_few([Pair("a", "b", n, Figure(n, 0.1, 0.0, 0.2), 0.5)] * pairs) == said
    if n:
        agreed = paired_permutation([1.0] * n, [0.0] * n, seed=0)
        assert (pairs * agreed >= 0.05) == bool(said)
