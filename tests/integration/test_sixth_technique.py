"""A sixth technique is six files: examples/crag, put into a copy of the package, is found everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.tests.json_lines import write_lines
from dubito.tests.killed import PRELOADED
from dubito.tests.stub_server import Stub, serving

ROOT = Path(__file__).parents[2]
CRAG = ROOT / "examples" / "crag"

QUESTION = "Who founded the Lune Gazette?"
CORPUS = [
    {"id": "gazette", "title": "Lune Gazette", "text": "Beatrix Hale founded the Lune Gazette in 1871."},
    {"id": "bridge", "title": "Maddern Bridge", "text": "The Maddern Bridge spans the river Lune."},
    {"id": "salt", "title": "The Salt Road", "text": "The Salt Road is a novel about Vennick."},
]


def reply(body: dict[str, Any]) -> str:
    """Grades the passage on the gazette as relevant alone."""
    asked = body["messages"][-1]["content"]
    if "Does the passage help" in asked:
        return "yes" if "Beatrix Hale" in asked else "no"
    return "Beatrix Hale"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the new technique's files, and a corpus and a dataset beside it."""
    home = tmp_path_factory.mktemp("six")
    package = home / "dubito"
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = {name.split(".")[1] for name in packages if "." in name and not name.startswith("dubito.examples")}
    package.mkdir()
    for folder in ("docs/graphs", "docs/reference/graphs"):
        (package / folder).mkdir(parents=True)
    for name in (*(file.name for file in ROOT.glob("*.py")), "pyproject.toml", "mkdocs.yml", "docs/generate.py"):
        shutil.copy(ROOT / name, package / name)
    for room in rooms:
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CRAG, package, dirs_exist_ok=True)
    write_lines(home / "corpus.jsonl", CORPUS)
    questions = [{"id": f"q{i}", "question": QUESTION, "answers": ["Beatrix Hale"]} for i in range(2)]
    write_lines(home / "questions.jsonl", questions)
    return home


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with serving(Stub(script=reply)) as stub:
        yield stub


COMMANDS = """
import json, os, runpy, sys
from importlib import import_module

for name in sys.argv[1:]:
    import_module(name)
for line in sys.stdin:
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
arguments, code, shown, said = json.loads(line)
for number, path in enumerate([os.devnull, shown, said]):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
sys.argv = ["dubito", *arguments]
if code:
    exec(code, {"__name__": "__main__"})
else:
    runpy.run_module("dubito", run_name="__main__", alter_sys=True)
"""
"""Runs each command in a process that is forked from one that has imported what takes long."""


@pytest.fixture(scope="module")
def dubito(home: Path, stub: Stub) -> Iterator[Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(home),
        "DUBITO_CACHE_DIR": str(home / "cache"),
        "DUBITO_LLM": f"openai:{stub.url}#stub",
        "DUBITO_ENCODER": f"openai:{stub.url}#stub",
        "DUBITO_CORPUS": str(home / "corpus.jsonl"),
    }
    shown, said = home / "shown", home / "said"
    with subprocess.Popen(
        [sys.executable, "-c", COMMANDS, *PRELOADED],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=home, env=environment,
    ) as commands:  # fmt: skip
        assert commands.stdin is not None
        assert commands.stdout is not None

        def run(*arguments: str, code: str = "") -> str:
            print(json.dumps([arguments, code, str(shown), str(said)]), file=commands.stdin, flush=True)
            assert commands.stdout is not None
            status = commands.stdout.readline()
            assert status == "0\n", shown.read_text() + said.read_text()
            return shown.read_text()

        yield run


@pytest.fixture(scope="module")
def trace(dubito: Any, home: Path) -> Path:
    """A run of the new technique, watched and recorded."""
    shown = dubito("ask", QUESTION, "--graph", "crag", "-k", "3", "--trace", "run.jsonl").splitlines()
    assert shown[-1] == "Beatrix Hale"
    assert {" ".join(line.split()[:3]) for line in shown} >= {
        "Lune Gazette relevant",
        "Maddern Bridge irrelevant",
        "keep_relevant 1 chunk",
    }
    assert "Uncertainty: share of irrelevant chunks 0.667, above the threshold 0.500." in shown
    return home / "run.jsonl"


def test_its_trace_is_a_tree_and_a_page(dubito, trace, home):
    assert "1 chunk kept" in dubito("trace", str(trace))
    dubito("trace", str(trace), "--html", "run.html")
    page = (home / "run.html").read_text()
    assert "<h2>CRAG</h2>" in page
    assert "<h3>The retrieved chunks</h3>" in page


def test_it_is_asked_on_the_page(dubito):
    code = """
import os
from dubito.cli.ui import page_allow_list
from dubito.graphs.registry import graph_named
from dubito.graphs.wiring import nodes_of_settings
from dubito.ui.app import create_app
from starlette.testclient import TestClient

encoder = "encoder=" + os.environ["DUBITO_ENCODER"]
named = page_allow_list([os.environ["DUBITO_CORPUS"]], os.environ["DUBITO_LLM"], [encoder])
page = TestClient(create_app(named), base_url="http://127.0.0.1:8700")
assert ">Answer from passages that were checked (CRAG)<" in page.get("/").text
nodes = nodes_of_settings(graph_named("crag"))
assert (nodes["most_irrelevant"], "check_certainty" in nodes["uncertainty"]) == (["keep_relevant"], True)
assert "most_irrelevant" in page.get("/form/crag").text
settings = {name: os.environ["DUBITO_" + name.upper()] for name in ("corpus", "llm", "encoder")}
print(page.post("/ask", json={"graph": "crag", "question": "Who founded the Lune Gazette?", "settings": settings}).text)
"""
    events = dubito(code=code)
    assert "irrelevant" in events
    assert "share of irrelevant chunks" in events
    assert "Beatrix Hale" in events


def test_it_is_evaluated_with_its_uncertainty(dubito, home):
    dubito("eval", "crag", "--dataset", "questions.jsonl", "--corpus", "corpus.jsonl", "--out", "crag.run", "-k", "3")
    assert "share of irrelevant chunks" in (home / "crag.run" / "report.md").read_text()


def test_its_own_uncertainty_is_calibrated(dubito, home):
    questions = [{"question": f"{QUESTION} ({i})", "answers": ["Beatrix Hale"]} for i in range(20)]
    write_lines(home / "many.jsonl", questions)
    asked = ["--corpus", "corpus.jsonl", "-k", "3"]
    found = json.loads(dubito("calibrate", "crag", "many.jsonl", "--keep", "0.5", "--out", "c.json", "--json", *asked))
    # of three passages one is relevant, whatever the question
    assert (found["signal"], found["threshold"]) == ("share of irrelevant chunks", pytest.approx(2 / 3))
    answer = json.loads(dubito("ask", QUESTION, "--calibration", "c.json", "--json", *asked))
    assert (answer["answer"], answer["abstained"], answer["certificate"]["holds"]) == ("Beatrix Hale", False, True)


def test_its_retrieval_steps_are_measured(dubito, trace):
    judge = ["--set", "judge=similarity:0.5", "--set", "samples=2"]
    measured = json.loads(dubito("seper", str(trace), "--answer", "Beatrix Hale", "--json", *judge))
    assert [step["label"] for step in measured["steps"]] == [QUESTION, "the relevant chunks"]


def test_it_has_a_chat_form(dubito):
    code = f"""
import os
from dubito.graphs.chat import build
context = {{name: os.environ["DUBITO_" + name.upper()] for name in ("corpus", "llm", "encoder")}}
graph = build("crag").compile(name="crag_chat")
print(graph.invoke({{"messages": [("user", "{QUESTION}")]}}, context=context)["messages"][-1].content)
"""
    assert dubito(code=code).strip() == "Beatrix Hale"


def test_make_generate_writes_it_down(dubito, home):
    dubito(code="import runpy; runpy.run_path('dubito/docs/generate.py', run_name='__main__')")
    graphs = json.loads((home / "dubito" / "langgraph.json").read_text())["graphs"]
    assert graphs["crag"]["path"] == "dubito.graphs.crag:graph"
    assert graphs["crag_chat"]["path"] == "dubito.graphs.chat:crag"
    assert "    from .graphs.crag import graph as crag" in (home / "dubito" / "__init__.py").read_text()
