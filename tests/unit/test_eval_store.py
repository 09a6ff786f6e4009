"""What an evaluation keeps: on disk at once, read back as it was, refused where it is another's."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals import store as store_module
from dubito.evals.run_folder import RESULTS
from dubito.evals.store import OUTCOMES, VERSION, Outcome, Store, repair

ANSWERED = Outcome(
    system="a", question="q/1", output={"answer": "Ada\u2028é"}, error=None, seconds=1.5, remembered=2, trace=b"x\ny\n"
)
FAILED = Outcome(
    system="b",
    question="q/1",
    output=None,
    error={"type": "ModelUnavailable", "message": "It is down.", "unavailable": True},
    seconds=0.5,
)


def test_what_was_kept_is_read_back_by_another(tmp_path: Path):
    with Store(tmp_path / "r.sqlite", new=True) as store:
        store.add(FAILED)
        store.add(ANSWERED)
        with Store(tmp_path / "r.sqlite") as other:  # while the first one is open: nothing waits in it
            found = list(other.outcomes())
            assert [(one.system, one.output, one.error, one.seconds, one.remembered) for one in found] == [
                ("a", ANSWERED.output, None, 1.5, 2),
                ("b", None, FAILED.error, 0.5, 0),
            ]
            assert found[1].error_message == "It is down."
            assert other.trace("a", "q/1") == b"x\ny\n"
            assert other.trace("b", "q/1") is None
            assert other.ended() == {("a", "q/1"): True, ("b", "q/1"): False}


def test_a_question_that_is_asked_again_has_its_last_outcome(tmp_path: Path):
    with Store(tmp_path / "r.sqlite", new=True) as store:
        store.add(FAILED)
        store.add(Outcome(system="b", question="q/1", output={"answer": "x"}, error=None, seconds=1))
        assert store.ended() == {("b", "q/1"): True}
        store.add(ANSWERED)
        store.forget([("b", "q/1"), ("c", "q/9")])
        assert store.ended() == {("a", "q/1"): True}


def test_measurements_are_kept_by_metric(tmp_path: Path):
    with Store(tmp_path / "r.sqlite", new=True) as store:
        store.measured("a", "q", "seper", {"delta": 0.5})
        store.measured("a", "q", "seper", {"delta": 0.25})
        store.measured("a", "q", "other", {"x": 1})
        assert store.measurements("seper") == {("a", "q"): {"delta": 0.25}}
        assert store.measurements("none") == {}


def test_a_store_is_not_made_by_who_reads(tmp_path: Path):
    with pytest.raises(UserFault, match="give the folder of an evaluation"):
        Store(tmp_path / "r.sqlite")
    assert not (tmp_path / "r.sqlite").exists()


def test_another_form_and_another_file_are_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(UserFault, match=f"has version {VERSION + 1}, and this dubito reads version {VERSION}"):
        Store(path, new=True)
    assert path.read_bytes() == before
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(UserFault, match="is damaged"):
        Store(tmp_path / "text")


def lines(n: int) -> str:
    """The text of a kept run with n outcomes."""
    return "".join(
        json.dumps({"system": "a", "question": f"q/{place}", "output": {"answer": "x"}, "seconds": 1.0,
                    "remembered": 0, "remembered_seconds": 0.0}) + "\n"
        for place in range(n)
    )  # fmt: skip


@pytest.mark.parametrize("damage", ["{", '{"system": "a", "question": "\\ud800", "metric": "x", "value": {}}'])
def test_a_kept_run_with_a_damaged_line_can_be_fetched_anew(tmp_path: Path, damage: str):
    (tmp_path / OUTCOMES).write_text(lines(2) + damage)
    with pytest.raises(UserFault, match=r"Line 3 of .* fetch the file anew"):
        Store(tmp_path / RESULTS, new=True)
    assert [path.name for path in tmp_path.iterdir()] == [OUTCOMES]
    (tmp_path / OUTCOMES).write_text(lines(9))
    with Store(tmp_path / RESULTS, new=True) as store:
        assert len(store.ended()) == 9


def test_a_kept_run_is_taken_in_wholly_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / OUTCOMES).write_text(lines(3))
    with monkeypatch.context() as patch:
        patch.setitem(store_module._INSERT, "outcomes", "no SQL")
        with pytest.raises(UserFault, match="cannot be used"):
            Store(tmp_path / RESULTS, new=True)
    with Store(tmp_path / RESULTS) as store:
        assert len(store.ended()) == 3, "read from the text"
    assert repair(tmp_path / RESULTS) is None, "there is nothing to keep yet, and the text is whole"
    with Store(tmp_path / RESULTS, new=True) as store:
        assert len(store.ended()) == 3


def test_a_kept_run_that_cannot_be_read_is_told(tmp_path: Path):
    (tmp_path / OUTCOMES).symlink_to("/proc/self/mem")
    with pytest.raises(UserFault, match=r"outcomes.jsonl' cannot be read: "):
        Store(tmp_path / RESULTS, new=True)


def test_a_kept_run_is_taken_in_once(tmp_path: Path):
    (tmp_path / OUTCOMES).write_text(lines(3))
    with Store(tmp_path / RESULTS, new=True) as store:
        store.forget([("a", "q/0")])
    with Store(tmp_path / RESULTS, new=True) as store:
        assert len(store.ended()) == 2


def test_only_the_results_of_a_run_take_in_a_kept_run(tmp_path: Path):
    (tmp_path / OUTCOMES).write_text("anything")
    with Store(tmp_path / "x.questions.sqlite", new=True) as store:
        assert not store.ended()


def test_a_full_disk_is_said_and_what_is_kept_stays(tmp_path: Path):
    with Store(tmp_path / "r.sqlite", new=True) as store:
        store.add(ANSWERED)
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        large = Outcome(system="c", question="q", output={"answer": "x" * 1_000_000}, error=None, seconds=1)
        with pytest.raises(UserFault, match=r"The disk is full: make room and resume the run"):
            store.add(large)
        assert store.ended() == {("a", "q/1"): True}


def changed(path: Path, statement: str, *values: Any) -> None:
    """Run a statement on a closed store."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


ROW = "UPDATE outcomes SET {} = ? WHERE system = 'a' AND question = 'q/1'"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("output", "no JSON"),
        ("output", "[]"),
        ("output", "[" * 100_000),
        ("output", b"\xff\xfe"),
        ("output", None),
        ("output", '{"usage": {"calls": "many"}}'),
        ("output", '{"usage": {"calls": 1' + "0" * 400 + "}}"),
        ("output", '{"uncertainty": {"signal": "x"}}'),
        ("output", '{"certificate": {"sentence": "x", "holds": true, "right": 5}}'),
        ("error", '{"message": "both"}'),
        ("seconds", "long"),
        ("remembered", -1),
    ],
)
def test_a_damaged_row_is_told_and_the_others_can_be_kept(tmp_path: Path, column: str, value: Any):
    path = tmp_path / "r.sqlite"
    with Store(path, new=True) as store:
        store.add(ANSWERED)
        store.add(FAILED)
        store.measured("b", "q/1", "seper", {"delta": 0.5})
    changed(path, ROW.format(column), value)
    with Store(path) as store, pytest.raises(UserFault, match=r"outcome of 'q/1' for 'a' .* --resume .* --repair"):
        store.check()
    repaired = repair(path)
    assert repaired is not None
    assert str(repaired).startswith("1 outcome kept, 1 unreadable row left out; the damaged file is now ")
    with Store(path) as store:
        store.check()
        assert store.ended() == {("b", "q/1"): False}
        assert store.measurements("seper") == {("b", "q/1"): {"delta": 0.5}}
    with closing(sqlite3.connect(repaired.aside)) as database:
        assert database.execute("SELECT count(*) FROM outcomes").fetchone() == (2,)
    assert repair(path) is None


@pytest.mark.parametrize("metric", ["seper", "seper_steps", "llm_judge", "bertscore"])
def test_a_damaged_measurement_is_told_and_left_out(tmp_path: Path, metric: str):
    path = tmp_path / "r.sqlite"
    with Store(path, new=True) as store:
        store.add(ANSWERED)
        store.measured("a", "q/1", metric, {"delta": "much", "steps": 3, "correctness": "high", "bertscore": "high"})
        with pytest.raises(UserFault, match=f"the {metric} of 'q/1' for 'a' cannot be read"):
            store.check()
    repaired = repair(path)
    assert repaired is not None
    assert (repaired.outcomes, repaired.unreadable) == (1, 1)


def test_rows_on_whole_pages_of_a_damaged_file_are_kept(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    with Store(path, new=True) as store:
        for number in range(400):
            output = {"answer": f"{number} " * 50}
            store.add(Outcome(system="a", question=f"q/{number}", output=output, error=None, seconds=1.0))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8192] = b"\xa5" * 8192
    path.write_bytes(content)
    repaired = repair(path)
    assert repaired is not None
    with Store(path) as store:
        store.check()
        assert 300 < len(store.ended()) == repaired.outcomes < 400


def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path):
    path = tmp_path / "r.sqlite"
    path.write_text("no database " * 100)
    repaired = repair(path)
    assert repaired is not None
    assert repaired.aside.read_text().startswith("no database")
    with Store(path) as store:
        assert store.ended() == {}


@pytest.mark.parametrize("packed", ["text", b"no zlib", zlib.compress(b"x" * 1000)[:-8], zlib.compress(b"0" * 2**20)])
def test_a_damaged_trace_is_told(tmp_path: Path, packed: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dubito.evals.store.LONGEST_TRACE", 2**19)
    path = tmp_path / "r.sqlite"
    with Store(path, new=True) as store:
        store.add(ANSWERED)
    changed(path, ROW.format("trace"), packed)
    with Store(path) as store, pytest.raises(UserFault, match="The trace of 'q/1' for a is damaged"):
        store.trace("a", "q/1")
