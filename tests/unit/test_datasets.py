"""Every layout, by records as they are published: what is asked, what is right, what can be read, what is gold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.datasets import KINDS, Dataset, load_dataset
from dubito.evals.datasets.kinds import looks_like
from dubito.evals.questions import GoldQuestion
from dubito.tests.json_lines import write_lines

CONTEXT = [["Ada", ["Ada was born in Brand.", " She wrote."]], ["Brand", ["Brand is a town.", "It lies by the Lune."]]]
TABLE = {"title": ["Ada", "Brand"], "sentences": [CONTEXT[0][1], CONTEXT[1][1]]}
HOTPOT = {
    "_id": "h1",
    "question": "By which river was Ada born?",
    "answer": "Lune",
    "type": "bridge",
    "supporting_facts": [["Ada", 0], ["Brand", 1], ["Ada", 1]],
    "context": CONTEXT,
}
MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Ada", "paragraph_text": "Ada was born in Brand.", "is_supporting": True},
        {"idx": 1, "title": "Brand", "paragraph_text": "Another Brand.", "is_supporting": False},
        {"idx": 2, "title": "Brand", "paragraph_text": "Brand lies by the Lune.", "is_supporting": True},
    ],
    "question": "By which river was Ada born?",
    "question_decomposition": [{"id": 1, "paragraph_support_idx": 0}, {"id": 2, "paragraph_support_idx": 2}],
    "answer": "Lune",
    "answer_aliases": ["the Lune", "Lune"],
}


def as_list(path: Path, *records: Any) -> Path:
    path.write_text(json.dumps(list(records), indent=1), encoding="utf-8")
    return path


def as_lines(path: Path, *records: Any) -> Path:
    return write_lines(path, records)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def load(kind: str, *records: Any, **how: Any) -> Dataset:
        return load_dataset(f"{kind}:{as_list(tmp_path / 'x.json', *records)}", **how)

    return load


def hash_of(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def titles(question: GoldQuestion) -> list[str]:
    by_id = {document.id: document.title for document in question.documents}
    return [by_id[name] for name in question.gold_documents]


@pytest.mark.parametrize(("kind", "write"), [("hotpotqa", as_list), ("2wiki", as_lines)])
def test_paragraphs_with_titles(kind: str, write: Any, tmp_path: Path) -> None:
    marks: dict[str, Any] = {"evidences": [["Ada", "born in", "Brand"]]} if kind == "2wiki" else {}
    table = {"id": "h1", "supporting_facts": {"title": ["Ada", "Brand", "Ada"], "sent_id": [0, 1, 1]}, "context": TABLE}
    published = load_dataset(f"{kind}:{write(tmp_path / 'a', HOTPOT | marks)}")
    hub = load_dataset(f"{kind}:{write(tmp_path / 'b', {**HOTPOT, '_id': None, **marks, **table})}")
    assert published.name == f"{kind}:a"
    assert published.problems == ()
    (found,) = published.questions
    assert hub.questions == published.questions
    assert (found.question, found.answers, found.id) == ("By which river was Ada born?", ("Lune",), "h1")
    assert (found.kind, found.answerable) == ("text", True)
    assert [(one.title, one.text) for one in found.documents] == [
        ("Ada", "Ada was born in Brand. She wrote."),
        ("Brand", "Brand is a town. It lies by the Lune."),
    ]
    assert titles(found) == ["Ada", "Brand"]
    assert found.documents[0].id == f"Ada #{hash_of('Ada', 'Ada was born in Brand. She wrote.')[:8]}"


def test_without_paragraphs_gold_are_titles_of_an_open_corpus(read: Any) -> None:
    open_corpus = {name: value for name, value in HOTPOT.items() if name != "context"} | {"evidences": []}
    (found,) = read("2wiki", open_corpus).questions
    assert found.documents == ()
    assert found.gold_documents == ("Ada", "Brand")


def test_paragraphs_with_one_title(read: Any) -> None:
    twice = [*CONTEXT, ["Brand", ["Brand is a name."]], CONTEXT[0]]
    (found,) = read("hotpotqa", HOTPOT | {"context": twice}).questions
    assert [one.title for one in found.documents] == ["Ada", "Brand", "Brand"]
    assert len({one.id for one in found.documents}) == 3
    assert titles(found) == ["Ada", "Brand", "Brand"]


def test_paragraphs_without_text_and_support_from_elsewhere_are_told(read: Any) -> None:
    odd = HOTPOT | {"context": [*CONTEXT, ["Empty", []]], "supporting_facts": [["Ada", 0], ["Elsewhere", 0]]}
    dataset = read("hotpotqa", odd)
    (found,) = dataset.questions
    assert [one.title for one in found.documents] == ["Ada", "Brand"]
    assert found.gold_documents == (found.documents[0].id, "Elsewhere")
    empty, elsewhere = dataset.problems
    assert empty.endswith("x.json', record 1: the paragraph 'Empty' has no text and is left out")
    assert "'Elsewhere' supports the answer but is not among its paragraphs" in elsewhere
    with pytest.raises(UserFault, match="record 1: its supporting paragraph 'Empty' has no text"):
        read("hotpotqa", odd | {"supporting_facts": [["Empty", 0]]})


@pytest.mark.parametrize(
    ("given", "kind", "right"),
    [
        ("No.", "yes_no", ("no",)),
        ("Yes", "yes_no", ("yes",)),
        ("Yes, Minister", "text", ("Yes, Minister",)),
    ],
)
def test_yes_and_no(given: str, kind: str, right: tuple[str, ...], read: Any) -> None:
    (found,) = read("hotpotqa", HOTPOT | {"answer": given}).questions
    assert (found.kind, found.answers) == (kind, right)


def test_it_is_no_question_of_yes_or_no_if_one_answer_is_neither(read: Any) -> None:
    mixed, both = read(
        "nq", {"question": "a", "answer": ["Yes", "it is"]}, {"question": "b", "answer": ["Yes", "no", "yes."]}
    ).questions
    assert (mixed.kind, mixed.answers) == ("text", ("Yes", "it is"))
    assert (both.kind, both.answers) == ("yes_no", ("yes", "no"))


def test_musique(read: Any) -> None:
    (found,) = read("musique", MUSIQUE).questions
    assert (found.id, found.answers, found.answerable) == ("2hop__1_2", ("Lune", "the Lune"), True)
    assert [one.text for one in found.documents] == [one["paragraph_text"] for one in MUSIQUE["paragraphs"]]  # type: ignore[index]
    assert found.gold_documents == (found.documents[0].id, found.documents[2].id)
    assert len({one.id for one in found.documents}) == 3


def test_what_musique_cannot_answer(read: Any) -> None:
    paragraphs: Any = MUSIQUE["paragraphs"]
    without = MUSIQUE | {"paragraphs": paragraphs[:2]}
    twins = read("musique", without, MUSIQUE | {"answerable": True})
    assert [(one.id, one.answerable) for one in twins.questions] == [
        ("2hop__1_2#unanswerable", False),
        ("2hop__1_2", True),
    ]
    assert twins.questions[0].answers == ("Lune", "the Lune")
    assert titles(twins.questions[0]) == ["Ada"]
    (told,) = read("musique", MUSIQUE | {"answerable": False}).questions
    assert not told.answerable


def test_natural_questions(read: Any) -> None:
    nq_open = {"question": "who sang it", "answer": ["Ada", "Ada Brand"]}
    passage = {"question": "what year", "context": "In 1815 .", "title": "Year", "answer": "['1815', \"d\\'Abo\"]"}
    first, second, third = read(
        "nq",
        nq_open,
        passage | {"id": -5973003791441271262, "dataset": "nq"},
        passage | {"example_id": 7, "answer": None, "short_answers": '["1816"]'},
    ).questions
    assert (first.answers, first.documents, first.gold_documents) == (("Ada", "Ada Brand"), (), ())
    assert first.id == hash_of("who sang it")[:16]
    assert (second.id, second.answers) == ("-5973003791441271262", ("1815", "d'Abo"))
    assert titles(second) == ["Year"]
    assert (third.id, third.answers) == ("7", ("1816",))


def test_triviaqa(tmp_path: Path) -> None:
    answer = {"Value": "Ada", "Aliases": ["ada b", "Ada"], "NormalizedAliases": ["adab"], "Type": "WikipediaEntity"}
    published = tmp_path / "published.json"
    published.write_text(json.dumps({"Data": [{"Answer": answer, "Question": "Who?", "QuestionId": "tc_1"}]}, indent=2))
    table = {"question": "Who?", "question_id": "tc_1", "answer": {"value": "Ada", "aliases": ["ada b"]}}
    texts = {"question": "Who?", "answer": "['Ada', 'ada b']", "dataset": "trivia"}
    expected = GoldQuestion("Who?", ("Ada", "ada b"), "tc_1")
    assert load_dataset(f"triviaqa:{published}").questions == (expected,)
    assert load_dataset(f"triviaqa:{as_lines(tmp_path / 'table', table)}").questions == (expected,)
    (found,) = load_dataset(f"triviaqa:{as_lines(tmp_path / 'texts', texts)}").questions
    assert found == GoldQuestion("Who?", ("Ada", "ada b"), hash_of("Who?")[:16])


def test_ambignq(read: Any) -> None:
    one = {"type": "singleAnswer", "answer": ["1815"]}
    readings = [{"question": "First?", "answer": ["1987", "in 1987"]}, {"question": "Then?", "answer": ["1989"]}]
    many = {"type": "multipleQAs", "qaPairs": readings}
    table = {
        "type": ["singleAnswer", "multipleQAs"],
        "answer": [["1815"], []],
        "qaPairs": [
            {"question": [], "answer": []},
            {"question": ["First?", "Then?"], "answer": [["1987", "in 1987"], ["1989"]]},
        ],
    }
    for given in ([one, many], table):
        (found,) = read("ambignq", {"id": "-4", "question": "When?", "annotations": given}).questions
        assert found == GoldQuestion("When?", ("1815", "1987", "in 1987", "1989"), "-4")


def test_popqa(read: Any) -> None:
    bare = {"id": 886, "question": "In what city?", "possible_answers": '["Belfast", "B\\u00e9al Feirste"]'}
    paragraphs = [
        {"title": "Sam", "text": "Sam was born in Belfast.", "is_supporting": True},
        {"title": "Cork", "text": "Cork is a city.", "is_supporting": False},
    ]
    first, second = read("popqa", bare, bare | {"id": 887, "paragraphs": paragraphs}).questions
    assert first == GoldQuestion("In what city?", ("Belfast", "Béal Feirste"), "886")
    assert (second.id, len(second.documents), titles(second)) == ("887", 2, ["Sam"])


def test_squad(tmp_path: Path) -> None:
    right = {"id": "s1", "question": "Where?", "answers": [{"text": "Brand", "answer_start": 4}, {"text": "Brand"}]}
    none = {"id": "s2", "question": "When?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "x"}]}
    paragraph = {"context": "In a Brand.", "qas": [right, none]}
    published = tmp_path / "squad.json"
    published.write_text(json.dumps({"version": "2", "data": [{"title": "A_Town", "paragraphs": [paragraph]}]}))
    first, second = load_dataset(f"squad:{published}").questions
    assert (first.id, first.answers, first.answerable) == ("s1", ("Brand",), True)
    assert [(one.title, one.text) for one in first.documents] == [("A Town", "In a Brand.")]
    assert titles(first) == ["A Town"]
    assert (second.id, second.answers, second.answerable, second.gold_documents) == ("s2", (), False, ())
    assert second.documents == first.documents
    rows = [
        {"id": "s1", "title": "A_Town", "context": "In a Brand.", "question": "Where?"}
        | {"answers": {"text": ["Brand", "Brand"], "answer_start": [4, 4]}},
        {"id": "s2", "title": "A_Town", "context": "In a Brand.", "question": "When?"}
        | {"answers": {"text": [], "answer_start": []}},
    ]
    assert load_dataset(f"squad:{as_lines(tmp_path / 'rows', *rows)}").questions == (first, second)


STRATEGY = {
    "qid": "q1",
    "term": "Ada",
    "question": "Could Ada swim?",
    "answer": True,
    "evidence": [
        [[["Missing-1", "Ada-3"]], ["operation"]],
        [[["Ada-3", "Lune-1"]], [["Ada-3"], "no_evidence"]],
        [["no_evidence"], [["Lune-2"]]],
    ],
}
PARAGRAPHS = [
    {"title": "Ada", "para_index": 3, "contents": "Ada swam."},
    {"title": "Lune", "para_index": 1, "contents": "The Lune."},
    {"title": "Lune", "para_index": 2, "contents": "A river."},
]


def test_strategyqa(tmp_path: Path) -> None:
    file = as_list(tmp_path / "dev.json", STRATEGY, STRATEGY | {"qid": "q2", "answer": False, "evidence": None})
    first, second = load_dataset(f"strategyqa:{file}").questions
    assert (first.answers, first.kind, first.id) == (("yes",), "yes_no", "q1")
    assert (second.answers, second.kind, second.gold_documents) == (("no",), "yes_no", ())
    assert (first.documents, first.gold_documents) == ((), ("Missing-1", "Ada-3"))


@pytest.mark.parametrize("name", ["strategyqa_train_paragraphs.json", "strategyQA_aug_context.jsonl"])
def test_strategyqa_with_its_paragraphs_beside_it(name: str, tmp_path: Path) -> None:
    if name.endswith("l"):
        as_lines(tmp_path / name, *PARAGRAPHS)
    else:
        by_id = {
            f"{one['title']}-{one['para_index']}": {**one, "content": one["contents"], "contents": None}
            for one in PARAGRAPHS
        }
        (tmp_path / name).write_text(json.dumps({key: without_null(one) for key, one in by_id.items()}))
    (found,) = load_dataset(f"strategyqa:{as_list(tmp_path / 'dev.json', STRATEGY)}").questions
    assert [(one.id, one.title, one.text) for one in found.documents] == [
        ("Ada-3", "Ada", "Ada swam."),
        ("Lune-1", "Lune", "The Lune."),
        ("Lune-2", "Lune", "A river."),
    ]
    assert found.gold_documents == ("Ada-3", "Lune-1")


def without_null(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def test_bamboogle(read: Any) -> None:
    record = {
        "Question": "What was the toll?",
        "Answer": "52",
        "Q1": "Which?",
        "A1": ["wilma"],
        "Q2": "?",
        "A2": ["52"],
    }
    assert read("bamboogle", record).questions == (
        GoldQuestion("What was the toll?", ("52",), hash_of("What was the toll?")[:16]),
    )


def iirc(answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    question = {"qid": "q_1", "question": "How old?", "answer": answer, "question_links": ["Brand"]} | more
    links = [{"indices": [0, 3], "target": "Brand"}, {"indices": [4, 8], "target": "Lune"}]
    return {"pid": "p_1", "title": "Ada", "text": "Ada was born in Brand.", "links": links, "questions": [question]}


@pytest.mark.parametrize(
    ("answer", "answers", "kind"),
    [
        ({"type": "span", "answer_spans": [{"text": "Lune", "passage": "brand"}]}, ("Lune",), "text"),
        ({"type": "span", "answer_spans": [{"text": "Lune"}, {"text": "Ouse"}]}, ("Lune, Ouse",), "text"),
        ({"type": "value", "answer_value": "12", "answer_unit": "years"}, ("12", "12 years"), "text"),
        ({"type": "value", "answer_value": "12", "answer_unit": ""}, ("12",), "text"),
        ({"type": "binary", "answer_value": "Yes"}, ("yes",), "yes_no"),
        ({"type": "none"}, (), "text"),
    ],
)
def test_iirc_answers(answer: dict[str, Any], answers: tuple[str, ...], kind: str, read: Any) -> None:
    (found,) = read("iirc", iirc(answer)).questions
    assert (found.id, found.answers, found.kind, found.answerable) == ("q_1", answers, kind, bool(answers))
    assert [(one.title, one.text) for one in found.documents] == [("Ada", "Ada was born in Brand.")]


def test_iirc_with_its_articles_beside_it(read: Any, tmp_path: Path) -> None:
    context = [{"passage": "main", "text": "Ada"}, {"passage": "Brand", "text": "by the Lune"}]
    record = iirc({"type": "span", "answer_spans": [{"text": "Lune"}]}, context=context)
    alone = read("iirc", record)
    (found,) = alone.questions
    assert found.gold_documents == (found.documents[0].id, "brand")
    assert len(alone.problems) == 1
    articles = {"brand": 'Brand lies by the <a href="Lune">Lune</a> &amp; more.', "lune": "A river.", "ouse": "Other."}
    (tmp_path / "context_articles.json").write_text(json.dumps(articles))
    whole = read("iirc", record)
    (found,) = whole.questions
    assert whole.problems == ()
    assert [one.text for one in found.documents] == [
        "Ada was born in Brand.",
        "Brand lies by the Lune & more.",
        "A river.",
    ]
    assert titles(found) == ["Ada", "brand"]


def test_one_long_text(read: Any) -> None:
    long = {"input": "Who?", "context": "Ada did.", "answers": ["Ada", "Ada Brand"], "all_classes": None, "_id": "l1"}
    book = {"id": 0, "input": "Who?", "context": "Ada did.", "answer": ["Ada", "Ada Brand"], "options": []}
    (first,) = read("longbench", long | {"length": 2, "dataset": "qasper", "language": "en"}).questions
    (second,) = read("infinitebench", book).questions
    assert (first.id, second.id) == ("l1", "0")
    assert first.answers == second.answers == ("Ada", "Ada Brand")
    assert first.documents == second.documents
    assert [(one.id, one.title) for one in first.documents] == [(hash_of("", "Ada did.")[:16], "")]
    assert first.gold_documents == second.gold_documents == (first.documents[0].id,)


def test_books_that_come_with_many_questions_are_held_once(read: Any) -> None:
    records = [{"id": n, "input": f"{n}?", "context": "Ada did.", "answer": ["Ada"]} for n in range(2)]
    first, second = read("infinitebench", *records).questions
    assert first.documents[0] is second.documents[0]


def test_flashrag(read: Any) -> None:
    plain = {"id": "test_0", "question": "Who?", "golden_answers": ["Ada"], "metadata": {}}
    facts = {"supporting_facts": {"title": ["Brand"], "sent_id": [0]}, "context": TABLE}
    wiki = {"supporting_facts": {"title": ["Brand"], "sent_id": [0]}} | {
        "context": {"title": TABLE["title"], "content": TABLE["sentences"]}
    }
    questions = read(
        "flashrag",
        plain,
        plain | {"id": "test_1", "metadata": facts},
        plain | {"id": "test_2", "metadata": wiki},
        plain | {"id": "test_3", "golden_answers": [True], "metadata": None},
        plain | {"id": "test_4", "metadata": {"context": {"text": "She did."}, "supporting_facts": ["a"]}},
    ).questions
    assert questions[0] == GoldQuestion("Who?", ("Ada",), "test_0")
    assert titles(questions[1]) == titles(questions[2]) == ["Brand"]
    assert questions[1].documents == questions[2].documents
    assert (questions[3].answers, questions[3].kind) == (("yes",), "yes_no")
    assert questions[4] == GoldQuestion("Who?", ("Ada",), "test_4")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = as_lines(
        tmp_path / "own: notes.jsonl",
        {"question": " Who? ", "answers": ["Ada", "Ada"], "id": 7, "gold_documents": ["Ada-1"]},
        {"question": "Where?", "answer": "Yes"},
        {"question": "When?", "answerable": False},
    )
    dataset = load_dataset(str(file))
    assert dataset == load_dataset(f"jsonl:{file}")
    assert dataset.name == "own: notes.jsonl"
    assert dataset.questions == (
        GoldQuestion("Who?", ("Ada",), "7", gold_documents=("Ada-1",)),
        GoldQuestion("Where?", ("yes",), hash_of("Where?")[:16], "yes_no"),
        GoldQuestion("When?", (), hash_of("When?")[:16], answerable=False),
    )


def test_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(b'\xef\xbb\xbf\n{"question": "Who?", "answer": ["Ada"]}\r\n\n')
    assert [one.question for one in load_dataset(f"nq:{file}").questions] == ["Who?"]


EXAMPLES: dict[str, Any] = {
    "jsonl": {"question": "Who?", "answers": ["Ada"]},
    "2wiki": HOTPOT | {"evidences": []},
    "hotpotqa": HOTPOT,
    "musique": MUSIQUE,
    "nq": {"question": "Who?", "answer": ["Ada"]},
    "triviaqa": {"Question": "Who?", "QuestionId": "t", "Answer": {"Value": "Ada", "Aliases": []}},
    "ambignq": {"id": "1", "question": "Who?", "annotations": [{"type": "singleAnswer", "answer": ["Ada"]}]},
    "popqa": {"id": 1, "question": "Who?", "possible_answers": '["Ada"]'},
    "squad": {"title": "T", "context": "Ada.", "id": "s", "question": "Who?"} | {"answers": {"text": ["Ada"]}},
    "strategyqa": STRATEGY,
    "bamboogle": {"Question": "Who?", "Answer": "Ada"},
    "iirc": iirc({"type": "none"}),
    "longbench": {"input": "Who?", "context": "Ada.", "answers": ["Ada"]},
    "infinitebench": {"input": "Who?", "context": "Ada.", "answer": ["Ada"]},
    "flashrag": {"id": "f", "question": "Who?", "golden_answers": ["Ada"]},
}


PUBLISHED = [kind for kind in KINDS if kind != "jsonl"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_looks_like_its_own_kind_and_is_no_other(kind: str, read: Any) -> None:
    alike = looks_like(EXAMPLES[kind])
    assert kind in alike
    assert len(read(kind, EXAMPLES[kind]).questions) == 1
    for other in set(PUBLISHED) - set(alike) if kind != "jsonl" else ():
        said = f"record 1: it looks like a record of .*{kind}.*: give .*:FILE in place of {other}"
        with pytest.raises(UserFault, match=said):
            read(other, EXAMPLES[kind])


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_file_of_ones_own_is_of_no_published_kind(kind: str, read: Any) -> None:
    with pytest.raises(UserFault, match=r"record 1.*: .*, so there are no questions"):
        read(kind, EXAMPLES["jsonl"])


def test_only_kinds_of_one_layout_are_taken_for_each_other() -> None:
    shared = {kind: set(looks_like(one)) - {kind} for kind, one in EXAMPLES.items() if len(looks_like(one)) > 1}
    assert shared == {"hotpotqa": {"2wiki"}, "nq": {"triviaqa", "jsonl"}, "flashrag": {"jsonl"}}


def test_a_published_record_read_as_ones_own_is_told_of(read: Any) -> None:
    dataset = read("jsonl", HOTPOT, HOTPOT | {"_id": "h2"})
    assert len(dataset.questions) == 2
    (told,) = dataset.problems
    assert "record 1: it looks like a record of hotpotqa or 2wiki: give hotpotqa:FILE" in told
    with pytest.raises(UserFault, match=r"missing .*; it looks like a record of bamboogle: give bamboogle:"):
        read("jsonl", EXAMPLES["bamboogle"])


def test_the_questions_about_the_sample_corpus_have_a_name() -> None:
    sample = load_dataset("sample")
    assert (sample.name, len(sample.questions), sample.problems) == ("sample", 30, ())
    assert "Beatrix Hale" in sample.questions[0].answers
