"""Every notebook runs, the first with the embedded chat model, shows what it promises, and is kept without outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dubito
import nbformat
import pytest
from dubito.tests.stub_server import Stub, serving
from nbclient import NotebookClient

EXAMPLES = Path(dubito.__file__).parent / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
LIMIT_S = 600
"""Seconds a cell: a loaded machine is several times as slow."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})


SHOWN = {
    "quickstart": ["λ*: ", "image/png", "```mermaid", "certain: "],
    "compare": ["ITER-RETGEN    F1 ", "image/png"],
    "calibrate": ["6 answered, 0 failed", "image/png", "Give an answer whose negative log-likelihood", "measured: "],
    "trace": ["df_rag: ", "evaluate", "image/png", "--- user", "The page"],
}
"""Words or kinds of output, in this order, of each notebook."""


@pytest.fixture
def surroundings(smollm2_folder: Path) -> Iterator[dict[str, dict[str, str]]]:
    """Each notebook's settings: the embedded models, the chat model in a form that is read faster, or a server that
    knows most answers. Two chunks are quick to read."""
    questions = [json.loads(line) for line in (EXAMPLES / "sample" / "questions.jsonl").open()]

    def known(body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        answers = [question["answer"] for question in questions[1:] if question["question"] in asked]
        return f"The final answer is: {answers[0]}." if answers else "Support: 3 of 5."

    with serving(Stub(script=known)) as stub:
        server = f"openai:{stub.url}#m"
        served = {"DUBITO_LLM": server, "DUBITO_ENCODER": server}
        embedded = {"DUBITO_LLM": f"hf:{smollm2_folder}", "DUBITO_K": "2"}
        yield {"quickstart": embedded, "compare": served, "calibrate": served, "trace": served}


@pytest.mark.weights
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, surroundings: dict[str, dict[str, str]]) -> None:
    for name, value in {"COLUMNS": "120", **surroundings[path.stem]}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3").execute()
    shown = json.dumps([cell.get("outputs") for cell in notebook.cells], ensure_ascii=False)
    places = [shown.find(one) for one in SHOWN[path.stem]]
    assert -1 not in places, (SHOWN[path.stem], places, shown[:3000])
    assert places == sorted(places)
    assert "Error" not in shown
