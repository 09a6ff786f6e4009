"""Files that nobody checked: pipes, devices, JSON of every wrong shape, through the commands that read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dubito import json_files
from dubito.cli import app
from dubito.errors import UserFault
from dubito.evals import run_folder
from dubito.evals.run_folder import LOCK, MANIFEST, QUESTIONS, UNFINISHED
from dubito.json_files import DEEPEST, BrokenJson, json_lines, open_file, parsed
from dubito.retrieval.corpus import read_corpus
from dubito.state.calibration import is_calibration
from dubito.tests.json_lines import write_lines
from dubito.tests.recorded import lines, record, vanilla_run
from dubito.tests.reported import answered, asked, made, vanilla
from typer.testing import CliRunner

QUESTIONS_ASKED = [asked("q1", "Ada"), asked("q2", "Paris")]


def dubito(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    return result.exit_code, result.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = [answered("plain", "q1", "Ada"), answered("plain", "q2", "Rome")]
    made_run, store = made(tmp_path / "my.run", [vanilla()], QUESTIONS_ASKED, found)
    with store:
        return made_run.folder


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 400, "number in it is too long"),
        ("1e400", "number in it is too large"),
        ("-1e400", "number in it is too large"),
        (b'{"a": "\xff"}', r"byte 7 \(0xFF\) is not UTF-8"),
        ('{"a"', "expecting ':' delimiter, column 5"),
        ("", "expecting value, column 1"),
    ],
)
def test_text_that_cannot_be_used_is_told_in_a_clause(text: str | bytes, said: str):
    with pytest.raises(BrokenJson, match=said):
        parsed(text)


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert parsed(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_numbers_that_json_does_not_have_are_missing():
    assert parsed('[NaN, -Infinity, 1.5, "NaN"]') == [None, None, 1.5, "NaN"]
    assert parsed("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize("make", [pipe, endless])
def test_what_may_never_end_is_not_opened(tmp_path: Path, make: Callable[[Path], None]):
    path = tmp_path / "x.json"
    make(path)
    with pytest.raises(OSError, match="a pipe or a device and not a file"):
        open_file(path)
    with pytest.raises(UserFault, match="a pipe or a device and not a file"):
        read_corpus(path)
    assert not is_calibration(path)
    for command in (["trace", path], ["eval", "cot", "--dataset", path, "--corpus", "sample"]):
        code, said = dubito(*command)
        assert code == 2
        assert "a pipe or a device and not a file" in said


@pytest.mark.parametrize(
    ("name", "text", "streams"),
    [
        ("x.jsonl", '{"text": "Ada Lovelace"}', True),
        ("x.csv", "text\nAda Lovelace", True),
        ("x.json", '[{"text": "Ada Lovelace"}]', False),
        ("x.txt", "Ada Lovelace of London", False),
    ],
)
def test_a_file_larger_than_the_memory_is_read_by_record_or_not_at_all(
    name: str, text: str, *, streams: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / name
    path.write_text(text)
    monkeypatch.setattr(json_files, "_memory", lambda: 10)
    if streams:
        assert [document.text for document in read_corpus(path).documents] == ["Ada Lovelace"]
    else:
        with pytest.raises(UserFault, match="larger than the memory of this machine"):
            read_corpus(path)


def test_only_the_beginning_of_a_long_file_is_read_as_one_object(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_files, "LONGEST_OBJECT", 100)
    lines, read = ['{"text": "cut off\n', *(f'{{"text": "{number}"}}\n' for number in range(1000))], 0

    def counted() -> Iterator[str]:
        nonlocal read
        for line in lines:
            read += 1
            yield line

    records = json_lines(counted())
    assert isinstance(next(records).value, BrokenJson)
    assert read < 20
    assert [record.value for record in records] == [{"text": str(number)} for number in range(1000)]


RUNS: Mapping[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda _: [], "it is not a JSON object"),
    "a number": (lambda _: 10**400, "number in it is too long"),
    "no seed": (lambda said: {name: said[name] for name in said if name != "seed"}, "seed: field required"),
    "a seed below 0": (lambda said: {**said, "seed": -1}, "seed: input should be greater than or equal to 0"),
    "settings that are no object": (
        lambda said: {**said, "systems": [{**said["systems"][0], "context": [1]}]},
        r"0\.context: input should be a valid dictionary",
    ),
    "no systems": (lambda said: {**said, "systems": []}, "should have at least 1 item"),
    "datasets that are no objects": (lambda said: {**said, "datasets": [3]}, r"datasets\.0"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_manifest_of_another_shape_ends_every_command_in_a_sentence(run: Path, name: str):
    edit, reason = RUNS[name]
    path = run / MANIFEST
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(UserFault, match=rf"run\.json' does not describe a run \(.*{reason}"):
        run_folder.read(run)
    for command in (["report", run], ["compare", run, run], ["eval", "--resume", run]):
        code, said = dubito(*command)
        assert (code, "does not describe a run" in said) == (2, True), said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "line 2, "),
        ('{"question": 3}', "line 2, "),
        ("{", "line 2, expecting property name"),
        ("first", "line 2, it repeats an id"),
    ],
)
def test_a_damaged_line_of_the_questions_is_named(run: Path, line: str, said: str):
    path = run / QUESTIONS
    first = path.read_text().splitlines()[0]
    path.write_text(f"{first}\n{first if line == 'first' else line}\n")
    with pytest.raises(UserFault, match=rf"questions\.jsonl' does not describe a run \({said}"):
        run_folder.read(run)


def test_a_lock_that_is_no_lock_is_told(run: Path):
    (run / "lock.sqlite").mkdir()
    with pytest.raises(UserFault, match="remove it, for it holds no results"), run_folder.exclusive_lock(run):
        pass


def test_a_run_that_was_not_begun_to_the_end_can_be_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: Path
):
    folder = tmp_path / "x.run"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    command = ["eval", "cot", "--dataset", questions, "--corpus", "sample", "--llm", "embedded", "--out", folder]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        assert dubito(*command)[0] == 130
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, QUESTIONS, UNFINISHED]
    code, said = dubito("eval", "--resume", folder)
    assert (code, "ended before its first question: repeat the command" in said) == (2, True)
    monkeypatch.setattr("dubito.cli.evaluating._carry_out", lambda run, options: None)
    assert dubito(*command) == (0, "")
    assert run_folder.read(folder).systems[0].label == "cot"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / QUESTIONS).write_text("precious")
    code, said = dubito(*command[:-1], tmp_path / "mine")
    assert (code, "exists already" in said) == (2, True)
    assert (tmp_path / "mine" / QUESTIONS).read_text() == "precious"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "Who?", "answers": ["Ada"]}\n')
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompt_tokens", "many"),
        ("seconds", "NaN"),
        ("seconds", 10**400),
        ("timestamp", "0001-01-01T00:00:00"),
        ("reply", 1),
    ],
)
def test_a_call_of_another_shape_in_a_trace_is_told_with_its_line(tmp_path: Path, key: str, value: object):
    path = tmp_path / "t.jsonl"
    record(vanilla_run(), path)
    edited = [{**line, key: value} if line["type"] == "llm_call" else line for line in lines(path)]
    write_lines(path, edited)
    code, said = dubito("trace", path)
    assert (code, "Line 7 of" in said and "is not a line of a trace" in said) == (2, True), said
