"""`dubito corpus` against a mirror of the hub on this machine: real requests, real files in the hub's formats."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.evals.datasets.corpora import CORPORA
from dubito.retrieval.corpus import read_corpus
from typer.testing import CliRunner

constants = pytest.importorskip("huggingface_hub.constants")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COMMIT = "c8f4f8c9465fb69d31a8eae894c3fd509c4ca321"


@dataclass
class Mirror:
    """files: by path; tells: the SHA-256 that is told of a file, else its own; size: that is told, else its own; cut:
    bytes after which the connection of the next download is cut, and then every download is refused; ranges: of the
    downloads.
    """

    url: str = ""
    storage: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    tells: dict[str, str] = field(default_factory=dict)
    size: int | None = None
    cut: int = 0
    broken: bool = False
    ranges: list[str | None] = field(default_factory=list)

    def holds(self, name: str, content: bytes) -> None:
        self.files[f"/datasets/{CORPORA[name].repository}/resolve/main/{CORPORA[name].file}"] = content


def handler_of(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_content=False)

        def do_GET(self) -> None:
            self.answer(with_content=True)

        def answer(self, *, with_content: bool) -> None:
            stored = self.path.removeprefix("/storage")
            content = mirror.files.get(stored)
            if content is None or (with_content and mirror.broken):
                self.send_response(404 if content is None else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif stored == self.path:  # large files are on a host of their own
                self.send_response(302)
                self.send_header("X-Repo-Commit", COMMIT)
                told = mirror.tells.get(stored, hashlib.sha256(content).hexdigest())
                self.send_header("X-Linked-Etag", f'"{told}"')
                self.send_header("X-Linked-Size", str(len(content) if mirror.size is None else mirror.size))
                self.send_header("Location", f"{mirror.storage}/storage{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.send(content, with_content=with_content)

        def send(self, content: bytes, *, with_content: bool) -> None:
            wanted = self.headers["Range"]
            mirror.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            part = content[start:]
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if with_content and mirror.cut:
                part, mirror.cut, mirror.broken, self.close_connection = part[: mirror.cut], 0, True, True
            if with_content:
                self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mirror]:
    made = Mirror()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made))
    made.url, made.storage = (f"http://{host}:{server.server_address[1]}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def dubito(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def zipped(lines: str, name: str = "wiki18_100w.jsonl") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, lines)
    return packed.getvalue()


def table(rows: list[dict[str, Any]]) -> bytes:
    written = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), written)
    return written.getvalue()


WIKI = [{"id": str(n), "contents": f'"River {n}"\nIt is {n} miles long.'} for n in range(300)]
WIKI_LINES = "".join(json.dumps(one) + "\n" for one in WIKI)


def question(number: int, answer: str, *titles: str) -> dict[str, Any]:
    """A row as HotpotQA and 2WikiMultihopQA have it on the hub."""
    context = {"title": list(titles), "sentences": [[f"{title} is here.", " It is old."] for title in titles]}
    facts = {"title": [titles[0]], "sent_id": [0]}
    return {
        "id": str(number),
        "question": f"Q{number}?",
        "answer": answer,
        "context": context,
        "supporting_facts": facts,
    }


ROWS = [question(1, "Ada", "Ada", "Brand"), question(2, "yes", "Brand", "Crewe")]


def test_wikipedia_is_unpacked_as_it_is(mirror: Mirror, tmp_path: Path) -> None:
    packed = zipped(WIKI_LINES)
    mirror.holds("wikipedia-2018", packed)
    done = dubito("corpus", "wikipedia-2018", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    assert (figures["documents"], figures["sha256"]) == (300, hashlib.sha256(packed).hexdigest())
    assert (figures["revision"], figures["bytes"]) == (COMMIT, len(WIKI_LINES))
    assert figures["next"] == "dubito index wikipedia-2018.jsonl --out wikipedia-2018.index"
    corpus = read_corpus("wikipedia-2018.jsonl")
    assert [(one.id, one.title, one.text) for one in corpus.documents[:2]] == [
        ("0", "River 0", "It is 0 miles long."),
        ("1", "River 1", "It is 1 miles long."),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["wikipedia-2018.jsonl"]


@pytest.mark.parametrize("name", ["2wiki", "hotpotqa"])
def test_paragraphs_of_a_table_are_pooled(mirror: Mirror, name: str, tmp_path: Path) -> None:
    mirror.holds(name, table(ROWS))
    done = dubito("corpus", name, "--out", "pool.jsonl")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [(one.title, one.text) for one in read_corpus(tmp_path / "pool.jsonl").documents] == [
        (title, f"{title} is here. It is old.") for title in ("Ada", "Brand", "Crewe")
    ]


def test_paragraphs_of_musique_are_pooled(mirror: Mirror) -> None:
    parts = [{"idx": i, "title": f"T{i}", "paragraph_text": f"Text {i}.", "is_supporting": i < 2} for i in range(4)]
    steps = [{"question": "one"}, {"question": "two"}]
    both = [
        {
            "id": f"2hop__{n}",
            "question": f"Q{n}?",
            "answer": "Ada",
            "paragraphs": parts[n:] + parts[:n],
            "answerable": True,
        }
        | {"question_decomposition": steps}
        for n in range(2)
    ]
    mirror.holds("musique", "".join(json.dumps(one) + "\n" for one in both).encode())
    assert dubito("corpus", "musique").exit_code == 0
    assert [one.text for one in read_corpus("musique.jsonl").documents] == [f"Text {i}." for i in range(4)]


def test_a_download_that_was_cut_off_goes_on_where_it_was(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = zipped(WIKI_LINES)
    mirror.holds("wikipedia-2018", packed)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 256)
    mirror.cut = 1100
    cut = dubito("corpus", "wikipedia-2018")
    assert cut.exit_code == 2
    assert "cannot be fetched" in cut.stderr
    assert "goes on where it was" in cut.stderr
    assert not list(tmp_path.iterdir())
    mirror.broken = False
    mirror.ranges.clear()
    assert dubito("corpus", "wikipedia-2018").exit_code == 0
    assert [one for one in mirror.ranges if one] == ["bytes=1024-"]  # whole parts of 256
    assert Path("wikipedia-2018.jsonl").read_text() == WIKI_LINES


def test_a_killed_unpacking_begins_anew(mirror: Mirror, tmp_path: Path) -> None:
    packed = zipped(WIKI_LINES)
    mirror.holds("wikipedia-2018", packed)
    left = tmp_path / f".wikipedia-2018.jsonl.{hashlib.sha256(packed).hexdigest()[:16]}.partial"
    left.write_text("half of a line" * 9999)
    assert dubito("corpus", "wikipedia-2018").exit_code == 0
    assert Path("wikipedia-2018.jsonl").read_text() == WIKI_LINES
    assert not left.exists()


def test_a_file_with_another_hash_is_refused_and_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    packed = zipped(WIKI_LINES)
    mirror.holds("wikipedia-2018", packed)
    (path,) = mirror.files
    mirror.tells[path] = hashlib.sha256(packed).hexdigest()
    mirror.files[path] = packed[:-1] + b"?"
    refused = dubito("corpus", "wikipedia-2018")
    assert refused.exit_code == 2
    assert f"arrived with the SHA-256 {hashlib.sha256(mirror.files[path]).hexdigest()} in place of" in refused.stderr
    assert not list(tmp_path.iterdir())
    mirror.files[path] = packed
    assert dubito("corpus", "wikipedia-2018").exit_code == 0


@pytest.mark.parametrize("content", [b"no zip file", zipped("x", name="other.txt")])
def test_a_file_that_is_not_what_it_should_be(mirror: Mirror, content: bytes, tmp_path: Path) -> None:
    mirror.holds("wikipedia-2018", content)
    refused = dubito("corpus", "wikipedia-2018")
    assert refused.exit_code == 2
    assert "is not a zip file with one file of JSON lines" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_hub_that_has_no_such_file_or_tells_no_hash(mirror: Mirror) -> None:
    missing = dubito("corpus", "musique")
    assert missing.exit_code == 2
    assert (
        f"{mirror.url}/datasets/dgslibisey/MuSiQue/resolve/main/musique_ans_v1.0_dev.jsonl cannot be" in missing.stderr
    )
    assert "HF_ENDPOINT" in missing.stderr
    mirror.holds("musique", b"{}\n")
    mirror.tells[next(iter(mirror.files))] = "0" * 40  # a small file of git has no SHA-256
    untold = dubito("corpus", "musique")
    assert untold.exit_code == 2
    assert "does not tell its SHA-256" in untold.stderr


def test_what_the_disk_has_no_room_for_is_not_begun(mirror: Mirror) -> None:
    mirror.holds("musique", b"{}\n")
    mirror.size = 10**18
    refused = dubito("corpus", "musique")
    assert refused.exit_code == 2
    assert "and 1,000,000,000.0 GB are needed: make room" in refused.stderr
    assert mirror.ranges == [], "nothing was fetched"


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    refused = dubito("corpus", "musique")
    assert refused.exit_code == 2
    assert "cannot be fetched" in refused.stderr
    assert "check the network, or name a mirror of the hub with HF_ENDPOINT" in refused.stderr


def test_an_existing_file_stays_without_force(mirror: Mirror, tmp_path: Path) -> None:
    mirror.holds("wikipedia-2018", zipped(WIKI_LINES))
    mine = tmp_path / "wikipedia-2018.jsonl"
    mine.write_text("mine")
    refused = dubito("corpus", "wikipedia-2018")
    assert refused.exit_code == 2
    assert "replace it with --force" in refused.stderr
    assert (mine.read_text(), mirror.ranges) == ("mine", [])
    assert dubito("corpus", "wikipedia-2018", "--force").exit_code == 0
    assert mine.read_text() == WIKI_LINES


def test_a_full_disk_leaves_the_old_file(mirror: Mirror, tmp_path: Path) -> None:
    mirror.holds("wikipedia-2018", zipped(WIKI_LINES))  # 2.5 kB, which unpack to 14 kB
    mine = tmp_path / "wikipedia-2018.jsonl"
    mine.write_text("mine")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        refused = dubito("corpus", "wikipedia-2018", "--force")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.exit_code == 2
    assert "cannot be written to" in refused.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("wikipedia-2018.jsonl", "mine")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["musik"], "There is no ready corpus 'musik' (did you mean musique?)"),
        (["musique", "--out", "m.txt"], "a name that ends with .jsonl"),
        (["musique", "--out", "nowhere/m.jsonl"], "'nowhere' is not a folder that can be written"),
        (["--out", "m.jsonl"], "need the name of a corpus"),
    ],
)
def test_wrong_arguments_ask_no_server(mirror: Mirror, arguments: list[str], sentence: str) -> None:
    refused = dubito("corpus", *arguments)
    assert refused.exit_code == 2
    assert sentence in refused.stderr
    assert mirror.ranges == []


def test_the_corpora_are_listed() -> None:
    listed = json.loads(dubito("corpus", "--json").stdout)["corpora"]
    assert [one["name"] for one in listed] == ["wikipedia-2018", "2wiki", "musique", "hotpotqa"]
    assert listed[0]["bytes"] == 5_130_719_280
    assert listed[0]["source"] == "RUC-NLPIR/FlashRAG_datasets: retrieval-corpus/wiki18_100w.zip"
    shown = dubito("corpus").stdout
    assert all(one["name"] in shown for one in listed)
