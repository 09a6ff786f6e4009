"""What an evaluation keeps: on disk at once, read back as it was, refused where it is another's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from dubito.errors import UserFault
from dubito.evals.store import VERSION, Outcome, Store

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


def test_a_full_disk_is_said_and_what_is_kept_stays(tmp_path: Path):
    with Store(tmp_path / "r.sqlite", new=True) as store:
        store.add(ANSWERED)
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        large = Outcome(system="c", question="q", output={"answer": "x" * 1_000_000}, error=None, seconds=1)
        with pytest.raises(UserFault, match=r"The disk is full: make room and resume the run"):
            store.add(large)
        assert store.ended() == {("a", "q/1"): True}
