"""Sentences are exact slices; semantic chunks are Algorithm 2's, never too long, and joined they are the document."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencex
from dubito.errors import UserFault
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.interfaces import Vectors
from dubito.models.weights import minilm_folder
from dubito.retrieval.chunkers import chunker_for, open_chunker
from dubito.retrieval.chunking import TokenWindows
from dubito.retrieval.corpus import Document
from dubito.retrieval.index import Index, cached_index
from dubito.retrieval.semantic_chunks import BATCH
from dubito.retrieval.sentences import sentences
from dubito.state.records import Chunk
from dubito.tests.json_lines import write_lines
from hypothesis import example, given, settings
from hypothesis import strategies as st

some_words = [
    "A cat sat.",
    "Dogs bark!",
    "Why?",
    "你好。",
    "3.14",
    "Dr. Who",
    "J.",
    "😀",
    "word",
    "x" * 40,
    "e.g.",
    "…",
    '"',
]
some_spaces = [" ", "\n", "\n\n", "\r\n\r\n", "\t", "\u3000", "\u00a0", "\x85", "\x1c", "\u2028", " \n \n"]
texts = st.one_of(
    st.lists(st.sampled_from(some_words + some_spaces), max_size=60).map("".join),
    st.lists(st.sampled_from(some_words), max_size=60).map(" ".join),
    st.text(st.characters(), max_size=200),
    st.text(st.sampled_from(" \n\t\u3000\r"), max_size=30),
)


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def count_words(text: str) -> int:
    """A stand-in for a tokenizer: white space is free, a word costs a token for every four characters."""
    return sum(-(-len(word) // 4) for word in text.split())


class Scripted:
    """Unit vectors on a circle: at the angle given for a text, in degrees, else at one that hangs on the text."""

    name = "scripted"

    def __init__(self, angles: dict[str, float] | None = None) -> None:
        self.angles = angles or {}
        self.batches: list[list[str]] = []

    async def dimension(self) -> int:
        return 2

    async def max_tokens(self) -> int | None:
        return None

    async def token_counter(self) -> Callable[[str], int]:
        return count_words

    def angle(self, text: str) -> float:
        made_up = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] * 360 / 256
        return self.angles.get(text, made_up)

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.batches.append(list(texts))
        angles = np.radians([self.angle(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def cut(
    text: str, name: str, encoder: Scripted | None = None, count: Callable[[str], int] = count_words
) -> list[Chunk]:
    return list(asyncio.run(open_chunker(name, count, encoder or Scripted()).cut([Document("doc", "Title", text)])))


@given(text=texts)
@example("He left.\r\n\r\nShe stayed. J.\u00a0. A B\u3000. x")
@example("\ud800 a. B. \udfff")
@settings(max_examples=100)
def test_sentences_are_the_text_and_begin_with_something_to_read(text: str) -> None:
    pieces = split(text)
    assert "".join(pieces) == text
    assert all(piece for piece in pieces)
    assert not any(piece[0].isspace() for piece in pieces[1:])
    assert all(piece.strip() for piece in pieces) or not text.strip()


@pytest.mark.parametrize(
    "expected",
    [
        [],
        [" \n\t"],
        ["no full stop"],
        ["Dr. Smith paid 3.14 dollars. ", "He left.  \n\n", "Was it much? ", "No!"],
        ["Mr. J. R. Smith of the U.S. Army came at 5 p.m. ", "Then he left."],
        ["A title\n\n", "The text. "],
        ["A title\r\n\r\n", "The text. "],
        ["A title\n \n", "The text. "],
        ["  It began late. ", "It ended."],
        ["你好。", "世界！"],
        ["😀 He laughed. ", "She wept. "],
        ["One half \ud800 here. ", "Two."],
        ["First.\u00a0", "Second."],
        ["It was A. B\u2028. ", "Then he left. ", "She stayed."],
        ["a line\nand the next one"],
    ],
)
def test_sentences(expected: list[str]) -> None:
    assert split("".join(expected)) == expected


def test_a_text_without_a_full_stop_is_one_sentence() -> None:
    assert split("word " * 20_000) == ["word " * 20_000]
    assert split(" " * 100_000) == [" " * 100_000]


def test_a_panic_of_the_library_costs_the_boundaries_of_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # as PyO3 names it, in no module
        pass

    def panic(*_: object) -> None:
        raise PanicException("end byte index 9 is not a char boundary")

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", panic)
    assert split("One. Two.") == ["One. Two."]


def test_an_interrupt_is_no_panic(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sentences("A text.")


def algorithm_2(text: str, encoder: Scripted, tau: float, most: int) -> list[tuple[int, int]]:
    """Straight from the page, over the sentences, or parts of them, and with equation 7's "at least"."""
    parts = []
    for start, end in sentences(text):
        if count_words(text[start:end]) <= most:
            parts.append((start, end))
            continue
        pieces = list(TokenWindows(most, 0, count_words).spans(text[start:end]))
        for number, (first, _) in enumerate(pieces):
            begin = start + first if number else start
            parts.append((begin, start + pieces[number + 1][0] if number + 1 < len(pieces) else end))
    if not text.strip():
        return []
    chunks = []
    c = parts[0]
    for i in range(len(parts) - 1):
        e_i, e_next = (np.radians(encoder.angle(text[a:b].strip())) for a, b in parts[i : i + 2])
        sim = np.cos(e_i) * np.cos(e_next) + np.sin(e_i) * np.sin(e_next)
        s_next = parts[i + 1]
        if sim >= tau - 1e-6 and count_words(text[c[0] : s_next[1]]) <= most:
            c = (c[0], s_next[1])
        else:
            chunks.append(c)
            c = s_next
    return [*chunks, c]


@given(text=texts, tau=st.sampled_from([-1, -0.5, 0, 0.3, 0.6, 0.95, 1]), most=st.integers(16, 40))
@example(text="x" * 80 + "\n", tau=0, most=16)  # the splitter leaves the last line out
@settings(max_examples=100)
def test_chunks_are_those_of_algorithm_2_and_joined_the_document(text: str, tau: float, most: int) -> None:
    encoder = Scripted()
    chunks = cut(text, f"semantic:{tau}/{most}", encoder)
    assert "".join(chunk["text"] for chunk in chunks) == (text if text.strip() else "")
    assert all(count_words(chunk["text"]) <= most for chunk in chunks)
    spans = [(chunk["start"], chunk["start"] + len(chunk["text"])) for chunk in chunks]
    assert spans == algorithm_2(text, encoder, tau, most)
    assert [chunk["id"] for chunk in chunks] == [f"doc#s{number}" for number in range(len(chunks))]
    assert all((chunk["doc_id"], chunk["title"]) == ("doc", "Title") for chunk in chunks)
    assert all(text[chunk["start"] :].startswith(chunk["text"]) for chunk in chunks)


@given(text=texts, most=st.integers(16, 40))
@settings(max_examples=100)
def test_where_white_space_costs_tokens_nothing_but_white_space_is_left_out(text: str, most: int) -> None:
    chunks = cut(text, f"semantic:-1/{most}", count=len)
    assert all(0 < len(chunk["text"]) <= most and chunk["text"].strip() for chunk in chunks)
    reached = 0
    for chunk in chunks:
        assert not text[reached : chunk["start"]].strip()
        assert text[chunk["start"] :].startswith(chunk["text"])
        reached = chunk["start"] + len(chunk["text"])
    assert not text[reached:].strip()


ABCD = "Aa. Bb. Cc. Dd. "


def test_each_sentence_is_compared_with_the_one_before_it_not_with_the_chunk() -> None:
    # 40 degrees a step: neighbours have a cosine of 0.77, the first and the third of 0.17, and then a step of 90
    encoder = Scripted({"Aa.": 0, "Bb.": 40, "Cc.": 80, "Dd.": 170})
    assert [chunk["text"] for chunk in cut(ABCD, "semantic:0.6/512", encoder)] == ["Aa. Bb. Cc. ", "Dd. "]


@pytest.mark.parametrize(("tau", "chunks"), [("0.5", 1), ("0.500002", 4), ("1", 4), ("-1", 1)])
def test_a_cosine_of_exactly_tau_joins(tau: str, chunks: int) -> None:
    encoder = Scripted({"Aa.": 0, "Bb.": 60, "Cc.": 120, "Dd.": 180})
    assert len(cut(ABCD, f"semantic:{tau}/512", encoder)) == chunks


def test_equal_sentences_join_at_tau_one() -> None:
    encoder = Scripted({"Aa.": 33.3})
    assert len(cut("Aa. " * 50, "semantic:1/512", encoder)) == 1


def test_a_chunk_is_full_at_t_max_and_the_next_may_go_on() -> None:
    encoder = Scripted({"Aa bb cc dd ee.": 0})  # five tokens
    sizes = [len(chunk["text"]) for chunk in cut("Aa bb cc dd ee. " * 7, "semantic:0.6/20", encoder)]
    assert sizes == [4 * 16, 3 * 16]
    assert [len(chunk["text"]) for chunk in cut("Aa bb cc dd ee. " * 7, "semantic:0.6/19", encoder)] == [48, 48, 16]


def test_a_chunk_is_counted_whole() -> None:
    def count(text: str) -> int:  # a tokenizer with a token for the beginning of every text
        return 1 + count_words(text)

    encoder = Scripted({"Aa bb cc dd ee.": 0})
    chunks = cut("Aa bb cc dd ee. " * 3, "semantic:0.6/16", encoder, count)
    assert len(chunks) == 1  # 16, where the sum of the sentences would be 18


def test_a_sentence_that_is_too_long_is_split_and_its_parts_join_by_the_rule() -> None:
    text = "Hi. " + "one two three four five six seven eight nine " * 4 + "end. Bye."  # 1, 49 and 1 tokens
    parts = [
        "Hi. ",
        "one two three four five six seven eight nine one two three",
        " four five six seven eight nine one two three four five six",
        " seven eight nine one two three four five six seven eight",
        " nine end. ",
        "Bye.",
    ]
    apart = Scripted({part.strip(): 100.0 * number for number, part in enumerate(parts)})
    assert [chunk["text"] for chunk in cut(text, "semantic:0.6/16", apart)] == parts
    alike = Scripted({part.strip(): 0.0 for part in parts})
    joined = [*parts[:4], " nine end. Bye."]  # the others are full
    assert [chunk["text"] for chunk in cut(text, "semantic:0.6/16", alike)] == joined


async def test_sentences_of_many_documents_are_embedded_in_batches_and_told_of() -> None:
    encoder = Scripted({"Aa.": 0})
    told: list[Any] = []
    documents = [Document(f"d{i}", "", "Aa. " * 7) for i in range(100)]
    chunks = await open_chunker("semantic:0.6/512", count_words, encoder).cut(documents, lambda *s: told.append(s))
    assert [len(batch) for batch in encoder.batches] == [BATCH, BATCH, 700 - 2 * BATCH]
    assert {text for batch in encoder.batches for text in batch} == {"Aa."}
    assert told == [(BATCH, 700), (2 * BATCH, 700), (700, 700)]
    # documents are never joined, and a sentence is compared across the batches
    assert [(chunk["id"], chunk["text"]) for chunk in chunks] == [(f"d{i}#s0", "Aa. " * 7) for i in range(100)]


def test_a_document_of_many_batches_is_cut_by_algorithm_2_too() -> None:
    text = "".join(f"Number {i}. " for i in range(3 * BATCH))
    # the first of a batch is like the last before it, and like nothing else nearby
    encoder = Scripted({f"Number {i}.": (i // BATCH) * 180 + (i % BATCH) * 180 / (BATCH - 1) for i in range(3 * BATCH)})
    chunks = cut(text, "semantic:0.9999/99999", encoder)
    assert [chunk["text"] for chunk in chunks] == [text]
    encoder.angles[f"Number {BATCH}."] = 0
    spans = [(chunk["start"], chunk["start"] + len(chunk["text"])) for chunk in cut(text, "semantic:0.6/64", encoder)]
    assert spans == algorithm_2(text, encoder, 0.6, 64)
    assert spans != algorithm_2(text, Scripted(), 0.6, 64)


async def test_blank_documents_and_none_at_all_have_no_chunks() -> None:
    encoder = Scripted()
    chunker = open_chunker("semantic:0.6/512", count_words, encoder)
    assert await chunker.cut([]) == await chunker.cut([Document("a", "", ""), Document("b", "T", " \n")]) == []
    assert encoder.batches == []


async def test_an_encoder_that_loses_a_text_is_named() -> None:
    class Lossy(Scripted):
        async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
            return (await super().embed(texts))[1:]

    with pytest.raises(UserFault, match="'scripted' gave 3 vectors for 4 texts"):
        await open_chunker("semantic:0.6/512", count_words, Lossy()).cut([Document("a", "", ABCD)])


async def test_an_index_of_semantic_chunks_is_built_once_and_tells_of_sentences_and_chunks(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    write_lines(corpus, ({"title": f"T{i}", "text": ABCD} for i in range(3)))
    encoder = Scripted({"Aa.": 0, "Bb.": 10, "Cc.": 180, "Dd.": 190})
    told: list[Any] = []

    async def index(name: str = "semantic:0.6/512") -> Index:
        told.clear()
        tells: dict[str, Any] = {
            kind: lambda *step, kind=kind: told.append((kind, *step)) for kind in ("progress", "comparing")
        }
        return await cached_index(corpus, name, encoder, tmp_path / "cache", **tells)

    assert (await index()).manifest.chunker == "semantic:0.6/512"
    assert told == [("comparing", 12, 12), ("progress", 6, 6)]
    pool = await (await index(" semantic:0.60/512")).pool("?", None)
    assert told == []
    assert [pool.chunk(i)["id"] for i in range(2)] == ["T0#s0", "T0#s1"]
    assert [pool.chunk(i)["text"] for i in range(2)] == ["Aa. Bb. ", "Cc. Dd. "]
    np.testing.assert_array_equal(pool.vectors[:1], await encoder.embed(["T0\nAa. Bb. "]))
    assert (await index("semantic:0.7/512")).manifest.chunker == "semantic:0.7/512"
    assert told != []


async def test_nothing_of_it_blocks_the_event_loop() -> None:
    blockbuster = pytest.importorskip("blockbuster")
    with blockbuster.blockbuster_ctx():
        await open_chunker("semantic:0.6/16", count_words, Scripted()).cut([Document("a", "", ABCD * 50)])


@pytest.mark.weights
async def test_a_text_is_split_where_its_topic_changes() -> None:
    volcano = "The volcano Mount Tambora erupted in 1815. The eruption of Mount Tambora was the largest in history. "
    bread = "Bread dough is made of flour, water and yeast. Yeast makes the bread dough rise."
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    chunker = await chunker_for("semantic:0.6/512", encoder)
    chunks = await chunker.cut([Document("doc", "", volcano + bread)])
    assert [chunk["text"] for chunk in chunks] == [volcano, bread]
    vectors = await encoder.embed([piece.strip() for piece in split(volcano + bread)])
    assert ((vectors[:-1] * vectors[1:]).sum(axis=1) >= 0.6).tolist() == [True, False, True]


@pytest.mark.weights
async def test_real_tokens_never_exceed_t_max() -> None:
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    count = await encoder.token_counter()
    assert count is not None
    text = " ".join(
        f"Sentence {i} of a text, n° {i * 37}, is about naïve 你好 things-{'x' * (i % 50)}." for i in range(60)
    )
    long = text + " " + re.sub(r"[.]", ",", text)
    chunks = await (await chunker_for("semantic:-1/64", encoder)).cut([Document("doc", "", long)])
    assert "".join(chunk["text"] for chunk in chunks) == long
    assert max(count(chunk["text"]) for chunk in chunks) <= 64
