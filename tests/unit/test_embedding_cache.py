import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.models import embedding_cache
from dubito.models.embedding_cache import CachedEncoder
from dubito.models.interfaces import Vectors


class Counting:
    """Vectors from a text's hash; keeps every list it was asked for."""

    def __init__(self, name: str = "counting", dimension: int = 8) -> None:
        self.name, self.weights = name, ""
        self.size = dimension
        self.asked: list[tuple[list[str], bool]] = []

    async def dimension(self) -> int:
        return self.size

    async def token_counter(self) -> None:
        return None

    async def max_tokens(self) -> int | None:
        return 256

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.asked.append((list(texts), query))
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
    with blockbuster_ctx():
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


async def test_other_weights_of_the_same_name_are_kept_apart(path: Path) -> None:
    embedded = []
    for weights in ("a", "b", "a"):
        encoder = Counting()
        encoder.weights = weights
        cached = CachedEncoder(encoder, path)
        assert cached.weights == weights
        await cached.embed(["x"])
        embedded.append(len(encoder.asked))
    assert embedded == [1, 1, 0], "the first weights' vectors are still there at last"


async def test_what_it_wraps_shows_through(path: Path) -> None:
    cached = CachedEncoder(Counting(), path)
    assert cached.name == "counting"
    assert await cached.dimension() == 8
    assert await cached.max_tokens() == 256
    assert (await cached.embed([])).shape == (0, 8)
    assert not exists(path)


async def test_any_text_is_a_key(path: Path) -> None:
    odd = ["", " ", "\0", "é", "e\u0301", "\ud800", "x" * 100_000, "'; DROP TABLE entries; --"]
    await CachedEncoder(Counting(), path).embed(odd)
    again = Counting()
    await CachedEncoder(again, path).embed(odd)
    assert again.asked == []


async def test_long_lists_are_written_piece_by_piece(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_cache, "BATCH", 10)

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


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


async def test_vectors_of_the_wrong_size_are_ignored_and_replaced(path: Path) -> None:
    await CachedEncoder(Counting(), path).embed(["a", "b"])
    change(path, "UPDATE entries SET value = x'00112233' WHERE key > x'6d'")  # all but the length
    for texts in ("a", "ab"):
        rows = await CachedEncoder(Counting(), path).embed(list(texts))
        np.testing.assert_array_equal(rows, np.stack([vector(t, query=False) for t in texts]))
    fresh = Counting()
    await CachedEncoder(fresh, path).embed(["a", "b"])
    assert fresh.asked == []


async def test_another_model_under_the_same_name_starts_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await CachedEncoder(Counting(dimension=8), path).embed(["a", "b"])
    wider = Counting(dimension=16)
    assert (await CachedEncoder(wider, path).embed(["a", "c"])).shape == (2, 16)
    assert "another length" in caplog.text
    fresh = Counting(dimension=16)
    assert (await CachedEncoder(fresh, path).embed(["a", "c"])).shape == (2, 16)
    assert fresh.asked == []
