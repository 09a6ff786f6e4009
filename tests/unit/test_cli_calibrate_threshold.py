"""`dubito calibrate retrieval_threshold` with a scripted model: δ, what is kept and refused, and its use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedRetriever
from dubito.tests.thinker import Thinker, score
from typer.testing import CliRunner

DOUBTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of question i; wrong are 4, 6, 7, 8, 9, so that one right answer, of question 5, lies among the wrong ones."""
WRONG = {4, 6, 7, 8, 9}
SETTINGS = ("--set", "samples=2", "--right", "exact")


def number(asked: str) -> int:
    found = re.findall(r"Question: What is number (\d+)", asked)
    return int(found[-1])


def says(rationales: list[str], asked: str) -> str:
    if not rationales:
        return f"It is about {number(asked)}."
    return f"So the final answer is: {'wrong' if number(asked) in WRONG else f'right {number(asked)}'}"


def doubts(rationales: list[str], asked: str) -> float:
    """The first step is the doubtful one."""
    return 0.0 if rationales else DOUBTS[number(asked)]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Thinker:
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    llm = Thinker(name="embedded", says=says, doubts=doubts)
    monkeypatch.setattr(resources, "_shared", Resources(llm=llm, retriever=ScriptedRetriever([1.0], [[1.0]])))
    lines = [{"question": f"What is number {i}?", "answers": [f"right {i}"]} for i in range(len(DOUBTS))]
    write_lines(tmp_path / "questions.jsonl", lines)
    return llm


def calibrate(*more: str) -> Any:
    return CliRunner().invoke(app, ["calibrate", "retrieval_threshold", "questions.jsonl", *SETTINGS, *more])


def test_delta_lies_where_it_decides_right_most_often(use: Thinker) -> None:
    done = calibrate("--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    # between questions 3 and 4 nine of ten decisions are right, and so between 5 and 6: of two the upper one
    assert found["threshold"] == pytest.approx((score(0.5, 2) + score(0.6, 2)) / 2, abs=1e-5)
    assert found["accuracy"] == 0.9
    # of the 25 pairs of a wrong and a right answer one is the wrong way round
    assert found["auroc"] == pytest.approx(24 / 25)
    assert (found["n"], found["failed"], found["wrong"]) == (10, 0, 0.5)
    assert (found["technique"], found["model"]) == ("retrieval_threshold", "embedded")
    assert found["settings"]["estimator"] == "gram"
    assert found["settings"]["samples"] == 2
    assert [part["questions"] for part in found["parts"]] == [2] * 5
    assert [part["wrong"] for part in found["parts"]] == [0.0, 0.0, 0.5, 1.0, 1.0]
    kept = json.loads(Path("retrieval_threshold.calibration.json").read_text(encoding="utf-8"))
    assert kept["threshold"] == found["threshold"]


def shown_passages(use: Thinker) -> set[int]:
    """The questions that were shown passages."""
    prompts = ["\n".join(one["content"] for one in messages) for _, messages in use.calls]
    return {number(prompt) for prompt in prompts if "<passage" in prompt}


def test_nothing_is_looked_up_however_doubtful_the_model_is(use: Thinker) -> None:
    use.doubts = lambda rationales, asked: 1000.0
    assert calibrate().exit_code == 0
    assert shown_passages(use) == set()


def test_whole_runs_look_something_up_where_u_is_above_the_delta_that_was_found(use: Thinker) -> None:
    assert calibrate("--sweep", "k=1").exit_code == 0
    assert shown_passages(use) == {6, 7, 8, 9}


def test_a_person_sees_delta_and_how_well_it_does(use: Thinker) -> None:
    said = calibrate().stdout
    assert "Retrieve when U is above" in said
    assert "50% of 10 questions were answered wrong" in said
    assert "decides right for 90%; the AUROC of U is 0.96" in said
    assert "Written to retrieval_threshold.calibration.json" in said


def test_ask_uses_what_was_found_and_refuses_another_models_or_another_setting(use: Thinker) -> None:
    found = json.loads(calibrate("--json").stdout)
    use_it = ["--set", "threshold_file=retrieval_threshold.calibration.json"]
    ask = ["ask", "What is number 9?", "--graph", "seakr", *use_it, "--json"]
    given = json.loads(CliRunner().invoke(app, [*ask, "--set", "samples=2"]).stdout)
    assert given["threshold"] == found["threshold"]
    assert given["steps"][0]["query"] is not None, "question 9 is above δ"
    calm = [*ask[:1], "What is number 0?", *ask[2:], "--set", "samples=2"]
    assert json.loads(CliRunner().invoke(app, calm).stdout)["steps"][0]["query"] is None
    use.calls.clear()
    other = CliRunner().invoke(app, [*ask, "--set", "samples=3"])
    assert "samples 2, not 3" in other.output
    use.name = "hf:other"
    model = CliRunner().invoke(app, [*ask, "--set", "samples=2"])
    assert "holds for the chat model embedded, not hf:other" in model.output
    assert not use.calls


def test_a_sweep_shows_each_value_and_a_plot_is_drawn(use: Thinker) -> None:
    done = calibrate("--sweep", "samples=3,4", "--sweep", "k=1,2", "--plot", "u.png", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(one["name"], one["value"]) for one in found["sweep"]] == [
        ("samples", "3"),
        ("samples", "4"),
        ("k", "1"),
        ("k", "2"),
    ]
    three = found["sweep"][0]["figures"]
    assert three["δ"] == pytest.approx((score(0.5, 3) + score(0.6, 3)) / 2, abs=1e-5)
    assert three["AUROC"] == pytest.approx(24 / 25)
    assert found["sweep"][2]["figures"] == {"answered right": 0.5}
    assert Path("u.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--sweep", "layer"), "'layer' is not a sweep: write NAME=V1,V2, such as layer=5,10,15."),
        (("--sweep", "layer=5,,6"), "'layer=5,,6' is not a sweep"),
        (("--sweep", "max_steps=5"), "There is no sweep over 'max_steps': use k, estimator,"),
        (("--sweep", "samples=1"), "samples is '1' and must be a whole number from 2 to 1000."),
        (("--plot", "u.txt"), "'u.txt' cannot be a plot"),
        (("--plot", "nowhere/u.png"), "cannot be a plot"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_model_is_asked(
    use: Thinker, more: tuple[str, ...], sentence: str
) -> None:
    done = calibrate(*more)
    assert done.exit_code == 2
    assert sentence in done.output
    assert not use.calls


def test_answers_that_are_all_wrong_tell_nothing(use: Thinker) -> None:
    use.says = lambda rationales, asked: "So the final answer is: wrong"
    done = calibrate()
    assert done.exit_code == 2
    assert "All 10 answers are wrong" in done.output
    assert not Path("retrieval_threshold.calibration.json").exists()


def test_an_uncertainty_that_cannot_be_measured_is_left_out_and_told(use: Thinker) -> None:
    use.mute = "What is number 3?"
    done = calibrate()
    assert done.exit_code == 0, done.output
    assert "1 question left out" in done.output
