"""Approximate search: nearly the same rows as a comparison of all, with exact cosines; and files that do not fit."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.retrieval import approximate, index_files
from dubito.retrieval.approximate import FEWEST, FLAT_UP_TO, IVF_UP_TO, VALUES, ApproximateSearch, Kind, kind_for
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.index import Index
from dubito.state.where import condition_of

N, D = 3_000, 32
KINDS: list[Kind] = ["hnsw", "ivf", "ivf_pq"]


def clustered(n: int, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).standard_normal((40, D))
    rows = centres[rng.integers(40, size=n)] + 0.6 * rng.standard_normal((n, D))
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


TABLE = np.concatenate([clustered(N), clustered(500, seed=1)])


class TableEncoder:
    """The vector of the text '7' is row 7."""

    name = "table"

    async def dimension(self) -> int:
        return D

    async def token_counter(self) -> Callable[[str], int] | None:
        return None

    async def max_tokens(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        rows: Vectors = TABLE[[int(text) for text in texts]]
        return rows


def corpus_of(numbers: Sequence[int]) -> Corpus:
    return Corpus(tuple(Document(f"d{i}", "", str(i), {"even": i % 2 == 0, "tenth": i % 10 == 0}) for i in numbers))


async def index_of(numbers: Sequence[int]) -> Index:
    return await Index.build(corpus_of(numbers), open_chunker("words:9"), TableEncoder())


def true_nearest(query: int, k: int, rows: Vectors) -> tuple[list[int], Vectors]:
    """By a sort of all cosines in float64."""
    cosines = rows.astype(np.float64) @ TABLE[query].astype(np.float64)
    order = np.argsort(-cosines, kind="stable")[:k]
    return order.tolist(), cosines[order]


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param) / "index"

    async def save() -> None:
        await (await (await index_of(range(N))).searched_by(request.param)).save(folder)

    asyncio.run(save())
    return folder


async def test_a_saved_structure_finds_nearly_all_and_their_cosines_are_exact(saved: Path) -> None:
    index = await Index.load(saved, TableEncoder())
    hits = 0
    for query in range(N, N + 100):  # of no chunk
        rows, cosines = await index.rank(str(query), 10)
        expected, _ = true_nearest(query, 10, TABLE[:N])
        hits += len(set(rows.tolist()) & set(expected))
        exact = TABLE[rows].astype(np.float64) @ TABLE[query].astype(np.float64)
        np.testing.assert_allclose(cosines, exact, atol=1e-12)
        assert cosines.tolist() == sorted(cosines, reverse=True)
    assert hits / 1000 > 0.9


async def test_the_recall_in_the_manifest_is_that_of_its_sample(saved: Path) -> None:
    index = await Index.load(saved, TableEncoder())
    told = index.manifest.search
    assert told is not None
    assert (told.kind, told.queries, told.k) == (saved.parent.name.rstrip("0123456789"), 200, 10)
    assert told.parameter == ("efSearch" if told.kind == "hnsw" else "nprobe")
    assert index._search is not None
    hits = []
    for row in np.random.default_rng(0).choice(N, 200, replace=False).tolist():
        others = [other for other in true_nearest(row, 11, TABLE[:N])[0] if other != row][:10]
        found = index._search.candidates(TABLE[row], 11)
        assert found is not None
        hits.append(len(set(found.tolist()) & set(others)) / 10)
    assert told.recall == pytest.approx(np.mean(hits), abs=1e-3)
    assert told.recall > 0.9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wished", "value"), [(0.0, VALUES[0]), (1.1, VALUES[-1])])
def test_the_parameter_is_raised_until_the_recall_is_there(
    kind: Kind, wished: float, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "RECALL", wished)
    assert ApproximateSearch.build(kind, TABLE[:N]).manifest.value == value


async def test_a_filter_is_exact_and_so_is_a_search_for_more_than_the_structure_finds(saved: Path) -> None:
    index = await Index.load(saved, TableEncoder())
    for passing, step in (("even", 2), ("tenth", 10)):
        rows, _ = await index.restricted(condition_of(f'{{"{passing}": true}}')).rank("3001", 20)
        expected, _ = true_nearest(3001, 20, TABLE[:N:step])
        assert rows.tolist() == [row * step for row in expected]
    assert (await index.rank("3001", N)).rows.tolist() == true_nearest(3001, N, TABLE[:N])[0]
    pool = await index.pool("3001", 20)
    np.testing.assert_array_equal(pool.vectors, TABLE[[int(pool.chunk(row)["text"]) for row in range(20)]])
    assert len(await index.pool("3001", None)) == N


async def test_new_rows_join_the_structure_and_changed_rows_make_it_anew(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await Index.load(saved, TableEncoder())
    assert before.manifest.search is not None
    kind = before.manifest.search.kind
    longer = await before.extended(corpus_of(range(N, N + 500)), open_chunker("words:9"))
    assert longer.manifest.search is None
    with monkeypatch.context() as patch:
        patch.setattr(ApproximateSearch, "build", lambda *_: pytest.fail("it was built anew"))
        told: list[tuple[int, int]] = []
        grown = await longer.searched_by(kind, lambda *step: told.append(step), before)
    assert told == [(500, 500)]
    assert grown.manifest.search is not None
    assert grown.manifest.search.factory == before.manifest.search.factory
    assert [int((await grown.rank(str(i), 1)).rows[0]) for i in range(N, N + 20)] == list(range(N, N + 20))
    fewer = await before.without(["d0"])
    again = await fewer.searched_by(kind, None, before)
    assert (await again.rank("1", 1)).rows.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "chunks", "kind"),
    [
        ("auto", 10, None),
        ("auto", FLAT_UP_TO, None),
        ("auto", FLAT_UP_TO + 1, "ivf"),
        ("auto", IVF_UP_TO + 1, "ivf_pq"),
        ("flat", 10**8, None),
        ("hnsw", FEWEST, "hnsw"),
    ],
)
def test_the_kind_is_chosen_by_name_or_size(name: str, chunks: int, kind: str | None) -> None:
    assert kind_for(name, chunks) == kind


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hsnw", "There is no search named 'hsnw': use auto, flat, hnsw, ivf, ivf_pq."),
        ("ivf", "The search 'ivf' needs at least 1,000 chunks and the index has 999: use 'flat'"),
    ],
)
async def test_unknown_kinds_and_too_few_chunks_are_refused(name: str, told: str) -> None:
    with pytest.raises(UserFault, match=told):
        await (await index_of(range(FEWEST - 1))).searched_by(name)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_fewest_chunks_are_enough_and_equal_chunks_too(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    index = await (await index_of([7] * FEWEST)).searched_by(kind)
    assert index.manifest.search is not None
    assert index.manifest.search.recall == 1.0  # any of the equal chunks is as near
    assert capfd.readouterr() == ("", "")  # FAISS warns where it has too little to train with


def truncated(file: Path, other: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def pipe(file: Path, other: Path) -> None:
    file.unlink()
    os.mkfifo(file)


SPOILED: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda file, other: file.unlink(),
    "empty": lambda file, other: file.write_bytes(b""),
    "truncated": truncated,
    "of other vectors": lambda file, other: shutil.copy(other, file),
    "of fewer vectors": lambda file, other: faiss.write_index(faiss.IndexFlatIP(D), str(file)),
    "not of FAISS": lambda file, other: file.write_text("search " * 1000),
    "a pipe": pipe,
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("others")
    for kind in KINDS:
        ApproximateSearch.build(kind, clustered(N, seed=5)).write(folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
async def test_a_structure_that_does_not_fit_is_refused_in_a_sentence(
    saved: Path, tmp_path: Path, others: dict[str, Path], spoil: Callable[[Path, Path], object]
) -> None:
    folder = shutil.copytree(saved, tmp_path / "index")
    about = index_files.read_index_manifest(folder).search
    assert about is not None
    spoil(folder / "search.faiss", others[about.kind])
    with pytest.raises(UserFault, match=r"The files of the index .* are missing or damaged: build it again with"):
        await Index.load(folder, TableEncoder())
    assert len((await Index.load(folder, None)).chunks) == N  # BM25 needs no structure


@pytest.mark.parametrize("value", [0, -1, 10**12])
async def test_a_parameter_that_faiss_would_not_take_is_refused(saved: Path, tmp_path: Path, value: int) -> None:
    folder = shutil.copytree(saved, tmp_path / "index")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["search"]["value"] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserFault, match=r"The index .* is damaged: delete that folder and build it again"):
        await Index.load(folder, TableEncoder())


async def test_a_large_chunks_file_is_recognised_by_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "HASHED", 100)
    await (await index_of(range(100, 200))).save(tmp_path / "i")
    file = tmp_path / "i" / "chunks.jsonl"
    file.write_text(file.read_text().replace('"text": "150"', '"text": "151"'))
    assert (await Index.load(tmp_path / "i", None)).chunks[50]["text"] == "151"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(UserFault, match="was changed after the index was made"):
        await Index.load(tmp_path / "i", None)
