"""The document graph by late interaction: MaxSim against plain loops, candidates, what is kept and extended."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.models.late_interaction import LateInteractionModel, is_multi_vector
from dubito.models.local_weights import fingerprint
from dubito.retrieval import late_interaction
from dubito.retrieval.document_graph import DocumentGraph, cached_graph
from dubito.retrieval.index import Index
from dubito.retrieval.late_interaction import cached_late_graph, maxsim
from dubito.tests.unit.test_document_graph import brute_force, clustered, index_of, table_of


def by_loops(one: Vectors, other: Vectors) -> float:
    """MaxSim as its definition says it, a token at a time."""
    best = [max(sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) for y in other) for x in one]
    return sum(best) / len(best)


class Bags(LateInteractionModel):
    """A token model: of text `i` it gives the vectors of row i of a table."""

    def __init__(self, bags: Sequence[Vectors]) -> None:
        self.name, self.weights = "colbert:bags", ""
        self.bags = bags
        self.encoded: list[str] = []

    async def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        self.encoded += texts
        return [self.bags[int(text)] for text in texts]


def bags_of(n: int, seed: int = 0, d: int = 8) -> list[Vectors]:
    """Bags of 1 to 6 unit vectors, exact in float16 so that storing them loses nothing."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, size=n)
    made = []
    for size in sizes:
        rows = rng.standard_normal((int(size), d))
        made.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32))
    return made


def expected_of(bags: Sequence[Vectors], vectors: Vectors, k: int, candidates: int) -> list[list[tuple[str, float]]]:
    """The nearest by vectors, sorted anew by loops."""
    table = []
    for i, near in enumerate(brute_force(vectors, candidates)):
        scores = [(name, by_loops(bags[i], bags[int(name[1:])])) for name, _ in near]
        table.append(sorted(scores, key=lambda pair: (-pair[1], int(pair[0][1:])))[:k])
    return table


def assert_same(found: list[list[tuple[str, float]]], expected: list[list[tuple[str, float]]]) -> None:
    assert [[name for name, _ in row] for row in found] == [[name for name, _ in row] for row in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose([score for _, score in one], [score for _, score in other], rtol=1e-5, atol=1e-6)


def test_maxsim_by_hand() -> None:
    one = np.array([[1, 0], [0, 1]], dtype=np.float32)
    others = [
        np.array([[0.6, 0.8]], dtype=np.float32),  # (0.6 + 0.8) / 2
        np.array([[1, 0], [-1, 0]], dtype=np.float32),  # (1 + 0) / 2
        np.array([[-1, 0]], dtype=np.float32),  # (-1 + 0) / 2
        np.zeros((0, 2), dtype=np.float32),
        np.array([[0, 1], [1, 0], [0, -1]], dtype=np.float32),  # (1 + 1) / 2
    ]
    assert maxsim(one, others).tolist() == pytest.approx([0.7, 0.5, -0.5, 0.0, 1.0])
    assert maxsim(one[:0], others).tolist() == [0.0] * 5
    assert maxsim(one, []).tolist() == maxsim(one, []).tolist() == []
    assert maxsim(one, others[3:4]).tolist() == [0.0]
    # what covers one need not be covered by it
    assert maxsim(others[0], [one]).tolist() == pytest.approx([0.8])


async def test_the_best_of_the_dense_candidates_by_maxsim_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_interaction, "BATCH", 16)
    vectors, bags, told, encoded = clustered(40, 8, 3), bags_of(40), [], []
    index, model = index_of(vectors), Bags(bags)
    for _ in range(2):
        with blockbuster_ctx():
            graph = await cached_late_graph(
                index,
                3,
                tmp_path,
                model,
                lambda *step: told.append(step),
                encoding=lambda *step: encoded.append(step),
            )
        expected = expected_of(bags, vectors, 3, 12)
        assert_same(table_of(graph), expected)
    assert expected != expected_of(bags, vectors, 3, 39)  # it is of the candidates, and not of all
    assert encoded == [(16, 40), (32, 40), (40, 40)]
    assert told == [(40, 40), (16, 40), (32, 40), (40, 40)]  # the candidates, then these
    assert len(model.encoded) == 40
    manifest = graph.manifest
    assert (manifest.late_interaction, manifest.candidates, manifest.k) == ("colbert:bags", 12, 3)
    assert (manifest.encoder, manifest.dimension, manifest.chunks) == ("table", 8, 40)
    kept = [json.loads((folder / "manifest.json").read_text()) for folder in (tmp_path / "derived").iterdir()]
    assert sorted((one["late_interaction"] or "", one["k"]) for one in kept) == [("", 12), ("colbert:bags", 3)]
    assert len(list((tmp_path / "derived").iterdir())) == 2  # the token vectors are gone


async def test_equals_stand_in_their_order_and_few_chunks_have_few_neighbours(tmp_path: Path) -> None:
    bag = np.array([[1, 0]], dtype=np.float32)
    graph = await cached_late_graph(index_of([[0.6, 0.8]] * 3), 5, tmp_path, Bags([bag] * 3))
    assert table_of(graph) == [[("c1", 1.0), ("c2", 1.0)], [("c0", 1.0), ("c2", 1.0)], [("c0", 1.0), ("c1", 1.0)]]
    alone = await cached_late_graph(index_of([[1.0, 0.0]]), 2, tmp_path, Bags([bag[:0]]))
    assert alone.neighbours("c0") == []
    with pytest.raises(UserFault, match="at least 1"):
        await cached_late_graph(index_of([[1.0, 0.0]]), 0, tmp_path, Bags([bag]))


async def test_another_model_has_another_graph(tmp_path: Path) -> None:
    index = index_of(clustered(20, 8, 2))
    first = await cached_late_graph(index, 2, tmp_path, Bags(bags_of(20)))
    other = Bags(bags_of(20, seed=1))
    other.name = "colbert:other"
    second = await cached_late_graph(index, 2, tmp_path, other)
    assert table_of(first) != table_of(second)
    assert_same(table_of(second), expected_of(other.bags, index.vectors, 2, 8))
    dense = await cached_graph(index, 2, tmp_path)
    assert table_of(dense) == brute_force(index.vectors, 2)


async def test_other_weights_of_the_model_or_of_the_candidates_encoder_have_another_graph(tmp_path: Path) -> None:
    for late, dense in ((1, 1), (2, 1), (2, 2)):
        vectors, model = clustered(20, 8, 2, dense), Bags(bags_of(20, late))
        model.weights = str(late)
        graph = await cached_late_graph(index_of(vectors, weights=str(dense)), 2, tmp_path, model)
        assert_same(table_of(graph), expected_of(model.bags, vectors, 2, 8))


async def test_a_model_knows_the_weights_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert LateInteractionModel("colbert:x", str(tmp_path)).weights == fingerprint(str(tmp_path)) != ""


def begins(rows: Vectors, count: int) -> Index:
    return index_of(rows[:count])


@pytest.mark.parametrize("old", [1, 30, 38, 40])
async def test_extended_it_is_the_same_and_only_what_may_differ_is_encoded(tmp_path: Path, old: int) -> None:
    vectors, bags = clustered(40, 8, 6), bags_of(40)
    # the last two are far from all but each other, and near the first
    vectors[38:] = vectors[0]
    before = begins(vectors, old)
    await cached_late_graph(before, 2, tmp_path, Bags(bags))
    model, told = Bags(bags), []
    grown = await cached_late_graph(
        index_of(vectors), 2, tmp_path, model, lambda *step: told.append(step), before=before
    )
    assert_same(table_of(grown), expected_of(bags, vectors, 2, 8))
    anew = await cached_late_graph(index_of(vectors), 2, tmp_path / "anew", Bags(bags))
    assert grown.manifest == anew.manifest
    if old == 38:
        close = {i for i, row in enumerate(brute_force(vectors, 8)) if {"c38", "c39"} & {name for name, _ in row}}
        assert told[-1] == (len(close | {38, 39}),) * 2
        assert len(model.encoded) < 40
    if old == 30:
        assert set(model.encoded) >= {str(i) for i in range(30, 40)}
    if old == 40:
        assert model.encoded == []


async def test_without_the_earlier_graph_it_is_built_anew(tmp_path: Path) -> None:
    vectors, bags = clustered(20, 8, 2), bags_of(20)
    model = Bags(bags)
    grown = await cached_late_graph(index_of(vectors), 2, tmp_path, model, before=begins(vectors, 15))
    assert_same(table_of(grown), expected_of(bags, vectors, 2, 8))
    assert len(model.encoded) == 20


async def test_a_dense_graph_is_extended_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(30, 8, 3)
    await cached_graph(begins(vectors, 20), 3, tmp_path)
    monkeypatch.setattr(DocumentGraph, "build", None)  # nothing is built anew
    grown = await cached_graph(index_of(vectors), 3, tmp_path, before=begins(vectors, 20))
    assert table_of(grown) == brute_force(vectors, 3)
    with pytest.raises(TypeError):
        await cached_graph(index_of(vectors), 4, tmp_path, before=begins(vectors, 20))


async def test_a_late_graph_is_not_extended_by_vectors_alone(tmp_path: Path) -> None:
    vectors = clustered(12, 8, 2)
    graph = await cached_late_graph(begins(vectors, 10), 2, tmp_path, Bags(bags_of(12)))
    with pytest.raises(UserFault, match="by late interaction"):
        await graph.extended(index_of(vectors))


async def test_a_disk_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(late_interaction, "TemporaryFile", full)
    with pytest.raises(UserFault, match=r"cannot be written to .*: No space left on device\."):
        await cached_late_graph(index_of(clustered(5, 8, 2)), 2, tmp_path, Bags(bags_of(5)))


@pytest.mark.parametrize(
    ("saved", "config", "is_one"),
    [
        ({"model_type": "MultiVectorEncoder"}, {}, True),
        ({"model_type": "ColBERT"}, {"architectures": ["BertModel"]}, True),
        ({"query_prefix": "[Q] ", "document_prefix": "[D] "}, {"architectures": ["BertModel"]}, True),
        ({"model_type": "SentenceTransformer"}, {"architectures": ["BertModel"]}, False),
        ({"__version__": {}}, {"architectures": ["BertModel"]}, False),
        ({}, {"architectures": ["HF_ColBERT"]}, True),
        ({}, {"architectures": ["ColModernVBertForRetrieval"]}, True),
        ({}, {"architectures": ["BertForMaskedLM"]}, False),
        ({}, {"architectures": None}, False),
        ({}, {}, False),
    ],
)
def test_a_multi_vector_model_is_told_by_its_files(
    saved: dict[str, object], config: dict[str, object], is_one: bool
) -> None:
    assert is_multi_vector(saved, config) is is_one
