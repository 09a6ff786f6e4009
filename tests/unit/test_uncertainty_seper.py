"""SePer against plain loops over stored responses, and against the paper's worked examples."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import gold_matches, response_weights, semantic_clusters, seper_hard, seper_soft
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

RESPONSES = [
    ("Linda Davis", [-0.21, -0.05, -0.4]),
    ("Davis", [-1.7]),
    ("Reba McEntire", [-0.9, -2.2, -0.31, -0.07]),
    ("Linda Davis", [-0.21, -0.05, -0.4]),
    ("", [-3.3]),
    ("It was Linda Davis who sang it", [-0.6, -0.2, -1.1, -0.3, -0.01, -0.77, -0.2]),
]
"""Stored samples: the text and its tokens' log-probabilities, with the end-of-turn token."""

GOLDS = ["Linda Davis", "Linda Kaye Davis"]

# P(entailment), P(neutral), P(contradiction) of response i towards gold j, and the other way round
FORWARD = [
    [[1.0, 0.0, 0.0], [0.3, 0.6, 0.1]],
    [[0.2, 0.7, 0.1], [0.15, 0.8, 0.05]],
    [[0.01, 0.04, 0.95], [0.02, 0.08, 0.9]],
    [[1.0, 0.0, 0.0], [0.3, 0.6, 0.1]],
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
    [[0.92, 0.07, 0.01], [0.4, 0.55, 0.05]],
]
BACKWARD = [
    [[1.0, 0.0, 0.0], [0.97, 0.02, 0.01]],
    [[0.85, 0.1, 0.05], [0.8, 0.15, 0.05]],
    [[0.02, 0.03, 0.95], [0.01, 0.02, 0.97]],
    [[1.0, 0.0, 0.0], [0.97, 0.02, 0.01]],
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
    [[0.2, 0.75, 0.05], [0.35, 0.25, 0.4]],
]
LABELS = ("entailment", "neutral", "contradiction")

# the label of each ordered pair of responses: e, n or c; loosely, 1, 2 and 5 mean the same as 0
BETWEEN = [
    "eenenn",
    "necenn",
    "ecenne",
    "eenenn",
    "nnnnen",
    "ecnnne",
]


def by_hand_weights(likelihood: str) -> list[float]:
    raw = []
    for _, logs in RESPONSES:
        total = 0.0
        for one in logs:
            total += one
        raw.append(math.exp(total / len(logs) if likelihood == "mean" else total))
    return [one / sum(raw) for one in raw]


def label(row: list[float]) -> str:
    return LABELS[row.index(max(row))]


def by_hand_soft(likelihood: str, direction: str, golds: str) -> float:
    weights = by_hand_weights(likelihood)
    beliefs = []
    for j in range(len(GOLDS)):
        belief = 0.0
        for i in range(len(RESPONSES)):
            kernel = FORWARD[i][j][0]
            if direction == "either" and BACKWARD[i][j][0] > kernel:
                kernel = BACKWARD[i][j][0]
            belief += weights[i] * kernel
        beliefs.append(belief)
    return max(beliefs) if golds == "max" else sum(beliefs) / len(beliefs)


def equivalent(one: str, other: str, rule: str) -> bool:
    if rule == "bidirectional":
        return one == other == "e"
    return "c" not in (one, other) and not (one == other == "n")


def by_hand_clusters(rule: str) -> list[int]:
    firsts: list[int] = []
    ids = []
    for i in range(len(RESPONSES)):
        for cluster, first in enumerate(firsts):
            if equivalent(BETWEEN[first][i], BETWEEN[i][first], rule):
                ids.append(cluster)
                break
        else:
            ids.append(len(firsts))
            firsts.append(i)
    return ids


def by_hand_hard(likelihood: str, clusters: str, match: str, golds: str) -> float:
    weights, ids = by_hand_weights(likelihood), by_hand_clusters(clusters)

    def matches(cluster: int, j: int) -> bool:
        first = ids.index(cluster)
        return equivalent(label(FORWARD[first][j])[0], label(BACKWARD[first][j])[0], match)

    if golds == "union":
        return sum(
            weight for weight, cluster in zip(weights, ids, strict=True) if matches(cluster, 0) or matches(cluster, 1)
        )
    beliefs = []
    for j in range(len(GOLDS)):
        belief = 0.0
        for i, cluster in enumerate(ids):
            if matches(cluster, j):
                belief += weights[i]
        beliefs.append(belief)
    return max(beliefs) if golds == "max" else sum(beliefs) / len(beliefs)


def are(rows: Any, wanted: str) -> Any:
    return [[label(row) == wanted for row in some] for some in rows]


@pytest.mark.parametrize("likelihood", ["mean", "sum"])
def test_weights_by_hand(likelihood: Any) -> None:
    found = response_weights([logs for _, logs in RESPONSES], likelihood)
    assert found == pytest.approx(by_hand_weights(likelihood), abs=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "direction", "golds"),
    list(itertools.product(["mean", "sum"], ["either", "forward"], ["max", "mean"])),
)
def test_soft_by_hand(likelihood: Any, direction: str, golds: Any) -> None:
    weights = response_weights([logs for _, logs in RESPONSES], likelihood)
    forward = np.array(FORWARD)[:, :, 0]
    backward = np.array(BACKWARD)[:, :, 0] if direction == "either" else None
    found = seper_soft(weights, forward, backward, golds)
    assert found == pytest.approx(by_hand_soft(likelihood, direction, golds), abs=1e-9)
    assert type(found) is float


@pytest.mark.parametrize(
    ("likelihood", "clusters", "match", "golds"),
    list(
        itertools.product(
            ["mean", "sum"], ["bidirectional", "loose"], ["bidirectional", "loose"], ["max", "mean", "union"]
        )
    ),
)
def test_hard_by_hand(likelihood: Any, clusters: Any, match: Any, golds: Any) -> None:
    weights = response_weights([logs for _, logs in RESPONSES], likelihood)
    entails = [[one == "e" for one in row] for row in BETWEEN]
    contradicts = [[one == "c" for one in row] for row in BETWEEN]
    ids = semantic_clusters(entails, clusters, contradicts=contradicts)
    firsts = [ids.index(cluster) for cluster in range(max(ids) + 1)]
    matches = gold_matches(
        np.array([are(FORWARD, "entailment"), are(BACKWARD, "entailment")])[:, firsts],
        np.array([are(FORWARD, "contradiction"), are(BACKWARD, "contradiction")])[:, firsts],
        match,
    )
    found = seper_hard(weights, ids, matches, golds)
    assert found == pytest.approx(by_hand_hard(likelihood, clusters, match, golds), abs=1e-9)
    assert type(found) is float


def test_every_setting_makes_a_difference_here() -> None:
    soft = {by_hand_soft(*each) for each in itertools.product(["mean", "sum"], ["either", "forward"], ["max", "mean"])}
    assert len(soft) == 8
    ways = ["bidirectional", "loose"]
    hard = {by_hand_hard("mean", one, other, "max") for one in ways for other in ways}
    assert len(hard) > 2
    assert by_hand_hard("mean", "loose", "bidirectional", "max") > by_hand_hard(
        "mean", "loose", "bidirectional", "mean"
    )


def test_a_union_counts_clusters_that_match_different_answers() -> None:
    matches = [[True, False], [False, True], [False, False]]
    found = [seper_hard([0.5, 0.3, 0.2], [0, 1, 2], matches, rule) for rule in ("max", "mean", "union")]
    assert found == pytest.approx([0.5, 0.4, 0.8])


# --- the paper's worked examples: how often which answer was given, and ΔSePer (tables 6 and 7) ---

PROBABILITY = {"Reba McEntire": 0.0, "Linda Davis": 1.0, "Yes": 0.0, "No": 1.0}
"""P(answer ⊨ right answer), for the right answers Linda Davis and No."""


def believed(counts: dict[str, int], share: float | None = None) -> tuple[float, float]:
    """SePer soft and hard of ten responses. share: the total likelihood of the right ones; else all are equal."""
    texts = [text for text, times in counts.items() for _ in range(times)]
    right = [PROBABILITY[text] for text in texts]
    likelihoods = [1.0] * len(texts)
    if share is not None:
        hits = sum(right)
        likelihoods = [share / hits if one else (1 - share) / (len(texts) - hits) for one in right]
    same = [[float(one == other) for other in texts] for one in texts]
    ids = semantic_clusters(same)
    firsts = [ids.index(cluster) for cluster in range(max(ids) + 1)]
    soft = seper_soft(likelihoods, [[one] for one in right], [[one] for one in right])
    return soft, seper_hard(likelihoods, ids, [bool(right[first]) for first in firsts])


@pytest.mark.parametrize(
    ("without", "counts", "share", "delta"),
    [
        ({"Reba McEntire": 10}, {"Reba McEntire": 10}, None, 0.0),  # table 6, a document that is beside the point
        ({"Reba McEntire": 10}, {"Linda Davis": 10}, None, 1.0),  # table 6, the document with the answer
        ({"Yes": 10}, {"Yes": 10}, None, 0.0),  # table 7, neither document
        # the table's counts alone make 0.3 and 0.2: the right responses were the less likely ones
        ({"Yes": 10}, {"Yes": 7, "No": 3}, 0.15, 0.15),  # table 7, the second document
        ({"Yes": 10}, {"Yes": 8, "No": 2}, 0.1, 0.1),  # table 7, the first document
        ({"Yes": 10}, {"Yes": 3, "No": 7}, None, 0.7),  # table 7, both documents
    ],
)
def test_the_worked_examples(
    without: dict[str, int], counts: dict[str, int], share: float | None, delta: float
) -> None:
    before, after = believed(without), believed(counts, share)
    assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx([delta, delta], abs=1e-6)


# --- edges ---


def test_a_response_without_tokens_or_of_probability_0_has_weight_0() -> None:
    found = response_weights([[], [-1.0], [-0.5, -math.inf], [-1.0, -1.0]])
    assert found == pytest.approx([0, 0.5, 0, 0.5])
    assert response_weights([[], [-1.0]], "sum") == pytest.approx([0, 1])  # the empty product is not 1


@pytest.mark.parametrize("logs", [[[], [-math.inf]], [[-math.inf]] * 2, [[], []]])
def test_if_every_weight_is_0_all_weigh_the_same(logs: list[list[float]]) -> None:
    assert response_weights(logs).tolist() == [0.5, 0.5]


def test_one_response() -> None:
    assert response_weights([[-700.0] * 3], "sum").tolist() == [1.0]
    assert seper_soft([0.3], [[0.25]]) == 0.25
    assert seper_hard([0.3], [0], [True]) == 1.0
    assert seper_hard([0.3], [0], [False]) == 0.0


def test_long_responses_do_not_underflow() -> None:
    found = response_weights([[-2.0] * 500, [-2.0] * 501], "sum")
    assert found == pytest.approx([1 / (1 + math.exp(-2)), math.exp(-2) / (1 + math.exp(-2))])


def test_a_pair_without_a_label_counts_as_0() -> None:
    assert seper_soft([1, 1], [[math.nan], [0.5]]) == 0.25
    assert seper_soft([1, 1], [[math.nan], [0.5]], [[0.4], [math.nan]]) == pytest.approx(0.45)
    assert seper_soft([1, 1], [[math.nan], [math.nan]], [[math.nan]] * 2) == 0.0


def test_loose_matches() -> None:
    entails = np.array([[[1], [1], [0], [1], [0]], [[1], [0], [0], [0], [1]]], dtype=bool)
    contradicts = np.array([[[0], [0], [0], [0], [1]], [[0], [0], [0], [1], [0]]], dtype=bool)
    assert gold_matches(entails, contradicts).ravel().tolist() == [True, True, False, False, False]
    assert gold_matches(entails, contradicts, "bidirectional").ravel().tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: response_weights([]), "no response"),
        (lambda: response_weights([[-1.0]], "product"), "no likelihood"),  # type: ignore[arg-type]
        (lambda: response_weights([[0.5]]), "at most 0"),
        (lambda: response_weights([[math.nan]]), "NaN"),
        (lambda: response_weights([[[-1.0]]]), "shape"),
        (lambda: seper_soft([], [[1.0]]), "likelihoods have shape"),
        (lambda: seper_soft([0.0, 0.0], [[1.0], [1.0]]), "all are 0"),
        (lambda: seper_soft([1.0, -0.1], [[1.0], [1.0]]), "at least 0"),
        (lambda: seper_soft([math.nan], [[1.0]]), "finite"),
        (lambda: seper_soft([1.0], [1.0]), "forward has shape"),
        (lambda: seper_soft([1.0], [[]]), "forward has shape"),
        (lambda: seper_soft([1.0], [[1.0], [1.0]]), "forward has shape"),
        (lambda: seper_soft([1.0], [[1.1]]), "from 0 to 1"),
        (lambda: seper_soft([1.0], [[1.0]], [[-0.1]]), "backward goes"),
        (lambda: seper_soft([1.0], [[1.0, 1.0]], [[1.0]]), "judge the same answers"),
        (lambda: seper_soft([1.0], [[1.0]], several_answers="best"), "max"),  # type: ignore[arg-type]
        (lambda: seper_soft([1.0], [[1.0]], several_answers="union"), "needs the hard rule"),  # type: ignore[arg-type]
        (lambda: seper_hard([1.0], [0, 1], [True]), "an id each"),
        (lambda: seper_hard([1.0], [0.0], [True]), "an id each"),
        (lambda: seper_hard([1.0], [1], [True]), "there are matches for 1"),
        (lambda: seper_hard([1.0], [-1], [True]), "there are matches for 1"),
        (lambda: seper_hard([1.0], [0], [0.5]), "true or false"),
        (lambda: seper_hard([1.0], [0], []), "true or false"),
        (lambda: gold_matches([[[1]]], [[[1]]]), r"\[2, clusters, a\]"),
        (lambda: gold_matches([[[0.5]]] * 2, [[[0]]] * 2), "must be true or false"),
        (lambda: gold_matches([[[1]]] * 2, [[[0]]] * 2, "strict"), "no rule"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(UserFault, match=message):
        call()


# --- properties ---

logs_of = st.lists(st.lists(st.floats(-30, 0), min_size=1, max_size=5), min_size=1, max_size=8)
probability = st.floats(0, 1)


@given(st.data())
def test_soft_is_a_belief(data: st.DataObject) -> None:
    likelihood: Literal["mean", "sum"] = data.draw(st.sampled_from(["mean", "sum"]))
    logs = data.draw(logs_of)
    n, a = len(logs), data.draw(st.integers(1, 3))
    table = st.lists(st.lists(probability, min_size=a, max_size=a), min_size=n, max_size=n)
    forward, backward = data.draw(table), data.draw(table)
    order = data.draw(st.permutations(range(n)))
    golds = data.draw(st.permutations(range(a)))
    weights = response_weights(logs, likelihood)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-12)
    assert weights.min() >= 0
    for several in ("max", "mean"):
        one = seper_soft(weights, forward, None, several)
        both = seper_soft(weights, forward, backward, several)
        assert 0 <= one <= both + 1e-12
        assert both <= 1
        moved = seper_soft(
            response_weights([logs[i] for i in order], likelihood),
            np.array(forward)[order][:, golds],
            np.array(backward)[order][:, golds],
            several,
        )
        assert moved == pytest.approx(both, abs=1e-9)
        assert seper_soft(weights * 3.7, forward, backward, several) == pytest.approx(both, abs=1e-9)
        # all sampled twice: nothing is believed more
        twice = response_weights(logs * 2, likelihood)
        assert seper_soft(twice, forward * 2, backward * 2, several) == pytest.approx(both, abs=1e-9)
    assert seper_soft(weights, forward, None, "mean") <= seper_soft(weights, forward, None, "max") + 1e-12


@given(st.data())
def test_hard_is_a_belief(data: st.DataObject) -> None:
    logs = data.draw(logs_of)
    n, a = len(logs), data.draw(st.integers(1, 3))
    relation = st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)
    ids = semantic_clusters(data.draw(relation))
    row = st.lists(st.booleans(), min_size=a, max_size=a)
    matches = data.draw(st.lists(row, min_size=max(ids) + 1, max_size=max(ids) + 1))
    weights = response_weights(logs)
    found = seper_hard(weights, ids, matches)
    assert 0 <= found <= 1
    by_answer = [seper_hard(weights, ids, [one[j] for one in matches]) for j in range(a)]
    assert found == pytest.approx(max(by_answer))
    assert seper_hard(weights, ids, matches, "mean") == pytest.approx(sum(by_answer) / a)
    # the clusters being given, the order of their members is of no account
    order = data.draw(st.permutations(range(n)))
    moved = seper_hard(weights[order], np.array(ids)[order], matches)
    assert moved == pytest.approx(found, abs=1e-9)
    # what matches and what does not make one
    others = [[not match for match in one] for one in matches]
    for j in range(a):
        rest = seper_hard(weights, ids, [one[j] for one in others])
        assert by_answer[j] + rest == pytest.approx(1, abs=1e-9)
