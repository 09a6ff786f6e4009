"""The document graph: exact neighbours against brute force, repair against a rebuild, and what is kept on disk."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.retrieval import document_graph, neighbours
from dubito.retrieval.document_graph import DocumentGraph, cached_graph
from dubito.retrieval.index import Index
from dubito.retrieval.index_files import Manifest, sha256_of
from dubito.settings import settings as process_settings
from dubito.state.records import Chunk
from hypothesis import given, settings
from hypothesis import strategies as st


class NoEncoder:
    """An encoder that gives rows of a table by the number in a text."""

    def __init__(self, name: str = "table", table: Sequence[Sequence[float]] | Vectors = ()) -> None:
        self.name = name
        self.weights = ""
        self.table = np.array(table, dtype=np.float32)
        self.embedded = 0

    async def dimension(self) -> int:
        return int(self.table.shape[1])

    async def token_counter(self) -> Callable[[str], int] | None:
        return None

    async def max_tokens(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.embedded += len(texts)
        rows: Vectors = self.table[[int(text) for text in texts]]
        return rows


def index_of(rows: Sequence[Sequence[float]] | Vectors, encoder: str = "table", weights: str = "") -> Index:
    """An index whose chunk i is `c{i}` and has row i as its vector."""
    table = np.array(rows, dtype=np.float32)
    chunks: list[Chunk] = [{"id": f"c{i}", "doc_id": f"c{i}", "title": "", "text": str(i)} for i in range(len(table))]
    manifest = Manifest(
        encoder=encoder,
        weights=weights,
        dimension=table.shape[1],
        chunker="words:1",
        corpus="",
        documents=len(chunks),
        chunks=len(chunks),
        chunks_sha256=sha256_of(chunks),
    )
    return Index(manifest, chunks, table, NoEncoder(encoder, table))


def graph_of(index: Index, k: int) -> DocumentGraph:
    return asyncio.run(DocumentGraph.build(index, k))


def table_of(graph: DocumentGraph) -> list[list[tuple[str, float]]]:
    return [graph.neighbours(f"c{i}") for i in range(graph.manifest.chunks)]


def brute_force(rows: Sequence[Sequence[float]] | Vectors, k: int) -> list[list[tuple[str, float]]]:
    """All pairs by sums without rounding, sorted: nearest first, equals by row."""
    table = np.array(rows, dtype=np.float32).astype(float).tolist()
    expected = []
    for i, one in enumerate(table):
        scores = [float(np.float32(math.fsum(a * b for a, b in zip(one, other, strict=True)))) for other in table]
        order = sorted((j for j in range(len(table)) if j != i), key=lambda j: (-scores[j], j))
        expected.append([(f"c{j}", scores[j]) for j in order[:k]])
    return expected


EXACT: list[list[float]] = [  # of length 1 in binary fractions, so that many pairs are exactly equal
    [1.0, 0, 0, 0],
    [0, 1.0, 0, 0],
    [0, 0, 0, -1.0],
    [0.5, 0.5, 0.5, 0.5],
    [0.5, -0.5, 0.5, 0.5],
    [-0.5, 0.5, 0.5, 0.5],
    [0, 0, 0, 0],
]


def unit(rows: np.ndarray) -> Vectors:
    vectors: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return vectors


def clustered(n: int, d: int, centres: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal((centres, d))
    return unit(middle[rng.integers(centres, size=n)] + 0.7 * rng.standard_normal((n, d)))


def test_a_graph_is_opened_without_reading_a_chunk(tmp_path: Path) -> None:
    index = index_of(EXACT)
    graph_of(index, 2).fill(tmp_path)
    read = []

    class Watched(list[Chunk]):
        def __getitem__(self, row: Any) -> Any:
            read.append(row)
            return super().__getitem__(row)

        def __iter__(self) -> Iterator[Chunk]:
            raise AssertionError("all chunks are read")

    watched = Index(index.manifest, Watched(index.chunks), index.vectors, NoEncoder())
    graph = DocumentGraph.read(tmp_path, watched, document_graph.manifest_of(index, 2))
    assert read == []
    assert graph.neighbours("c5") == brute_force(EXACT, 2)[5]
    assert set(read) == {int(name[1:]) for name, _ in brute_force(EXACT, 2)[5]}


def test_ids_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_graph, "_hash", len)
    graph = graph_of(index_of(EXACT), 3)
    assert table_of(graph) == brute_force(EXACT, 3)
    assert graph.neighbours("cx") == []
    with pytest.raises(KeyError):
        graph.chunk("cxy")


@given(rows=st.lists(st.sampled_from(EXACT), min_size=1, max_size=40), k=st.integers(1, 12))
@settings(max_examples=80)
def test_it_is_what_brute_force_finds_even_where_many_are_equal(rows: list[list[float]], k: int) -> None:
    assert table_of(graph_of(index_of(rows), k)) == brute_force(rows, k)


@given(
    numbers=st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any), min_size=1, max_size=40),
    k=st.integers(1, 6),
    block=st.integers(1, 50),
    batch=st.integers(1, 50),
)
@settings(max_examples=80)
def test_blocks_and_batches_change_nothing(numbers: list[list[int]], k: int, block: int, batch: int) -> None:
    rows = unit(np.array(numbers, dtype=float))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "BLOCK", block)
        patch.setattr(neighbours, "SPARE", 1)
        patch.setattr(neighbours, "COMPARED", 7)
        patch.setattr(document_graph, "BATCH", batch)
        found = table_of(graph_of(index_of(rows), k))
    assert found == brute_force(rows, k)


def test_it_is_exact_at_a_size_where_products_are_made_in_blocks() -> None:
    rows = clustered(700, 48, 5)
    rows[600:660] = rows[3]  # more equal ones than are fetched at once
    assert table_of(graph_of(index_of(rows), 10)) == brute_force(rows, 10)


def test_a_chunk_is_never_its_own_neighbour_even_among_equals() -> None:
    graph = graph_of(index_of([[0.6, 0.8]] * 500), 3)
    assert [name for name, _ in graph.neighbours("c0")] == ["c1", "c2", "c3"]
    assert [name for name, _ in graph.neighbours("c2")] == ["c0", "c1", "c3"]
    assert [name for name, _ in graph.neighbours("c499")] == ["c0", "c1", "c2"]


def test_fewer_than_k_others_are_all_there_is() -> None:
    graph = graph_of(index_of([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), 5)
    assert graph.neighbours("c0") == [("c1", pytest.approx(0.6)), ("c2", 0.0)]
    assert graph.nearest.rows.tolist() == [[1, 2, -1, -1, -1], [2, 0, -1, -1, -1], [1, 0, -1, -1, -1]]
    assert graph.nearest.rows.dtype == np.int32
    assert graph_of(index_of([[1.0, 0.0]]), 2).neighbours("c0") == []
    assert graph.neighbours("unknown") == []
    chunk = graph.chunk("c2")
    assert chunk == {"id": "c2", "doc_id": "c2", "title": "", "text": "2"}
    chunk["score"] = 1.0
    assert "score" not in graph.chunk("c2")
    with pytest.raises(KeyError):
        graph.chunk("unknown")
    assert all(type(score) is float for _, score in graph.neighbours("c1"))


@given(
    rows=st.lists(st.sampled_from(EXACT), min_size=2, max_size=40) | st.just(clustered(90, 16, 4).tolist()),
    k=st.integers(1, 8),
    share=st.floats(0, 1),
)
@settings(max_examples=80)
def test_extended_is_the_same_as_built_anew(rows: list[list[float]], k: int, share: float) -> None:
    old = graph_of(index_of(rows[: max(1, int(share * len(rows)))]), k)
    before = table_of(old)
    grown, anew = asyncio.run(old.extended(index_of(rows))), graph_of(index_of(rows), k)
    assert table_of(grown) == table_of(anew) == brute_force(rows, k)
    assert grown.manifest == anew.manifest
    assert table_of(old) == before


async def test_extending_tells_how_far_it_is_and_refuses_what_does_not_begin_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document_graph, "BATCH", 4)
    rows, told = clustered(10, 8, 2), []
    index = index_of(rows[:5])
    graph = await DocumentGraph.build(index, 2)
    grown = await graph.extended(index_of(rows), lambda *step: told.append(step))
    assert told == [(4, 10), (5, 10), (9, 10), (10, 10)]
    assert table_of(grown) == brute_force(rows, 2)
    with pytest.raises(UserFault, match="compares vectors of 'table' and this index has vectors of 'other'"):
        await graph.extended(index_of(rows, "other"))
    with pytest.raises(UserFault, match="by other weights of the name 'table': build it again from this index"):
        await graph.extended(index_of(rows, weights="tuned"))
    with pytest.raises(UserFault, match="does not begin with the chunks of the document graph"):
        await graph.extended(index_of(rows[:4]))


@pytest.fixture
def exact_up_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the most chunks of which all pairs are compared."""

    def limit(chunks: int) -> None:
        monkeypatch.setenv("DUBITO_GRAPH_EXACT_UP_TO", str(chunks))
        process_settings.cache_clear()

    yield limit
    process_settings.cache_clear()


def test_above_the_threshold_nearly_all_neighbours_are_found(exact_up_to: Callable[[int], None]) -> None:
    told: list[tuple[int, int]] = []
    rows = clustered(3000, 24, 30)
    rows[100:160], rows[200] = rows[0], 0.0
    index = index_of(rows)
    exact_up_to(3000)
    exact = graph_of(index, 10)
    exact_up_to(2999)
    graph = asyncio.run(DocumentGraph.build(index, 10, lambda *step: told.append(step)))
    assert (graph.manifest.method, exact.manifest.method) == ("descent", "exact")
    assert told == [(1024, 3000), (2048, 3000), (3000, 3000)]
    found, due = table_of(graph), table_of(exact)
    others = [row for row in range(3000) if row != 200 and not np.array_equal(rows[row], rows[0])]
    hits = sum(len(set(found[row]) & set(due[row])) for row in others)
    assert hits / (10 * len(others)) > 0.95, "the scores of those that are found are the exact ones"
    assert all(f"c{i}" not in dict(some) and len(dict(some)) == len(some) for i, some in enumerate(found))
    assert all(some == sorted(some, key=lambda pair: (-pair[1], int(pair[0][1:]))) for some in found)
    assert {score for _, score in found[0]} == {due[0][0][1]}, "equal rows are the nearest of each other"
    grown = asyncio.run(graph.extended(index_of(np.concatenate([rows, rows[:1]]))))
    assert grown.neighbours("c3000") == brute_force(np.concatenate([rows[:200], rows[:1]]), 10)[200]
    assert grown.manifest.method == "descent"


def test_the_best_of_given_candidates_by_hand() -> None:
    rows = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [1.0, 0.0]], dtype=np.float32)
    candidates = np.array([[2, 1, 0, 3], [1, -1, 3, 0]])
    found = neighbours.best_of(rows, np.array([0, 1]), candidates, 3)
    assert found.rows.tolist() == [[3, 1, 2], [0, 3, -1]]
    np.testing.assert_allclose(found.scores, [[1, 0.6, 0], [0.6, 0.6, -np.inf]], rtol=1e-6)


def _edit(folder: Path, **changes: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


HARMS = [
    lambda folder: (folder / "manifest.json").unlink(),
    lambda folder: (folder / "manifest.json").write_text("{"),
    lambda folder: (folder / "manifest.json").write_text("3"),
    lambda folder: _edit(folder, kind="BM25 index"),
    lambda folder: _edit(folder, format=2),
    lambda folder: _edit(folder, k="many"),
    lambda folder: _edit(folder, encoder="other"),
    lambda folder: (folder / "neighbours.npy").write_bytes(b""),
    lambda folder: (folder / "scores.npy").write_bytes((folder / "scores.npy").read_bytes()[:-4]),
    lambda folder: np.save(folder / "scores.npy", np.zeros((6, 2))),
    lambda folder: np.save(folder / "scores.npy", np.zeros((6, 3), dtype=np.float32)),
    lambda folder: np.save(folder / "scores.npy", np.array([[{}] * 2] * 6), allow_pickle=True),
    lambda folder: (folder / "scores.npy").unlink(),
]


@pytest.mark.parametrize("harm", HARMS)
async def test_a_damaged_graph_in_the_cache_is_built_again(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    index = index_of(clustered(6, 8, 3))
    due = table_of(await cached_graph(index, 2, tmp_path))
    (folder,) = (tmp_path / "derived").iterdir()
    harm(folder)
    told: list[tuple[int, int]] = []
    for _ in range(2):
        assert table_of(await cached_graph(index, 2, tmp_path, lambda *step: told.append(step))) == due
    assert told == [(6, 6)]


@pytest.mark.parametrize("k", [0, -1])
async def test_at_least_one_neighbour_is_asked_for(tmp_path: Path, k: int) -> None:
    with pytest.raises(UserFault, match=f"The number of neighbours is {k}: it must be at least 1"):
        await DocumentGraph.build(index_of(EXACT), k)
    with pytest.raises(UserFault, match=re.escape(str(k))):
        await cached_graph(index_of(EXACT), k, tmp_path)


async def test_the_cache_builds_once_for_chunks_encoder_and_k(tmp_path: Path) -> None:
    rows, told = clustered(12, 8, 3), []
    for _ in range(2):
        with blockbuster_ctx():
            graph = await cached_graph(index_of(rows), 3, tmp_path, lambda *step: told.append(step))
        assert table_of(graph) == brute_force(rows, 3)
        assert isinstance(graph.nearest.rows.base, np.memmap)
    assert len(told) == 1
    assert table_of(await cached_graph(index_of(rows), 2, tmp_path)) == brute_force(rows, 2)
    assert len(list((tmp_path / "derived").iterdir())) == 2


async def test_the_cached_graph_of_another_encoder_embeds_the_chunks_once(tmp_path: Path) -> None:
    index, other = index_of(clustered(12, 8, 3)), clustered(12, 6, 3, seed=1)
    encoder, told = NoEncoder("other", other), []
    for _ in range(2):
        graph = await cached_graph(index, 3, tmp_path, encoder=encoder, embedding=lambda *step: told.append(step))
        assert table_of(graph) == brute_force(other, 3)
    assert graph.manifest.encoder == "other"
    assert encoder.embedded == 12
    assert told == [(12, 12)]
    same = NoEncoder("table", other)
    assert table_of(await cached_graph(index, 3, tmp_path, encoder=same)) == brute_force(index.vectors, 3)
    assert same.embedded == 0


async def test_other_weights_of_the_same_name_have_another_graph(tmp_path: Path) -> None:
    for weights in ("first", "tuned", ""):
        rows = clustered(12, 8, 3, seed=len(weights))
        assert table_of(await cached_graph(index_of(rows, weights=weights), 3, tmp_path)) == brute_force(rows, 3)


async def test_the_graph_of_other_weights_of_the_indexs_encoder_embeds_the_chunks(tmp_path: Path) -> None:
    rows, tuned = clustered(12, 8, 3), clustered(12, 8, 3, seed=1)
    encoder = NoEncoder("table", tuned)
    for weights, due in (("tuned", tuned), ("first", rows), ("", rows)):  # the last one does not say
        encoder.weights = weights
        graph = await cached_graph(index_of(rows, weights="first"), 3, tmp_path, encoder=encoder)
        assert table_of(graph) == brute_force(due, 3)
    assert encoder.embedded == 12


async def test_an_index_shows_its_chunks_and_vectors_and_can_be_embedded_anew() -> None:
    rows = clustered(5, 8, 3)
    index = index_of(rows)
    np.testing.assert_array_equal(index.vectors, rows)
    assert not index.vectors.flags.writeable
    assert [chunk["id"] for chunk in index.chunks] == ["c0", "c1", "c2", "c3", "c4"]
    other = await index.under(NoEncoder("other", clustered(5, 6, 3)))
    assert (other.manifest.encoder, other.manifest.dimension) == ("other", 6)
    assert other.manifest.chunks_sha256 == index.manifest.chunks_sha256
    np.testing.assert_array_equal(other.vectors, clustered(5, 6, 3))
    found, scores = await index.rank("2", 3)
    assert found.tolist() == np.argsort(-(rows @ rows[2]))[:3].tolist()
    np.testing.assert_allclose(scores, (rows @ rows[2])[found], rtol=1e-6)
