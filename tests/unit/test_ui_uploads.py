"""Files that browsers upload to the page of `dubito ui`, and questions about them."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dubito.cli import app as commands
from dubito.cli.ui import page_allow_list, upload_folder
from dubito.errors import UserFault
from dubito.resources.opening import OWN_CACHE
from dubito.resources.resources import Resources
from dubito.retrieval import loaders
from dubito.settings import settings
from dubito.tests.recorded import parsed
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder
from dubito.ui import uploads
from dubito.ui.app import create_app
from dubito.ui.uploads import ALL_BYTES, MOST_OPEN, OWN_FILES, Limits, Uploads
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from typer.testing import CliRunner

ADDRESS = "http://127.0.0.1:8700"
SMALL = Limits(file=1_000, browser=2_000)


class Held(ScriptedChat):
    """Answers once it is let to; `begun` counts the calls."""

    def __init__(self) -> None:
        super().__init__(reply=lambda system, user: "so")
        self.let, self.begun = asyncio.Event(), asyncio.Semaphore(0)

    async def _begin(self, verb: str, messages: Any) -> None:
        await super()._begin(verb, messages)
        self.begun.release()
        await self.let.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "uploads"


def page_over(folder: Path, llm: ScriptedChat | None = None, **more: Any) -> Any:
    opened = Resources(llm=llm or ScriptedChat(reply=lambda *_: "so"), encoder=ScriptedEncoder())
    allowed = page_allow_list([], None, [])
    app = create_app(allowed, resources=opened, uploads=folder, **{"limits": SMALL, "at_once": 9, **more})
    app.state.resources = opened
    return app


@pytest.fixture
def page(folder: Path) -> Iterator[TestClient]:
    with TestClient(page_over(folder), base_url=ADDRESS) as opened:
        opened.get("/")
        yield opened


def put(page: Any, name: str, content: bytes | str = "The bridge is old.", **headers: str) -> Any:
    return page.put("/files", params={"name": name}, content=content, headers=headers)


def names(page: TestClient) -> list[str]:
    listed = parsed(b"<body>" + page.get("/files").content + b"</body>")
    return [one.attributes["data-name"] for one in listed.every("button")]


def question(corpus: str = OWN_FILES, **more: Any) -> dict[str, Any]:
    chosen = {"corpus": corpus, "k": "1", "chunker": "words:100", **more}
    return {"graph": "vanilla_rag", "question": "How old is the bridge?", "settings": chosen}


def evidence(answer: httpx.Response) -> list[str]:
    *_, last = [line for line in answer.text.splitlines() if line.startswith("data: ") and len(line) > 10]
    html = json.loads(last.removeprefix("data: "))["html"]
    return [one.one("p").text for one in parsed(f"<body>{html}</body>".encode()).one(class_="evidence").every("li")]


def test_a_file_is_kept_listed_asked_about_and_deleted(page, folder):
    assert put(page, "notes.txt").status_code == 204
    assert put(page, "more.md", "# Hills\n\nThe hill is high.").status_code == 204
    assert names(page) == ["more.md", "notes.txt"]
    assert "1 kB" in page.get("/files").text
    found = page.post("/ask", json=question(k="2"))
    assert sorted(evidence(found)) == ["# Hills The hill is high.", "The bridge is old."]
    assert page.delete("/files", params={"name": "more.md"}).status_code == 204
    assert names(page) == ["notes.txt"]
    assert evidence(page.post("/ask", json=question(k="2"))) == ["The bridge is old."]
    assert list(folder.rglob("*.md")) == []


def test_a_changed_file_answers_with_what_it_says_now(page):
    put(page, "notes.txt", "The bridge is old.")
    assert evidence(page.post("/ask", json=question())) == ["The bridge is old."]
    page.delete("/files", params={"name": "notes.txt"})
    put(page, "notes.txt", "The bridge is new.")
    assert evidence(page.post("/ask", json=question())) == ["The bridge is new."]


def test_what_was_computed_from_a_file_goes_with_it(page, folder):
    put(page, "notes.txt", "A secret bridge.")
    page.post("/ask", json=question(first_stage="bm25"))
    page.post("/ask", json=question())
    holding = [file for file in folder.rglob("*") if file.is_file() and b"secret" in file.read_bytes()]
    assert {file.name for file in holding} >= {"notes.txt", "chunks.jsonl"}
    page.delete("/files", params={"name": "notes.txt"})
    assert [file for file in folder.rglob("*") if file.is_file()] == []
    indexes = [file for file in settings().cache.glob("indexes/**/*") if file.is_file()]
    assert not [file for file in indexes if b"A secret bridge" in file.read_bytes()]


def test_another_browser_finds_no_file_and_cannot_name_the_folder(page, folder):
    put(page, "notes.txt")
    (own,) = [str(one) for one in folder.glob("*/*")]
    mine = page.cookies.get("dubito_browser")
    page.cookies.clear()
    page.get("/")
    assert names(page) == []
    refused = page.post("/ask", json=question())
    assert refused.json()["error"] == "You have no files here: add one, or choose another corpus."
    assert page.delete("/files", params={"name": "notes.txt"}).status_code == 404
    for path in (own, str(Path(own).parent), f"{OWN_FILES}{mine}", f"{OWN_FILES}/../{Path(own).parent.name}"):
        refused = page.post("/ask", json=question(path))
        assert refused.status_code == 403
        assert refused.json()["error"].startswith(f"corpus '{path}' is not allowed here: use sample, or")
    page.cookies.clear()
    page.cookies.set("dubito_browser", str(mine))
    assert page.post("/ask", json=question(own)).status_code == 403, "not even one's own, by its path"
    assert evidence(page.post("/ask", json=question())) == ["The bridge is old."]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../../x.txt", "'../../x.txt' is no plain file name: rename the file."),
        ("..\\x.txt", "'..\\x.txt' is no plain file name: rename the file."),
        ("/etc/x.txt", "'/etc/x.txt' is no plain file name: rename the file."),
        ("..", "'..' is no plain file name: rename the file."),
        (".hidden.txt", "'.hidden.txt' is no plain file name: rename the file."),
        ("a\x00b.txt", "''a\\x00b.txt'' is no plain file name: rename the file."),
        ("", "'' is no plain file name: rename the file."),
        ("é" * 99 + ".txt", f"The name {'é' * 40}... is too long: rename the file."),
        ("run.exe", "run.exe is not of a kind that can be read here: add a file that ends in .txt, .md, .markdown,"),
        ("x", "x is not of a kind that can be read here"),
        ("table.csv", "table.csv is not of a kind"),
    ],
)
def test_a_name_that_is_no_files_or_of_no_kind_that_is_read_is_refused(page, folder, name, said):
    refused = put(page, name)
    assert (refused.status_code, refused.json()["error"][: len(said)]) == (400, said)
    assert [one for one in folder.rglob("*") if one.is_file()] == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.txt", b"x" * 1_001, "x.txt is too large: a file may have 1 kB."),
        ("x.txt", b"", "x.txt: the file is empty, so there is no document to read."),
        ("x.txt", b"\x7fELF\0\0", "x.txt: the file is binary (byte 4 is 0) and of an unknown format, so there"),
        ("x.txt", "é".encode("utf-16"), "x.txt: the file is UTF-16: save it as UTF-8, so there is no document"),
        ("x.pdf", b"%PDF-1.7 and no more", "x.pdf: it cannot be read as PDF ("),
        ("x.docx", b"PK\x03\x04 word/", "x.docx: it cannot be read as Word (BadZipFile"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_not_kept(page, folder, name, content, said):
    refused = put(page, name, content)
    assert (refused.status_code, refused.json()["error"][: len(said)]) == (
        413 if "too large" in said else 400,
        said,
    )
    assert str(folder) not in refused.text
    assert list(folder.iterdir()) == []


def test_a_word_file_that_unpacks_to_more_than_there_is_room_for_is_refused(page, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.docx", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/document.xml", b"0" * 100_000)
    most = settings().model_copy(update={"max_unpacked_gb": 9e-5})
    monkeypatch.setattr(loaders, "settings", lambda: most)
    refused = put(page, "x.docx", (tmp_path / "x.docx").read_bytes())
    assert refused.json()["error"].startswith("x.docx: it unpacks to more than 9e-05 GB")


def test_a_file_is_too_large_also_if_the_request_does_not_say_so(page, folder):
    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    refused = page.put("/files", params={"name": "x.txt"}, content=pieces())
    assert (refused.status_code, refused.json()["error"]) == (413, "x.txt is too large: a file may have 1 kB.")
    assert list(folder.iterdir()) == []


def test_the_same_file_twice_and_another_of_its_name_are_refused_and_nothing_is_lost(page):
    put(page, "a.txt", "One.")
    for name, content, said in (
        ("a.txt", "One.", "a.txt is here already."),
        ("b.txt", "One.", "b.txt is here already as a.txt."),
        ("A.txt", "Two.", "Another file named a.txt is here: delete it first, or rename the new one."),
    ):
        refused = put(page, name, content)
        assert (refused.status_code, refused.json()["error"]) == (409, said)
    assert names(page) == ["a.txt"]
    assert evidence(page.post("/ask", json=question())) == ["One."]


def test_all_files_of_a_browser_have_a_limit_and_those_of_all_browsers_too(page, monkeypatch):
    for name in "ab":
        assert put(page, f"{name}.txt", name * 1_000).status_code == 204
    refused = put(page, "c.txt", "c")
    assert (refused.status_code, refused.json()["error"]) == (
        413,
        "c.txt does not fit: all your files may have 2 kB, so delete one.",
    )
    page.delete("/files", params={"name": "a.txt"})
    monkeypatch.setattr(uploads, "ALL_BYTES", 1_000)
    refused = put(page, "c.txt", "c")
    assert (refused.status_code, refused.json()["error"]) == (
        507,
        "c.txt does not fit: this server has no room for more files.",
    )
    assert names(page) == ["b.txt"]


async def added(kept: Uploads, browser: str, name: str, content: bytes) -> None:
    async def pieces() -> Any:
        yield content

    await kept.add(browser, name, pieces(), 0)


async def test_the_files_of_a_browser_that_is_long_gone_make_room_for_others(folder, monkeypatch):
    kept = Uploads(folder, SMALL, lambda corpus: None)
    for age, browser in ((90, "long gone"), (40, "gone"), (1, "here")):
        await added(kept, browser, "x.txt", browser.encode())
        home = Path(kept.corpus(browser)).parent
        os.utime(home, (home.stat().st_mtime - age * 86_400,) * 2)
    monkeypatch.setattr(uploads, "ALL_BYTES", len("goneherenew"))
    await added(kept, "new", "x.txt", b"new")
    assert [bool(kept.files(browser)) for browser in ("long gone", "gone", "here", "new")] == [False, True, True, True]
    assert ALL_BYTES == 10_000_000_000


async def test_what_a_killed_server_left_is_removed_and_everything_else_stays(folder):
    kept = Uploads(folder, SMALL, lambda corpus: None)
    await added(kept, "me", "x.txt", b"x")
    current = Path(kept.corpus("me"))
    kept.lend(str(current))
    await added(kept, "me", "y.txt", b"y")
    assert sorted(one.name for one in (folder / current.parent.name).iterdir()) == ["1", "2"]
    (folder / ".new-half").mkdir()
    (folder / "photos" / "1").mkdir(parents=True)
    again = Uploads(folder, SMALL, lambda corpus: None)
    assert [one.name for one in again.files("me")] == ["x.txt", "y.txt"]
    assert sorted(one.name for one in folder.iterdir() if one != current.parent) == ["photos"]
    assert (folder / "photos" / "1").exists()
    assert [one.name for one in (folder / current.parent.name).iterdir()] == ["2"]


async def test_only_the_last_corpora_stay_open(folder):
    closed: list[str] = []
    kept = Uploads(folder, SMALL, closed.append)
    corpora = []
    for number in range(MOST_OPEN + 2):
        await added(kept, str(number), "x.txt", b"x")
        corpora.append(kept.corpus(str(number)))
    first = kept.lend(corpora[0])
    for corpus in corpora[1:]:
        kept.lend(corpus)()
    assert closed == [corpora[1]], "the first is in use"
    first()
    assert closed == corpora[1:3]
    kept.lend(corpora[1])()
    assert closed == corpora[1:4], "it was opened again, and is the last that was used"


async def test_no_more_uploads_at_once_than_allowed(folder):
    kept, let = Uploads(folder, SMALL, lambda corpus: None), asyncio.Event()

    async def slow() -> Any:
        yield b"x"
        await let.wait()

    waiting = [asyncio.create_task(kept.add(str(i), "x.txt", slow(), 0)) for i in range(uploads.MOST_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(HTTPException, match="4 files are on their way already: wait until one has arrived"):
        await added(kept, "me", "x.txt", b"x")
    waiting[0].cancel()  # its connection is lost
    let.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [len(kept.files(str(i))) for i in range(uploads.MOST_AT_ONCE)] == [0, 1, 1, 1]
    await added(kept, "me", "x.txt", b"x")


async def test_uploads_that_could_not_begin_keep_none_from_beginning(folder):
    kept = Uploads(folder, Limits(), lambda corpus: None)
    folder.rmdir()
    for _ in range(uploads.MOST_AT_ONCE):
        with pytest.raises(HTTPException, match="cannot be kept") as refused:
            await added(kept, "b", "a.txt", b"text")
        assert refused.value.status_code == 507
    folder.mkdir()
    await added(kept, "b", "a.txt", b"text")
    assert [file.name for file in kept.files("b")] == ["a.txt"]


async def test_a_browser_that_sleeps_in_an_upload_keeps_no_other_waiting(folder, monkeypatch):
    monkeypatch.setattr(uploads, "PAUSE_S", 0.05)
    kept = Uploads(folder, SMALL, lambda corpus: None)

    async def asleep() -> Any:
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(HTTPException, match=r"x\.txt did not arrive: nothing more of it came for 0 seconds"):
        await kept.add("me", "x.txt", asleep(), 0)
    assert list(folder.iterdir()) == []


async def test_two_questions_at_once_each_read_the_files_as_they_were_when_they_began(folder):
    llm = Held()
    app = page_over(folder, llm)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as page:
        await page.get("/")
        await put(page, "a.txt", "The bridge is old.")
        asked = {**question(k="5"), "graph": "iter_retgen"}  # which searches again after the files have changed
        first = asyncio.create_task(page.post("/ask", json=asked))
        await llm.begun.acquire()
        (before,) = folder.glob("*/*")
        assert (await page.delete("/files", params={"name": "a.txt"})).status_code == 204
        assert (await put(page, "b.txt", "The bridge is new.")).status_code == 204
        second = asyncio.create_task(page.post("/ask", json=question(k="5")))
        await llm.begun.acquire()
        assert (before / "a.txt").exists()
        llm.let.set()
        assert evidence(await first) == ["The bridge is old."]
        assert evidence(await second) == ["The bridge is new."]
        assert not before.exists()
        after = await page.post("/ask", json=question(k="5"))
        assert evidence(after) == ["The bridge is new."]
    opened = {part.corpus for key in app.state.resources._opened for part in key if hasattr(part, "corpus")}
    assert opened == {str(one) for one in folder.glob("*/*")}
    assert len(opened) == 1


def test_a_question_that_is_refused_holds_no_folder(folder):
    with TestClient(page_over(folder, at_once=0), base_url=ADDRESS) as page:
        page.get("/")
        put(page, "a.txt")
        assert page.post("/ask", json=question()).status_code == 429
        (before,) = folder.glob("*/*")
        page.delete("/files", params={"name": "a.txt"})
        assert not before.exists()


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_another_page_can_neither_upload_nor_delete(page, headers):
    put(page, "a.txt")
    assert put(page, "b.txt", "Other.", **headers).status_code == 403
    assert page.delete("/files", params={"name": "a.txt"}, headers=headers).status_code == 403
    assert names(page) == ["a.txt"]


def test_without_the_option_nothing_is_taken():
    app = create_app(page_allow_list([], None, []))
    with TestClient(app, base_url=ADDRESS) as page:
        assert put(page, "a.txt").status_code == 404
        assert 'id="upload"' not in page.get("/").text
        assert page.post("/ask", json=question()).json()["error"].startswith(f"corpus '{OWN_FILES}' is not allowed")


def test_a_names_html_is_text(page):
    put(page, "<b>x<b>.txt")
    assert names(page) == ["<b>x<b>.txt"]
    assert "<b>" not in page.get("/files").text


def test_one_page_at_a_time_keeps_uploads_in_a_folder(folder, tmp_path):
    with (
        upload_folder(folder),
        pytest.raises(UserFault, match="Another dubito ui keeps its uploads in"),
        upload_folder(folder),
    ):
        pass
    (tmp_path / "file").write_text("x")
    done = CliRunner().invoke(commands, ["ui", "--port", "0", "--uploads", str(tmp_path / "file" / "x")])
    assert (done.exit_code, "cannot be used (Not a directory): give another folder." in done.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--upload-mb", "--uploads-mb"])
def test_limits_without_uploads_are_refused(option):
    done = CliRunner().invoke(commands, ["ui", "--port", "0", option, "5"])
    assert (done.exit_code, "are limits of uploaded files: give --uploads DIR too." in done.stderr) == (2, True)


def test_the_folder_of_computed_files_is_no_document(page, folder):
    put(page, "a.txt")
    page.post("/ask", json=question())
    (current,) = folder.glob("*/*")
    assert (current / OWN_CACHE).is_dir()
    assert names(page) == ["a.txt"]
