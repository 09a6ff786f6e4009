"""`dubito calibrate escalate` from an evaluation of its rungs, made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.cli import app
from dubito.evals.run_folder import RESULTS, RunQuestion, System
from dubito.evals.store import Outcome, Store
from dubito.state.calibration import CascadeCalibration
from dubito.state.df_rag import DFRagContext
from dubito.state.escalate import EscalateContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.reported import answered, asked, made, unsure, usage
from typer.testing import CliRunner

QUESTIONS = 400
TOKENS = {"vanilla_rag": 100, "df_rag": 1000}
RIGHT = {"vanilla_rag": 0.6, "df_rag": 0.75}


def systems() -> list[System]:
    plain = VanillaRagContext(uncertainty="disagreement", k=3)
    diverse = DFRagContext(uncertainty="disagreement", k=3, evaluator="choice")
    return [
        System("plain", "vanilla_rag", plain.model_dump(mode="json")),
        System("diverse", "df_rag", diverse.model_dump(mode="json")),
    ]


def questions(count: int = QUESTIONS) -> list[RunQuestion]:
    return [asked(f"thing {i}", f"name{i}") for i in range(count)]


def outcomes(count: int = QUESTIONS, seed: int = 1, *, blind: bool = False) -> list[Outcome]:
    """Right answers are surer than wrong ones, unless the rungs are blind."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(count):
        for system in systems():
            right = bool(draw.random() < RIGHT[system.graph])
            uncertainty = float(draw.beta(2, 6) if right or blind else draw.beta(6, 2))
            spent = usage(generate=(1, TOKENS[system.graph] - 2, 2, 0.1))
            answer = f"name{i}" if right else f"other{i}"
            found.append(
                answered(
                    system.label,
                    f"thing {i}",
                    answer,
                    uncertainty=unsure("disagreement", uncertainty, None),
                    usage=spent,
                )
            )
    return found


def failed(one: Outcome) -> Outcome:
    return replace(one, output=None, error={"type": "ModelUnavailable", "message": "No.", "unavailable": True})


def evaluation(folder: Path, results: Sequence[Outcome] | None = None, **about: Any) -> Path:
    chosen = outcomes() if results is None else results
    made(folder / "run", systems(), questions(), chosen, corpus="pooled", **about)[1].close()
    return folder / "run"


def calibrate(run: Path, *more: str, risk: str = "0.15") -> Any:
    arguments = ["calibrate", "escalate", str(run), "--risk", risk, "--out", str(run.parent / "c.json"), "--json"]
    return CliRunner().invoke(app, [*arguments, *more])


def tried(thresholds: Sequence[tuple[str, float | None]], results: Sequence[Outcome], chosen: Sequence[int]) -> Any:
    """What these thresholds do, rung by rung: answered, errors, tokens a question."""
    label_of = {system.graph: system.label for system in systems()}
    by_place = {(one.system, one.question): one.output for one in results}
    given = wrong = spent = 0
    for i in chosen:
        for graph, threshold in thresholds:
            output: Any = by_place[label_of[graph], f"small/thing {i}"]
            if threshold is None:
                continue
            spent += TOKENS[graph]
            if output is None or output["uncertainty"]["value"] <= threshold:
                given += 1
                wrong += output is None or output["answer"] != f"name{i}"
                break
    return {"answered": given, "errors": wrong, "tokens": pytest.approx(spent / len(chosen))}


def drawn(holdout: float = 0.25, seed: int = 0) -> tuple[list[int], list[int]]:
    places = list(np.random.default_rng(seed).permutation(QUESTIONS))
    held = round(QUESTIONS * holdout)
    return places[held:], places[:held]


def test_the_thresholds_do_on_the_questions_held_back_what_is_said(tmp_path: Path) -> None:
    results = outcomes()
    done = calibrate(evaluation(tmp_path, results))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    thresholds = list(found["thresholds"].items())
    assert [name for name, _ in thresholds] == ["vanilla_rag", "df_rag"]
    used, held = drawn()
    assert {**found["held_back"]["escalate"]} == {"questions": 100, **tried(thresholds, results, held)}
    # n, answered and errors are of the part that tests, which is four fifths of the questions used
    assert 0.7 * len(used) < found["n"] < len(used)
    assert found["errors"] / found["answered"] < 0.15
    # far more questions of the same kind: what is promised of the answers given
    many = outcomes(8000, seed=2)
    everyone = tried(thresholds, many, range(8000))
    assert everyone["errors"] / everyone["answered"] <= 0.15
    # asking the dear graph only where the cheap one is unsure answers more for less
    alone = found["held_back"]["df_rag alone"]
    assert found["held_back"]["escalate"]["answered"] >= alone["answered"]
    assert found["held_back"]["escalate"]["tokens"] < alone["tokens"] == 1000


def test_each_rung_has_weights_of_its_own_for_its_signals(tmp_path: Path) -> None:
    """Of each rung another signal tells whether the answer is right; the other one is noise."""
    draw = np.random.default_rng(3)
    systems = [
        System(label, graph, type_(uncertainty="combined").model_dump(mode="json"))
        for label, graph, type_ in (("plain", "vanilla_rag", VanillaRagContext), ("diverse", "df_rag", DFRagContext))
    ]
    results = []
    for i in range(QUESTIONS):
        for system, telling in zip(systems, ("disagreement", "support"), strict=True):
            right = bool(draw.random() < RIGHT[system.graph])
            signals = {"disagreement": float(draw.normal()), "support": float(draw.normal())}
            signals[telling] += 0.0 if right else 3.0
            results.append(
                answered(
                    system.label,
                    f"thing {i}",
                    f"name{i}" if right else f"other{i}",
                    uncertainty=unsure("semantic entropy", 0.5, None),
                    signals=signals,
                    usage=usage(generate=(1, 98, 2, 0.1)),
                )
            )
    made(tmp_path / "run", systems, questions(), results, corpus="pooled")[1].close()
    done = calibrate(tmp_path / "run")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["signal"] == "probability of an error"
    for graph, telling, noise in (("vanilla_rag", "disagreement", "support"), ("df_rag", "support", "disagreement")):
        weights = found["combinations"][graph]["weights"]
        assert weights[telling] > 0.8
        assert weights[telling] > 2 * abs(weights[noise])
    assert found["held_back"]["escalate"]["answered"] > 60
    assert found["held_back"]["escalate"]["errors"] / found["held_back"]["escalate"]["answered"] < 0.15


def test_the_file_loads_for_the_cascade_with_the_rungs_settings_alone(tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    assert calibrate(run).exit_code == 0
    # k is shared; that df_rag's evaluator is another than its default is its own setting
    own = '{"df_rag": {"evaluator": "choice"}}'
    same = {"uncertainty": "disagreement", "k": 3, "rungs": "vanilla_rag,df_rag"}
    context = EscalateContext.model_validate({**same, "rung_settings": own})
    loaded = CascadeCalibration.load(tmp_path / "c.json", "escalate", context)
    assert json.loads(loaded.settings["rung_settings"]) == json.loads(own)
    assert all(value is None or 0 < value < 1 for value in loaded.thresholds.values())
    for other in ({"rung_settings": ""}, {"rung_settings": own, "k": 4}):
        with pytest.raises(ValueError, match="not"):
            CascadeCalibration.load(tmp_path / "c.json", "escalate", EscalateContext.model_validate({**same, **other}))


def test_the_rungs_are_those_and_in_that_order_that_are_set(tmp_path: Path) -> None:
    done = calibrate(evaluation(tmp_path), "--set", "rungs=df_rag,vanilla_rag")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["thresholds"]) == ["df_rag", "vanilla_rag"]
    assert found["held_back"]["escalate"]["tokens"] >= 1000, "the dear one comes first"


def test_the_share_of_questions_beyond_the_first_rung_may_be_promised_too(tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    free = json.loads(calibrate(run).stdout)
    done = calibrate(run, "--beyond", "0.6", risk="0.25")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (free["beyond"], found["beyond"]) == (None, 0.6)
    threshold = found["thresholds"]["vanilla_rag"]
    everyone = outcomes(8000, seed=2)
    first = [one.output["uncertainty"]["value"] for one in everyone if one.system == "plain" and one.output]
    assert sum(value > threshold for value in first) / len(first) <= 0.6
    loaded = CascadeCalibration.read(tmp_path / "c.json", "escalate")
    assert loaded.promise().endswith("And at most 60% of the questions go beyond vanilla_rag.")

    never = calibrate(run, "--beyond", "0.01", risk="0.25")
    message = json.loads(never.stdout)["error"]["message"]
    assert message.startswith(
        "No thresholds can be certified that leave at most 0.01 of the questions to the rungs after"
    )
    assert "give a number between 0 and 1" in json.loads(calibrate(run, "--beyond", "2").stdout)["error"]["message"]


def test_the_tokens_of_a_question_may_be_promised_too(tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    free = json.loads(calibrate(run, risk="0.25").stdout)
    done = calibrate(run, "--tokens", "500", risk="0.25")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (free["tokens"], found["tokens"], found["tokens_counted"]) == (None, 500, 1100)
    many = outcomes(8000, seed=2)
    costs = [tried(list(one["thresholds"].items()), many, range(8000))["tokens"].expected for one in (free, found)]
    assert costs[0] > 500 >= costs[1]
    loaded = CascadeCalibration.read(tmp_path / "c.json", "escalate")
    assert loaded.promise().endswith(
        "And a question costs at most 500 tokens on average, where at most 1,100 of each are counted."
    )

    never = calibrate(run, "--tokens", "90", "--beyond", "0.01", risk="0.25")
    assert json.loads(never.stdout)["error"]["message"] == (
        "No thresholds can be certified that leave at most 0.01 of the questions to the rungs after vanilla_rag and "
        "cost at most 90 tokens a question on average: give a larger --beyond or --tokens, more questions or a larger "
        "--risk."
    )
    assert "give a number above 0" in json.loads(calibrate(run, "--tokens", "0").stdout)["error"]["message"]


@pytest.mark.parametrize(("option", "value"), [("--beyond", "0.6"), ("--tokens", "500")])
def test_a_second_promise_is_of_cascades_without_failures(tmp_path: Path, option: str, value: str) -> None:
    results = [failed(one) if place == 8 else one for place, one in enumerate(outcomes())]
    run = evaluation(tmp_path, results)
    assert calibrate(run, risk="0.25").exit_code == 0
    message = json.loads(calibrate(run, option, value, risk="0.25").stdout)["error"]["message"]
    assert message == (
        f"1 question failed, and {option} can be promised of evaluations without failures only: ask them again with "
        "dubito eval --resume and --retry-failed."
    )
    alone = CliRunner().invoke(app, ["calibrate", "vanilla_rag", str(run), "--risk", "0.2", option, value])
    assert f"{option} is for the rungs of a cascade, and vanilla_rag is none: leave it out." in alone.stderr


def test_a_plan_says_how_many_questions_a_cascade_takes(tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    found = json.loads(calibrate(run, "--plan", "0.6").stdout)
    assert 50 < found["questions"] < 4000
    assert found["oracle_risk"] < 0.15
    assert found["oracle_coverage"] > 0.6
    (tmp_path / "failing").mkdir()
    half = [failed(one) if one.system == "plain" and place % 4 == 0 else one for place, one in enumerate(outcomes())]
    failing = json.loads(calibrate(evaluation(tmp_path / "failing", half), "--plan", "0.6").stdout)
    assert failing["questions"] > found["questions"], "of the first rung half failed, so it is of no use"
    said = CliRunner().invoke(app, ["calibrate", "escalate", str(run), "--risk", "0.05", "--plan", "0.99"]).stdout
    assert "No number of questions is enough" in said
    assert "Of 400 questions the rungs answer" in said
    assert not (tmp_path / "c.json").exists()


def test_a_judge_may_say_what_is_right(tmp_path: Path) -> None:
    """The answers are sentences, so that no F1 reaches 0.5; the judge gives those with the right name 8 of 10."""
    short = outcomes()

    def in_a_sentence(one: Outcome) -> Outcome:
        output = one.output or {}
        return replace(one, output={**output, "answer": f"It is, I think, {output['answer']}, as one passage says."})

    run = evaluation(tmp_path, [in_a_sentence(one) for one in short])
    measured = "is measured of finished answers: give an evaluation, and measure it there first with dubito eval"
    unmeasured = json.loads(calibrate(run, "--right", "correctness:0.7").stdout)["error"]["message"]
    assert unmeasured == f"correctness {measured} --resume RUN --metric llm-judge."
    with Store(run / RESULTS, new=True) as store:
        for one in short:
            right = str((one.output or {})["answer"]).startswith("name")
            store.measured(one.system, one.question, "llm_judge", {"correctness": 7 / 9 if right else 2 / 9})
    assert calibrate(run).exit_code == 2
    judged = json.loads(calibrate(run, "--right", "correctness:0.7").stdout)
    (tmp_path / "short").mkdir()
    by_f1 = json.loads(calibrate(evaluation(tmp_path / "short", short)).stdout)
    assert judged["right"] == "correctness:0.7"
    assert judged["held_back"] == by_f1["held_back"]

    more = ["--risk", "0.3", "--right", "correctness:0.7", "--out", str(tmp_path / "one.json"), "--json"]
    alone = CliRunner().invoke(app, ["calibrate", "vanilla_rag", str(run), "--system", "plain", *more])
    assert json.loads(alone.stdout)["n"] == 300
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "answers": ["Ada"]}\n')
    asked_first = ["vanilla_rag", str(tmp_path / "q.jsonl"), "--risk", "0.3", "--right", "bertscore:0.9", "--json"]
    unasked = json.loads(CliRunner().invoke(app, ["calibrate", *asked_first]).stdout)["error"]["message"]
    assert unasked == f"bertscore {measured} --resume RUN --metric bertscore:model=NAME."


def test_what_the_rungs_say_is_worth_nothing_if_it_does_not_depend_on_being_right(tmp_path: Path) -> None:
    done = calibrate(evaluation(tmp_path, outcomes(blind=True)))
    assert done.exit_code == 2
    message = json.loads(done.stdout)["error"]["message"]
    assert message.startswith("No threshold can be certified for a risk of 0.15 with confidence 0.9: of 300 questions")
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize(("one_of", "is_run"), [(80, True), (8, False)])
def test_a_rung_that_failed_counts_as_one_that_gives_a_wrong_answer(
    tmp_path: Path, one_of: int, *, is_run: bool
) -> None:
    results = [
        failed(one) if one.system == "plain" and place % one_of == 0 else one for place, one in enumerate(outcomes())
    ]
    done = calibrate(evaluation(tmp_path, results))
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["failed"] == sum(one.output is None for one in results) == 800 / one_of
    assert (found["thresholds"]["vanilla_rag"] is not None) == is_run
    held = drawn()[1]
    expected = tried(list(found["thresholds"].items()), results, held)
    kept = found["held_back"]["escalate"]
    assert (kept["answered"], kept["errors"]) == (expected["answered"], expected["errors"])


def check(folder: Path, run: Path) -> dict[str, Any]:
    """What --check says of the answers in another run."""
    words = ["calibrate", "escalate", str(run), "--check", str(folder / "c.json"), "--json"]
    done = CliRunner().invoke(app, words)
    return {"exit_code": done.exit_code, **json.loads(done.stdout)}


def later(folder: Path, name: str, results: Sequence[Outcome]) -> Path:
    """A run of other questions with these answers."""
    renamed = [replace(one, question=one.question.replace("thing", "later")) for one in results]
    others = [asked(f"later {i}", f"name{i}") for i in range(QUESTIONS)]
    made(folder / name, systems(), others, renamed, corpus="pooled")[1].close()
    return folder / name


def test_new_answers_of_the_rungs_are_compared_with_those_of_the_calibration(tmp_path: Path) -> None:
    run = evaluation(tmp_path)
    made_of = json.loads(calibrate(run).stdout)
    results = outcomes(seed=4)
    same = check(tmp_path, later(tmp_path, "same", results))
    assert (same["alike"], same["too_many_errors"], same["calibrated_on"]) == (True, False, 0)
    expected = tried(list(made_of["thresholds"].items()), results, range(QUESTIONS))
    assert {name: same[name] for name in expected} == expected
    assert list(same["p_values"]) == ["vanilla_rag", "df_rag"]

    def unsure_by(more: float) -> list[Outcome]:
        dear = [one.system == "diverse" for one in results]
        moved = [dict(one.output or {}) for one in results]
        for output, is_dear in zip(moved, dear, strict=True):
            value = output["uncertainty"]["value"] + more * is_dear
            output["uncertainty"] = {**output["uncertainty"], "value": value}
        return [replace(one, output=output) for one, output in zip(results, moved, strict=True)]

    moved = check(tmp_path, later(tmp_path, "moved", unsure_by(0.2)))
    assert (moved["alike"], moved["p_values"]["vanilla_rag"] > 0.05, moved["p_values"]["df_rag"] < 0.05) == (
        False,
        True,
        True,
    )
    wrong = [
        replace(one, output={**(one.output or {}), "answer": "no"}) if place % 4 < 2 else one
        for place, one in enumerate(results)
    ]
    worse = check(tmp_path, later(tmp_path, "worse", wrong))
    assert (worse["alike"], worse["too_many_errors"]) == (True, True)
    with_risk = calibrate(run, "--check", str(tmp_path / "c.json"))
    assert "tests a calibration by its own guarantee" in json.loads(with_risk.stdout)["error"]["message"]
    again = check(tmp_path, run)  # a quarter was held back
    assert (again["calibrated_on"], again["questions"]) == (300, 100)


def test_two_systems_of_one_graph_are_no_rungs(tmp_path: Path) -> None:
    placed = [*systems(), replace(systems()[0], label="again")]
    made(tmp_path / "run", placed, questions(), outcomes(), corpus="pooled")[1].close()
    message = json.loads(calibrate(tmp_path / "run").stdout)["error"]["message"]
    assert "several systems answered with vanilla_rag, and a cascade has each graph once" in message


def test_rungs_that_cite_share_it(tmp_path: Path) -> None:
    cited = [replace(one, context={**one.context, "cite": True}) for one in systems()]
    made(tmp_path / "run", cited, questions(), outcomes(), corpus="pooled")[1].close()
    found = json.loads(calibrate(tmp_path / "run").stdout)
    assert json.loads(found["settings"]["rung_settings"]) == {"df_rag": {"evaluator": "choice"}}


def test_rungs_that_answered_from_different_corpora_are_no_cascade(tmp_path: Path) -> None:
    one, other = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")

    def evaluated(name: str, corpora: Sequence[str], **about: Any) -> Any:
        placed = [
            replace(each, context={**each.context, "corpus": at}) for each, at in zip(systems(), corpora, strict=True)
        ]
        where = [replace(question, corpus="") for question in questions()]
        made(tmp_path / name, placed, where, outcomes(), corpus=None, **about)[1].close()
        return json.loads(calibrate(tmp_path / name).stdout)

    said = (
        f"The rungs of a cascade answer from one corpus, and those in '{tmp_path / 'unknown'}' from {one} and {other}"
    )
    assert said in evaluated("unknown", [one, other])["error"]["message"]
    unlike = evaluated("unlike", [one, other], known_by={"plain": "x", "diverse": "y"})
    assert "answer from one corpus" in unlike["error"]["message"]
    alike = evaluated("alike", [one, other], known_by={"plain": "x", "diverse": "x"})
    assert alike["corpus"] == "x"
    chunked_twice = evaluated("cut", [one, one], known_by={"plain": "x", "diverse": "y"})
    assert chunked_twice["corpus"] == "x", "the first rung's chunks"


REFUSED = [
    *(([name, "0.5"], "A cascade is calibrated for a risk alone: give") for name in ("--keep", "--average")),
    (["--plan", "0.5", "--tokens", "500"], "--plan is for the risk alone: leave --beyond and --tokens out."),
    (["--system", "plain"], "leave it out for escalate, and for a file of questions."),
    (["--set", "rungs=vanilla_rag"], "A cascade has two rungs or more: evaluate several of cot, vanilla_rag,"),
    (["--set", "rungs=cot,vanilla_rag,df_rag,sunar,seakr"], "A cascade of 5 rungs is too long to calibrate"),
    (["--set", "rungs=vanilla_rag,cot"], "no system answered with cot: evaluate it too, or choose other rungs."),
    (["--set", "k=4"], "were given with its settings: leave the other settings out."),
    (["--limit", "4"], "were given with its settings: leave the other settings out."),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_what_cannot_be_a_cascade_is_refused_in_a_sentence(tmp_path: Path, more: list[str], said: str) -> None:
    done = calibrate(evaluation(tmp_path), *more)
    assert (done.exit_code, json.loads(done.stdout)["error"]["type"]) == (2, "UserFault")
    assert said in json.loads(done.stdout)["error"]["message"]
    assert not (tmp_path / "c.json").exists()


def test_rungs_that_did_not_share_their_calls_are_no_cascade(tmp_path: Path) -> None:
    done = calibrate(evaluation(tmp_path, memory=False))
    assert done.exit_code == 2
    assert "evaluate them without --no-memory" in json.loads(done.stdout)["error"]["message"]
    assert calibrate(later(tmp_path, "shared", outcomes())).exit_code == 0


def test_an_evaluation_that_is_not_finished_is_to_be_finished_first(tmp_path: Path) -> None:
    run = evaluation(tmp_path, outcomes()[:-1])
    message = json.loads(calibrate(run).stdout)["error"]["message"]
    assert message == f"'{run}' has no outcome yet for 1 question: finish it with dubito eval --resume {run}."


def test_a_file_of_questions_is_no_evaluation(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "answers": ["Ada"]}\n')
    message = json.loads(calibrate(tmp_path / "q.jsonl").stdout)["error"]["message"]
    assert f"'{tmp_path / 'q.jsonl'}' is no evaluation: evaluate every rung first, as in dubito eval cot" in message
