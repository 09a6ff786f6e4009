"""Published files as they are: how many questions, of which kind, and is gold where it is said to be?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from dubito.evals.answers import squad_normalised
from dubito.evals.datasets import Dataset, load_dataset, pooled, sample, write_corpus
from dubito.evals.questions import GoldQuestion
from dubito.retrieval.corpus import read_corpus


@pytest.fixture(scope="module")
def data(test_data: Path) -> Path:
    return test_data / "data"


def read(data: Path, kind: str, file: str) -> Dataset:
    path = data / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    dataset = load_dataset(f"{kind}:{path}")
    assert dataset.problems == ()
    assert len({one.id for one in dataset.questions}) == len(dataset.questions)
    return dataset


def gold_found(questions: tuple[GoldQuestion, ...]) -> tuple[int, int]:
    """Of how many questions with an answer in words an answer stands in the supporting paragraphs or their titles."""
    asked = [one for one in questions if one.kind == "text"]
    found = 0
    for one in asked:
        gold = [document for document in one.documents if document.id in one.gold_documents]
        text = squad_normalised(" ".join(f"{document.title} {document.text}" for document in gold))
        found += any(squad_normalised(answer) in text for answer in one.answers)
    return found, len(asked)


@pytest.mark.parametrize(
    ("kind", "file", "questions", "gold"),
    [
        ("2wiki", "2wikimultihopqa/dev_distractor.json", 74, (69, 69)),
        ("hotpotqa", "hotpotqa/dev_distractor_hf.jsonl", 200, (186, 186)),
        ("hotpotqa", "hotpotqa/dev_distractor_native.jsonl", 84, (78, 78)),
        ("musique", "musique/dev.jsonl", 129, (129, 129)),
        ("musique", "musique/train.json", 50, (50, 50)),
        ("musique", "musique/dev_unanswerable.jsonl", 23, (4, 23)),
        ("nq", "nq_with_context/odqa_nq.jsonl", 59, (59, 59)),
        ("popqa", "popqa/popqa.json", 200, (200, 200)),
        ("squad", "squad_xquad_en/xquad.en.json", 570, (570, 570)),
    ],
)
def test_gold_is_where_it_is_said_to_be(
    kind: str, file: str, questions: int, gold: tuple[int, int], data: Path
) -> None:
    dataset = read(data, kind, file)
    assert len(dataset.questions) == questions
    for one in dataset.questions:
        assert set(one.gold_documents) <= {document.id for document in one.documents}
    assert gold_found(dataset.questions) == gold


@pytest.mark.parametrize(
    ("kind", "file", "documents"),
    [
        ("2wiki", "2wikimultihopqa/dev_distractor.json", 638),
        ("hotpotqa", "hotpotqa/dev_distractor_hf.jsonl", 1988),
        ("hotpotqa", "hotpotqa/dev_distractor_native.jsonl", 835),
        ("musique", "musique/dev.jsonl", 2219),
        ("popqa", "popqa/popqa.json", 322),
    ],
)
def test_the_pool_holds_the_texts_of_the_file_and_outlives_writing(
    kind: str, file: str, documents: int, data: Path, tmp_path: Path
) -> None:
    corpus = pooled(read(data, kind, file).questions)
    of_the_file = read_corpus(data / file).documents
    assert len(corpus) == len(of_the_file) == documents
    assert [(one.title, one.text) for one in corpus] == [(one.title, one.text) for one in of_the_file]
    write_corpus(corpus, tmp_path / "corpus.jsonl")
    assert read_corpus(tmp_path / "corpus.jsonl").documents == corpus


@pytest.mark.parametrize(
    ("kind", "file", "questions", "yes_no"),
    [
        ("nq", "nq_open/NQ-open.dev.jsonl", 300, 0),
        ("triviaqa", "triviaqa_questions/odqa_trivia.jsonl", 113, 0),
        ("bamboogle", "bamboogle/bamboogle.json", 50, 1),
    ],
)
def test_questions_without_passages(kind: str, file: str, questions: int, yes_no: int, data: Path) -> None:
    dataset = read(data, kind, file)
    assert len(dataset.questions) == questions
    assert sum(one.kind == "yes_no" for one in dataset.questions) == yes_no
    assert not any(one.documents or one.gold_documents for one in dataset.questions)
    assert len(sample(dataset.questions, 20, 1)) == 20


def test_open_questions_of_2wiki_name_documents_of_its_corpus(data: Path) -> None:
    questions = read(data, "2wiki", "2wikimultihopqa/dev_open_corpus.json").questions
    by_id = {one.id: one for one in read_corpus(data / "2wikimultihopqa" / "2wikimultihopqa_corpus.json").documents}
    assert len(questions) == 177
    assert not any(one.documents for one in questions)
    found = asked = 0
    for one in questions:
        assert set(one.gold_documents) <= by_id.keys()
        if one.kind == "text":
            text = squad_normalised(" ".join(f"{name} {by_id[name].text}" for name in one.gold_documents))
            asked += 1
            found += any(squad_normalised(answer) in text for answer in one.answers)
    assert (asked, round(found / asked, 3)) == (154, 0.994)


def test_hops_of_musique(data: Path) -> None:
    questions = read(data, "musique", "musique/dev.jsonl").questions
    assert Counter(len(one.gold_documents) for one in questions) == {2: 90, 3: 22, 4: 17}
    assert all(one.answerable for one in questions)
    assert all(len(one.documents) == 20 for one in questions)
    contrast = read(data, "musique", "musique/dev_unanswerable.jsonl").questions
    assert not any(one.answerable for one in contrast)
    assert all(one.answers for one in contrast)


def test_articles_of_squad(data: Path) -> None:
    corpus = pooled(read(data, "squad", "squad_xquad_en/xquad.en.json").questions)
    assert (len(corpus), len({one.title for one in corpus})) == (120, 24)


def test_evidence_of_strategyqa(data: Path) -> None:
    questions = read(data, "strategyqa", "strategyqa/dev.json").questions
    assert len(questions) == 119
    assert {one.kind for one in questions} == {"yes_no"}
    for one in questions:
        assert one.gold_documents
        assert set(one.gold_documents) <= {document.id for document in one.documents}


def test_two_relations_of_popqa(data: Path) -> None:
    questions = read(data, "popqa", "popqa/popqa.json").questions
    assert all(len(one.documents) == len(one.gold_documents) == 2 for one in questions)


@pytest.mark.parametrize("file", ["evouna/NQ.json", "rgb/en_fact.json", "nli/snli_dev.jsonl"])
@pytest.mark.parametrize("kind", ["nq", "hotpotqa", "squad", "jsonl"])
def test_files_that_are_no_dataset_of_questions_are_refused(kind: str, file: str, data: Path) -> None:
    from dubito.errors import UserFault  # noqa: PLC0415

    if not (data / file).exists():
        pytest.skip(f"{data / file} is not there")
    with pytest.raises(UserFault, match=r"so there are no questions\.$"):
        load_dataset(f"{kind}:{data / file}", on_bad_record="skip")
