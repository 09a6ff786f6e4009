"""A key is searched for in everything that dubito leaves behind: files, databases, output, logs, spans, exceptions."""

from __future__ import annotations

import gzip
import json
import logging
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.resources import resources
from dubito.resources.telemetry import stop_exporting
from dubito.settings import settings
from dubito.tests.json_lines import write_lines
from dubito.tests.stub_server import Stub, collecting, serving
from typer.testing import CliRunner

CANARY = "sk-canary"
GENERAL, BOUND, IN_URL = f"{CANARY}-general-0123456789", f"{CANARY}-bound-0123456789", f"{CANARY}-url-0123456789"
CLOSED = "http://127.0.0.1:9/v1"


class Kennel:
    """What was left behind: a folder, and the texts that a run said on other ways."""

    def __init__(self, folder: Path, logged: pytest.LogCaptureFixture) -> None:
        self.folder, self._logged = folder, logged
        self.said: list[tuple[str, bytes]] = []

    def dubito(self, *arguments: object) -> int:
        """Run a command and keep its output and its exception."""
        ended = CliRunner().invoke(app, [str(one) for one in arguments])
        where = " ".join(map(str, arguments[:2]))
        self.said.append(
            (f"output of {where}", ended.output_bytes if hasattr(ended, "output_bytes") else ended.output.encode())
        )
        self.said += [(f"exception of {where}", text.encode()) for text in told(ended.exception)]
        return ended.exit_code

    def left_behind(self) -> Iterator[tuple[str, bytes]]:
        """Everything, with the place where it was found."""
        yield from self.said
        yield from (
            (f"log {one.name}", f"{one.getMessage()} {one.exc_text} {one.exc_info}".encode())
            for one in self._logged.records
        )
        for path in self.folder.rglob("*"):
            if path.is_file():
                yield from ((str(path), content) for content in contents(path))


def told(fault: BaseException | None) -> list[str]:
    """The texts of an exception and of all that are behind it."""
    found, waiting = [], [fault]
    while waiting:
        if (one := waiting.pop()) is not None:
            found += [str(one), repr(one), *map(repr, vars(one).values()), *getattr(one, "__notes__", [])]
            waiting += [one.__cause__, one.__context__]
    return found


def contents(path: Path) -> Iterator[bytes]:
    """A file as it is, its name, and what a database in it holds."""
    raw = path.read_bytes()
    yield path.name.encode()
    yield from unpacked(raw)
    if raw.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(path)) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in database.execute(f'SELECT * FROM "{table}"'):
                    for cell in row:
                        yield from unpacked(cell if isinstance(cell, bytes) else str(cell).encode())


def unpacked(raw: bytes) -> Iterator[bytes]:
    """Bytes, and what they are packed from."""
    yield raw
    for unpack in (zlib.decompress, gzip.decompress):
        with suppress(zlib.error, OSError, EOFError):
            yield unpack(raw)


@pytest.fixture
def kennel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fast_retries: None
) -> Iterator[Kennel]:
    """An empty home and an empty cache, with keys that no place may show."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "DUBITO_CACHE_DIR": str(tmp_path / "cache"),
        "DUBITO_API_KEY": GENERAL,
        "DUBITO_QDRANT_API_KEY": GENERAL,
        "DUBITO_DEBUG": "1",
        "DUBITO_OUTAGE_S": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DUBITO_KEYS", "")  # the commands add the servers that they name; put back at the end
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(resources, "_shared", None)
    settings.cache_clear()
    lines = [{"question": f"Who is number {i}?", "answers": [f"right {i}"]} for i in range(8)]
    write_lines(tmp_path / "questions.jsonl", lines)
    (tmp_path / "corpus.jsonl").write_text('{"title": "The Lune", "text": "The Lune flows past Lancaster."}\n')
    yield Kennel(tmp_path, caplog)
    stop_exporting()
    settings.cache_clear()


@pytest.fixture
def collector(kennel: Kennel) -> Iterator[str]:
    """An OTLP receiver that keeps the bytes of all spans and headers."""

    def take(path: str, headers: Mapping[str, str], body: bytes) -> int:
        kennel.said += [("spans", content) for content in unpacked(body)]
        kennel.said.append(("headers of spans", str(headers).encode()))
        return 200

    with collecting(take) as url:
        yield url


def says(body: dict[str, Any]) -> str:
    """The answer of every second question is right."""
    number = int(re.findall(r"number (\d)", json.dumps(body["messages"]) + "number 1")[0])
    return f"So the final answer is: {'right' if number % 2 else 'wrong'} {number}."


def assert_nothing_is_found(kennel: Kennel) -> None:
    stop_exporting()
    searched = list(kennel.left_behind())
    assert [place for place, content in searched if CANARY.encode() in content] == []


def test_no_key_is_left_behind(kennel: Kennel, collector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Stub(script=says)) as chat, serving(Stub()) as encoder:
        monkeypatch.setenv("DUBITO_KEYS", f"{encoder.url}={BOUND}")
        settings.cache_clear()
        models = ("--llm", f"openai:{chat.url}#m", "--encoder", f"openai:{encoder.url}#m")
        question = "Who is number 1?"
        assert kennel.dubito("index", "corpus.jsonl", "--out", "c.index", *models[2:]) == 0
        over = ("--corpus", "c.index", *models)
        ask = ("ask", question, "--graph", "vanilla_rag", *over, "--set", "k=1")
        assert kennel.dubito(*ask, "--trace", "run.jsonl", "--otlp", collector) == 0
        assert kennel.dubito("trace", "run.jsonl", "--html", "run.html") == 0
        evaluation = ("vanilla_rag", "cot", "--dataset", "questions.jsonl", *over, "--set", "k=1", "--out", "a.run")
        assert kennel.dubito("eval", *evaluation) == 0
        assert kennel.dubito("report", "a.run") == 0
        more = ("--right", "exact", "--set", "estimator=perplexity")
        calibration = ("retrieval_threshold", "questions.jsonl", *over, *more)
        assert kennel.dubito("calibrate", *calibration) == 0
        # both keys were sent, or the search would find nothing anyway
        assert set(chat.authorizations) == {f"Bearer {GENERAL}"}
        assert set(encoder.authorizations) == {f"Bearer {BOUND}"}
    assert any(place == "spans" for place, _ in kennel.said)
    assert {"run.jsonl", "run.html", "results.sqlite", "report.html"} <= {
        path.name for path in kennel.folder.rglob("*")
    }
    assert_nothing_is_found(kennel)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, None])
def test_no_key_is_left_behind_by_a_server_that_tells_it(kennel: Kennel, collector: str, status: int | None) -> None:
    """The server's error quotes the header Authorization; without a status nothing listens."""

    def echo(authorization: str) -> str:
        return f"'{authorization}' {'is wrong ' * 40} {authorization}"

    with serving(Stub(fails=lambda body, number: status or 200, refusal=echo)) as stub:
        url = stub.url if status else CLOSED
        models = ("--llm", f"openai:{url}#m", "--encoder", f"openai:{url}#m")
        ask = ("ask", "Who?", "--graph", "cot", "--llm", f"openai:{url}#m", "--otlp", collector)
        assert kennel.dubito(*ask, "--trace", "run.jsonl") in {1, 2}
        assert kennel.dubito(*ask, "--json") in {1, 2}
        assert kennel.dubito("index", "corpus.jsonl", "--out", "c.index", *models[2:]) in {1, 2}
        evaluation = ("cot", "--dataset", "questions.jsonl", *models[:2], "--out", "a.run", "--limit", 2)
        assert kennel.dubito("eval", *evaluation) in {1, 2}
        kennel.dubito("report", "a.run")
        assert not status or set(stub.authorizations) == {f"Bearer {GENERAL}"}
    assert_nothing_is_found(kennel)


@pytest.mark.parametrize("url", [f"http://user:{IN_URL}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?key={IN_URL}"])
def test_a_key_in_a_url_is_refused_and_not_left_behind(
    kennel: Kennel, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    model = f"openai:{url}#m"
    begin = ("eval", "cot", "--dataset", "questions.jsonl", "--out", "a.run")
    for words in (
        ("ask", "Who?", "--graph", "cot", "--llm", model, "--trace", "run.jsonl"),
        ("ask", "Who?", "--graph", "cot", "--otlp", url),
        ("ask", "Who?", "--graph", "vanilla_rag", "--corpus", f"qdrant:{url}#c"),
        ("index", "corpus.jsonl", "--out", "c.index", "--encoder", model),
        ("index", "corpus.jsonl", "--out", f"qdrant:{url}#c"),
        ("index", "corpus.jsonl", "--out", f"milvus:{url}#c"),
        ("index", "corpus.jsonl", "--out", f"pgvector:postgresql://user:{IN_URL}@127.0.0.1:9/db#c"),
        (
            "ask",
            "Who?",
            "--corpus",
            f"pgvector:postgresql://127.0.0.1:9/db?password={IN_URL}#c",
            "--trace",
            "run.jsonl",
        ),
        ("calibrate", "retrieval_threshold", "questions.jsonl", "--llm", model),
        (*begin, "--llm", model),
        (*begin, "--llm", f"openai:{CLOSED}#m", "--replica", url),
    ):
        assert kennel.dubito(*words) == 2, words
    for name in ("DUBITO_LLM", "DUBITO_OTLP_ENDPOINT", "DUBITO_KEYS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, url if name != "DUBITO_LLM" else model)
            settings.cache_clear()
            assert kennel.dubito("ask", "Who?", "--graph", "cot", "--llm", f"openai:{CLOSED}#m") in {1, 2}
    assert_nothing_is_found(kennel)
