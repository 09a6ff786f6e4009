"""A sample that is the same everywhere, and a corpus that keeps its ids."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from dubito.errors import UserFault
from dubito.evals.datasets import load_dataset, pooled, sample, write_corpus
from dubito.evals.questions import GoldQuestion
from dubito.retrieval.corpus import Document, read_corpus
from hypothesis import given
from hypothesis import strategies as st

IDS = st.lists(st.text(min_size=1), min_size=1, max_size=30, unique=True)


def asked(ids: list[str]) -> list[GoldQuestion]:
    return [GoldQuestion("Who?", ("Ada",), one) for one in ids]


@given(IDS, st.integers(1, 40), st.integers())
def test_a_sample(ids: list[str], n: int, seed: int) -> None:
    questions = asked(ids)
    drawn = sample(questions, n, seed)
    assert drawn == sample(questions, n, seed)
    assert len(drawn) == min(n, len(ids))
    places = [ids.index(one.id) for one in drawn]
    assert places == sorted(set(places))
    assert set(sample(questions, max(1, n - 1), seed)) <= set(drawn)
    assert set(sample(questions[::-1], n, seed)) == set(drawn)


def test_a_sample_is_drawn_by_hashes() -> None:
    ids = [f"q{n}" for n in range(50)]
    ranked = sorted(ids, key=lambda one: hashlib.sha256(f'[7, "{one}"]'.encode()).hexdigest())[:5]
    assert [one.id for one in sample(asked(ids), 5, 7)] == sorted(ranked, key=ids.index)
    assert sample(asked(ids), 5, 7) != sample(asked(ids), 5, 8)
    assert sample(asked(ids), 5) == sample(asked(ids), 5, 0)


def test_samples_of_questions_without_ids() -> None:
    questions = [GoldQuestion(f"{n}?", ("Ada",)) for n in range(20)]
    assert len(sample(questions, 5)) == 5
    assert set(sample(questions, 5)) == set(sample(questions[::-1], 5))


def test_samples_of_nothing() -> None:
    with pytest.raises(UserFault, match="A sample of 0 questions cannot be drawn: give 1 or more"):
        sample(asked(["a"]), 0)


def test_equal_paragraphs_are_pooled_and_those_with_one_title_are_not(tmp_path: Path) -> None:
    shared, first, second = ["Ada", ["She did."]], ["Brand", ["A town."]], ["Brand", ["A name."]]
    records = [
        {"id": "1", "question": "a?", "answer": "x", "context": [shared, first], "supporting_facts": [["Brand", 0]]},
        {"id": "2", "question": "b?", "answer": "y", "context": [second, shared], "supporting_facts": [["Brand", 0]]},
    ]
    (tmp_path / "x.json").write_text(json.dumps(records))
    questions = load_dataset(f"hotpotqa:{tmp_path / 'x.json'}").questions
    corpus = pooled(questions)
    assert [(one.title, one.text) for one in corpus] == [
        ("Ada", "She did."),
        ("Brand", "A town."),
        ("Brand", "A name."),
    ]
    by_id = {one.id: one.text for one in corpus}
    assert len(by_id) == 3
    assert [by_id[name] for one in questions for name in one.gold_documents] == ["A town.", "A name."]
    assert pooled(questions[1:]) == tuple(corpus[place] for place in (2, 0))


def test_documents_that_differ_under_one_id() -> None:
    one, other = Document("1", "", "a"), Document("1", "", "b")
    questions = [GoldQuestion("Who?", ("Ada",), name, documents=(doc,)) for name, doc in {"x": one, "y": other}.items()]
    with pytest.raises(UserFault, match="Two different documents have the id '1'"):
        pooled(questions)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.dictionaries(TEXTS.map(str.strip), st.tuples(TEXTS.map(str.strip) | st.just(""), TEXTS), min_size=1))
def test_ids_outlive_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, tuple[str, str]]
) -> None:
    documents = tuple(Document(name, title, text) for name, (title, text) in made.items())
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_corpus(documents, path)
    assert read_corpus(path).documents == documents


def test_corpora_that_cannot_be_written(tmp_path: Path) -> None:
    right = Document("1", "", "a")
    for documents, name, said in [
        ([], "c.jsonl", "There are no documents to write"),
        ([right], "c.md", r"give a name that ends with \.jsonl in place of"),
        ([right, right], "c.jsonl", "Documents with the same id cannot be written"),
        ([Document("1", "", " ")], "c.jsonl", "The document '1' has no text"),
        ([Document(" 1", "", "a")], "c.jsonl", "The document ' 1' has no text, or an id with white space"),
        ([right], "none/c.jsonl", "The corpus cannot be written to '.*c.jsonl' \\(No such file"),
    ]:
        with pytest.raises(UserFault, match=said):
            write_corpus(documents, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
