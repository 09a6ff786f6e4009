"""Chunkers: exact slices, nothing lost, the same pieces as LangChain's splitter."""

from __future__ import annotations

import asyncio
import re

import pytest
from dubito.errors import UserFault
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.chunking import embedding_text
from dubito.retrieval.corpus import Document
from dubito.state.records import Chunk
from dubito.tests.scripted import ScriptedEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_text_splitters import RecursiveCharacterTextSplitter

spaces = st.sampled_from([" ", "\n", "\n\n", "  ", "\t", "\u3000", "\x1c", "\u2028", " \n \n"])
words = st.sampled_from(["a", "ab", "a.", "straße", "😀", "word", "longer-word", "\u0301", "a" * 40])
texts = st.one_of(
    st.lists(st.one_of(words, spaces), max_size=60).map("".join),
    st.text(max_size=200),
    st.lists(words, max_size=200).map(" ".join),
)


def pieces(name: str, text: str) -> list[Chunk]:
    return list(asyncio.run(open_chunker(name, count_words).cut([Document("doc", "Title", text)])))


def count_words(text: str) -> int:
    """A stand-in for a tokenizer: white space is free, a word costs a token for every four characters."""
    return sum(-(-len(word) // 4) for word in text.split())


def assert_exact(chunks: list[Chunk], text: str) -> None:
    for number, chunk in enumerate(chunks):
        start = chunk["start"]
        assert text[start : start + len(chunk["text"])] == chunk["text"]
        assert chunk["id"] == f"doc#{number}"
        assert (chunk["doc_id"], chunk["title"]) == ("doc", "Title")


@given(text=texts, size=st.integers(1, 7))
def test_word_windows_lose_and_reorder_nothing(text: str, size: int) -> None:
    chunks = pieces(f"words:{size}", text)
    assert_exact(chunks, text)
    assert "".join(chunk["text"] for chunk in chunks) == (text if text.split() else "")
    counts = [len(chunk["text"].split()) for chunk in chunks]
    assert all(count == size for count in counts[:-1])
    assert all(1 <= count <= size for count in counts[-1:])


@pytest.mark.parametrize("name", ["words:2", "tokens:16/4"])
async def test_documents_are_cut_in_their_order_without_a_word(name: str) -> None:
    documents = [Document("b", "B", "one two three"), Document("a", "A", "  "), Document("c", "", "four")]
    chunks = await open_chunker(name, len).cut(documents, lambda *_: pytest.fail("there is nothing to wait for"))
    assert [chunk["doc_id"] for chunk in chunks] == sorted("bbc" if name == "words:2" else "bc", key="bac".index)
    assert [chunk["id"] for chunk in chunks if chunk["doc_id"] == "c"] == ["c#0"]
    assert "".join(chunk["text"] for chunk in chunks) == "one two threefour"


def test_a_word_window_keeps_its_space() -> None:
    chunks = pieces("words:2", " one  two\n\nthree ")
    assert [(chunk["text"], chunk["start"]) for chunk in chunks] == [(" one  two\n\n", 0), ("three ", 11)]


@given(text=texts, size=st.integers(16, 40), share=st.floats(0, 0.99))
@settings(max_examples=300)
def test_token_windows_are_langchains_pieces_in_their_places(text: str, size: int, share: float) -> None:
    overlap = int(size * share)
    chunks = pieces(f"tokens:{size}/{overlap}", text)
    theirs = RecursiveCharacterTextSplitter(
        chunk_size=size, chunk_overlap=overlap, length_function=count_words, strip_whitespace=False
    ).split_text(text)
    assert [chunk["text"] for chunk in chunks] == [piece for piece in theirs if piece.strip()]
    assert_exact(chunks, text)
    covered = 0
    for chunk in chunks:
        assert not text[covered : chunk["start"]].strip()  # only white space is ever left out
        assert count_words(chunk["text"]) <= size
        covered = max(covered, chunk["start"] + len(chunk["text"]))
    assert not text[covered:].strip()


def test_token_windows_find_their_place_in_a_text_that_repeats_itself() -> None:
    chunks = pieces("tokens:16/4", "echo " * 100)
    assert chunks[0]["text"] == "echo " * 15 + "echo"
    assert [chunk["start"] for chunk in chunks[:3]] == [0, 59, 119]
    ends = [chunk["start"] + len(chunk["text"]) for chunk in chunks]
    assert {end - later["start"] for end, later in zip(ends, chunks[1:], strict=False)} == {len(" echo" * 4)}


def test_paragraphs_stay_whole_where_they_fit() -> None:
    text = "one two three four\n\n" + "five six seven eight nine ten eleven twelve\n\nthirteen"
    assert [chunk["text"] for chunk in pieces("tokens:16/0", text)] == [
        "one two three four",
        "\n\nfive six seven eight nine ten eleven twelve\n\nthirteen",
    ]


@pytest.mark.parametrize("name", ["words:100", "tokens:64/16"])
@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_a_blank_text_has_no_chunks(name: str, text: str) -> None:
    assert pieces(name, text) == []


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("words:0300", "words:300"),
        (" tokens:512/064 ", "tokens:512/64"),
        ("semantic:0.6/512", "semantic:0.6/512"),
        (" semantic:0.60/0512", "semantic:0.6/512"),
        ("semantic:1.0/16", "semantic:1/16"),
        ("semantic:-1/16", "semantic:-1/16"),
        ("semantic:-0.0/16", "semantic:0/16"),
        ("semantic:0.123456789/16", "semantic:0.123456789/16"),
    ],
)
def test_names_have_one_spelling(name: str, canonical: str) -> None:
    chunker = open_chunker(name, len, ScriptedEncoder())
    assert chunker.name == canonical
    assert open_chunker(canonical, len, ScriptedEncoder()).name == canonical


@pytest.mark.parametrize(
    "name",
    [
        "",
        "words",
        "words:",
        "words:0",
        "words:-1",
        "words:1.5",
        "words:٣",
        "tokens:512",
        "semantic",
        "semantic:0.6",
        "semantic:/512",
        "semantic:nan/512",
        "semantic:0.6/512/64",
        "semantic:+0.6/512",
        "semantic:٠/512",
        "words:9999999999",
    ],
)
def test_unknown_names_are_refused_and_valid_ones_shown(name: str) -> None:
    with pytest.raises(UserFault, match=r"There is no chunker named .*words:100.*tokens:512/64.*semantic:0.6/512"):
        open_chunker(name, len)


@pytest.mark.parametrize("name", ["tokens:64/64", "tokens:64/65", "tokens:8/0"])
def test_impossible_sizes_are_refused(name: str) -> None:
    with pytest.raises(UserFault, match=re.escape(f"'{name}' is not a token chunker") + ".*tokens:512/64"):
        open_chunker(name, len)


@pytest.mark.parametrize("name", ["semantic:1.01/512", "semantic:-2/512", "semantic:0.6/15", "semantic:0.6/0"])
def test_impossible_cosines_and_sizes_are_refused(name: str) -> None:
    with pytest.raises(UserFault, match=re.escape(f"'{name}' is not a semantic chunker") + ".*semantic:0.6/512"):
        open_chunker(name, len, ScriptedEncoder())


@pytest.mark.parametrize("name", ["tokens:512/64", "semantic:0.6/512"])
def test_tokens_need_a_counter(name: str) -> None:
    with pytest.raises(UserFault, match=f"'{name}' counts tokens, and this encoder has no tokenizer to count with"):
        open_chunker(name, None, ScriptedEncoder())


def test_sentences_need_an_encoder() -> None:
    with pytest.raises(UserFault, match="needs an encoder"):
        open_chunker("semantic:0.6/512", len)


def test_the_title_is_embedded_with_every_chunk() -> None:
    first, second = pieces("words:1", "one two")
    assert embedding_text(first) == "Title\none "
    assert embedding_text(second) == "Title\ntwo"
    assert embedding_text({**first, "title": ""}) == "one "
