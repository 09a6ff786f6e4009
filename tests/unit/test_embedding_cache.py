import asyncio
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.models import disk_cache, embedding_cache
from dubito.models.embedding_cache import CachedEncoder
from dubito.models.interfaces import Vectors


class Counting:
    """Vectors from a text's hash; keeps every list it was asked for."""

    def __init__(self, name: str = "counting", dimension: int = 8, pause: float = 0.0) -> None:
        self.name = name
        self.size = dimension
        self.pause = pause
        self.asked: list[tuple[list[str], bool]] = []

    async def dimension(self) -> int:
        return self.size

    async def token_counter(self) -> None:
        return None

    async def max_tokens(self) -> int | None:
        return 256

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.asked.append((list(texts), query))
        await asyncio.sleep(self.pause)
        return np.array([vector(text, query, self.size) for text in texts], dtype=np.float32).reshape(-1, self.size)


def vector(text: str, query: bool, size: int = 8) -> Vectors:
    seed = sum(text.encode("utf-8", "surrogatepass")) + len(text) * 1000 + query
    row = np.random.default_rng(seed).normal(size=size)
    return (row / np.linalg.norm(row)).astype(np.float32)


def exists(path: Path) -> bool:
    return path.exists()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "embeddings.sqlite"


async def test_a_text_is_embedded_once_whoever_asks(path: Path) -> None:
    first = Counting()
    rows = await CachedEncoder(first, path).embed(["a", "b", "a"])
    np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in "aba"]))
    assert first.asked == [(["a", "b"], False)]
    second = Counting()
    cached = CachedEncoder(second, path)
    np.testing.assert_array_equal(
        await cached.embed(["c", "b", "a"]), np.stack([vector(t, query=False) for t in "cba"])
    )
    assert second.asked == [(["c"], False)]
    assert (await cached.embed(["b"])).flags.writeable


async def test_sides_and_encoders_are_kept_apart(path: Path) -> None:
    one, other = Counting(), Counting("other", 4)
    assert (await CachedEncoder(one, path).embed(["a"])).shape == (1, 8)
    np.testing.assert_array_equal((await CachedEncoder(one, path).embed(["a"], query=True))[0], vector("a", query=True))
    assert (await CachedEncoder(other, path).embed(["a"])).shape == (1, 4)
    assert len(one.asked) == 2
    assert len(other.asked) == 1


async def test_what_it_wraps_shows_through(path: Path) -> None:
    cached = CachedEncoder(Counting(), path)
    assert cached.name == "counting"
    assert await cached.dimension() == 8
    assert await cached.max_tokens() == 256
    assert (await cached.embed([])).shape == (0, 8)
    assert not exists(path)


async def test_any_text_is_a_key(path: Path) -> None:
    odd = ["", " ", "\0", "é", "e\u0301", "\ud800", "x" * 100_000, "'; DROP TABLE vectors; --"]
    await CachedEncoder(Counting(), path).embed(odd)
    again = Counting()
    await CachedEncoder(again, path).embed(odd)
    assert again.asked == []


async def test_long_lists_are_written_piece_by_piece(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_cache, "SLICE", 10)
    monkeypatch.setattr(embedding_cache, "LOOKUP", 7)

    class Failing(Counting):
        async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
            if len(self.asked) == 2:
                raise OSError("lost")
            return await super().embed(texts, query=query)

    texts = [str(i) for i in range(35)]
    with pytest.raises(OSError, match="lost"):
        await CachedEncoder(Failing(), path).embed(texts)
    rest = Counting()
    rows = await CachedEncoder(rest, path).embed(texts)
    np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in texts]))
    assert [len(asked) for asked, _ in rest.asked] == [10, 5]


async def test_nothing_of_it_blocks_the_loop(path: Path) -> None:
    with blockbuster_ctx():
        for _ in range(2):
            await CachedEncoder(Counting(), path).embed(["a", "b"])


async def test_ten_thousand_vectors_are_read_in_a_blink(path: Path) -> None:
    texts = [f"chunk number {i} of a corpus" for i in range(10_000)]
    await CachedEncoder(Counting(dimension=384), path).embed(texts)
    counting = Counting(dimension=384)
    start = time.process_time()  # of this process alone, however busy the machine is
    rows = await CachedEncoder(counting, path).embed(texts)
    seconds = time.process_time() - start
    assert rows.shape == (10_000, 384)
    assert counting.asked == []
    assert seconds < 0.5


async def test_callers_at_once_get_the_right_rows(path: Path) -> None:
    cached = CachedEncoder(Counting(pause=0.01), path)
    lists = [[str(j) for j in range(i, i + 20)] for i in range(30)]
    for texts, rows in zip(lists, await asyncio.gather(*(cached.embed(texts) for texts in lists)), strict=True):
        np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in texts]))


def embed_in_process(path: str, offset: int) -> None:
    for i in range(20):
        asyncio.run(CachedEncoder(Counting(), Path(path)).embed([str(offset + i), str(i)]))


def test_processes_share_one_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import sys\n"
        "from dubito.tests.unit.test_embedding_cache import embed_in_process\n"
        "embed_in_process(sys.argv[1], int(sys.argv[2]))"
    )
    commands = [[sys.executable, "-c", code, str(path), str(100 * n)] for n in range(4)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [worker.communicate(timeout=60)[1] for worker in workers] == [""] * 4
    counting = Counting()
    asyncio.run(CachedEncoder(counting, path).embed([str(100 * n + i) for n in range(4) for i in range(20)]))
    assert counting.asked == []
    assert caplog.records == []


async def test_it_waits_for_another_process_that_is_making_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = disk_cache._prepare
    busy = 3

    def prepare_late(connection: sqlite3.Connection, layout: disk_cache.Layout) -> None:
        nonlocal busy
        if busy:
            busy -= 1
            # what the switch to WAL says at once, whatever the timeout
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        prepare(connection, layout)

    monkeypatch.setattr(disk_cache, "_prepare", prepare_late)
    counting = Counting()
    cached = CachedEncoder(counting, path)
    for _ in range(2):
        await cached.embed(["a"])
    assert len(counting.asked) == 1
    assert caplog.records == []


# --- a cache that is not as it should be ---


def do_damage(path: Path, damage: str) -> None:
    # everything is in the file itself, wherever the connection that wrote it has gone
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content, page = bytearray(path.read_bytes()), embedding_cache.PAGE
    if damage == "text":
        content = bytearray(b"this is no database " * 500)
    elif damage == "head":
        content[:64] = b"\xff" * 64
    elif damage == "middle":
        content[page : 4 * page] = b"\xa5" * (3 * page)
    else:
        content[page : 5 * page] = bytes(4 * page)
    path.write_bytes(content)


def obstruct(path: Path, obstacle: str) -> None:
    if obstacle == "a file in the way":
        path.parent.write_text("")
    else:
        path.mkdir(parents=True)


def moved_aside(path: Path) -> list[Path]:
    return list(path.parent.glob("*.corrupt-*"))


def change(path: Path, *statements: str) -> bytes:
    """Run statements on the file and return what it then holds."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["text", "head", "middle", "empty pages"])
async def test_a_corrupt_file_is_moved_aside_with_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    texts = [str(i) for i in range(500)]
    await CachedEncoder(Counting(), path).embed(texts)
    do_damage(path, damage)
    again = Counting()
    cached = CachedEncoder(again, path)
    rows = await cached.embed(texts)
    np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in texts]))
    assert len(caplog.records) == 1
    assert "corrupt" in caplog.text
    assert len(moved_aside(path)) == 1
    fresh = Counting()
    await CachedEncoder(fresh, path).embed(texts)
    assert fresh.asked == []


async def test_vectors_of_the_wrong_size_are_ignored_and_replaced(path: Path) -> None:
    await CachedEncoder(Counting(), path).embed(["a", "b"])
    change(path, "UPDATE vectors SET vector = x'00112233' WHERE text = (SELECT min(text) FROM vectors)")
    again = Counting()
    rows = await CachedEncoder(again, path).embed(["a", "b"])
    np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in "ab"]))
    assert [len(texts) for texts, _ in again.asked] == [1]


async def test_another_model_under_the_same_name_starts_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await CachedEncoder(Counting(dimension=8), path).embed(["a", "b"])
    wider = Counting(dimension=16)
    assert (await CachedEncoder(wider, path).embed(["a", "c"])).shape == (2, 16)
    assert "another length" in caplog.text
    fresh = Counting(dimension=16)
    assert (await CachedEncoder(fresh, path).embed(["a", "c"])).shape == (2, 16)
    assert fresh.asked == []


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder in its place"])
async def test_without_a_place_to_write_there_is_no_cache_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    path = tmp_path / "cache" / "embeddings.sqlite"
    obstruct(path, obstacle)
    counting = Counting()
    cached = CachedEncoder(counting, path)
    for _ in range(3):
        assert (await cached.embed(["a"])).shape == (1, 8)
    assert len(counting.asked) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_full_disk_ends_writing_but_not_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await CachedEncoder(Counting(), path).embed(["a"])

    class Full(sqlite3.Connection):
        def executemany(self, *_: Any) -> Any:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Full, **options))
    counting = Counting()
    cached = CachedEncoder(counting, path)
    for _ in range(2):
        assert (await cached.embed(["a", "b"])).shape == (2, 8)
    assert [texts for texts, _ in counting.asked] == [["b"], ["b"]]
    assert len(caplog.records) == 1


async def test_a_file_of_another_kind_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = change(path, "CREATE TABLE precious (x)", "PRAGMA user_version = 7")
    assert (await CachedEncoder(Counting(), path).embed(["a"])).shape == (1, 8)
    assert len(caplog.records) == 1
    assert change(path) == before
