"""Nothing is dropped in silence: what cannot be read is refused with its place, or left out and listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.datasets import load_dataset
from dubito.tests.json_lines import write_lines

RIGHT = {"question": "Who?", "answer": ["Ada"]}
PAIR = {"id": "1", "question": "Who?", "answer": "Ada"}
CONTEXT = {"context": [["Ada", ["She did."]]]}


@pytest.mark.parametrize(
    ("kind", "record", "said"),
    [
        ("nq", {"answer": ["Ada"]}, '"question" is missing (the record has answer)'),
        ("nq", {"question": " ", "answer": ["Ada"]}, '"question" is empty'),
        ("nq", {"question": 3, "answer": ["Ada"]}, '"question" is not a text'),
        ("nq", {"question": "Why?", "answer": []}, "there is no gold answer"),
        ("nq", {"question": "Why?", "answer": ["Ada", ""]}, "an answer is empty"),
        ("nq", {"question": "Why?", "answer": ["Ada", None]}, "an answer is missing"),
        ("nq", {"question": "Why?", "answer": [3]}, "an answer is not a text"),
        ("nq", {"question": "Why?", "answer": "Ada"}, '"answer" is not a list'),
        ("nq", {"question": "Why?", "answer": "['Ada'"}, "\"answer\" is a text that holds no list (['Ada')"),
        ("nq", {"question": "Why?", "answer": "[len('x')]"}, "\"answer\" is a text that holds no list ([len('x')])"),
        ("nq", {"question": "Why?", "answer": "[" * 5000}, '"answer" is a text that holds no list'),
        ("nq", {"question": "W\ud800?", "answer": ["Ada"]}, '"question" is not valid Unicode'),
        ("nq", RIGHT | {"question": "Why?", "context": "\ud800"}, "its text is not valid Unicode"),
        ("nq", RIGHT | {"question": "Why?", "context": " "}, "its supporting paragraph '' has no text"),
        ("nq", RIGHT | {"question": "Why?", "context": 3}, "a paragraph's text is not a text"),
        ("hotpotqa", PAIR, '"context" is missing (the record has id, question, answer)'),
        ("hotpotqa", PAIR | {"context": ["She did."]}, "the titles are neither in a list of [title, sentences]"),
        ("hotpotqa", PAIR | {"context": {"title": ["a"], "sentences": []}}, "nor in two lists of equal length"),
        ("hotpotqa", PAIR | CONTEXT | {"supporting_facts": ["Ada"]}, "neither in a list of [title, sent_id]"),
        ("hotpotqa", PAIR | {"context": [[3, ["She did."]]]}, "a paragraph's title is not a text"),
        ("musique", PAIR, '"paragraphs" is missing'),
        ("musique", PAIR | {"paragraphs": ["Ada"]}, '"paragraphs" is not a list of records'),
        ("ambignq", {"question": "Why?", "annotations": [{"type": "x"}]}, "an annotation has the type x, not"),
        ("triviaqa", {"question": "Why?"}, "there is no answer (the test split has none)"),
        ("triviaqa", {"question": "Why?", "answer": {"value": "<unk>", "aliases": []}}, "there is no answer"),
        ("strategyqa", {"qid": "1", "question": "Why?", "answer": "yes"}, '"answer" is neither true nor false'),
        ("longbench", {"input": "", "context": "x", "answers": ["y"]}, '"input" is empty'),
        (
            "infinitebench",
            {"input": "a", "context": "x", "answer": ["y"], "options": ["y"]},
            "it is a multiple-choice question",
        ),
        ("flashrag", {"question": "Why?", "golden_answers": [0], "choices": ["y"]}, "it is a multiple-choice question"),
        ("jsonl", {"question": "Why?"}, '"answers" is missing'),
        ("jsonl", {"question": "Why?", "answer": "a", "answerable": "no"}, '"answerable" is neither true nor'),
        ("jsonl", {"question": "Why?", "answer": "a", "gold_documents": "x"}, '"gold_documents" is not a list'),
    ],
)
def test_a_broken_record(kind: str, record: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    for how in ("refuse", "skip"):
        with pytest.raises(UserFault) as fault:
            load_dataset(f"{kind}:{file}", on_bad_record=how)
        assert said in str(fault.value)
        assert str(fault.value).startswith(f"'{file}', line 1: ")
        assert str(fault.value).endswith(", so there are no questions.")
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, '"answer" is missing'),
        ({"type": "span", "answer_spans": []}, "there is no gold answer"),
        ({"type": "value"}, "there is no gold answer"),
        ({"type": "other"}, "the answer's type is other, not span, value, binary or none"),
    ],
)
def test_a_broken_answer_of_iirc(answer: Any, said: str, tmp_path: Path) -> None:
    questions = [{"qid": "q", "question": "Why?", "answer": answer}, "x"]
    file = tmp_path / "dev.json"
    file.write_text(json.dumps([{"title": "T", "text": "Some.", "links": [], "questions": questions}]))
    with pytest.raises(UserFault) as fault:
        load_dataset(f"iirc:{file}")
    assert f"record 1, question 1: {said} (and 1 more problem)" in str(fault.value)


def test_a_broken_part_of_squad_spoils_no_other(tmp_path: Path) -> None:
    good = {"id": "s1", "question": "Where?", "answers": [{"text": "Brand"}]}
    no_answer = {"id": "s2", "question": "When?", "answers": [], "is_impossible": False}
    no_answers = {"id": "s3", "question": "When?"}
    articles = [
        {"title": "A", "paragraphs": [{"context": "In Brand.", "qas": [no_answer, no_answers, "x", good]}]},
        {"title": "B", "paragraphs": [{"context": "In Brand."}, "x"]},
        "x",
    ]
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": articles}))
    dataset = load_dataset(f"squad:{file}", on_bad_record="skip")
    assert [one.id for one in dataset.questions] == ["s1"]
    assert [problem.partition("question ")[2] for problem in dataset.problems] == [
        "1: there is no gold answer",
        '2: "answers" is missing',
        '3: a part of "qas" is not an object',
        '5: "qas" is missing',
        '6: a part of "paragraphs" is not an object',
        '7: a part of "data" is not an object',
    ]


def lines(*texts: bytes) -> bytes:
    return b"\n".join(texts) + b"\n"


GOOD, LAST = json.dumps(RIGHT).encode(), json.dumps(RIGHT | {"question": "Last?"}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            lines(GOOD, b"", b'{"question": "W', LAST),
            "line 3: the JSON is broken (invalid control character at, column 16)",
        ),
        (lines(GOOD, b'{"question": "caf\xe9", "answer": ["x"]}', LAST), "line 2: byte 17 (0xE9) is not UTF-8"),
        (lines(b'{"question": ', GOOD, LAST), "line 1: the JSON is broken (expecting value"),
        (lines(GOOD, b'["Who?", "Ada"]', LAST), "line 2: it is not a JSON object"),
        (lines(GOOD, b"[" * 100_000, LAST), "line 2: the JSON is broken (it is nested too deeply)"),
        (lines(GOOD, b'{"n": ' + b"9" * 5000 + b"}", LAST), "line 2: the JSON is broken (a number in it is too long)"),
    ],
)
def test_a_broken_line_costs_itself_only(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"nq:{file}")
    assert f"'{file}', {said}" in str(fault.value)
    assert "; correct it, or skip broken records (on_bad_record='skip')." in str(fault.value)
    dataset = load_dataset(f"nq:{file}", on_bad_record="skip")
    assert [one.question for one in dataset.questions][-1] == "Last?"
    assert len(dataset.problems) == 1
    assert dataset.problems[0].startswith(f"'{file}', {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"[" + GOOD + b",\n" + GOOD[:-3] + b"\n," + LAST + b"]",
            "record 2, line 2: the JSON is broken (invalid control character at, column",
        ),
        (b"[" + GOOD + b"\n" + LAST + b"]", "record 1, line 2: the JSON is broken (a ',' or ']' is missing)"),
        (b"[" + GOOD + b"\n", "record 1, line 2: the JSON is broken (a ',' or ']' is missing)"),
        (b"[" + GOOD + b"]\n" + LAST, "record 1, line 2: there is text after the end of the JSON list"),
        (b"[" + GOOD + b",\n", "record 2, line 2: the JSON is broken"),
    ],
)
def test_a_list_is_read_to_where_it_breaks(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"nq:{file}")
    assert f"'{file}', {said}" in str(fault.value)
    dataset = load_dataset(f"nq:{file}", on_bad_record="skip")
    assert [one.question for one in dataset.questions] == ["Who?"]
    assert len(dataset.problems) == 1
    assert "not read" in dataset.problems[0]


def test_bytes_in_a_list_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_bytes(b"[" + GOOD + b',\n{"question": "caf\xe9", "answer": ["x"]},' + LAST + b"]")
    with pytest.raises(UserFault, match=r"line 2: byte \d+ \(0xE9\) is not UTF-8: save the file as UTF-8"):
        load_dataset(f"nq:{file}")
    dataset = load_dataset(f"nq:{file}", on_bad_record="skip")
    assert [one.question for one in dataset.questions] == ["Who?", "Last?"]
    assert 'record 2: "question" is not valid Unicode' in dataset.problems[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: give a file of questions"),
        (b"[]", "has no questions: give a file with at least one"),
        ('{"question": "Who?"}'.encode("utf-16"), "is not UTF-8 text"),
        (b"PK\x03\x04\0\0\0", "is not UTF-8 text"),
        (b"question,answer\nWho?,Ada\n", "line 1: the JSON is broken"),
        (b'{\n"data": [\n', "line 3: the JSON is broken"),
    ],
)
def test_files_without_questions(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"squad:{file}", on_bad_record="skip")
    assert said in str(fault.value)


def test_ids(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    one, other = RIGHT | {"id": 1}, RIGHT | {"id": 1, "question": "Whose?"}
    write_lines(file, (one, one, other, RIGHT, RIGHT))
    with pytest.raises(UserFault, match=r"line 3: line 1 has the same id '1' and is another question: give each"):
        load_dataset(f"nq:{file}")
    dataset = load_dataset(f"nq:{file}", on_bad_record="skip")
    assert [(question.question, len(question.id)) for question in dataset.questions] == [("Who?", 1), ("Who?", 16)]
    assert [problem.partition("line ")[2] for problem in dataset.problems] == [
        "3: line 1 has the same id '1' and is another question: give each question its own id",
        "2: it repeats line 1, which is kept",
        "5: it repeats line 4, which is kept",
    ]
    write_lines(file, (one, one))
    assert len(load_dataset(f"nq:{file}").problems) == 1


def test_what_else_there_is_to_give(tmp_path: Path) -> None:
    for spec, said in {
        f"nq:{tmp_path / 'none.json'}": "cannot be read from '.*none.json': No such file",
        f"nq:{tmp_path}": "cannot be read from '.*': Is a directory",
        "hotpot:dev.json": r"no kind of dataset 'hotpot' \(did you mean hotpotqa\?\): there are jsonl, 2wiki,",
        "evouna:NQ.json": "There is no kind of dataset 'evouna'",
        "squad": "'squad' is a kind of dataset without a file: give squad:FILE",
        "squad:": "'squad:' is a kind of dataset without a file",
    }.items():
        with pytest.raises(UserFault, match=said):
            load_dataset(spec)


@pytest.mark.parametrize("content", ["x", "[]", '{"Ada-1": {"title": "Ada"}}', '{"Ada-1": "text"}'])
def test_a_broken_file_of_paragraphs(content: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([{"qid": "1", "question": "Why?", "answer": True}]))
    (tmp_path / "strategyqa_train_paragraphs.json").write_text(content)
    with pytest.raises(UserFault, match=r"strategyqa_train_paragraphs\.json'.*: correct or remove it"):
        load_dataset(f"strategyqa:{tmp_path / 'dev.json'}")


@pytest.mark.parametrize("content", ["x", "[]", '{"ada": 3}'])
def test_a_broken_file_of_articles(content: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("[]")
    (tmp_path / "context_articles.json").write_text(content)
    with pytest.raises(UserFault, match=r"context_articles\.json'.*: correct or remove it"):
        load_dataset(f"iirc:{tmp_path / 'dev.json'}")
