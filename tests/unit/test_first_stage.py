"""First stages: BM25 against its formula, fusion by hand, dense and live ones, and what is kept on disk."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.models.sparse_encoder import SparseVectors
from dubito.retrieval import bm25, saved_folder
from dubito.retrieval.bm25 import open_bm25
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.derived_files import Derived
from dubito.retrieval.first_stage import FIRST_STAGE_NAMES, open_first_stage
from dubito.retrieval.fusion import Fused, Ranking, best, reciprocal_rank_fusion
from dubito.retrieval.index import Index
from dubito.retrieval.langchain_retriever import LangChainRetriever
from dubito.retrieval.sparse import postings_of, scores_of
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore


class LetterEncoder:
    """Vectors of how often the letters a to d are in a text."""

    name = "letters"

    async def dimension(self) -> int:
        return 4

    async def token_counter(self) -> Callable[[str], int] | None:
        return None

    async def max_tokens(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        rows = np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32).reshape(-1, 4)
        unit: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit


async def index_of(texts: Sequence[str], titles: Sequence[str] | None = None) -> Index:
    titles = titles or [""] * len(texts)
    documents = [Document(f"d{i}", title, text) for i, (title, text) in enumerate(zip(titles, texts, strict=True))]
    return await Index.build(Corpus(tuple(documents)), open_chunker("words:1000"), LetterEncoder())


def lucene_bm25(query: str, texts: Sequence[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """The formula of Kamphuis et al. (2020) for Lucene (accurate), a word at a time."""
    stop = re.compile(
        "a|an|and|are|as|at|be|but|by|for|if|in|into|is|it|no|not|of|on|or|such|that|the|their|then|there|these|they|"
        "this|to|was|will|with"
    )

    def words(text: str) -> list[str]:
        return [word for word in re.findall(r"\b\w\w+\b", text.lower()) if not stop.fullmatch(word)]

    documents = [words(text) for text in texts]
    average = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in words(query):
            df = sum(word in other for other in documents)
            if df:
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                tf = counts[word]
                score += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
        scores.append(score)
    return scores


WORDS = ["river", "bay", "the", "ferry", "Lune", "tide", "x", "isle"]


@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join), min_size=1, max_size=12),
    query=st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=5).map(" ".join),
    n=st.integers(1, 14),
)
@settings(max_examples=60)
def test_bm25_is_lucenes_formula_and_equals_keep_their_order(texts: list[str], query: str, n: int) -> None:
    async def ranked() -> tuple[list[int], list[float]]:
        words = await bm25._words((await index_of(texts)).chunks, None)
        folder = Path(folder_name)
        bm25._built(words)(folder)
        model = bm25._bm25s().BM25.load(str(folder / bm25.WORDS)) if (folder / bm25.WORDS).exists() else None
        rows, scores = await bm25.Bm25(model).rank(query, n)
        return rows.tolist(), scores.tolist()

    with tempfile.TemporaryDirectory() as folder_name:
        rows, scores = asyncio.run(ranked())
    expected = lucene_bm25(query, texts)
    assert len(rows) == min(n, sum(score > 0 for score in expected))
    np.testing.assert_allclose(scores, [expected[row] for row in rows], rtol=1e-5)
    np.testing.assert_allclose(scores, sorted(expected, reverse=True)[: len(rows)], rtol=1e-5)
    for text in {texts[row] for row in rows}:  # of equal chunks the first ones
        chosen = [row for row in rows if texts[row] == text]
        assert chosen == [row for row, other in enumerate(texts) if other == text][: len(chosen)]


async def test_bm25_reads_titles_leaves_out_what_shares_no_word_and_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    index = await index_of(["a long walk", "tide and time", "the tide turns"], ["Morecambe", "Bay", "Bay"])
    stage = await open_first_stage(" bm25 ", index, tmp_path)
    assert stage.name == "bm25"
    found = await stage.search("Where is MORECAMBE?", 5)
    assert [(chunk["id"], set(chunk)) for chunk in found] == [
        ("d0#0", {"id", "doc_id", "title", "text", "start", "score"})
    ]
    assert found[0]["score"] == pytest.approx(
        lucene_bm25("morecambe", ["Morecambe a long walk", "Bay tide time", "Bay the tide turns"])[0]
    )
    assert [chunk["id"] for chunk in await stage.search("bay", 5)] == ["d1#0", "d2#0"]
    assert [chunk["id"] for chunk in await stage.search("bay", 1)] == ["d1#0"]
    assert await stage.search("the unknown", 5) == []
    assert await stage.search("", 5) == []
    assert "score" not in index.chunks[0]
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


async def test_a_corpus_without_words_finds_nothing(tmp_path: Path) -> None:
    index = await index_of(["the", "a b c", "?!"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(2):
            assert await (await open_first_stage("bm25", index, tmp_path)).search("the a x \ud800", 5) == []


async def test_bm25_is_built_once_and_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "BATCH", 2)
    index, told = await index_of(["one bay", "two bays", "three"]), []
    first = await open_bm25(index, tmp_path, lambda *step: told.append(step))
    assert told == [(2, 3), (3, 3)]
    again = await open_bm25(await index_of(["one bay", "two bays", "three"]), tmp_path, lambda *step: told.append(step))
    assert len(told) == 2
    assert isinstance(again._model.scores["data"], np.memmap)
    assert (await first.rank("bay", 3)).rows.tolist() == (await again.rank("bay", 3)).rows.tolist() == [0]
    other = await open_bm25(await index_of(["bay two", "bay", "three"]), tmp_path)
    assert (await other.rank("bay", 3)).rows.tolist() == [1, 0]
    assert len(list((tmp_path / "derived").iterdir())) == 2


def _folder(cache: Path) -> Path:
    (folder,) = (cache / "derived").iterdir()
    return folder


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "words" / "data.csc.index.npy").write_bytes(b""),
        lambda folder: (folder / "words" / "indices.csc.index.npy").unlink(),
        lambda folder: (folder / "words" / "vocab.index.json").write_text("{"),
        lambda folder: _edit(folder, k1=1.2),
    ],
)
async def test_what_is_damaged_or_stale_is_built_anew(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    index, told = await index_of(["one bay", "two bays"]), []
    await open_bm25(index, tmp_path)
    harm(_folder(tmp_path))
    for _ in range(2):
        ranker = await open_bm25(index, tmp_path, lambda *step: told.append(step))
        assert (await ranker.rank("bays", 3)).rows.tolist() == [1]
    assert told == [(2, 2)]  # once
    assert [folder.name[0] for folder in (tmp_path / "derived").iterdir()] != ["."]


def _edit(folder: Path, **changes: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def open_in_a_process(cache: Path, all_build: Any) -> None:
    built = bm25._built

    def built_when_all_build(words: Any) -> Callable[[Path], None]:
        all_build.wait(60)
        return built(words)

    bm25._built = built_when_all_build

    async def work() -> list[int]:
        ranker = await open_bm25(await index_of([f"word{i} common" for i in range(50)]), cache)
        rows: list[int] = (await ranker.rank("word7", 3)).rows.tolist()
        return rows

    assert asyncio.run(work()) == [7]


def test_processes_that_build_the_same_at_once_all_read_a_whole_one(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    all_build = fork.Barrier(3)
    children = [fork.Process(target=open_in_a_process, args=(tmp_path, all_build)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0] * 3
    assert not _folder(tmp_path).name.startswith(".")


async def test_nothing_of_it_blocks_the_event_loop(tmp_path: Path) -> None:
    index = await index_of(["one bay", "two bays"])
    with blockbuster_ctx():
        for _ in range(2):
            assert len(await (await open_first_stage("hybrid", index, tmp_path)).search("bay", 2)) == 2


def test_who_is_second_leaves_the_first_ones_folder_or_takes_its_place(tmp_path: Path) -> None:
    target = tmp_path / "made"
    manifest = Derived(kind="thing", format=1, chunks=1, chunks_sha256="")

    def put(text: str, *, replace: bool) -> bool:
        def fill(folder: Path) -> None:
            (folder / "x").write_text(text)

        return saved_folder.write_folder(target, manifest, fill, replace=replace)

    def slow(folder: Path) -> None:
        (folder / "x").write_text("slow")
        assert put("fast", replace=False)  # another one is faster

    assert not saved_folder.write_folder(target, manifest, slow, replace=False)
    assert (target / "x").read_text() == "fast"
    assert put("last", replace=True)
    assert (target / "x").read_text() == "last"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


async def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "derived").write_text("a file")
    stage = await open_bm25(await index_of(["one bay"]), tmp_path)
    assert stage is not None
    assert re.search(r"The BM25 index cannot be written to .*derived.*: ", caplog.text)


async def test_dense_scores_are_cosines_and_equals_are_in_corpus_order(tmp_path: Path) -> None:
    index = await index_of(["ab", "a", "c", "b", "a", "d"])
    found = await (await open_first_stage("dense", index, tmp_path)).search("a", 4)
    assert [chunk["doc_id"] for chunk in found] == ["d1", "d4", "d0", "d2"]
    assert [chunk["score"] for chunk in found] == pytest.approx([1, 1, math.sqrt(0.5), 0])
    assert all(type(chunk["score"]) is float for chunk in found)
    assert len(await (await open_first_stage("dense", index, tmp_path)).search("a", 99)) == 6


def test_reciprocal_rank_fusion_by_hand() -> None:
    fused = reciprocal_rank_fusion([[5, 3, 9], [3, 7]])
    assert fused == [(3, 1 / 62 + 1 / 61), (5, 1 / 61), (7, 1 / 62), (9, 1 / 63)]
    assert reciprocal_rank_fusion([[2], [1]], k=1) == [(1, 0.5), (2, 0.5)]  # equals by row
    assert reciprocal_rank_fusion([[], []]) == reciprocal_rank_fusion([]) == []


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=4))
def test_fusion_does_not_depend_on_the_order_of_the_rankings(rankings: list[list[int]]) -> None:
    assert reciprocal_rank_fusion(rankings) == reciprocal_rank_fusion(rankings[::-1])


class _Fixed:
    def __init__(self, *rows: int) -> None:
        self.rows = rows

    async def rank(self, query: str, n: int) -> Ranking:
        return Ranking(np.array(self.rows[:n]), np.ones(len(self.rows[:n])))


async def test_what_both_hold_further_down_is_found_however_few_are_asked_for() -> None:
    rows, scores = await Fused([_Fixed(7, 3, 9), _Fixed(8, 3)]).rank("", 1)
    assert (rows.tolist(), scores.tolist()) == ([3], [2 / 62])


async def test_hybrid_fuses_words_and_vectors(tmp_path: Path) -> None:
    index = await index_of(["bad cab", "zz ferry", "abc ferry zzz zzz", "dddd"])
    stage = await open_first_stage("hybrid", index, tmp_path)
    # "cab" is rarer than "ferry"; the query's letters are a, b and c, of which d1 and d3 have none
    dense = [
        chunk["doc_id"] for chunk in await (await open_first_stage("dense", index, tmp_path)).search("ferry cab", 9)
    ]
    words = [
        chunk["doc_id"] for chunk in await (await open_first_stage("bm25", index, tmp_path)).search("ferry cab", 9)
    ]
    assert (words, dense) == (["d0", "d1", "d2"], ["d2", "d0", "d1", "d3"])
    found = await stage.search("ferry cab", 9)
    expected = {"d0": 1 / 61 + 1 / 62, "d2": 1 / 63 + 1 / 61, "d1": 1 / 62 + 1 / 63, "d3": 1 / 64}
    assert [chunk["doc_id"] for chunk in found] == list(expected)
    assert [chunk["score"] for chunk in found] == pytest.approx(list(expected.values()))
    assert [chunk["doc_id"] for chunk in await stage.search("ferry cab", 2)] == ["d0", "d2"]
    named = await open_first_stage("hybrid:bm25+dense", index, tmp_path)
    assert await named.search("ferry cab", 9) == found


@pytest.mark.parametrize("name", ["", "bm52", "splade:", "dense:x", "hybrid:", "hybrid:bm25+", "hybrid:bm25+x", "BM25"])
async def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserFault, match=re.escape(FIRST_STAGE_NAMES) + "|needs two different parts"):
        await open_first_stage(name, await index_of(["a"]), tmp_path)


@pytest.mark.parametrize("name", ["hybrid:bm25", "hybrid:dense+dense"])
async def test_a_hybrid_needs_two(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserFault, match="needs two different parts"):
        await open_first_stage(name, await index_of(["a"]), tmp_path)


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid"])
async def test_at_least_one_is_asked_for(tmp_path: Path, name: str) -> None:
    stage = await open_first_stage(name, await index_of(["a"]), tmp_path)
    with pytest.raises(UserFault, match="The number of chunks to search for is 0"):
        await stage.search("a", 0)


class _Letters(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abcd"] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


async def test_a_live_vector_store_stands_for_whatever_is_named(tmp_path: Path) -> None:
    store = InMemoryVectorStore(_Letters())
    store.add_documents([LangChainDocument(text, id=text) for text in ("ab", "a", "c", "aab")])
    stage = await open_first_stage("bm25", LangChainRetriever(store, LetterEncoder()), tmp_path)
    found = await stage.search("a", 3)
    assert [chunk["id"] for chunk in found] == ["a", "aab", "ab"]
    assert [chunk["score"] for chunk in found] == pytest.approx([1, 2 / math.sqrt(5), math.sqrt(0.5)])
    with pytest.raises(UserFault, match="is 0"):
        await stage.search("a", 0)
    with pytest.raises(UserFault, match="There is no first stage"):
        await open_first_stage("bm52", LangChainRetriever(store, LetterEncoder()), tmp_path)
    empty = await open_first_stage(
        "bm25", LangChainRetriever(InMemoryVectorStore(_Letters()), LetterEncoder()), tmp_path
    )
    assert await empty.search("a", 3) == []


@given(scores=st.lists(st.sampled_from([0.0, -1.0, 0.5, 1.0, 2.0]), max_size=30), n=st.integers(1, 35))
def test_best_are_the_highest_above_zero_and_equals_by_row(scores: list[float], n: int) -> None:
    expected = sorted((row for row, score in enumerate(scores) if score > 0), key=lambda row: (-scores[row], row))[:n]
    rows, found = best(np.array(scores, dtype=np.float32), n)
    assert rows.tolist() == expected
    assert found.tolist() == [scores[row] for row in expected]


@given(
    matrix=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.25, -2.0]), min_size=6, max_size=6), min_size=1, max_size=9
    ),
    query=st.lists(st.sampled_from([0.0, 1.0, 0.5, 3.0]), min_size=6, max_size=6),
    cut=st.integers(1, 9),
)
def test_scores_by_postings_are_the_dense_product(matrix: list[list[float]], query: list[float], cut: int) -> None:
    dense, asked = np.array(matrix, dtype=np.float32), np.array(query, dtype=np.float32)

    def sparse(rows: np.ndarray, first: int) -> SparseVectors:
        where, words = np.nonzero(rows)
        return SparseVectors((where + first).astype(np.int32), words.astype(np.int32), rows[where, words], 6)

    batches = [sparse(dense[start : start + cut], start) for start in range(0, len(dense), cut)]
    postings = postings_of(batches)
    assert len(postings.indptr) == 7
    assert all(
        (np.diff(postings.indices[begin:end]) > 0).all()
        for begin, end in zip(postings.indptr, postings.indptr[1:], strict=False)
    )
    np.testing.assert_array_equal(scores_of(sparse(asked[None], 0), postings, len(dense)), dense @ asked)
