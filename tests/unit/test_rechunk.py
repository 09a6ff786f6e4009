"""Documents are restored from their chunks; live sources and index folders are chunked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.interfaces import Vectors
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.chunking import Chunker
from dubito.retrieval.corpus import Document
from dubito.retrieval.index import Index, cached_index
from dubito.retrieval.pool import Pool
from dubito.retrieval.rechunk import LONGEST_GAP, REMEMBERED, Rechunked, documents_of
from dubito.state.records import Chunk
from dubito.tests.json_lines import write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

SEMANTIC = "semantic:0.6/512"
ABCD = "Aa. Bb. Cc. Dd."
ANGLES = {"Aa.": 0, "Bb.": 10, "Cc.": 180, "Dd.": 190}


def count_words(text: str) -> int:
    """A stand-in for a tokenizer: white space is free, a word costs a token for every four characters."""
    return sum(-(-len(word) // 4) for word in text.split())


class Scripted:
    """Vectors on a circle: a sentence at its angle, anything else at its length in degrees, a question at 0."""

    def __init__(self, dimension: int = 2, name: str = "scripted") -> None:
        self.name = name
        self._dimension = dimension
        self.asked: list[tuple[str, bool]] = []

    async def dimension(self) -> int:
        return self._dimension

    async def max_tokens(self) -> int | None:
        return None

    async def token_counter(self) -> Callable[[str], int] | None:
        return count_words

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.asked += [(text, query) for text in texts]
        vectors = np.zeros((len(texts), self._dimension), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            angle = np.radians(0 if query else ANGLES.get(text, len(text)))
            row[:2] = np.cos(angle), np.sin(angle)
        return vectors


class Live:
    """A source that gives the same chunks for every question, whose vector is given too, and counts the questions."""

    def __init__(self, chunks: Sequence[Chunk], query: Sequence[float] = (0.6, 0.8)) -> None:
        self.chunks, self.query = list(chunks), np.array(query, dtype=np.float32)
        self.asked: list[tuple[str, int | None]] = []

    async def pool(self, query: str, top_n: int | None) -> Pool:
        self.asked.append((query, top_n))
        vectors = np.zeros((len(self.chunks), len(self.query)), dtype=np.float32)
        return Pool(self.query, vectors, lambda i: self.chunks[i].copy(), ("a problem",))


def chunk(name: str, text: str, start: int | None = None, doc: str = "d", title: str = "T") -> Chunk:
    made: Chunk = {"id": name, "doc_id": doc, "title": title, "text": text}
    return made if start is None else {**made, "start": start}


def semantic(encoder: Scripted, name: str = SEMANTIC) -> Chunker:
    return open_chunker(name, count_words, encoder)


some_texts = st.one_of(
    st.lists(st.sampled_from(["a", "word", "Aa.", "x" * 40, " ", "\n\n", "\t", "\u3000", "😀"]), max_size=60).map(
        "".join
    ),
    st.text(max_size=200),
)


@given(
    texts=st.lists(some_texts, min_size=1, max_size=4),
    name=st.sampled_from(["words:1", "words:3", "tokens:16/0", "tokens:16/8", "tokens:20/19", "semantic:0.6/16"]),
    shuffle=st.randoms(use_true_random=False),
)
@settings(max_examples=150)
def test_the_chunks_of_any_chunker_give_back_the_documents(texts: list[str], name: str, shuffle: Any) -> None:
    documents = [Document(f"d{i}", f"T{i}", text) for i, text in enumerate(texts)]
    chunks = asyncio.run(open_chunker(name, count_words, Scripted()).cut(documents))
    shuffle.shuffle(chunks)
    found = {document.id: document for document in documents_of(chunks)}
    assert set(found) == {document.id for document in documents if document.text.strip()}
    for document in documents:
        if document.text.strip():
            back = found[document.id]
            assert back.title == document.title
            assert len(back.text.rstrip()) == len(document.text.rstrip())
            # only white space may be another
            pairs = zip(back.text.rstrip(), document.text.rstrip(), strict=True)
            assert all(ours == theirs or (ours == " " and theirs.isspace()) for ours, theirs in pairs)


def test_overlaps_are_there_once_and_gaps_are_spaces() -> None:
    chunks = [
        chunk("d#2", "four", 17),
        chunk("d#0", "one two", 0),
        chunk("d#1", "two three", 4),
        chunk("d#3", "three", 8),
    ]
    assert documents_of(chunks) == [Document("d", "T", "one two three    four")]
    assert documents_of([chunk("d#0", "one", 2)]) == [Document("d", "T", "  one")]


def test_what_all_chunks_of_a_document_say_of_it_stays() -> None:
    one: Chunk = {**chunk("d#0", "one ", 0), "metadata": {"url": "https://a.example", "page": 1}}
    two: Chunk = {**chunk("d#1", "two", 4), "metadata": {"url": "https://a.example", "page": 2}}
    assert documents_of([one, two]) == [Document("d", "T", "one two", {"url": "https://a.example"})]
    alone: Chunk = {"id": "x", "doc_id": "x", "title": "", "text": "x", "metadata": {"page": 9}}
    assert documents_of([alone]) == [Document("x", "", "x", {"page": 9})]


def test_documents_are_in_the_order_of_their_first_chunks() -> None:
    chunks = [chunk("b#1", "two", 4, "b"), chunk("a#0", "x", 0, "a"), chunk("b#0", "one ", 0, "b")]
    assert documents_of(chunks) == [Document("b", "T", "one two"), Document("a", "T", "x")]


def test_chunks_that_do_not_say_where_they_start_are_documents() -> None:
    chunks = [chunk("x", "one"), chunk("y", "two", title="U"), chunk("d#0", "three", 0)]
    assert documents_of(chunks) == [Document("x", "T", "one"), Document("y", "U", "two"), Document("d", "T", "three")]


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("d#0", "one two", 0), chunk("d#1", "twx three", 4)],
        [chunk("d#0", "one two three", 0), chunk("d#1", "tow", 4)],
        [chunk("d#0", "one", 0), chunk("d#1", "two", 3 + LONGEST_GAP + 1)],
        [chunk("d#0", "one", -1), chunk("d#1", "two", 4)],
        [chunk("d#0", "one", 10**15), chunk("d#1", "two", 0)],
    ],
)
def test_chunks_that_cannot_be_of_one_text_are_documents(chunks: list[Chunk]) -> None:
    assert documents_of(chunks) == [Document(each["id"], "T", each["text"]) for each in chunks]


def test_the_longest_gap_is_filled() -> None:
    (document,) = documents_of([chunk("d#0", "one", 0), chunk("d#1", "two", 3 + LONGEST_GAP)])
    assert document.text == "one" + " " * LONGEST_GAP + "two"


def test_ids_stay_unique() -> None:
    chunks = [chunk("d", "alone"), chunk("d#0", "one", 0), chunk("d", "again"), chunk("d (2)", "more")]
    ids = [document.id for document in documents_of(chunks)]
    assert len(set(ids)) == 4
    assert ids[0] == "d"


async def test_a_live_pool_is_rechunked() -> None:
    encoder = Scripted()
    live = Live([chunk("d#0", "Aa. Bb. Cc", 0), chunk("d#1", "Cc. Dd.", 8), chunk("x", "Aa. Cc.", title="")])
    pool = await Rechunked(live, semantic(encoder), encoder).pool("?", None)
    assert [pool.chunk(i) for i in range(len(pool))] == [
        {"id": "d#s0", "doc_id": "d", "title": "T", "text": "Aa. Bb. ", "start": 0},
        {"id": "d#s1", "doc_id": "d", "title": "T", "text": "Cc. Dd.", "start": 8},
        {"id": "x#s0", "doc_id": "x", "title": "", "text": "Aa. ", "start": 0},
        {"id": "x#s1", "doc_id": "x", "title": "", "text": "Cc.", "start": 4},
    ]
    np.testing.assert_array_equal(pool.vectors, await encoder.embed(["T\nAa. Bb. ", "T\nCc. Dd.", "Aa. ", "Cc."]))
    np.testing.assert_array_equal(pool.query, live.query)
    assert pool.left_out == ("a problem",)
    assert live.asked == [("?", None)]
    assert not any(query for _, query in encoder.asked)
    pool.chunk(0)["score"] = 1.0
    assert "score" not in pool.chunk(0)


async def test_a_question_whose_vector_does_not_fit_is_embedded() -> None:
    encoder = Scripted()
    pool = await Rechunked(Live([chunk("x", "Aa.")], query=(0, 0, 1)), semantic(encoder), encoder).pool("Who?", None)
    assert ("Who?", True) in encoder.asked
    np.testing.assert_allclose(pool.query, [1, 0], atol=1e-6)


async def test_top_n_are_the_nearest_best_first_and_equal_ones_in_order() -> None:
    encoder = Scripted()
    texts = ["x" * 90, "y" * 5, "z" * 40, "w" * 5, "v" * 70]
    live = Live([chunk(f"c{i}", text, title="") for i, text in enumerate(texts)], query=(1, 0))
    rechunked = Rechunked(live, semantic(encoder), encoder)
    pool = await rechunked.pool("?", 3)
    assert [pool.chunk(i)["id"] for i in range(len(pool))] == ["c1#s0", "c3#s0", "c2#s0"]
    np.testing.assert_allclose(pool.vectors @ pool.query, np.cos(np.radians([5, 5, 40])), rtol=1e-6)
    assert pool.left_out == ("a problem",)
    assert len(await rechunked.pool("?", 99)) == 5
    with pytest.raises(UserFault, match="at least 1"):
        await rechunked.pool("?", 0)


async def test_the_last_few_questions_are_remembered() -> None:
    encoder, live = Scripted(), Live([chunk("x", ABCD)])
    rechunked = Rechunked(live, semantic(encoder), encoder)
    questions = [f"q{i}" for i in range(REMEMBERED)]
    for question in [*questions, *reversed(questions), "q0"]:
        await rechunked.pool(question, 1)
    assert [asked for asked, _ in live.asked] == questions
    await rechunked.pool("new", None)  # in place of the one that was asked longest ago, the last of the reversed ones
    live.asked.clear()
    for question in [*questions[:-1], "new"]:
        await rechunked.pool(question, None)
    assert live.asked == []
    await rechunked.pool(questions[-1], None)
    assert live.asked == [(questions[-1], None)]


async def test_an_empty_pool_is_remembered_too() -> None:
    encoder, live = Scripted(), Live([])
    rechunked = Rechunked(live, semantic(encoder), encoder)
    assert [len(await rechunked.pool("?", top_n)) for top_n in (None, 3)] == [0, 0]
    assert (await rechunked.pool("?", None)).vectors.shape == (0, 2)
    assert len(live.asked) == 1


async def test_a_source_that_failed_is_asked_again() -> None:
    class Failing(Live):
        async def pool(self, query: str, top_n: int | None) -> Pool:
            pool = await super().pool(query, top_n)
            if len(self.asked) == 1:
                raise UserFault("The source is away.")
            return pool

    encoder = Scripted()
    rechunked = Rechunked(Failing([chunk("x", ABCD)]), semantic(encoder), encoder)
    with pytest.raises(UserFault, match="away"):
        await rechunked.pool("?", None)
    assert len(await rechunked.pool("?", None)) == 2


async def test_nothing_of_it_blocks_the_event_loop() -> None:
    blockbuster = pytest.importorskip("blockbuster")
    encoder = Scripted()
    with blockbuster.blockbuster_ctx():
        await Rechunked(Live([chunk("x", ABCD)]), semantic(encoder), encoder).pool("?", 1)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    write_lines(path, ({"title": f"T{i}", "text": ABCD} for i in range(2)))
    return path


async def folder_of(corpus: Path, chunker: str, name: str = "folder") -> Path:
    folder = corpus.with_name(name)
    await (await cached_index(corpus, chunker, Scripted(), corpus.with_name("first"))).save(folder)
    return folder


async def test_an_index_folder_is_rechunked_if_a_semantic_chunker_is_asked_for(corpus: Path, tmp_path: Path) -> None:
    folder, cache = await folder_of(corpus, "words:3"), tmp_path / "cache"
    told: list[Any] = []

    async def opened(name: str = SEMANTIC, path: Path = folder) -> Index:
        told.clear()
        tells: dict[str, Any] = {
            kind: lambda *step, kind=kind: told.append((kind, *step)) for kind in ("progress", "comparing")
        }
        return await cached_index(path, name, Scripted(), cache, **tells)

    rechunked, direct = await opened(), await cached_index(corpus, SEMANTIC, Scripted(), tmp_path / "other")
    assert told == [("comparing", 8, 8), ("progress", 4, 4)]
    ours, theirs = await rechunked.pool("?", None), await direct.pool("?", None)
    assert [ours.chunk(i) for i in range(len(ours))] == [theirs.chunk(i) for i in range(len(theirs))]
    np.testing.assert_array_equal(ours.vectors, theirs.vectors)
    assert ours.chunk(0)["id"] == "T0#s0"
    assert rechunked.manifest.chunker == SEMANTIC

    assert (await opened(" semantic:0.60/512")).manifest == rechunked.manifest
    assert told == []  # from the cache
    await opened("semantic:0.7/512")
    assert told != []
    assert (await opened("words:100")).manifest.chunker == "words:3"
    assert (await opened("nonsense")).manifest.chunker == "words:3"
    assert len(list((cache / "indexes").iterdir())) == 2


async def test_another_folder_has_another_semantic_index(corpus: Path, tmp_path: Path) -> None:
    one = await folder_of(corpus, "words:3")
    with corpus.open("a") as file:
        file.write("\n" + json.dumps({"title": "more", "text": "New."}))
    two = await folder_of(corpus, "words:3", "second")
    found = [
        (await cached_index(path, SEMANTIC, Scripted(), tmp_path / "cache")).manifest.documents for path in (one, two)
    ]
    assert found == [2, 3]


async def test_a_folder_of_that_semantic_chunker_is_loaded_as_it_is(corpus: Path, tmp_path: Path) -> None:
    folder = await folder_of(corpus, SEMANTIC)
    index = await cached_index(folder, "semantic:0.600/512", Scripted(), tmp_path / "cache")
    assert index.manifest.chunks == 4
    assert not (tmp_path / "cache").exists()
    other = await cached_index(folder, "semantic:-1/512", Scripted(), tmp_path / "cache")
    pool = await other.pool("?", None)
    assert [pool.chunk(i)["text"] for i in range(len(pool))] == [ABCD, ABCD]


async def test_a_folder_of_another_encoder_is_refused(corpus: Path, tmp_path: Path) -> None:
    folder = await folder_of(corpus, "words:3")
    with pytest.raises(UserFault, match="made with the encoder 'scripted', not with 'other'"):
        await cached_index(folder, SEMANTIC, Scripted(name="other"), tmp_path / "cache")
    with pytest.raises(UserFault, match="is not a semantic chunker"):
        await cached_index(folder, "semantic:3/512", Scripted(), tmp_path / "cache")
