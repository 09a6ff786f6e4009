"""Corpora that are too large for the memory: the same documents, chunks and index from the disk."""

from __future__ import annotations

import gzip
import json
import resource
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.retrieval import formats, spool
from dubito.retrieval.bm25 import open_bm25
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import read_corpus
from dubito.retrieval.index import Index
from dubito.retrieval.spool import Spool, spooled
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedEncoder

RECORDS = [
    {"id": "a", "title": "Ada \u00c4", "text": "Ada wrote notes. " * 9, "year": 1843, "tags": ["x"]},
    {"id": "twice", "title": "Alan", "text": "Alan broke codes."},
    {"id": "twice", "title": "Alan", "text": "Alan ran."},
    {"text": "A record without a title.\u2028It goes on."},
    {"context": [["Ada", ["Ada wrote."]], ["Cy", ["Cy dug."]]], "id": "q"},
    {"context": [["Ada", ["Ada wrote."]], ["Ada", ["Another Ada."]]], "id": "r"},
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is longer than 50 bytes is on the disk."""
    monkeypatch.setattr(spool, "IN_MEMORY", 50)


def kept(path: Path) -> Any:
    corpus = read_corpus(path)
    return list(corpus.documents), corpus.fingerprint


@pytest.mark.parametrize("name", ["c.jsonl", "notes"])
def test_documents_on_the_disk_are_those_in_memory(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    path = tmp_path / name
    if path.suffix:
        write_lines(path, RECORDS)
    else:
        path.mkdir()
        (path / "a.md").write_text("# One\ntext\n## Two\nmore text\n" * 4)
        (path / "b.txt").write_text("plain text " * 9)
    assert isinstance(read_corpus(path).documents, tuple)
    before = kept(path)
    request.getfixturevalue("small")
    assert isinstance(read_corpus(path).documents, Spool)
    assert kept(path) == before


async def test_an_index_from_the_disk_is_the_one_from_memory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path, encoder = write_lines(tmp_path / "c.jsonl", RECORDS), ScriptedEncoder()
    for name in ("memory", "disk"):
        index = await Index.build(read_corpus(path), open_chunker("words:3"), encoder)
        assert isinstance(index.chunks, Spool) == (name == "disk")
        await index.save(tmp_path / name)
        await open_bm25(index, tmp_path / f"{name}.cache")
        request.getfixturevalue("small")
    one, other = (
        {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in (tmp_path / name).rglob("*")
            if file.is_file()
        }
        for name in ("memory", "disk")
    )
    assert one == other
    words = [
        [file.read_bytes() for file in sorted((tmp_path / f"{name}.cache").rglob("*.npy"))]
        for name in ("memory", "disk")
    ]
    assert words[0] == words[1]
    assert len(words[0]) >= 3


def test_slices_and_threads_read_the_same(small: None) -> None:
    records = [{"n": number, "text": "x" * (number % 50)} for number in range(2000)]
    stored = spooled(iter(records))
    assert isinstance(stored, Spool)
    assert (len(stored), stored[-1], stored[7], stored[5:9], stored[3:3], stored[1990:5000], stored[10:0:-3]) == (
        *(2000, records[-1], records[7], records[5:9], []),
        *(records[1990:], records[10:0:-3]),
    )
    with pytest.raises(IndexError):
        stored[2000]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stored.__getitem__, range(2000))) == records
    assert list(stored) == records


async def test_memory_stays_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 100_000)
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for number in range(1500):
            file.write(json.dumps({"id": str(number), "text": f"{number} " + "word and " * 500}) + "\n")
    tracemalloc.start()
    try:
        corpus = read_corpus(path)
        index = await Index.build(corpus, open_chunker("words:100"), None)
        await index.save(tmp_path / "i")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index.chunks) == 1500 * 11
    assert most < 5_000_000, "the texts have 6.7 MB"


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv"])
def test_a_line_without_end_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST", 1000)
    (tmp_path / name).write_text(('{"text": "Ada"}\n{"text": "' if name == "c.jsonl" else "text\nAda\n") + "x" * 5000)
    with pytest.raises(UserFault, match=rf"{name}: .*a line has more than 1,000 characters"):
        read_corpus(tmp_path / name)


def test_a_full_disk_is_told(tmp_path: Path, small: None) -> None:
    path = write_lines(tmp_path / "c.jsonl", ({"text": "word " * 99} for _ in range(90)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(UserFault, match=r"cannot be kept in the cache folder .* \(File too large\): make room"):
            read_corpus(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
