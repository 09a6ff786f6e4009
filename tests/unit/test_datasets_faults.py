"""Nothing is dropped in silence: what cannot be read is refused with its place, or left out and listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.datasets import load_dataset

RIGHT = {"question": "Who?", "answer": ["Ada"]}
PAIR = {"id": "1", "question": "Who?", "answer": "Ada"}
CONTEXT = {"context": [["Ada", ["She did."]]]}


@pytest.mark.parametrize(
    ("kind", "record", "said"),
    [
        ("nq", {"answer": ["Ada"]}, 'the "question" is missing (the record holds answer)'),
        ("nq", {}, 'the "question" is missing (the record holds nothing)'),
        ("nq", {"question": " ", "answer": ["Ada"]}, 'the "question" is empty'),
        ("nq", {"question": 3, "answer": ["Ada"]}, 'the "question" is no text'),
        ("nq", {"question": "Why?"}, 'the "answer" is missing (the record holds question)'),
        ("nq", {"question": "Why?", "answer": []}, "there is no gold answer"),
        ("nq", {"question": "Why?", "answer": ["Ada", ""]}, "an answer is empty"),
        ("nq", {"question": "Why?", "answer": ["Ada", None]}, "an answer is missing"),
        ("nq", {"question": "Why?", "answer": [3]}, "an answer is no text"),
        ("nq", {"question": "Why?", "answer": "Ada"}, 'the "answer" is no list'),
        ("nq", {"question": "Why?", "answer": "['Ada'"}, "the \"answer\" is a text that is no list (['Ada')"),
        ("nq", {"question": "Why?", "answer": "[len('x')]"}, "the \"answer\" is a text that is no list ([len('x')])"),
        ("nq", {"question": "Why?", "answer": "[1][0]"}, 'the "answer" is a text that is no list'),
        ("nq", {"question": "Why?", "answer": "[" * 5000}, 'the "answer" is a text that is no list'),
        ("nq", {"question": "W\ud800?", "answer": ["Ada"]}, 'the "question" is not valid Unicode'),
        ("nq", RIGHT | {"question": "Why?", "context": "\ud800"}, "its text is not valid Unicode"),
        ("nq", RIGHT | {"question": "Why?", "context": " "}, "its supporting paragraph '' has no text"),
        ("nq", RIGHT | {"question": "Why?", "context": 3}, "a paragraph's text is no text"),
        ("popqa", {"question": "Why?", "possible_answers": "Ada"}, 'the "possible_answers" is no list'),
        ("popqa", {"question": "Why?"}, 'the "possible_answers" is missing'),
        ("hotpotqa", {"question": "Why?"} | CONTEXT, "there is no gold answer"),
        ("hotpotqa", PAIR, 'the "context" is missing (the record holds id, question, answer)'),
        ("hotpotqa", PAIR | {"context": ["She did."]}, "what goes with the titles is no list of [title, sentences]"),
        ("hotpotqa", PAIR | {"context": {"title": ["a"], "sentences": []}}, "nor two lists of the same length"),
        ("hotpotqa", PAIR | CONTEXT | {"supporting_facts": ["Ada"]}, "no list of [title, sent_id]"),
        ("hotpotqa", PAIR | {"context": [[3, ["She did."]]]}, "a paragraph's title is no text"),
        ("musique", PAIR, 'the "paragraphs" is missing'),
        ("musique", PAIR | {"paragraphs": ["Ada"]}, 'the "paragraphs" is no list of records'),
        ("ambignq", {"question": "Why?", "annotations": []}, "there is no gold answer"),
        ("ambignq", {"question": "Why?", "annotations": [{"type": "x"}]}, "an annotation is of the type x, and not"),
        ("triviaqa", {"question": "Why?"}, "there is no answer (the test split has none)"),
        ("triviaqa", {"question": "Why?", "answer": {"value": "<unk>", "aliases": []}}, "there is no answer"),
        ("strategyqa", {"qid": "1", "question": "Why?"}, 'the "answer" is missing'),
        ("strategyqa", {"qid": "1", "question": "Why?", "answer": "yes"}, 'the "answer" is neither true nor false'),
        ("bamboogle", {"Question": "Why?"}, "there is no gold answer"),
        ("longbench", {"input": "", "context": "x", "answers": ["y"]}, 'the "input" is empty'),
        ("infinitebench", {"input": "a", "context": "x", "answer": ["y"], "options": ["y"]}, "with options"),
        ("flashrag", {"question": "Why?", "golden_answers": [0], "choices": ["y"]}, "with choices"),
        ("flashrag", {"question": "Why?", "golden_answers": "Ada"}, 'the "golden_answers" is no list'),
        ("jsonl", {"question": "Why?"}, 'there is no "answers"'),
        ("jsonl", {"question": "Why?", "answer": "a", "answerable": "no"}, 'the "answerable" is neither true nor'),
        ("jsonl", {"question": "Why?", "answer": "a", "gold_documents": "x"}, 'the "gold_documents" is no list'),
    ],
)
def test_a_broken_record(kind: str, record: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(record) + "\n", encoding="utf-8")
    for how in ("refuse", "skip"):
        with pytest.raises(UserFault) as fault:
            load_dataset(f"{kind}:{file}", on_error=how)
        assert said in str(fault.value)
        assert str(fault.value).startswith(f"'{file}', line 1: ")
        assert str(fault.value).endswith(", so there is no question to read.")
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, 'the "answer" is missing'),
        ({"type": "span", "answer_spans": []}, "there is no gold answer"),
        ({"type": "value"}, "there is no gold answer"),
        ({"type": "other"}, "the answer's type is other, and not span, value, binary or none"),
    ],
)
def test_a_broken_answer_of_iirc(answer: Any, said: str, tmp_path: Path) -> None:
    questions = [{"qid": "q", "question": "Why?", "answer": answer}, "x"]
    file = tmp_path / "dev.json"
    file.write_text(json.dumps([{"title": "T", "text": "Some.", "links": [], "questions": questions}]))
    with pytest.raises(UserFault) as fault:
        load_dataset(f"iirc:{file}")
    assert f"record 1, question 1: {said} (and 1 problem more)" in str(fault.value)


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
    dataset = load_dataset(f"squad:{file}", on_error="skip")
    assert [one.id for one in dataset.questions] == ["s1"]
    assert [problem.partition("question ")[2] for problem in dataset.problems] == [
        "1: there is no gold answer",
        '2: the "answers" is missing',
        '3: a part of the "qas" is no object',
        '5: the "qas" is missing',
        '6: a part of the "paragraphs" is no object',
        '7: a part of the "data" is no object',
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
        (lines(GOOD, b"[" * 100_000, LAST), "line 2: the JSON is broken (it is nested too deeply)"),
        (lines(GOOD, b'{"n": ' + b"9" * 5000 + b"}", LAST), "line 2: the JSON is broken (a number in it is too long)"),
        (lines(GOOD, b'["Who?", "Ada"]', LAST), "line 2: it is no JSON object"),
        (lines(GOOD, b'{"question": "Why?"}', LAST), 'line 2: the "answer" is missing'),
    ],
)
def test_a_broken_line_costs_itself_only(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"nq:{file}")
    assert f"'{file}', {said}" in str(fault.value)
    assert "; mend it, or leave out what cannot be read (--on-bad-record skip, in Python on_error='skip')." in str(
        fault.value
    )
    dataset = load_dataset(f"nq:{file}", on_error="skip")
    assert [one.question for one in dataset.questions][-1] == "Last?"
    assert len(dataset.problems) == 1
    assert dataset.problems[0].startswith(f"'{file}', {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"[" + GOOD + b",\n" + GOOD[:-3] + b"\n," + LAST + b"]",
            "record 2: the JSON is broken (invalid control character at, column",
        ),
        (b"[" + GOOD + b"\n" + LAST + b"]", "record 1: the JSON is broken after it (a ',' or ']' is missing, line 2)"),
        (b"[" + GOOD + b"\n", "record 1: the JSON is broken after it (a ',' or ']' is missing"),
        (b"[" + GOOD + b"]\n" + LAST, "record 1: there is something after the end of the JSON list"),
        (b"[" + GOOD + b",\n", "record 2: the JSON is broken"),
    ],
)
def test_a_list_is_read_to_where_it_breaks(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"nq:{file}")
    assert f"'{file}', {said}" in str(fault.value)
    dataset = load_dataset(f"nq:{file}", on_error="skip")
    assert [one.question for one in dataset.questions] == ["Who?"]
    assert len(dataset.problems) == 1
    assert "not read" in dataset.problems[0]


def test_bytes_in_a_list_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_bytes(b"[" + GOOD + b',\n{"question": "caf\xe9", "answer": ["x"]},' + LAST + b"]")
    with pytest.raises(UserFault, match=r"line 2: byte \d+ \(0xE9\) is not UTF-8: save the file as UTF-8"):
        load_dataset(f"nq:{file}")
    dataset = load_dataset(f"nq:{file}", on_error="skip")
    assert [one.question for one in dataset.questions] == ["Who?", "Last?"]
    assert 'record 2: the "question" is not valid Unicode' in dataset.problems[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: give a file of questions"),
        (b" \n\n", "is empty: give a file of questions"),
        (b"[]", "holds no questions: give a file with at least one"),
        (b'{"data": []}', "holds no questions: give a file with at least one"),
        ('{"question": "Who?"}'.encode("utf-16"), "is no UTF-8 text"),
        (b"PK\x03\x04\0\0\0", "is no UTF-8 text"),
        (b"question,answer\nWho?,Ada\n", "line 1: the JSON is broken"),
        (b'{\n"data": [\n', "line 3: the JSON is broken"),
    ],
)
def test_files_without_questions(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "q"
    file.write_bytes(content)
    with pytest.raises(UserFault) as fault:
        load_dataset(f"squad:{file}", on_error="skip")
    assert said in str(fault.value)


def test_ids(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    one, other = RIGHT | {"id": 1}, RIGHT | {"id": 1, "question": "Whose?"}
    file.write_text("\n".join(json.dumps(record) for record in (one, one, other, RIGHT, RIGHT)))
    with pytest.raises(UserFault, match=r"line 3: line 1 has the id '1' too, and is another question: give each"):
        load_dataset(f"nq:{file}")
    dataset = load_dataset(f"nq:{file}", on_error="skip")
    assert [(question.question, len(question.id)) for question in dataset.questions] == [("Who?", 1), ("Who?", 16)]
    assert [problem.partition("line ")[2] for problem in dataset.problems] == [
        "3: line 1 has the id '1' too, and is another question: give each an id of its own",
        "2: it is line 1 again, and is kept once",
        "5: it is line 4 again, and is kept once",
    ]
    file.write_text("\n".join(json.dumps(record) for record in (one, one)))
    assert len(load_dataset(f"nq:{file}").problems) == 1


def test_what_else_there_is_to_give(tmp_path: Path) -> None:
    for spec, said in {
        f"nq:{tmp_path / 'none.json'}": "cannot be read from '.*none.json': No such file",
        f"nq:{tmp_path}": "cannot be read from '.*': Is a directory",
        "hotpot:dev.json": r"no kind of dataset 'hotpot' \(did you mean hotpotqa\?\): there are jsonl, 2wiki,",
        "evouna:NQ.json": "There is no kind of dataset 'evouna'",
        "squad": "'squad' names a kind of dataset and no file: give squad:FILE",
        "squad:": "'squad:' names a kind of dataset and no file",
    }.items():
        with pytest.raises(UserFault, match=said):
            load_dataset(spec)


@pytest.mark.parametrize("content", ["x", "[]", '{"Ada-1": {"title": "Ada"}}', '{"Ada-1": "text"}'])
def test_a_broken_file_of_paragraphs(content: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([{"qid": "1", "question": "Why?", "answer": True}]))
    (tmp_path / "strategyqa_train_paragraphs.json").write_text(content)
    with pytest.raises(UserFault, match=r"strategyqa_train_paragraphs\.json'.*: mend it, or take it away"):
        load_dataset(f"strategyqa:{tmp_path / 'dev.json'}")


@pytest.mark.parametrize("content", ["x", "[]", '{"ada": 3}'])
def test_a_broken_file_of_articles(content: str, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("[]")
    (tmp_path / "context_articles.json").write_text(content)
    with pytest.raises(UserFault, match=r"context_articles\.json'.*: mend it, or take it away"):
        load_dataset(f"iirc:{tmp_path / 'dev.json'}")
