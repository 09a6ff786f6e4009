"""What is shown of `df_rag`: each step, the figures of a page, the outcome, the retrieval steps."""

from __future__ import annotations

from typing import Any

import pytest
from dubito.presenters.blocks import Pairs, Table, Words
from dubito.presenters.df_rag import lambda_range, presenter
from dubito.presenters.presenter import StepSummary, figures_of, outcome_of, summary_of
from dubito.state.df_rag import LAMBDAS, NO_CHUNKS, DFRagContext
from dubito.tests.recorded import cells, recording_of, retrieved
from dubito.traces.steps import NodeRun, Step

SETS = [{"lambdas": [0.1, 0.2], "chunk_ids": ["x"]}, {"lambdas": [0.3], "chunk_ids": ["y", "z"]}]
CHUNKS = {
    name: {"id": name, "doc_id": name, "title": title, "text": name, "score": 0.5}
    for name, title in {"x": "Salt", "y": "The Lune", "z": "The Lune"}.items()
}


def step(node: str, *runs: NodeRun, **state: Any) -> Step:
    return Step(1, "df_rag", node, (), 0, 1, state, DFRagContext(), list(runs))


def done(node: str, **update: Any) -> StepSummary:
    return summary_of(step(node, NodeRun("t", 0.0, {}, 1.0, update)))


def evaluation(candidate: int, *scores: float) -> dict[str, Any]:
    return {"candidate": candidate, "scores": list(scores), "answers": []}


# --- the steps ---


@pytest.mark.parametrize("node", ["plan", "candidates", "select_lambdas", "choose_lambda", "generate"])
def test_a_running_step_says_nothing(node: str) -> None:
    assert summary_of(step(node, NodeRun("t", 0.0, {}))) == StepSummary()


def test_the_plan_is_numbered() -> None:
    summary = done("plan", plan=["Find the founder", "Find the birthplace"])
    assert summary == StepSummary("2 steps", [Pairs([("1)", "Find the founder"), ("2)", "Find the birthplace")])])


def test_the_candidates_are_shown_by_their_levels_and_titles() -> None:
    summary = done("candidates", candidates=SETS, chunks_by_id=CHUNKS)
    assert summary.words == "2 distinct chunk sets at 3 levels of diversity λ"
    assert cells(summary.blocks[0]) == [["0.1-0.2", "Salt"], ["0.3", "The Lune (2)"]]
    assert done("candidates", candidates=[], chunks_by_id={}) == StepSummary("no chunks")


@pytest.mark.parametrize(
    ("pending", "words"),
    [
        ([0, 2], "2 sets to evaluate"),
        ([1], "1 set to evaluate"),
        ([NO_CHUNKS, 0, 1], "2 sets and no chunks to evaluate"),
        ([], "nothing more to evaluate"),
    ],
)
def test_the_selected_sets_are_counted(pending: list[int], words: str) -> None:
    assert done("select_lambdas", pending=pending) == StepSummary(words)


def test_chunk_sets_fill_in_as_their_scores_arrive() -> None:
    runs = {candidate: NodeRun(f"t{candidate}", 0.0, {"candidate": candidate}) for candidate in (1, NO_CHUNKS, 0)}
    shown = step("evaluate", *runs.values(), candidates=SETS, evaluations=[])

    def rows() -> list[list[str]]:
        return cells(summary_of(shown).blocks[0])

    def end(candidate: int, *scores: float) -> None:
        runs[candidate].end, runs[candidate].update = 1.0, {"evaluations": [evaluation(candidate, *scores)]}

    waiting = [["no chunks", "...", ""], ["0.1-0.2", "...", ""]]
    assert rows() == [*waiting, ["0.3", "...", ""]]
    end(1, -1.0, -2.5)
    assert rows() == [*waiting, ["0.3", "-1  -2.50", ""]], "a gain needs the score of no chunks"
    end(NO_CHUNKS, -2.0, -3.0)
    assert rows() == [["no chunks", "-2  -3", ""], ["0.1-0.2", "...", ""], ["0.3", "-1  -2.50", "1.50"]]
    end(0, -2.0, -2.0)
    assert [row[2] for row in rows()] == ["", "1", "1.50"]


def test_later_evaluations_are_shown_with_the_support_of_their_own_sets() -> None:
    run = NodeRun("t", 0.0, {"candidate": 1}, 1.0, {"evaluations": [evaluation(1, 4.0, 5.0)]})
    (table,) = summary_of(step("evaluate", run, candidates=SETS, evaluations=[evaluation(0, 1.0, 1.0)])).blocks
    assert isinstance(table, Table)
    assert table.columns == ["λ", "score of each step", "support"]
    assert cells(table) == [["0.3", "4  5", "9"]]


def test_scores_that_are_log_probabilities_have_two_decimals() -> None:
    run = NodeRun("t", 0.0, {"candidate": 1}, 1.0, {"evaluations": [evaluation(1, -0.8976, -2.82)]})
    (table,) = summary_of(step("evaluate", run, candidates=SETS)).blocks
    assert isinstance(table, Table)
    assert cells(table)[0][1] == "-0.90  -2.82"


@pytest.mark.parametrize(
    ("supports", "lambda_star", "words"),
    [
        ([([0.1, 0.2], 3.0), ([0.3], 5.0)], 0.3, "λ* = 0.3 with support 5"),
        ([([0.1, 0.2], 5.0)], 0.2, "λ* = 0.2 with support 5, the upper median of 2 tied levels (0.1-0.2)"),
        (
            [([0.1, 0.2], 5.0), ([0.3], 2.0), ([0.4], 5.0)],
            0.2,
            "λ* = 0.2 with support 5, the upper median of 3 tied levels (0.1-0.2, 0.4)",
        ),
        (
            [([0.1], 5.0), ([0.2], 5.0), ([0.5], 5.0)],
            0.5,
            "λ* = 0.5 with support 5, the nearest to the median of all levels, of 3 tied levels (0.1-0.2, 0.5)",
        ),
        ([], None, "no chunk set to choose from"),
    ],
)
def test_the_choice_names_its_ties(supports: list[Any], lambda_star: float | None, words: str) -> None:
    entries = [{"lambdas": lambdas, "support": support} for lambdas, support in supports]
    run = NodeRun("t", 0.0, {}, 1.0, {"supports": entries, "lambda_star": lambda_star})
    grid = [{"lambdas": [level], "chunk_ids": []} for level in LAMBDAS]
    assert summary_of(step("choose_lambda", run, candidates=grid)) == StepSummary(words)


def test_neighbouring_levels_are_one_range() -> None:
    assert lambda_range([0.1, 0.2, 0.3, 0.6, 0.9, 1.0], LAMBDAS) == "0.1-0.3, 0.6, 0.9-1.0"
    assert lambda_range([0.25, 0.5, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0]) == "0.25-0.5, 1.0"


# --- the page ---


def test_the_plan_the_scores_and_the_sets() -> None:
    recording = recording_of("df_rag")
    assert recording.output is not None
    lambda_star = recording.output["lambda_star"]
    plan, scores, sets = figures_of(recording)
    assert plan == Pairs([("1)", "Find the founder"), ("2)", "Find the birthplace")], "Plan")
    assert isinstance(scores, Table)
    assert scores.columns == ["λ", "set", "step 1", "step 2", "support", ""]
    rows, chosen = cells(scores), cells(sets)
    assert [row[0] for row in rows] == [f"{level / 10:.1f}" for level in range(1, 11)]
    for row in rows:
        count = sum(title in chosen[int(row[1]) - 1][2] for title in ("T5", "T6"))
        assert row[2:5] == [str(count + 1), str(count), str(2 * count + 1)]
    assert [row[0] for row in rows if row[5]] == [f"{lambda_star:.1f}"]
    assert [row.cells[0].text for row in scores.rows if row.marked] == [f"{lambda_star:.1f}"]


def test_the_gain_over_no_chunks() -> None:
    scores = {NO_CHUNKS: [-4.0, -8.0], 0: [-2.25, -3.5], 1: [-1.5, -6.0]}
    supports = [{"lambdas": [0.1, 0.2], "support": 6.25}, {"lambdas": [0.3], "support": 4.5}]
    evaluations = [
        NodeRun(f"e{candidate}", 0.0, {"candidate": candidate}, 1.0, {"evaluations": [evaluation(candidate, *of_set)]})
        for candidate, of_set in scores.items()
    ]
    recording = recording_of("df_rag")
    recording.steps[:] = [
        step("plan", NodeRun("p", 0.0, {}, 1.0, {"plan": ["first", "second"]})),
        step("candidates", NodeRun("c", 0.0, {}, 1.0, {"candidates": SETS, "chunks_by_id": CHUNKS})),
        step("evaluate", *evaluations),
        step("choose_lambda", NodeRun("x", 0.0, {}, 1.0, {"supports": supports, "lambda_star": 0.2})),
    ]
    table = figures_of(recording)[1]
    assert isinstance(table, Table)
    assert table.columns == ["λ", "set", "step 1", "step 2", "support (gain)", ""]
    assert cells(table) == [
        ["0.1", "1", "-2.25", "-3.50", "6.25", ""],
        ["0.2", "1", "-2.25", "-3.50", "6.25", "λ*"],
        ["0.3", "2", "-1.50", "-6", "4.50", ""],
        ["none", "no chunks", "-4", "-8", "", ""],
    ]
    assert [row.cells[2].level for row in table.rows] == [0.0, 0.0, 1.0, None]


def test_of_sets_that_grow_the_last_round_is_shown() -> None:
    def evaluated(candidate: int, score: float) -> NodeRun:
        update = {"evaluations": [evaluation(candidate, score)]}
        return NodeRun(f"e{candidate}", 0.0, {"candidate": candidate}, 1.0, update)

    selected = step("candidates", NodeRun("c", 0.0, {}, 1.0, {"candidates": SETS, "chunks_by_id": CHUNKS}))
    recording = recording_of("df_rag")
    recording.steps[:] = [
        step("plan", NodeRun("p", 0.0, {}, 1.0, {"plan": ["first"]})),
        selected,
        step("evaluate", evaluated(0, 1.0), evaluated(1, 4.0)),
        selected,
        step("evaluate", evaluated(0, 3.0)),
    ]
    assert [row[2] for row in cells(figures_of(recording)[1])] == ["3", "3", "-"]


def test_the_figures_of_runs_that_ended_early() -> None:
    recording = recording_of("df_rag")
    recording.steps[:] = [step("plan", NodeRun("p", 0.0, {}, 1.0, {"plan": ["first"]}))]
    assert figures_of(recording)[1:] == [Words("The run ended before chunks were selected.")]
    recording.steps.append(step("candidates", NodeRun("c", 0.0, {}, 1.0, {"candidates": [], "chunks_by_id": {}})))
    assert figures_of(recording)[1:] == [Words("No chunks were retrieved.")]
    update = {"candidates": SETS, "chunks_by_id": CHUNKS}
    recording.steps[1:] = [step("candidates", NodeRun("c", 0.0, {}, 1.0, update))]
    assert cells(figures_of(recording)[1])[0] == ["0.1", "1", "-", "", ""], "nothing was evaluated"
    assert retrieved(recording) == []


# --- under the answer, and what was retrieved ---


def test_the_missing_support_and_the_chosen_set() -> None:
    recording = recording_of("df_rag")
    assert recording.output is not None
    # the best set has the scores 3 and 2: 5 of 10
    assert outcome_of("df_rag", recording.output, DFRagContext()) == [Words("Uncertainty: missing support 0.500.")]
    assert retrieved(recording) == [("λ* = 0.3", "c0 c5 c6", "c0 c5 c6")]


def test_one_set_at_every_level_is_not_the_best_of_one() -> None:
    output = {
        "plan": ["Find the river."],
        "candidates": SETS[:1],
        "supports": [{"lambdas": [0.1, 0.2], "support": 3.0}],
        "lambda_star": 0.1,
        "evidence": list(CHUNKS.values()),
    }
    said = presenter.why(output)
    assert "Every level of diversity selects the same chunks, which support the plan with 3." in said
