"""README's picture: a run of `dubito ask`, drawn without anything from another server."""

from __future__ import annotations

import html
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from dubito.tests.stub_server import Stub, serving

DOCS = Path(__file__).parents[2] / "docs"


def shown(picture: Path) -> str:
    """The words of the picture."""
    lines = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return re.sub(r"\s+", " ", html.unescape(" ".join(line.text or "" for line in lines)))


def test_it_draws_the_steps_and_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "ask.svg"
    with serving(Stub(script=lambda body: "So the final answer is: Ada.")) as stub:
        words = ["record.py", "Who wrote it?", "--graph", "cot", "--llm", stub.url, "--out", str(picture)]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(DOCS / "record.py"), run_name="__main__")
    said = r'\$ dubito ask "Who wrote it\?" --graph cot --llm "http://127.* draft_step .*Answer.* Ada'
    assert re.search(said, shown(picture))


def test_the_committed_picture_needs_no_other_server() -> None:
    picture = DOCS / "ask.svg"
    assert "Answer" in shown(picture)
    loaded = re.findall(r"https?://[^\"'\s)<&]+", picture.read_text(encoding="utf-8"))
    assert {url for url in loaded if "127.0.0.1" not in url} <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }
