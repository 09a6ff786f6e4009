"""`dubito calibrate penalty` with scripted models: which batches count, the p-values, their use, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.evals.penalty_calibration import batches_of
from dubito.evals.run_folder import System
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.state.neighbourhood import NeighbourhoodContext
from dubito.tests.json_lines import write_lines
from dubito.tests.reported import answered, asked, chunk, made
from dubito.tests.scripted import (
    Explorer,
    ListedRetriever,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
)
from typer.testing import CliRunner

SETS = [1, 3, 1, 2, 4, 5]
"""Semantic sets of the batch with the right answer, by question. Question 4 is answered wrong, 5 has no such batch."""
NOISE_SETS = 4
SETTINGS = ("--set", "samples=6", "--set", "batch_size=1", "--right", "exact")


def number(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1])


def found(query: str) -> list[str]:
    i = number(query)
    return [f"noise {i}", "other 9"] if i == 5 else [f"noise {i}", f"right {i}", "other 9"]


def samples(query: str, names: Sequence[str]) -> list[str]:
    count = SETS[number(query)] if "right" in names[0] else NOISE_SETS
    return [f"answer {i}" for i in range(count)]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Explorer:
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    llm = Explorer(
        name="embedded",
        samples=samples,
        answer=lambda query, names: "wrong" if number(query) == 4 else f"right {number(query)}",
    )
    # `other` is never among the two best
    relevance = {"right": 0.8, "noise": 0.9, "other": 0.1}
    opened = Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(found),
        judge=ScriptedJudge(),
        reranker=ScriptedReranker(lambda query, name: relevance[name.split()[0]]),
        graph=ScriptedGraph({}),
    )
    monkeypatch.setattr(resources, "_shared", opened)
    lines = [{"question": f"What is number {i}?", "answers": [f"The right {i}", "right 9x"]} for i in range(len(SETS))]
    write_lines(tmp_path / "questions.jsonl", lines)
    return llm


def calibrate(*more: str, settings: Sequence[str] = SETTINGS, k: int = 2) -> Any:
    return CliRunner().invoke(app, ["calibrate", "penalty", "questions.jsonl", *settings, "-k", str(k), *more])


def test_a_batch_with_the_answer_of_each_question_answered_right(use: Explorer) -> None:
    done = calibrate("--json")
    assert done.exit_code == 0, done.output
    calibration = json.loads(done.stdout)
    assert calibration["scores"] == sorted(SETS[:4])
    assert (calibration["technique"], calibration["model"], calibration["left_out"]) == ("penalty", "embedded", 2)
    assert {name: calibration["settings"][name] for name in ("samples", "judge", "asu")} == {
        "samples": 6,
        "judge": "embedded",
        "asu": "semantic_sets",
    }
    # the batches of `noise` and `other` have 4 sets, those with the answer of questions answered right fewer
    assert calibration["auroc"] == 1.0
    assert json.loads(Path("penalty.calibration.json").read_text(encoding="utf-8"))["scores"] == [1, 1, 2, 3]


def test_a_person_sees_the_penalties(use: Explorer) -> None:
    said = calibrate().stdout
    assert "under 4 questions, with a batch each that has the answer" in said
    # (1 + those that are at least s) / 5
    rows = [[1, 2, 0, 1.0], [2, 1, 0, 0.6], [3, 1, 0, 0.4]]
    for s, with_answer, others, p in rows:
        assert re.search(rf"\b{s}\s+{with_answer}\s+{others}\s+× {p:g}\b", said), said
    assert "The smallest p-value is 1 / 5 = 0.2" in said
    assert "2 questions left out" in said


def test_ask_uses_the_p_values_and_refuses_another_model_m_or_judge(use: Explorer) -> None:
    assert calibrate().exit_code == 0
    conformal = [
        "--set",
        "penalty=conformal",
        "--set",
        "penalty_file=penalty.calibration.json",
        "--set",
        "batch_size=1",
    ]
    ask = ["ask", "What is number 1?", "--graph", "neighbourhood", *conformal, "--set", "k=2", "--json"]
    done = CliRunner().invoke(app, [*ask, "--set", "samples=6"])
    assert done.exit_code == 0, done.output
    factors = {one["chunk_id"]: one["score"] / one["raw_score"] for one in json.loads(done.stdout)["scored"]}
    assert factors == pytest.approx({"noise 1": 0.2, "right 1": 0.4, "other 9": 0.2})
    use.calls.clear()
    for graph in ("neighbourhood", "sunar"):
        ask[3] = graph
        for model, other, told in [
            ("embedded", ["--set", "samples=7"], "samples 6, not 7"),
            ("embedded", ["--set", "samples=6", "--set", "judge=llm"], "judge embedded, not llm"),
            ("hf:other", ["--set", "samples=6"], "the chat model embedded, not hf:other"),
        ]:
            use.name = model
            refused = CliRunner().invoke(app, [*ask, *other])
            assert told in " ".join(refused.output.split())
            assert refused.exit_code
    assert use.calls == []


def test_the_same_command_asks_nothing_again(use: Explorer) -> None:
    first = json.loads(calibrate("--json").stdout)
    use.calls.clear()
    assert json.loads(calibrate("--json").stdout)["scores"] == first["scores"]
    assert use.calls == []


def test_the_batch_is_drawn_by_the_seed(use: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    # each question has three batches with the answer, with 1, 2 and 3 sets
    use.samples = lambda query, names: [f"answer {i}" for i in range("abc".index(names[0][-1]) + 1)]
    assert isinstance(resources._shared, Resources)
    resources._shared = Resources(
        use,
        ScriptedEncoder(),
        ListedRetriever(lambda query: [f"right {number(query)} {letter}" for letter in "abc"]),
        judge=ScriptedJudge(),
        reranker=ScriptedReranker(lambda query, name: 0.5),
        graph=ScriptedGraph({}),
    )
    drawn = {tuple(json.loads(calibrate("--json", "--seed", str(seed), k=3).stdout)["scores"]) for seed in range(4)}
    assert len(drawn) > 1
    assert {len(scores) for scores in drawn} == {5}
    assert {s for scores in drawn for s in scores} == {1, 2, 3}


@pytest.mark.parametrize(
    ("penalty", "told"),
    [("none", "penalty=none samples none: leave penalty out"), ("conformal", "needs calibrated p-values")],
)
def test_what_is_refused(use: Explorer, penalty: str, told: str) -> None:
    done = calibrate(settings=["--set", f"penalty={penalty}"])
    assert done.exit_code
    assert told in " ".join(done.output.split())
    assert use.calls == []


def test_no_batch_with_the_answer(use: Explorer) -> None:
    use.answer = lambda query, names: "wrong"
    done = calibrate()
    assert done.exit_code
    assert "Of 6 questions none was answered right from a document that holds the answer" in " ".join(
        done.output.split()
    )
    assert not Path("penalty.calibration.json").exists()


def test_a_gold_answer_is_held_as_whole_words_by_one_of_the_best() -> None:
    def one(chunk_id: str, iteration: int, s: int | None) -> dict[str, Any]:
        return {"chunk_id": chunk_id, "iteration": iteration, "number_of_semantic_sets": s}

    scored = [one("a", 0, 2), one("b", 0, 2), one("c", 1, 5), one("d", 2, None), one("e", 3, 1)]
    evidence = [
        {"id": "b", "title": "", "text": "It is near the river Lune, they say."},
        {"id": "c", "title": "", "text": "Lunette"},
        {"id": "d", "title": "Lune", "text": ""},
    ]
    output = {"scored": scored, "evidence": evidence}
    assert batches_of(output, ["the Lune"]) == ([2], [5, 1])
    assert batches_of(output, ["Lunette", "Wyre"]) == ([5], [2, 1])


def test_an_evaluation_counts_if_it_had_no_penalty(use: Explorer, tmp_path: Path) -> None:
    scored = {"chunk_id": "x#0", "iteration": 0, "number_of_semantic_sets": 3}
    found = answered("n", "x", "Ada", scored=[scored], evidence=[chunk("x", text="Ada lived here.")])

    def calibrated(name: str, **settings: Any) -> Any:
        context = NeighbourhoodContext(judge="embedded", **settings).model_dump(mode="json")
        made(tmp_path / name, [System("n", "neighbourhood", context)], [asked("x", "Ada")], [found])[1].close()
        return CliRunner().invoke(app, ["calibrate", "penalty", name, "--json"])

    done = calibrated("raw.run", penalty="fixed", fixed_penalty=1.0)
    assert json.loads(done.stdout)["scores"] == [3], done.output
    refused = calibrated("penalised.run")
    assert refused.exit_code == 2
    said = "evaluate with --set penalty=fixed --set fixed_penalty=1.0, or give the file of questions"
    assert said in json.loads(refused.stdout)["error"]["message"]
