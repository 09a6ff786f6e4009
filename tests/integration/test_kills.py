"""kill -9 at several moments each, in an evaluation, an index, a calibration and a trace: nothing is lost."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.errors import UserFault
from dubito.retrieval.index_files import StoredChunks, read_index_manifest
from dubito.tests.json_lines import write_lines
from dubito.tests.killed import killed
from dubito.tests.stub_server import Stub, serving
from dubito.traces.recording import read
from typer.testing import CliRunner

QUESTIONS = 24


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub(seconds=0.02, script=reply)) as stub:
        yield stub


def reply(body: dict[str, Any]) -> str:
    """Every second question is answered right."""
    number = int((str(body["messages"][-1]["content"]) + "number 0?").split("number ")[1].split("?")[0])
    return f"So the final answer is: a{number if number % 2 else 'b'}."


def dubito(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def outcomes(path: Path) -> dict[tuple[str, str], Any]:
    """The outcomes on disk without their seconds; empty as long as there is no table."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            rows = database.execute("SELECT system, question, output, error FROM outcomes").fetchall()
        except sqlite3.OperationalError:
            return {}
    return {(system, question): (without_seconds(output), error) for system, question, output, error in rows}


def without_seconds(output: str) -> Any:
    return json.loads(output, object_hook=lambda given: {key: given[key] for key in given if key != "seconds"})


def has_lines(path: Path, least: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= least


def test_an_evaluation_that_was_killed_again_and_again_is_that_of_an_unbroken_run(
    stub: Stub, questions: Path, tmp_path: Path
):
    anew = ["eval", "cot", "short=cot:max_steps=2", "--dataset", questions, "--corpus", "sample"]
    anew += ["--llm", f"openai:{stub.url}#stub", "--at-once", 3]
    folder, whole = tmp_path / "killed.run", tmp_path / "whole.run"
    results, before = folder / "results.sqlite", dict[tuple[str, str], Any]()
    for kill in range(3):
        wanted = 14 * kill + 1
        command = ["eval", "--resume", folder] if before else [*anew, "--out", folder]
        killed(command, lambda least=wanted: len(outcomes(results)) >= least)  # type: ignore[misc]
        kept = outcomes(results)
        assert wanted <= len(kept) < 2 * QUESTIONS
        assert {key: kept[key] for key in before} == before
        before = kept
    told = json.loads(dubito("eval", "--resume", folder, "--json"))
    stub.seconds = 0
    unbroken = json.loads(dubito(*anew, "--out", whole, "--json"))
    assert outcomes(results) == outcomes(whole / "results.sqlite")
    assert len(outcomes(results)) == 2 * QUESTIONS
    for figures in (told, unbroken):
        assert figures["answered"] == 2 * QUESTIONS
    scores = [[system["metrics"] for system in figures["datasets"][0]["systems"]] for figures in (told, unbroken)]
    assert scores[0] == scores[1]
    assert scores[0][0]["exact_match"]["mean"] == 0.5


def test_an_index_that_was_killed_again_and_again_is_that_of_an_unbroken_run(stub: Stub, tmp_path: Path):
    corpus, folder, whole = tmp_path / "c.jsonl", tmp_path / "killed.index", tmp_path / "whole.index"
    lines = [{"id": str(n), "title": f"T{n}", "text": f"{'word ' * (n % 7)}{n}"} for n in range(600)]
    write_lines(corpus, lines)
    command = ["index", corpus, "--encoder", f"openai:{stub.url}#emb", "--out"]
    holds = ["numpy.save", "dubito.retrieval.saved_folder._put_in_place"]
    for kill in range(4):
        sent, held = len(stub.requests), tmp_path / f"held {kill}"
        if kill < 2:
            killed([*command, folder], lambda least=sent + 2 * kill: len(stub.requests) > least)  # type: ignore[misc]
        else:
            hold = f"{holds[kill - 2]} {held}"
            killed([*command, folder], held.exists, hold)
            stub.requests.clear()
        with pytest.raises(UserFault, match="is not an index"):
            read_index_manifest(folder)
    stub.seconds = 0
    dubito(*command, folder)
    dubito(*command, whole)
    assert len(StoredChunks(folder, read_index_manifest(folder))) == 600
    for file in sorted(whole.iterdir()):
        assert (folder / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    "hold",
    [
        "numpy.save",
        "dubito.retrieval.saved_folder._put_in_place",
        "dubito.retrieval.saved_folder._exchanged",
        "shutil.rmtree",
    ],
)
@pytest.mark.parametrize("change", ["add", "delete"])
def test_a_change_that_is_killed_leaves_the_old_index_or_the_new_one(
    stub: Stub, tmp_path: Path, hold: str, change: str
):
    folder, stub.seconds = tmp_path / "changed.index", 0
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_lines(first, [{"id": str(n), "text": f"text {n}"} for n in range(40)])
    write_lines(second, [{"id": str(n), "text": f"other text {n}"} for n in range(30, 50)])
    encoder = f"openai:{stub.url}#emb"
    command: list[object] = ["index", second, "--add-to", folder, "--replace"]
    if change == "delete":
        command = ["index", "--delete", ",".join(map(str, range(30))), folder]
    dubito("index", first, "--out", folder, "--encoder", encoder)
    old = {file.name: file.read_bytes() for file in folder.iterdir()}
    held = tmp_path / "held"
    killed(command, held.exists, f"{hold} {held}")
    left = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(StoredChunks(folder, read_index_manifest(folder))) in {40, 50, 10}
    assert (left == old) is (hold != "shutil.rmtree")
    if left == old:
        dubito(*command)
    assert len(StoredChunks(folder, read_index_manifest(folder))) == (50 if change == "add" else 10)
    dubito("index", "--delete", "35", folder)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_calibration_that_was_killed_again_and_again_is_that_of_an_unbroken_run(
    stub: Stub, questions: Path, tmp_path: Path
):
    command = ["calibrate", "retrieval_threshold", questions, "--corpus", "sample", "--llm", f"openai:{stub.url}#stub"]
    command += ["--set", "estimator=perplexity", "--at-once", 2, "--out"]
    results, before = tmp_path / "killed.questions.sqlite", dict[tuple[str, str], Any]()
    for kill in range(3):
        wanted = 7 * kill + 1
        killed([*command, tmp_path / "killed.json"], lambda least=wanted: len(outcomes(results)) >= least)  # type: ignore[misc]
        kept = outcomes(results)
        assert not (tmp_path / "killed.json").exists()
        assert {key: kept[key] for key in before} == before
        before = kept
    dubito(*command, tmp_path / "killed.json")
    stub.seconds = 0
    dubito(*command, tmp_path / "whole.json")
    assert (tmp_path / "killed.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_trace_that_was_killed_is_readable_to_its_last_whole_line(stub: Stub, tmp_path: Path):
    stub.seconds = 0.05
    whole = tmp_path / "whole.jsonl"
    command = ["ask", "Who is number 3?", "--graph", "cot", "--llm", f"openai:{stub.url}#stub", "--trace"]
    dubito(*command, whole)
    events = [json.loads(line)["type"] for line in whole.read_bytes().splitlines()]
    for kill in range(3):
        path, least = tmp_path / f"{kill}.jsonl", min(1 + 4 * kill, len(events) - 1)
        killed([*command, path], partial(has_lines, path, least))
        content = path.read_bytes()
        found = read(path)
        kept = [json.loads(line)["type"] for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        assert kept == events[: len(kept)]
        assert len(kept) >= least
        assert found.ended == ("end" in kept)
        assert len(found.calls) == kept.count("llm_call")
