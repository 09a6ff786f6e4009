"""Degree entropy, semantic clusters and semantic entropy against hand-worked values and their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.uncertainty import degree_entropy, degree_terms, semantic_clusters, semantic_entropy
from hypothesis import example, given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # such as the logarithm of 0


def linked(n, weight, pairs):
    """n answers that are not linked but for the given pairs."""
    link = np.eye(n)
    for i, j in pairs:
        link[i, j] = link[j, i] = weight
    return link


def dissenter(n, weight):
    """All linked by 1, the last by `weight` to all others."""
    link = np.ones((n, n))
    link[-1, :-1] = link[:-1, -1] = weight
    return link


@st.composite
def links(draw):
    n = draw(st.integers(1, 8))
    upper = np.triu(np.array(draw(st.lists(st.floats(0, 1), min_size=n * n, max_size=n * n))).reshape(n, n), 1)
    return upper + upper.T + np.eye(n)


@st.composite
def relations(draw):
    n = draw(st.integers(1, 7))
    return np.array(draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)


labels = st.lists(st.integers(0, 4), min_size=1, max_size=10)


@pytest.mark.parametrize(
    ("link", "entropy"),
    [
        (np.ones((6, 6)), 0.0),
        (dissenter(6, 0.0), 0.450561),  # five D = 5, one D = 1: (5·log(6/5) + log 6)/6 = (0.911608 + 1.791759)/6
        (dissenter(6, 0.5), 0.162342),  # five D = 5.5, one D = 3.5: (5·0.087011 + 0.538997)/6
        (np.eye(6), 1.791759),  # log 6
        ([[1, 0.5], [0.5, 1]], 0.287682),  # both D = 1.5: log(2/1.5) = log(4/3)
        (linked(3, 1.0, [(0, 1), (1, 2)]), 0.270310),  # D = 2, 3, 2: (2/3)·log(3/2) = (2/3)·0.405465
        ([[1, 0.2, 0.6], [0.2, 1, 0.9], [0.6, 0.9, 1]], 0.349941),
        # D = 1.8, 2.1, 2.5: (log(3/1.8) + log(3/2.1) + log(3/2.5))/3 = (0.510826 + 0.356675 + 0.182322)/3
        (linked(4, 1.0, [(0, 3), (1, 2)]), 0.693147),  # every D = 2: log(4/2)
        (dissenter(4, 0.0), 0.562335),  # three D = 3, one D = 1: (3·0.287682 + 1.386294)/4
    ],
)
def test_degree_entropy_by_hand(link, entropy):
    assert degree_entropy(link) == pytest.approx(entropy, abs=1e-6)


def test_terms_by_hand():
    # D = 2, 3, 2 of 3: log(3/2)/3, log(1)/3, log(3/2)/3
    terms = degree_terms(linked(3, 1.0, [(0, 1), (1, 2)]))
    assert terms.dtype == np.float64
    np.testing.assert_allclose(terms, [0.135155, 0, 0.135155], atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_agreement_is_zero_and_not_minus_zero(n):
    entropy = degree_entropy(np.ones((n, n)))
    assert type(entropy) is float
    assert str(entropy) == "0.0"
    assert [str(term) for term in degree_terms(np.ones((n, n))).tolist()] == ["0.0"] * n


@given(links())
def test_degree_entropy_stays_in_range_and_is_the_sum_of_its_terms(link):
    entropy = degree_entropy(link)
    assert 0 <= entropy <= math.log(len(link))
    assert degree_terms(link).sum() == pytest.approx(entropy, abs=1e-12)


@pytest.mark.parametrize("n", range(1, 60))
def test_all_differ_is_log_n_and_no_more(n):
    for entropy in (degree_entropy(np.eye(n)), semantic_entropy(range(n))):
        assert entropy <= math.log(n)
        assert entropy == pytest.approx(math.log(n), abs=1e-12)


@given(labels)
def test_of_groups_degree_entropy_is_semantic_entropy(groups):
    # an answer of a group of m has D = m, so −(1/n)Σ_i log(D_i/n) = −Σ_groups (m/n) log(m/n)
    link = np.equal.outer(groups, groups).astype(float)
    assert degree_entropy(link) == pytest.approx(semantic_entropy(groups), abs=1e-12)


def test_rounding_of_float32_is_mended():
    link = np.ones((3, 3), dtype=np.float32)
    link[0, 1] += np.float32(5e-7)
    link[2, 2] -= np.float32(5e-7)
    before = link.copy()
    assert degree_entropy(link) == 0.0
    assert (link == before).all()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\)"),
        (np.ones(4), r"shape \(4,\)"),
        (np.empty((0, 0)), r"shape \(0, 0\)"),
        ([[1, math.nan], [math.nan, 1]], "not finite"),
        ([[1, math.inf], [math.inf, 1]], "not finite"),
        ([[1, -0.1], [-0.1, 1]], "go from -0.1 to 1"),
        ([[1, 1.1], [1.1, 1]], "go from 1 to 1.1"),
        ([[1, 0.5], [0.5, 0]], "diagonal"),
        ([[1, 0.5], [0.50001, 1]], "not symmetric"),
    ],
)
@pytest.mark.parametrize("formula", [degree_entropy, degree_terms])
def test_links_that_are_refused(formula, link, message):
    with pytest.raises(UserFault, match=message):
        formula(link)
    assert issubclass(UserFault, ValueError)


# 0 ⇔ 1 and 1 ⇔ 2 but not 0 ⇔ 2: equivalence that is not transitive
CHAIN = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool)


def test_only_the_first_member_of_a_cluster_counts():
    assert semantic_clusters(CHAIN) == [0, 0, 1]  # 2 is like 1, a member, but not like 0, the first
    middle_first = [1, 0, 2]
    assert semantic_clusters(CHAIN[np.ix_(middle_first, middle_first)]) == [0, 0, 0]


def test_the_first_or_the_last_of_two_fitting_clusters_is_joined():
    ends_first = [0, 2, 1]
    relation = CHAIN[np.ix_(ends_first, ends_first)]
    assert semantic_clusters(relation) == [0, 1, 0]
    assert semantic_clusters(relation, founder="last") == [0, 1, 1]


def test_one_direction_is_not_enough_and_the_diagonal_is_not_read():
    assert semantic_clusters([[False, True], [False, False]]) == [0, 1]
    assert semantic_clusters([[False, True], [True, False]]) == [0, 0]
    assert semantic_clusters([[False]]) == [0]


@pytest.mark.parametrize(
    ("forward", "backward", "same"),
    [
        ("entails", "entails", True),
        ("entails", "neutral", True),
        ("neutral", "entails", True),
        ("neutral", "neutral", False),
        ("entails", "contradicts", False),
        ("contradicts", "entails", False),
        ("contradicts", "neutral", False),
        ("contradicts", "contradicts", False),
    ],
)
def test_loose_clusters(forward, backward, same):
    said = np.array([["entails", forward], [backward, "entails"]])
    clusters = semantic_clusters(said == "entails", rule="loose", contradicts=said == "contradicts")
    assert clusters == ([0, 0] if same else [0, 1])


@given(relations())
def test_clusters_obey_the_rule(entails):
    clusters = semantic_clusters(entails)
    first: dict[int, int] = {}
    for answer, cluster in enumerate(clusters):
        fitting = [c for c, member in first.items() if entails[member, answer] and entails[answer, member]]
        assert cluster == (min(fitting) if fitting else len(first))
        first.setdefault(cluster, answer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"entails": np.ones((2, 3), dtype=bool)}, r"entails has shape \(2, 3\)"),
        ({"entails": np.empty((0, 0), dtype=bool)}, r"entails has shape \(0, 0\)"),
        ({"entails": [[1.0, 0.7], [0.2, 1.0]]}, "compare probabilities to a threshold"),
        ({"entails": CHAIN, "rule": "strict"}, 'no clustering rule "strict"'),
        ({"entails": CHAIN, "founder": "best"}, 'no founder "best"'),
        ({"entails": CHAIN, "rule": "loose"}, "give contradicts"),
        ({"entails": CHAIN, "rule": "loose", "contradicts": np.eye(2, dtype=bool)}, r"contradicts \(2, 2\)"),
        ({"entails": CHAIN, "rule": "loose", "contradicts": np.full((3, 3), 0.2)}, "contradicts holds more than"),
    ],
)
def test_relations_that_are_refused(arguments, message):
    with pytest.raises(UserFault, match=message):
        semantic_clusters(**arguments)


@pytest.mark.parametrize(
    ("clusters", "log_likelihoods", "entropy"),
    [
        ([0, 0, 0, 1], None, 0.562335),  # 0.75·log(4/3) + 0.25·log 4 = 0.215762 + 0.346574
        ([0, 1, 2, 2], None, 1.039721),  # 2·0.25·log 4 + 0.5·log 2 = 1.5·log 2
        ([7, -3, 7, -3], None, 0.693147),
        ([0, 0, 1], np.log([0.1, 0.2, 0.1]), 0.562335),  # shares 0.75 and 0.25
        ([0, 0, 1], np.log([1, 2, 1]) - 1e4, 0.562335),
        ([0, 1], [-1e4, -1e4], 0.693147),
        ([0, 1], [-1e4, 0.0], 0.0),
        ([0, 1, 2], [-1.0, -math.inf, -1.0], 0.693147),
        ([0, 1, 2, 3, 4], [-2.5] * 5, 1.609438),  # log 5
    ],
)
def test_semantic_entropy_by_hand(clusters, log_likelihoods, entropy):
    assert semantic_entropy(clusters, log_likelihoods) == pytest.approx(entropy, abs=1e-6)


@pytest.mark.parametrize("log_likelihoods", [None, [-0.1, -7.3, -2.2]])
def test_one_meaning_is_zero_and_not_minus_zero(log_likelihoods):
    entropy = semantic_entropy([0, 0, 0], log_likelihoods)
    assert type(entropy) is float
    assert str(entropy) == "0.0"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=8))
def test_a_likelihood_counts_like_so_many_answers(answers):
    clusters, weights = zip(*answers, strict=True)
    repeated = [cluster for cluster, weight in answers for _ in range(weight)]
    assert semantic_entropy(clusters, np.log(weights)) == pytest.approx(semantic_entropy(repeated), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e4, 0)), min_size=1, max_size=8))
@example([(0, -6486.0), (0, -6486.0), (1, -7231.0)])  # the rare meaning's share rounds to 0
def test_semantic_entropy_stays_in_range(answers):
    clusters, log_likelihoods = zip(*answers, strict=True)
    assert 0 <= semantic_entropy(clusters, log_likelihoods) <= math.log(len(set(clusters)))


@pytest.mark.parametrize(
    ("clusters", "log_likelihoods", "message"),
    [
        ([], None, r"shape \(0,\)"),
        ([[0, 1]], None, r"shape \(1, 2\)"),
        ([0.0, 1.5], None, "array of float64"),
        ([0, 1], [-1.0], "one for each"),
        ([0, 1], [-1.0, math.nan], "NaN"),
        ([0, 1], [-1.0, math.inf], r"\+inf"),
        ([0, 1], [-math.inf, -math.inf], "Every log-likelihood is −inf"),
    ],
)
def test_clusters_that_are_refused(clusters, log_likelihoods, message):
    with pytest.raises(UserFault, match=message):
        semantic_entropy(clusters, log_likelihoods)
