"""select_lambdas and choose_lambda: which chunk sets are evaluated, and which one wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.nodes.choose_lambda import choose_lambda, retrieval_supports, upper_median
from dubito.nodes.select_lambdas import next_sets, select_lambdas
from dubito.resources.resources import Resources
from dubito.state.df_rag import LAMBDAS, NO_CHUNKS, DFRagContext, DFRagState
from hypothesis import given
from hypothesis import strategies as st

LEVELS = len(LAMBDAS)
MOST_EVALUATIONS = 6
"""For 10 levels: two in the first round, then two, one and one."""


def search(values: Sequence[float]) -> tuple[list[list[int]], list[float | None]]:
    """The levels requested in each round, and the supports known at the end."""
    known: list[float | None] = [None] * len(values)
    rounds = []
    while levels := next_sets(known, len(values) // 2):
        rounds.append(levels)
        for level in levels:
            assert known[level] is None, "nothing is asked for twice"
            known[level] = values[level]
    return rounds, known


def evaluated(values: Sequence[float]) -> list[int]:
    return [level for levels in search(values)[0] for level in levels]


def winner(values: Sequence[float]) -> int:
    """The level that DF-RAG would choose: the upper median of the best evaluated levels."""
    asked = evaluated(values)
    best = max(values[level] for level in asked)
    return sorted(level for level in asked if values[level] == best)[
        len([level for level in asked if values[level] == best]) // 2
    ]


def peak_at(peak: int, levels: int = LEVELS) -> list[float]:
    return [-float(abs(level - peak)) for level in range(levels)]


# --- the search for the peak ---


def test_the_peak_is_found_wherever_it_is_within_the_exact_bound() -> None:
    costs = []
    for peak in range(LEVELS):
        rounds, _ = search(peak_at(peak))
        assert winner(peak_at(peak)) == peak
        assert len(rounds) <= 4
        costs.append(sum(len(wanted) for wanted in rounds))
    assert max(costs) == MOST_EVALUATIONS
    assert costs == [6, 6, 5, 4, 4, 5, 5, 5, 5, 5], "this is what each peak costs; uniform sampling costs 10"


@pytest.mark.parametrize("levels", range(1, 65))
def test_the_cost_grows_with_the_logarithm(levels: int) -> None:
    halvings = (levels - 1).bit_length()
    for peak in range(levels):
        rounds, _ = search(peak_at(peak, levels))
        assert winner(peak_at(peak, levels)) == peak
        assert len(rounds) <= max(1, halvings)
        assert sum(len(wanted) for wanted in rounds) <= max(1, 2 * halvings)


rising = st.lists(st.floats(-100, 100), min_size=LEVELS, max_size=LEVELS, unique=True).map(sorted)


@given(rising, st.integers(0, LEVELS - 1), st.randoms())
def test_the_maximum_of_every_strictly_unimodal_sequence_is_found(values: list[float], peak: int, random: Any) -> None:
    left = sorted(random.sample(range(LEVELS - 1), peak))
    right = [level for level in range(LEVELS - 1) if level not in left]
    sequence = [values[i] for i in left] + [values[-1]] + [values[i] for i in reversed(right)]
    assert sequence.index(max(sequence)) == peak
    assert winner(sequence) == peak
    assert len(evaluated(sequence)) <= MOST_EVALUATIONS


@pytest.mark.parametrize(("first", "last"), [(a, b) for a in range(LEVELS) for b in range(a, LEVELS)])
def test_a_flat_top_is_found_too(first: int, last: int) -> None:
    sequence = [min(0.0, level - first, last - level) * 1.0 for level in range(LEVELS)]
    assert first <= winner(sequence) <= last
    assert len(evaluated(sequence)) <= MOST_EVALUATIONS


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_any_sequence_ends_at_a_local_peak_among_what_was_seen(values: list[int]) -> None:
    rounds, known = search([float(value) for value in values])
    assert sum(len(wanted) for wanted in rounds) <= max(1, 2 * (len(values) - 1).bit_length())
    assert next_sets(known, len(values) // 2) == []


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        # all tied: 0.5 and 0.6 tie, the upper median is 0.6, and so every tie leads back to it
        ([0] * 10, [4, 5, 7, 8, 6]),
        # a tie below the median moves up, one above it moves down
        ([9, 1, 2, 2, 3, 0, 0, 0, 0, 0], [4, 5, 2, 3]),
        ([0, 0, 0, 0, 0, 3, 2, 2, 1, 9], [4, 5, 7, 8, 6]),
    ],
)
def test_a_tie_moves_toward_the_median(values: list[float], asked: list[int]) -> None:
    assert evaluated(values) == asked


def test_a_tie_between_the_two_middle_levels_goes_to_the_upper_one() -> None:
    assert winner([0, 0, 0, 0, 5, 5, 0, 0, 0, 0]) == 5


def test_the_search_continues_from_the_known_supports() -> None:
    values = peak_at(8)
    rounds, known = search(values)
    again: list[float | None] = [None] * LEVELS
    for wanted in rounds:
        assert next_sets(again, LEVELS // 2) == wanted
        assert next_sets(again, LEVELS // 2) == wanted, "asking changes nothing"
        for level in wanted:
            again[level] = values[level]
    assert again == known
    full: list[float | None] = list(values)
    assert next_sets(full, LEVELS // 2) == [], "nothing to ask for when everything is known"


@pytest.mark.parametrize(
    ("support", "wanted"), [([], []), ([None], [0]), ([1.0], []), ([None, None], [0, 1]), ([None, 1.0], [0])]
)
def test_very_few_levels(support: list[float | None], wanted: list[int]) -> None:
    assert next_sets(support, len(support) // 2) == wanted


# --- the median and the supports ---


@pytest.mark.parametrize(
    ("values", "middle"), [([0.3], 0.3), ([0.1, 0.9], 0.9), ([0.9, 0.1, 0.5], 0.5), ([0.4, 0.1, 0.3, 0.2], 0.3)]
)
def test_upper_median(values: list[float], middle: float) -> None:
    assert upper_median(values) == middle


def test_the_upper_median_of_all_levels_is_point_six() -> None:
    assert upper_median(LAMBDAS) == 0.6


@given(st.lists(st.sampled_from(LAMBDAS), min_size=1, unique=True))
def test_the_upper_median_is_one_of_them_with_as_many_below_as_above_or_one_more(values: list[float]) -> None:
    middle = upper_median(values)
    below, above = sum(v < middle for v in values), sum(v > middle for v in values)
    assert middle in values
    assert below - above in {0, 1}


def state(*scores: tuple[int, list[float]], levels: Sequence[Sequence[float]] = ((0.1, 0.2), (0.3,), (0.4,))) -> Any:
    chunks = {f"c{i}": {"id": f"c{i}", "doc_id": "d", "title": "t", "text": "x"} for i in range(len(levels))}
    found: DFRagState = {
        "plan": ["a", "b"],
        "chunks_by_id": chunks,  # type: ignore[typeddict-item]
        "candidates": [{"lambdas": list(lams), "chunk_ids": [f"c{i}"]} for i, lams in enumerate(levels)],
        "evaluations": [{"candidate": i, "scores": given, "answers": []} for i, given in scores],
    }
    return found


def test_support_is_the_sum_over_the_plan_in_the_order_of_the_levels() -> None:
    assert retrieval_supports(state((2, [5, 4]), (0, [1, 0]))) == [
        {"lambdas": [0.1, 0.2], "support": 1},
        {"lambdas": [0.4], "support": 9},
    ]


def test_support_is_the_gain_over_no_chunks_if_that_was_evaluated() -> None:
    found = retrieval_supports(state((1, [-1.0, -2.0]), (NO_CHUNKS, [-3.0, -2.5])))
    assert found == [{"lambdas": [0.3], "support": 2.5}]


def test_without_evaluations_there_are_no_supports() -> None:
    assert retrieval_supports(state()) == []
    assert retrieval_supports({}) == []
    assert retrieval_supports(state((NO_CHUNKS, [-3.0, -2.5]))) == []


async def chosen(found: Any, **settings: Any) -> Any:
    return await choose_lambda(found, DFRagContext(evaluator="report", **settings), Resources())


async def test_choose_takes_the_best_set() -> None:
    update = await chosen(state((0, [1, 1]), (1, [5, 5]), (2, [4, 5])))
    assert update["lambda_star"] == 0.3
    assert [chunk["id"] for chunk in update["evidence"]] == ["c1"]
    assert update["incremental_context"] == []


async def test_choose_breaks_a_tie_over_levels_not_over_sets() -> None:
    # 0.1, 0.2 and 0.3 tie: their median 0.2 belongs to the first set
    update = await chosen(state((0, [5, 5]), (1, [5, 5]), (2, [0, 0])))
    assert update["lambda_star"] == 0.2
    assert [chunk["id"] for chunk in update["evidence"]] == ["c0"]
    # 0.1, 0.2, 0.3, 0.4 tie: the upper one of 0.2 and 0.3
    assert (await chosen(state((0, [5, 5]), (1, [5, 5]), (2, [5, 5]))))["lambda_star"] == 0.3


async def test_choose_does_not_depend_on_the_order_in_which_evaluations_arrive() -> None:
    there = state((0, [5, 5]), (1, [5, 5]), (2, [4, 4]))
    back = {**there, "evaluations": list(reversed(there["evaluations"]))}
    assert await chosen(there) == await chosen(back)


@pytest.mark.parametrize(
    ("evaluator", "scores", "value"),
    [
        ("report", [4.0, 2.0], 0.4),
        ("choice", [5.0, 5.0], 0.0),
        ("report", [0.0, 0.0], 1.0),
        ("likelihood", [4.0, 2.0], None),
    ],
)
async def test_the_uncertainty_is_the_missing_support_of_the_chosen_set(
    evaluator: str, scores: list[float], value: float | None
) -> None:
    context = DFRagContext.model_validate({"evaluator": evaluator})
    update = await choose_lambda(state((0, [0.0, 0.0]), (1, scores)), context, Resources())
    assert update["uncertainty"] == {"signal": "missing support", "value": pytest.approx(value), "threshold": None}


async def test_incremental_context_has_the_answers_of_the_chosen_set_only() -> None:
    found = state((0, [1, 1]), (1, [5, 5]))
    found["evaluations"][0]["answers"] = ["wrong", "wrong"]
    found["evaluations"][1]["answers"] = ["Ada", ""]
    update = await chosen(found, incremental_context=True)
    assert update["incremental_context"] == ["a: Ada", "b: not found"]


async def test_steps_that_the_evaluator_did_not_answer_are_not_called_not_found() -> None:
    found = state((1, [5, 5]))
    found["evaluations"][0]["answers"] = ["Ada", "Kirkby"]
    update = await chosen({**found, "plan": ["a", "b", "c"]}, incremental_context=True)
    assert update["incremental_context"] == ["a: Ada", "b: Kirkby", "c"], "the step c was added by hand"
    found["evaluations"][0]["answers"] = []
    assert (await chosen(found, incremental_context=True))["incremental_context"] == ["a", "b"], "an unreadable report"


async def selected(found: Any, **settings: Any) -> list[int]:
    return (await select_lambdas(found, DFRagContext(**settings), Resources()))["pending"]


async def test_uniform_selects_every_set_once() -> None:
    assert await selected(state(), evaluator="report") == [0, 1, 2]
    assert await selected(state((1, [0, 0])), evaluator="report") == [0, 2]
    assert await selected(state((0, [0, 0]), (1, [0, 0]), (2, [0, 0])), evaluator="report") == []


async def test_without_candidates_the_fault_says_what_to_do() -> None:
    with pytest.raises(UserFault, match="no candidate chunk sets yet"):
        await selected({"plan": ["a"]}, evaluator="report")


async def test_the_likelihood_evaluator_also_scores_the_empty_set() -> None:
    for sampling in ("uniform", "binary"):
        assert (await selected(state(), evaluator="likelihood", sampling=sampling))[0] == NO_CHUNKS
    assert await selected(state(levels=()), evaluator="likelihood") == [], "with nothing retrieved there is no gain"


async def binary(levels: Sequence[Sequence[float]], supports: Sequence[float]) -> tuple[list[int], Any]:
    """The sets that binary sampling evaluates, in order, and what is chosen from them."""
    known: list[tuple[int, list[float]]] = []
    while pending := await selected(state(*known, levels=levels), evaluator="report", sampling="binary"):
        known += [(number, [supports[number], 0.0]) for number in pending]
    update = await chosen(state(*known, levels=levels), sampling="binary")
    return [number for number, _ in known], update


async def uniform(levels: Sequence[Sequence[float]], supports: Sequence[float]) -> Any:
    return await chosen(state(*((number, [one, 0.0]) for number, one in enumerate(supports)), levels=levels))


async def test_two_levels_that_select_one_set_are_one_point_of_the_search() -> None:
    ten = [[lam] for lam in LAMBDAS]
    assert await selected(state(levels=ten), evaluator="report", sampling="binary") == [4, 5]
    # over the levels the search would compare 0.5 and 0.6, one set, call it a tie and go up to 8 in place of 11
    levels = [[0.1], [0.2], [0.3, 0.4], [0.5, 0.6, 0.7], [0.8, 0.9, 1.0]]
    evaluated_sets, update = await binary(levels, [9, 11, 9, 6, 8])
    assert evaluated_sets == [2, 3, 1, 0]
    assert update["lambda_star"] == 0.2


async def test_a_set_whose_levels_are_no_neighbours_stands_at_its_smallest_level() -> None:
    split = [[0.1, 0.5, 1.0], [0.2, 0.3, 0.4], [0.6, 0.7, 0.8, 0.9]]
    assert await selected(state(levels=split), evaluator="report", sampling="binary") == [1, 2]


@st.composite
def partitions(draw: st.DrawFn) -> list[list[float]]:
    """The levels of a grid, divided between sets, in the order of their smallest levels."""
    grid = [round(step / 20, 6) for step in range(1, draw(st.integers(2, 20)) + 1)]
    owner = draw(st.lists(st.integers(0, 9), min_size=len(grid), max_size=len(grid)))
    sets: dict[int, list[float]] = {}
    for level, number in zip(grid, owner, strict=True):
        sets.setdefault(number, []).append(level)
    return list(sets.values())


@given(partitions(), st.integers(0, 9))
async def test_both_samplings_choose_the_same_if_all_sets_are_tied_or_one_is_the_peak(
    levels: list[list[float]], peak: int
) -> None:
    flat = [3.0] * len(levels)
    hill = [-float(abs(number - peak % len(levels))) for number in range(len(levels))]
    for supports in (flat, hill):
        found, expected = (await binary(levels, supports))[1], await uniform(levels, supports)
        assert (found["lambda_star"], found["evidence"]) == (expected["lambda_star"], expected["evidence"])


async def test_of_tied_sets_binary_takes_the_level_nearest_to_the_median() -> None:
    # of ten levels 0.6 is the upper median; 0.4 and 0.8 are equally near, and the upper one wins
    known = state((2, [5, 5]), (6, [5, 5]), (4, [1, 1]), levels=[[0.1], [0.2], [0.3, 0.4], [0.5], [0.6], [0.7], [0.8],
                                                                 [0.9], [1.0]])  # fmt: skip
    assert (await chosen(known, sampling="binary"))["lambda_star"] == 0.8
    assert (await chosen(known, sampling="uniform"))["lambda_star"] == 0.4
