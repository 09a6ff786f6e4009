"""The cache file: shared by processes, and never in the way of the work."""

import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dubito.models import disk_cache
from dubito.models.disk_cache import PAGE, DiskCache

ME, OTHER = b"me", b"other"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache.sqlite"


def cache(path: Path) -> DiskCache:
    return DiskCache(path, "test cache")


def entries(n: int, size: int = 100) -> dict[bytes, bytes]:
    return {str(i).encode(): i.to_bytes(4, "big") * (size // 4) for i in range(n)}


def test_values_are_read_by_owner_and_key(path: Path) -> None:
    cache(path).write(ME, {b"a": b"1", b"b": b"2"})
    cache(path).write(OTHER, {b"a": b"3"})
    cache(path).write(ME, {b"b": b"4", b"": b"\0"})
    assert cache(path).read(ME, [b"a", b"b", b"c", b""]) == {b"a": b"1", b"b": b"4", b"": b"\0"}
    assert cache(path).read(OTHER, [b"a", b"b"]) == {b"a": b"3"}


def test_an_owners_values_are_forgotten_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = cache(path)
    known.write(ME, {b"a": b"1"})
    known.write(OTHER, {b"a": b"3"})
    known.forget(ME, "holds old values")
    assert (known.read(ME, [b"a"]), known.read(OTHER, [b"a"])) == ({}, {b"a": b"3"})
    assert caplog.messages == [f"The test cache {path} holds old values."]


def write_in_process(path: str, offset: int) -> None:
    for i in range(20):
        cache(Path(path)).write(ME, {str(offset + i).encode(): b"x", str(i).encode(): b"x"})


def test_processes_share_one_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import sys\n"
        "from dubito.tests.unit.test_disk_cache import write_in_process\n"
        "write_in_process(sys.argv[1], int(sys.argv[2]))"
    )
    commands = [[sys.executable, "-c", code, str(path), str(100 * n)] for n in range(4)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [worker.communicate(timeout=60)[1] for worker in workers] == [""] * 4
    assert len(cache(path).read(ME, [str(100 * n + i).encode() for n in range(4) for i in range(20)])) == 80
    assert caplog.records == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_opens_the_file_anew(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from dubito.tests.unit.test_disk_cache import ME, Path, cache\n"
        "shared = cache(Path(sys.argv[1]))\n"
        "shared.write(ME, {b'parent': b'x'})\n"
        "shared._lock.acquire()\n"  # as if another thread of the parent held it
        "if (child := os.fork()) == 0:\n"
        "    shared.write(ME, {b'child': b'x'})\n"
        "    os._exit(len(shared.read(ME, [b'parent', b'child'])))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2\n"


def test_it_waits_for_another_process_that_is_making_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = disk_cache._prepare
    busy = 3

    def prepare_late(connection: sqlite3.Connection) -> None:
        nonlocal busy
        if busy:
            busy -= 1
            # the switch to WAL says so at once, whatever the timeout
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        prepare(connection)

    monkeypatch.setattr(disk_cache, "_prepare", prepare_late)
    cache(path).write(ME, entries(1))
    assert cache(path).read(ME, entries(1)) == entries(1)
    assert caplog.records == []


# --- a file that is not as it should be ---


def do_damage(path: Path, damage: str) -> None:
    # everything is in the file itself, wherever the connection that wrote it has gone
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    if damage == "text":
        content = bytearray(b"this is no database " * 500)
    elif damage == "middle":
        content[PAGE : 4 * PAGE] = b"\xa5" * (3 * PAGE)
    else:
        content[PAGE : 5 * PAGE] = bytes(4 * PAGE)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["text", "middle", "empty pages"])
def test_a_corrupt_file_is_moved_aside_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cache(path).write(ME, entries(500, 1000))
    do_damage(path, damage)
    damaged = cache(path)
    assert damaged.read(ME, entries(500)) == {}
    damaged.write(ME, entries(500))
    assert cache(path).read(ME, entries(500)) == entries(500)
    assert len(caplog.records) == 1
    assert f"The test cache {path} is corrupt" in caplog.text
    assert len(list(path.parent.glob("*.corrupt-*"))) == 1


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder in its place"])
def test_without_a_place_to_write_there_is_no_cache_and_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    if obstacle == "a file in the way":
        path.parent.write_text("")
    else:
        path.mkdir(parents=True)
    useless = cache(path)
    for _ in range(3):
        useless.write(ME, entries(1))
        assert useless.read(ME, entries(1)) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_full_disk_ends_writing_but_not_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache(path).write(ME, {b"a": b"1"})

    class Full(sqlite3.Connection):
        def executemany(self, *_: Any) -> Any:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Full, **options))
    full = cache(path)
    for _ in range(2):
        full.write(ME, {b"b": b"2"})
        assert full.read(ME, [b"a", b"b"]) == {b"a": b"1"}
    assert len(caplog.records) == 1


def change(path: Path, *statements: str) -> bytes:
    """Run statements on the file and return what it then holds."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path.read_bytes()


def test_a_file_of_a_later_version_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = change(path, "CREATE TABLE precious (x)", "PRAGMA user_version = 7")
    useless = cache(path)
    useless.write(ME, entries(1))
    assert useless.read(ME, entries(1)) == {}
    assert len(caplog.records) == 1
    assert change(path) == before


def test_a_file_of_the_first_version_is_emptied_and_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, "CREATE TABLE vectors (x)", "PRAGMA user_version = 1")
    cache(path).write(ME, entries(1))
    assert cache(path).read(ME, entries(1)) == entries(1)
    assert b"CREATE TABLE vectors" not in path.read_bytes()
    assert caplog.records == []
