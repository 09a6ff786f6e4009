"""The index: exact search, no copies, and nothing half, foreign or stale is ever opened."""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import re
import signal
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.retrieval import index_files, saved_folder
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.index import BATCH, Index, cached_index
from dubito.tests.json_lines import write_lines
from hypothesis import given, settings
from hypothesis import strategies as st


class HashEncoder:
    """Vectors from the characters of a text: equal texts have equal vectors. It keeps what it was asked to embed."""

    def __init__(self, name: str = "hash", dimension: int = 8) -> None:
        self.name = name
        self._dimension = dimension
        self.batches: list[list[str]] = []

    async def dimension(self) -> int:
        return self._dimension

    async def token_counter(self) -> Callable[[str], int] | None:
        return None

    async def max_tokens(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.batches.append(list(texts))
        rows = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for character in text:
                row[ord(character) % self._dimension] += 1
        unit: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit


def corpus_of(texts: Sequence[str]) -> Corpus:
    return Corpus(tuple(Document(f"d{i}", f"T{i % 3}", text) for i, text in enumerate(texts)))


async def build(texts: Sequence[str], encoder: HashEncoder | None = None, words: int = 2) -> Index:
    return await Index.build(corpus_of(texts), open_chunker(f"words:{words}"), encoder or HashEncoder())


TEXTS = ["one two three", "four", "five six seven eight"]
RECORDS = [{"title": f"T{i}", "text": text} for i, text in enumerate(TEXTS)]


async def test_metadata_is_saved_with_the_chunks_and_read_only_as_an_object(tmp_path: Path) -> None:
    corpus = Corpus((Document("a", "A", "one two three", {"url": "https://a.example", "year": 2020}),))
    index = await Index.build(corpus, open_chunker("words:2"), HashEncoder())
    await index.save(tmp_path / "i")
    again = await Index.load(tmp_path / "i", HashEncoder())
    assert [chunk["metadata"] for chunk in again.chunks] == [{"url": "https://a.example", "year": 2020}] * 2
    whole = (tmp_path / "i" / "chunks.jsonl").read_text()
    spoilt = re.sub(r"\{\"url.*?\}", lambda found: "7".ljust(len(found[0])), whole)
    (tmp_path / "i" / "chunks.jsonl").write_text(spoilt)
    manifest = json.loads((tmp_path / "i" / "manifest.json").read_text())
    manifest["chunks_sha256"] = hashlib.sha256(spoilt.encode()).hexdigest()
    (tmp_path / "i" / "manifest.json").write_text(json.dumps(manifest))
    opened = await Index.load(tmp_path / "i", HashEncoder())
    with pytest.raises(UserFault, match="missing or damaged"):
        opened.chunks[0]


async def test_opening_an_index_reads_no_chunk(tmp_path: Path) -> None:
    texts = [f"{number} " + "a" * 10_000 for number in range(500)]
    index = await Index.build(corpus_of(texts), open_chunker("words:2"), None)
    await index.save(tmp_path / "i")
    tracemalloc.start()
    try:
        opened = await Index.load(tmp_path / "i", None)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
    assert most < 2_000_000, "the file has 5 MB"
    chunks = opened.chunks
    assert (len(chunks), chunks[0], chunks[-1]) == (500, index.chunks[0], index.chunks[499])
    assert (chunks[7:9], chunks[498:], chunks[:0]) == (index.chunks[7:9], index.chunks[498:], [])
    assert list(chunks) == list(index.chunks)
    for outside in (500, -501):
        with pytest.raises(IndexError):
            chunks[outside]


async def test_build_embeds_titles_with_texts_in_batches_and_tells_how_far_it_is() -> None:
    encoder, told = HashEncoder(), []
    corpus = Corpus(tuple(Document(f"d{i}", "T", "word " * 5) for i in range(200)), ("a problem",))
    index = await Index.build(corpus, open_chunker("words:2"), encoder, lambda *step: told.append(step))
    assert told == [(BATCH, 600), (2 * BATCH, 600), (600, 600)]
    assert [len(batch) for batch in encoder.batches] == [BATCH, BATCH, 600 - 2 * BATCH]
    assert encoder.batches[0][:3] == ["T\nword word ", "T\nword word ", "T\nword "]
    manifest = index.manifest
    assert (manifest.encoder, manifest.dimension, manifest.chunker) == ("hash", 8, "words:2")
    assert (manifest.documents, manifest.chunks, manifest.corpus) == (200, 600, corpus.fingerprint)
    assert index.problems == ("a problem",)


async def test_the_whole_pool_is_the_mapped_file_in_corpus_order(tmp_path: Path) -> None:
    await (await build(TEXTS)).save(tmp_path / "i")
    index = await Index.load(tmp_path / "i", HashEncoder())
    pool, again = await index.pool("one", None), await index.pool("two", None)
    assert isinstance(pool.vectors.base, np.memmap)
    assert pool.vectors.ctypes.data % 64 == 0  # products of rows that are not aligned take several times as long
    assert pool.vectors.shape == (5, 8)
    assert pool.vectors.dtype == np.float32
    assert pool.vectors.ctypes.data == again.vectors.ctypes.data
    assert not pool.vectors.flags.writeable
    assert [pool.chunk(i)["text"] for i in range(5)] == ["one two ", "three", "four", "five six ", "seven eight"]
    expected = await HashEncoder().embed(["T0\none two ", "T0\nthree", "T1\nfour", "T2\nfive six ", "T2\nseven eight"])
    np.testing.assert_array_equal(pool.vectors, expected)
    np.testing.assert_array_equal(pool.query, (await HashEncoder().embed(["one"]))[0])


async def test_a_chunk_is_a_copy_without_a_score() -> None:
    pool = await (await build(TEXTS)).pool("one", None)
    chunk = pool.chunk(0)
    assert chunk == {"id": "d0#0", "doc_id": "d0", "title": "T0", "text": "one two ", "start": 0}
    chunk["score"] = 1.0
    assert "score" not in pool.chunk(0)


@given(
    texts=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=300),
    query=st.text("abc", min_size=1, max_size=4),
    top_n=st.integers(1, 320),
)
@settings(max_examples=50)
def test_top_n_is_the_stable_best_even_where_many_are_equal(texts: list[str], query: str, top_n: int) -> None:
    async def check() -> None:
        index = await Index.build(
            Corpus(tuple(Document(str(i), "", text) for i, text in enumerate(texts))),
            open_chunker("words:9"),
            HashEncoder(),
        )
        pool, whole = await index.pool(query, top_n), await index.pool(query, None)
        scores = np.sort(whole.vectors @ whole.query)[::-1]
        by_row = {i: float(whole.vectors[i] @ whole.query) for i in range(len(whole))}
        rows = [int(pool.chunk(i)["doc_id"]) for i in range(len(pool))]
        assert len(rows) == len(set(rows)) == min(top_n, len(texts))
        np.testing.assert_allclose([by_row[row] for row in rows], scores[: len(rows)], atol=1e-6)
        for text in {texts[row] for row in rows}:  # of equal chunks the first in the corpus are chosen
            chosen = [row for row in rows if texts[row] == text]
            assert chosen == [row for row, other in enumerate(texts) if other == text][: len(chosen)]
        np.testing.assert_array_equal(pool.vectors, whole.vectors[rows])

    asyncio.run(check())


async def test_of_very_many_equal_chunks_the_first_are_chosen() -> None:
    near = [row for row in range(2000) if row % 7 < 3]
    far = [row for row in range(2000) if row % 7 >= 3]
    documents = tuple(Document(str(row), "", "near" if row in near else "other") for row in range(2000))
    pool = await (await Index.build(Corpus(documents), open_chunker("words:9"), HashEncoder())).pool("near", 1500)
    found = [int(pool.chunk(i)["doc_id"]) for i in range(1500)]
    assert found == near + far[: 1500 - len(near)]


@pytest.mark.parametrize("top_n", [0, -1])
async def test_top_n_is_at_least_one(top_n: int) -> None:
    with pytest.raises(UserFault, match="at least 1"):
        await (await build(TEXTS)).pool("one", top_n)


async def test_no_chunks_no_index() -> None:
    with pytest.raises(UserFault, match="has no chunks to index"):
        await build([" "])


async def test_a_wrong_dimension_is_refused_while_building() -> None:
    class Lying(HashEncoder):
        async def dimension(self) -> int:
            return 9

    with pytest.raises(UserFault, match=r"gave vectors of shape \(5, 8\) for 5 texts: expected 9 numbers"):
        await build(TEXTS, Lying())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_save_and_load(tmp_path: Path) -> None:
    index, folder = await build([*TEXTS, "line\u2028separator\r\n \x85 “ü”"]), tmp_path / "new" / "index"
    assert await index.save(folder)
    assert names_in(folder) == ["chunks.jsonl", "line_ends.npy", "manifest.json", "vectors.npy"]
    assert names_in(folder.parent) == ["index"]
    loaded = await Index.load(folder, HashEncoder())
    assert loaded.manifest == index.manifest
    ours, theirs = await index.pool("q", None), await loaded.pool("q", None)
    np.testing.assert_array_equal(ours.vectors, theirs.vectors)
    assert [ours.chunk(i) for i in range(len(ours))] == [theirs.chunk(i) for i in range(len(theirs))]


async def test_save_replaces_an_index_and_nothing_else(tmp_path: Path) -> None:
    first, second = await build(TEXTS), await build(TEXTS[:1])
    folder = tmp_path / "index"
    folder.mkdir()
    assert await first.save(folder)  # an empty folder will do
    assert not await second.save(folder, replace=False)
    assert (await Index.load(folder, HashEncoder())).manifest.chunks == 5
    assert await second.save(folder)
    assert (await Index.load(folder, HashEncoder())).manifest.chunks == 2
    assert names_in(tmp_path) == ["index"]
    theirs = tmp_path / "thesis"
    theirs.mkdir()
    (theirs / "manifest.json").write_text("years of work")
    with pytest.raises(UserFault, match="exists and is not an index"):
        await first.save(theirs)
    assert (theirs / "manifest.json").read_text() == "years of work"
    with pytest.raises(UserFault, match="exists and is not an index"):
        await first.save(theirs / "manifest.json")


async def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserFault, match=r"cannot be written to .*: Not a directory"):
        await (await build(TEXTS)).save(tmp_path / "file" / "index")


def changed_manifest(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))

    return change


def other_array(name: str, array: Any) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / name, array)


def cut(name: str, keep: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def edited(folder: Path) -> None:
    path = folder / "chunks.jsonl"
    path.write_text(path.read_text().replace("four", "fore"))


def one_chunk_less(folder: Path) -> None:
    path = folder / "chunks.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def pipe(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def nothing_but_chunks(folder: Path) -> None:
    changed_manifest(chunks=0)(folder)
    np.save(folder / "line_ends.npy", np.zeros(0, np.int64))
    np.save(folder / "vectors.npy", np.zeros((0, 8), np.float32))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "is not an index: build it again with"),
    "half a manifest": (cut("manifest.json", 20), "The index .* is damaged: delete that folder and build it again"),
    "manifest of another kind": (
        lambda folder: (folder / "manifest.json").write_text("[]"),
        "is not an index",
    ),
    "another format": (changed_manifest(format=1), "has format 1 and this version of dubito reads format 2"),
    "manifest without a field": (changed_manifest(chunks="many"), "The index .* is damaged"),
    "another encoder": (changed_manifest(encoder="other"), "made with the encoder 'other', not with 'hash'"),
    "another dimension": (changed_manifest(dimension=9), "vectors of length 9 and the encoder 'hash' now .* length 8"),
    "another count": (changed_manifest(chunks=6), "are missing or damaged"),
    "a count of nothing": (nothing_but_chunks, "was changed after the index was made"),
    "chunks changed": (edited, "was changed after the index was made"),
    "chunks lost": (one_chunk_less, "was changed after the index was made"),
    "no chunks": (lambda folder: (folder / "chunks.jsonl").unlink(), "are missing or damaged"),
    "an empty chunks file": (cut("chunks.jsonl", 0), "are missing or damaged"),
    "no line ends": (lambda folder: (folder / "line_ends.npy").unlink(), "are missing or damaged"),
    "half the line ends": (cut("line_ends.npy", 140), "are missing or damaged"),
    "no vectors": (lambda folder: (folder / "vectors.npy").unlink(), "are missing or damaged"),
    "an empty vectors file": (cut("vectors.npy", 0), "are missing or damaged"),
    "half the vectors": (cut("vectors.npy", 200), "are missing or damaged"),
    "vectors of another length": (other_array("vectors.npy", np.zeros((5, 9), np.float32)), "are missing or damaged"),
    "more vectors": (other_array("vectors.npy", np.zeros((6, 8), np.float32)), "are missing or damaged"),
    "vectors of another type": (other_array("vectors.npy", np.zeros((5, 8))), "are missing or damaged"),
    "a pipe of vectors": (pipe("vectors.npy"), "are missing or damaged"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
async def test_what_is_not_whole_or_not_ours_is_refused_with_what_to_run(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "index"
    await (await build(TEXTS)).save(folder)
    spoil(folder)
    with pytest.raises(UserFault, match=message) as refused:
        await Index.load(folder, HashEncoder())
    assert "build it again with `dubito index`, or in Python with `Index.build`" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    write_lines(path, RECORDS)
    return path


async def test_an_index_is_built_once_for_corpus_encoder_and_chunker(tmp_path: Path, corpus_file: Path) -> None:
    cache = tmp_path / "cache"
    told: list[tuple[int, int]] = []

    async def indexed(chunker: str = "words:2", name: str = "hash", path: Path = corpus_file) -> list[tuple[int, int]]:
        told.clear()
        await cached_index(path, chunker, HashEncoder(name), cache, progress=lambda *step: told.append(step))
        return list(told)

    assert await indexed() == [(5, 5)]
    assert await indexed() == []
    assert await indexed(chunker=" words:02") == []
    assert await indexed(chunker="words:3") == [(4, 4)]
    assert await indexed(name="other") == [(5, 5)]
    same = corpus_file.with_name("same.json")
    same.write_text(json.dumps(RECORDS))
    assert await indexed(path=same) == []
    with corpus_file.open("a") as file:
        file.write('{"title": "T3", "text": "new"}\n')
    assert await indexed() == [(6, 6)]
    assert len(list((cache / "indexes").iterdir())) == 4


async def test_a_damaged_index_in_the_cache_is_made_anew(tmp_path: Path, corpus_file: Path) -> None:
    await cached_index(corpus_file, "words:2", HashEncoder(), tmp_path / "cache")
    (folder,) = (tmp_path / "cache" / "indexes").iterdir()
    edited(folder)
    await cached_index(corpus_file, "words:2", HashEncoder(), tmp_path / "cache")
    assert (await Index.load(folder, HashEncoder())).manifest.chunks == 5
    assert list(folder.parent.iterdir()) == [folder]


async def test_broken_records_are_refused_or_named(tmp_path: Path, corpus_file: Path) -> None:
    with corpus_file.open("a") as file:
        file.write('{"title": \n')
    with pytest.raises(UserFault, match="line 4"):
        await cached_index(corpus_file, "words:2", HashEncoder(), tmp_path / "cache")
    for _ in range(2):  # built, then loaded
        index = await cached_index(corpus_file, "words:2", HashEncoder(), tmp_path / "cache", on_bad_record="skip")
        assert len(index.problems) == 1
        assert "line 4" in index.problems[0]


async def test_an_index_folder_in_place_of_a_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    await (await build(TEXTS)).save(folder)
    index = await cached_index(folder, "words:100", HashEncoder(), tmp_path / "cache")
    assert index.manifest.chunker == "words:2"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(UserFault, match="made with the encoder 'hash', not with 'other'"):
        await cached_index(folder, "words:2", HashEncoder("other"), tmp_path / "cache")


class Weighted(HashEncoder):
    def __init__(self, weights: str) -> None:
        super().__init__()
        self.weights = weights


async def test_other_weights_of_the_same_name_are_told_from_those_of_the_index(tmp_path: Path) -> None:
    await (await Index.build(corpus_of(TEXTS), open_chunker("words:2"), Weighted("a"))).save(tmp_path / "index")
    for same in (Weighted("a"), HashEncoder()):  # the second does not say
        assert (await Index.load(tmp_path / "index", same)).manifest.weights == "a"
    with pytest.raises(UserFault, match=r"made with other weights of the name 'hash', or by an early"):
        await Index.load(tmp_path / "index", Weighted("b"))
    again = await (await Index.load(tmp_path / "index", Weighted("a"))).under(Weighted("b"))
    assert again.manifest.weights == "b"


async def test_a_corpus_is_embedded_again_by_other_weights(tmp_path: Path, corpus_file: Path) -> None:
    for weights, embeds in (("a", True), ("a", False), ("b", True)):
        encoder = Weighted(weights)
        await cached_index(corpus_file, "words:2", encoder, tmp_path / "cache", on_bad_record="skip")
        assert bool(encoder.batches) == embeds


async def test_token_windows_are_counted_by_the_encoder(tmp_path: Path, corpus_file: Path) -> None:
    class Counting(HashEncoder):
        async def token_counter(self) -> Callable[[str], int]:
            return len

    index = await cached_index(corpus_file, "tokens:16/0", Counting(), tmp_path / "cache")
    assert index.manifest.chunker == "tokens:16/0"
    assert index.manifest.chunks == 4
    with pytest.raises(UserFault, match="no tokenizer to count with"):
        await cached_index(corpus_file, "tokens:16/0", HashEncoder(), tmp_path / "cache")


def save_and_die(folder: Path, killed_at: str) -> None:
    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    index = asyncio.run(build(TEXTS))
    setattr({"save": np, "_line": index_files}.get(killed_at, saved_folder), killed_at, die)
    asyncio.run(index.save(folder))


@pytest.mark.parametrize("killed_at", ["save", "_line", "_put_in_place"])
def test_a_killed_build_leaves_no_index_and_the_next_one_succeeds(tmp_path: Path, killed_at: str) -> None:
    folder = tmp_path / "index"
    child = multiprocessing.get_context("fork").Process(target=save_and_die, args=(folder, killed_at))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert not folder.exists()
    asyncio.run(asyncio.run(build(TEXTS)).save(folder))
    assert asyncio.run(Index.load(folder, HashEncoder())).manifest.chunks == 5


async def test_nothing_of_it_blocks_the_event_loop(tmp_path: Path, corpus_file: Path) -> None:
    blockbuster = pytest.importorskip("blockbuster")
    with blockbuster.blockbuster_ctx():
        for _ in range(2):
            index = await cached_index(corpus_file, "words:2", HashEncoder(), tmp_path / "cache")
            await index.pool("one", 2)
        await index.save(tmp_path / "copy")
        await Index.load(tmp_path / "copy", HashEncoder())
