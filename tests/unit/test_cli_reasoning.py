"""How SeaKR and its baselines look in a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from dubito.cli import app
from dubito.cli.view_reasoning import ENDINGS, RENDERERS, WIDTH, against
from dubito.graphs import cot, flare, ircot, iter_retgen, seakr
from dubito.models import resources
from dubito.models.resources import Resources
from dubito.state.reasoning import Ending
from dubito.tests.scripted import ScriptedRetriever
from dubito.tests.thinker import SURE, UNSURE, Thinker, score
from typer.testing import CliRunner

QUESTION = "Which river flows past the birthplace of the founder of Tarn Mill?"
HOSTILE = "\x1b[31mred\x1b[0m \x07"
TITLES = ("Tarn Mill", "Ada Brand", "Caton", f"Hostile {HOSTILE}")


class Titled(ScriptedRetriever):
    def chunk(self, row: int) -> Any:
        return {**super().chunk(row), "title": TITLES[row]}


def says(rationales: list[str], asked: str) -> str:
    if not rationales:
        return "Tarn Mill was founded by Ada Brand." if "Ada Brand\n" in asked else "Tarn Mill was founded in 1815."
    return "So the final answer is: the Lune"


def doubts(rationales: list[str], asked: str) -> float:
    return SURE if rationales or "Ada Brand\n" in asked else UNSURE


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Thinker:
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    llm = Thinker(says=says, doubts=doubts)
    retriever = Titled([1.0, 0.0], [[1.0, 0.1 * i] for i in range(len(TITLES))])
    monkeypatch.setattr(resources, "_shared", Resources(llm=llm, retriever=retriever))
    return llm


def ask(graph: str, *more: str) -> Any:
    return CliRunner().invoke(app, ["ask", QUESTION, "--graph", graph, *more])


def test_seakr_shows_each_sentence_its_uncertainty_what_was_tried_and_what_was_kept(use: Thinker) -> None:
    done = ask("seakr", "--set", "samples=2", "--set", "threshold=-3")
    assert done.exit_code == 0, done.output
    low, high = score(SURE, 2), score(UNSURE, 2)
    said = done.stdout
    assert "Tarn Mill was founded in 1815." in said
    assert f"U {high:.2f} > δ -3.00" in said
    assert "Tarn Mill founded" in said, "the doubtful 1815 is not searched for, nor are words that say nothing"
    assert "3 snippets tried" in said
    assert f"{low:.2f}" in said
    assert f"{low - high:+.2f}" in said
    assert "keeps Ada Brand" in said
    assert f"U {low:.2f} ≤ δ -3.00" in said
    assert "step 2 is the last: a sentence gave the answer" in said
    assert "The reasoning, 2 steps; it ended because a sentence gave the answer:" in said
    assert "Tarn Mill was founded by Ada Brand.  from Ada Brand" in said
    assert "the Lune" in said
    assert "Chosen: the Lune from the sentences" in said


def test_hostile_titles_reach_the_terminal_as_plain_text(use: Thinker) -> None:
    use.doubts = lambda rationales, asked: SURE if "Hostile" in asked else UNSURE
    done = ask("seakr", "--set", "samples=2", "--set", "threshold=-3", "-k", "4")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "Hostile red" in done.stdout


def test_an_uncertainty_that_could_not_be_measured_is_said_to_be_unknown() -> None:
    assert "unknown" in str(against(None, -6.0))


@pytest.mark.parametrize(
    ("uncertainty", "filled"), [(-9.0, 0), (-7.5, WIDTH // 4), (-6.0, WIDTH // 2), (-3.0, WIDTH), (40.0, WIDTH)]
)
def test_the_bar_is_filled_up_to_the_uncertainty_with_delta_in_its_middle(uncertainty: float, filled: int) -> None:
    bar = str(against(uncertainty, -6.0))[: WIDTH + 1]
    assert bar[WIDTH // 2] == "│"
    # δ's own cell is never filled
    assert bar.count("█") == filled - (filled > WIDTH // 2)


@pytest.mark.parametrize(
    ("graph", "lines"),
    [
        ("cot", ["cot: chat model embedded", "Tarn Mill was founded in 1815.", "The reasoning, 2 steps"]),
        ("ircot", ["keeps Tarn Mill", "first stage bm25, k = 1", "From, with the first stage's score:"]),
        ("flare", ["Tarn Mill founded", "keeps Tarn Mill"]),
        ("iter_retgen", ["4 chunks for: Which river", "the Lune"]),
    ],
)
def test_the_baselines_show_what_they_look_up(use: Thinker, graph: str, lines: list[str]) -> None:
    if graph == "iter_retgen":
        use.says = lambda rationales, asked: "It is the Lune. So the final answer is: the Lune"
    done = ask(graph)
    assert done.exit_code == 0, done.output
    for line in lines:
        assert line in done.stdout
    assert "changed " not in done.stdout, "a step that has no renderer of its own"


def test_json_has_the_steps_and_both_conclusions(use: Thinker) -> None:
    given = json.loads(ask("seakr", "--set", "samples=2", "--set", "threshold=-3", "--json").stdout)
    assert given["answer"] == "the Lune"
    assert [step["chunk_id"] for step in given["steps"]] == ["c1", None]
    assert given["threshold"] == -3.0
    assert {one["strategy"] for one in given["conclusions"]} == {"rationales", "knowledge"}


def test_a_wrong_threshold_is_one_sentence(use: Thinker) -> None:
    done = ask("seakr", "--set", "threshold=low")
    assert done.exit_code == 2
    assert "threshold" in done.output
    assert "must be a number, or 'known'" in done.output
    assert not use.calls


def test_every_step_and_every_ending_has_words() -> None:
    nodes = {name for one in (seakr, cot, flare, ircot, iter_retgen) for name in one.graph.nodes} - {
        "__start__",
        "prepare",
    }
    assert nodes <= RENDERERS.keys()
    assert set(get_args(Ending)) == ENDINGS.keys()


@pytest.mark.parametrize("graph", ["cot", "ircot", "flare", "seakr"])
def test_a_trace_becomes_a_page_with_the_sentences(use: Thinker, graph: str, tmp_path: Path) -> None:
    trace, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    more = ("--set", "samples=2", "--set", "threshold=-3") if graph == "seakr" else ()
    assert ask(graph, "--trace", str(trace), *more).exit_code == 0
    done = CliRunner().invoke(app, ["trace", str(trace), "--html", str(page)])
    assert done.exit_code == 0, done.output
    said = page.read_text(encoding="utf-8")
    assert "It ended because a sentence gave the answer." in said
    assert ("Uncertainty U of each step" in said) == (graph == "seakr")
    assert "differs from the one known here" not in said
