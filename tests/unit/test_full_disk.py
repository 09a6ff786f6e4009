"""A disk without room, as a limit on the size of files: answers survive, sentences are plain, older files stay."""

from __future__ import annotations

import hashlib
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.disk_cache import DiskCache
from dubito.models.embedding_cache import CachedEncoder
from dubito.resources.call_cache import CallMemory
from dubito.retrieval.approximate import ApproximateSearch, Kind
from dubito.retrieval.chunking import WordWindows
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.derived_files import Derived, get_or_build, read_array
from dubito.retrieval.index import Index, cached_index
from dubito.retrieval.saved_folder import write_folder
from dubito.tests.json_lines import write_lines
from dubito.tests.recorded import vanilla_run
from dubito.tests.scripted import ScriptedEncoder
from dubito.traces.files import write_file
from dubito.traces.recording import read
from dubito.traces.writer import Trace

ROOM = 2000
MATRIX = Derived(kind="matrix", format=1, chunks=3, chunks_sha256="x")


@pytest.fixture
def full() -> Iterator[None]:
    """No file grows beyond `ROOM` bytes: writing fails in the operating system, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def corpus_file(folder: Path) -> Path:
    path = folder / "c.jsonl"
    write_lines(path, ({"id": str(n), "text": f"word {n} " * 9} for n in range(40)))
    return path


def test_a_run_goes_on_when_its_trace_cannot_be_written(tmp_path: Path, full: None, caplog: pytest.LogCaptureFixture):
    run, path = vanilla_run(), tmp_path / "t.jsonl"
    with Trace(path, run) as trace:
        for event in run:
            trace.on(event)
    assert run.output["answer"] == "the Lune"
    assert len(caplog.messages) == 1
    assert "cannot be written" in caplog.text
    assert "The run goes on without it." in caplog.text
    assert path.stat().st_size == ROOM
    assert (read(path).graph, read(path).ended, read(path).cut) == ("vanilla_rag", False, True)


async def test_an_index_that_cannot_be_saved_is_told_without_words_of_c(tmp_path: Path, full: None):
    documents = tuple(Document(str(n), "", f"word {n}") for n in range(40))
    index = await Index.build(Corpus(documents), WordWindows(100), ScriptedEncoder())
    with pytest.raises(UserFault, match=r"^The index cannot be written to [^ ]*: the disk may be full\.$"):
        await index.save(tmp_path / "x.index")
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - a test


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "ivf_pq"])
def test_so_is_a_structure_of_its_search(tmp_path: Path, kind: Kind, request: pytest.FixtureRequest):
    rows = np.random.default_rng(0).standard_normal((1000, 8)).astype(np.float32)
    search = ApproximateSearch.build(kind, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    request.getfixturevalue("full")
    with pytest.raises(
        UserFault, match=r"^The matrix cannot be written to [^ ]*: (File too large|the disk may be full)\.$"
    ):
        write_folder(tmp_path / "x", MATRIX, lambda folder: search.write(folder / "search.faiss"), replace=False)
    assert not list(tmp_path.iterdir())


async def test_an_index_that_the_cache_has_no_room_for_is_used(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
):
    corpus = corpus_file(tmp_path)
    request.getfixturevalue("full")
    index = await cached_index(corpus, "words:100", ScriptedEncoder(), tmp_path / "cache")
    assert len(index.chunks) == 40
    assert "Going on without saving it." in caplog.text


async def test_derived_files_that_the_cache_has_no_room_for_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    cache = tmp_path / "cache"
    cache.write_text("no folder")
    manifest = Derived(kind="matrix", format=1, chunks=3, chunks_sha256="x")

    async def build():
        return lambda folder: np.save(folder / "x.npy", np.arange(3))

    found = await get_or_build(cache, manifest, lambda folder: read_array(folder / "x.npy", "int64", [3]), build)
    assert found.tolist() == [0, 1, 2]
    assert "The matrix cannot be written" in caplog.text


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, full: None):
    path = tmp_path / "report.html"
    assert write_file(path, b"old", "report") == 3
    with pytest.raises(UserFault, match=r"The report cannot be written to .*File too large"):
        write_file(path, b"new" * ROOM, "report")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "packed",
    [
        b"no zlib",
        zlib.compress(b"x"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"[1, 2]"),
        zlib.compress(b"[NaN, 2]"),
    ],
)
def test_a_cached_call_that_cannot_be_read_is_made_again(
    tmp_path: Path, packed: bytes, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "calls.sqlite"
    CallMemory(path).write(b"key", 1.0, {"a": 1})
    assert CallMemory(path).read(b"key", lambda reply: reply["a"]) == (1.0, 1)
    DiskCache(path, "x").write(b"calls, format 2", {b"key": packed})
    assert CallMemory(path).read(b"key", lambda reply: reply["a"]) is None
    assert "holds calls that cannot be read; they are made again" in caplog.text


async def test_a_cached_vector_that_is_not_finite_is_computed_again(tmp_path: Path):
    encoder = CachedEncoder(ScriptedEncoder(), tmp_path / "e.sqlite")
    (right,) = await encoder.embed(["a"])
    key = b"passage" + hashlib.sha256(b"a").digest()
    DiskCache(tmp_path / "e.sqlite", "x").write(encoder._owner, {key: np.full(len(right), np.nan, "<f4").tobytes()})
    assert (await CachedEncoder(ScriptedEncoder(), tmp_path / "e.sqlite").embed(["a"])).tolist() == [right.tolist()]
