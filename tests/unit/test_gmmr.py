"""gMMR and MMR sweeps against hand-worked choices and against the plain definition in float64."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.retrieval import gmmr, gmmr_sweep, mmr_centroid_sweep, mmr_sweep
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # such as the square root of less than 0

LAMBDAS = np.arange(1, 11, dtype=np.float32) / 10
RULES = {gmmr_sweep: gmmr._GMMR, mmr_centroid_sweep: gmmr._MMR_CENTROID, mmr_sweep: gmmr._MMR}
SWEEPS = [pytest.param(sweep, id=sweep.__name__.removesuffix("_sweep")) for sweep in RULES]


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float64)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def random_unit(seed, n, d):
    rng = np.random.default_rng(seed)
    return unit(rng.standard_normal(d)), unit(rng.standard_normal((n, d)))


def clustered(seed, n, d):
    """Vectors with a common direction, as sentence embeddings have; the query is one of them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(2, n // 50), d))
    vectors = unit(1.0 + centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, d)))
    return unit(vectors[0] + 0.1 * rng.standard_normal(d)), vectors


def scores(sweep, query, chunks, lam, chosen):
    """The definition, in float64, for every chunk."""
    query, chunks = query.astype(np.float64), chunks.astype(np.float64)
    relevance = chunks @ query
    if not chosen:
        return relevance
    if sweep is mmr_sweep:
        return lam * relevance - (1 - lam) * (chunks @ chunks[chosen].T).max(axis=1)
    mean = chunks[chosen].mean(axis=0)
    length = np.linalg.norm(mean)
    cosine = chunks @ mean / length if length else np.zeros(len(chunks))
    if sweep is mmr_centroid_sweep:
        return lam * relevance - (1 - lam) * cosine
    return lam * relevance + (1 - lam) * np.sqrt(np.maximum(2 - 2 * cosine, 0))


def assert_greedy(sweep, query, chunks, lambdas, picks):
    """Every pick scores best of what is left, up to the reference's own rounding, and is its lowest duplicate."""
    for lam, row in zip(lambdas, picks.tolist(), strict=True):
        assert len(set(row)) == len(row)
        for step, pick in enumerate(row):
            chosen = row[:step]
            score = scores(sweep, query, chunks, float(lam), chosen)
            score[chosen] = -np.inf
            assert score[pick] >= score.max() - 1e-7, (lam, row, step)
            duplicates = np.flatnonzero((chunks == chunks[pick]).all(axis=1)).tolist()
            assert pick == min(set(duplicates) - set(chosen)), (lam, row, step)


# q = (1, 0); the chunks' cosines to it are 1, .8, 0, .6
QUERY = np.array([1, 0], dtype=np.float32)
CHUNKS = np.array([[1, 0], [0.8, 0.6], [0, 1], [0.6, -0.8]], dtype=np.float32)


def test_gmmr_by_hand():
    # λ = .5, S = {0}: row 1 scores .5·.8 + .5·√(2 − 1.6) = .716, row 2 .5·√2 = .707, row 3 .3 + .5·√.8 = .747: row 3.
    #   The centroid of {0, 3} is (.894, −.447): row 1 scores .4 + .5·√(2 − .894) = .926, row 2 .5·√2.894 = .851: row 1.
    # λ = .2, S = {0}: .16 + .8·√.4 = .666, .8·√2 = 1.131, .12 + .8·√.8 = .836: row 2.
    #   The centroid of {0, 2} is (.707, .707): row 1 .16 + .8·√.0201 = .273, row 3 .12 + .8·√2.283 = 1.329: row 3.
    # λ = 1: by cosine.
    picks = gmmr_sweep(QUERY, CHUNKS, [0.5, 0.2, 1.0], 3)
    assert picks.tolist() == [[0, 3, 1], [0, 2, 3], [0, 1, 3]]
    assert picks.dtype == np.int64


def test_mmr_by_hand():
    # λ = .5, S = {0}: rows 1, 2, 3 score .4 − .4 = 0 − 0 = .3 − .3: a tie, so row 1.
    #   S = {0, 1}: row 2 scores 0 − .5·.6, row 3 .3 − .5·.6 = 0: row 3.
    # λ = .2, S = {0}: .16 − .64, 0 − 0, .12 − .48: row 2. S = {0, 2}: .16 − .64, .12 − .48: row 3.
    assert mmr_sweep(QUERY, CHUNKS, [0.5, 0.2, 1.0], 3).tolist() == [[0, 1, 3], [0, 2, 3], [0, 1, 3]]


def test_mmr_with_the_centroid_by_hand():
    # λ = .5, S = {0}: as MMR, so row 1. The centroid of {0, 1} is (.949, .316): row 2 scores −.5·.316 = −.158,
    #   row 3 .3 − .5·(.569 − .253) = .142: row 3.
    # λ = .2, S = {0}: row 2, as MMR. The centroid of {0, 2} is (.707, .707): row 1 .16 − .8·.990 = −.632,
    #   row 3 .12 − .8·(−.141) = .233: row 3.
    assert mmr_centroid_sweep(QUERY, CHUNKS, [0.5, 0.2, 1.0], 3).tolist() == [[0, 1, 3], [0, 2, 3], [0, 1, 3]]
    # λ = 0, S = {0, 1}: row 2 has cosines 0 and .8 to them and .566 to their centroid, row 3 .6, .6 and .849
    chunks = np.array([[1, 0, 0], [0, 1, 0], [0, 0.8, 0.6], [0.6, 0.6, 0.28**0.5]], dtype=np.float32)
    assert mmr_centroid_sweep(chunks[0], chunks, [0.0], 3).tolist() == [[0, 1, 2]]
    assert mmr_sweep(chunks[0], chunks, [0.0], 3).tolist() == [[0, 1, 3]]


def test_the_mean_of_opposite_chunks_has_cosine_0_to_all():
    # λ = .1: after row 0 its opposite scores −.1 + .9·2; their mean is zero, rows 2 and 3 both score .9·√2: row 2
    chunks = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
    assert gmmr_sweep(QUERY, chunks, [0.1], 4).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("make", [random_unit, clustered])
@pytest.mark.parametrize("n", [1, 5, 31, 200, 3000])
def test_follows_the_definition(sweep, make, n):
    query, chunks = make(n, n, 32)
    lambdas = np.append(LAMBDAS, 0)
    k = min(n, 6)
    assert_greedy(sweep, query, chunks, lambdas, sweep(query, chunks, lambdas, k))


@st.composite
def questions(draw):
    """A query and a few chunks, on a coarse grid (so with duplicates, ties and zero relevance) or anywhere."""
    d, n = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors = rng.integers(-1, 2, size=(n + 1, d)) if draw(st.booleans()) else rng.standard_normal((n + 1, d))
    vectors[~vectors.any(axis=1), 0] = 1
    vectors = unit(vectors)
    return vectors[0], vectors[1:], draw(st.integers(1, min(n, 12)))


@pytest.mark.parametrize("sweep", SWEEPS)
@given(question=questions(), head=st.integers(1, 8), slab=st.integers(1, 9))
def test_follows_the_definition_with_duplicates_and_ties(sweep, question, head, slab):
    query, chunks, k = question
    lambdas = np.append(LAMBDAS, 0)
    with pytest.MonkeyPatch.context() as patch:  # so that few chunks are enough to need every path
        for name, value in {"HEAD": head, "SLAB": slab, "TILE": 4}.items():
            patch.setattr(gmmr, name, value)
        picks = sweep(query, chunks, lambdas, k)
    assert_greedy(sweep, query, chunks, lambdas, picks)
    assert (picks == sweep(query, chunks, lambdas, k)).all()


@pytest.mark.parametrize("sweep", SWEEPS)
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(2, 4), t=st.integers(1, 3), lam=st.floats(0, 1))
def test_no_chunk_scores_above_the_bound(sweep, seed, d, t, lam):
    query, chunks = random_unit(seed, 500, d)
    rule = RULES[sweep]
    anchors = rule.anchors(chunks[:t].astype(np.float64))
    cosines = chunks @ query
    few = chunks[np.argsort(cosines)[seed % 400 :][:50]]  # of any relevance, high or low
    best = scores(sweep, query, np.concatenate([chunks[:t], few]), lam, list(range(t)))[t:].max()
    low, high = (few @ query).min() - gmmr.SLACK, (few @ query).max() + gmmr.SLACK
    assert best <= gmmr._reach(np.linspace(low, high, 257), (anchors @ query).max(), lam, rule)


def test_near_lambda_1_the_bound_saves_the_pass(monkeypatch):
    query, chunks = clustered(12, 20_000, 64)
    expected = gmmr_sweep(query, chunks, [0.9, 1.0], 5).tolist()
    monkeypatch.setattr(gmmr, "_slabs", None)
    assert gmmr_sweep(query, chunks, [0.9, 1.0], 5).tolist() == expected
    with pytest.raises(TypeError):
        gmmr_sweep(query, chunks, [0.1], 5)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_rounding_of_the_products_does_not_show(sweep, monkeypatch):
    """Products that are wrong by as much as float32 allows, in other places each time, give the same answer."""
    query, chunks = random_unit(3, 2000, 64)
    chunks[1000:] = unit(chunks[:1000] + 1e-5 * np.random.default_rng(4).standard_normal((1000, 64)))
    expected = sweep(query, chunks, LAMBDAS, 6)
    assert_greedy(sweep, query, chunks, LAMBDAS, expected)
    exact, rng = gmmr._products, np.random.default_rng(5)

    def noisy(anchors, vectors):
        products = exact(anchors, vectors)
        return products + (64 * 2.0**-24 * rng.choice([-1, 1], size=products.shape)).astype(np.float32)

    monkeypatch.setattr(gmmr, "_products", noisy)
    for _ in range(5):
        assert sweep(query, chunks, LAMBDAS, 6).tolist() == expected.tolist()


@pytest.mark.parametrize("sweep", SWEEPS)
def test_of_very_many_duplicates_the_lowest_rows_are_taken(sweep):
    query, chunks = random_unit(6, 1, 16)
    assert sweep(query, np.repeat(chunks, 700, axis=0), LAMBDAS, 4).tolist() == [[0, 1, 2, 3]] * 10


def test_the_arguments_are_left_alone_and_may_be_read_only():
    query, chunks = random_unit(9, 50, 4)
    before = chunks.copy()
    for array in (query, chunks):
        array.flags.writeable = False
    gmmr_sweep(query, chunks, LAMBDAS, 5)
    assert (chunks == before).all()


def test_views_and_float64_queries_are_read_as_they_are():
    query, chunks = random_unit(10, 600, 16)
    wide = np.zeros((600, 20), dtype=np.float32)
    wide[:, 2:18] = chunks
    expected = gmmr_sweep(query, chunks, LAMBDAS, 5).tolist()
    assert gmmr_sweep(query.astype(np.float64), wide[:, 2:18], LAMBDAS, 5).tolist() == expected
    assert gmmr_sweep(query.tolist(), np.asfortranarray(chunks), LAMBDAS, 5).tolist() == expected


@pytest.mark.parametrize("sweep", SWEEPS)
def test_extra_memory_is_less_than_a_tenth_of_the_chunks(sweep):
    rng = np.random.default_rng(11)
    chunks = rng.standard_normal((100_000, 384), dtype=np.float32)
    chunks /= np.linalg.norm(chunks, axis=1, keepdims=True)
    tracemalloc.start()
    try:
        sweep(chunks[5], chunks, LAMBDAS, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * chunks.nbytes


def with_row(row, values):
    chunks = CHUNKS.copy()
    chunks[row] = values
    return chunks


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 9}, r"k is 9 but there are only 4 chunks: ask for at most 4\."),
        ({"k": 0}, r"k is 0: "),
        ({"lambdas": [0.5, 1.1]}, r"from 0 to 1"),
        ({"lambdas": [-0.1]}, r"from 0 to 1"),
        ({"lambdas": [np.nan]}, r"from 0 to 1"),
        ({"lambdas": []}, r"at least one λ"),
        ({"lambdas": 0.5}, r"a list"),
        ({"query": np.array([1, 0, 0], dtype=np.float32)}, r"\(3,\) but the chunks \(4, 2\)"),
        ({"query": np.array([[1, 0]], dtype=np.float32)}, r"\(1, 2\) but"),
        ({"query": [np.nan, 0]}, r"length nan, not 1"),
        ({"query": [np.inf, 0]}, r"length inf, not 1"),
        ({"query": [3, 4]}, r"length 5, not 1"),
        ({"chunks": CHUNKS[:0]}, r"at least one chunk"),
        ({"chunks": CHUNKS[0]}, r"shape \(2,\)"),
        ({"chunks": CHUNKS.astype(np.float64)}, r"\.astype\(np\.float32\)"),
        ({"chunks": CHUNKS.tolist()}, r"\.astype\(np\.float32\)"),
        ({"chunks": with_row(2, [0, np.nan])}, r"chunk 2 has a number that is not finite"),
        ({"chunks": with_row(3, [-np.inf, 0])}, r"chunk 3 has a number that is not finite"),
        ({"chunks": with_row(1, [2, 0])}, r"chunk 1 has length 2, not 1"),
    ],
)
def test_what_does_not_fit_is_one_sentence(sweep, change, message):
    with pytest.raises(UserFault, match=message) as fault:
        sweep(**{"query": QUERY, "chunks": CHUNKS, "lambdas": [0.5], "k": 2, **change})
    assert str(fault.value).endswith(".")
