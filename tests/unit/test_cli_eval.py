"""`dubito eval` on the command line: systems and settings as they are written, and what cannot be run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from dubito.cli import app
from dubito.cli.evaluating import systems_of
from dubito.errors import UserFault
from dubito.evals import run_folder
from dubito.evals.store import Store
from dubito.graphs.registry import graph_names
from dubito.resources.resources import Resources
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedChat
from typer.testing import CliRunner


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_lines(tmp_path / "questions.jsonl", ({"question": f"{n}?", "answers": ["a"]} for n in range(3)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cot"], ["Name at least one --dataset"]),
        (["--dataset", "FILE"], ["Name at least one system"]),
        (["cot", "--dataset", "nothing.jsonl"], ["nothing.jsonl"]),
        (["cto", "--dataset", "FILE"], ["There is no graph named 'cto': use ", "(did you mean cot?)"]),
        (["cot:max_steps=many", "--dataset", "FILE"], ["max_steps is 'many' and must be a whole number"]),
        (["cot", "cot", "--dataset", "FILE", "--corpus", "sample"], ["Two systems are named 'cot'"]),
        (["seper", "--dataset", "FILE"], ["seper needs more than a question"]),
        (["cot", "ircot", "--dataset", "FILE"], ["without paragraphs"]),
        (["df_rag", "--dataset", "FILE", "--corpus", "nowhere.index"], ["There is no corpus at 'nowhere.index'"]),
        (["cot", "--dataset", "FILE", "--corpus", "sample", "--set", "kk=3"], ["No system has the setting 'kk'"]),
        (["cot", "--dataset", "FILE", "--metric", "speed"], ["There is no metric 'speed'"]),
        (["cot", "--dataset", "FILE", "--metric", "seper:m=3"], ["seper has no setting 'm'"]),
        (
            ["cot", "--dataset", "FILE", "--metric", "seper", "--metric", "seper:cluster_rule=soft"],
            ["leave seper or seper:cluster_rule=soft out"],
        ),
        (["cot", "--dataset", "FILE", "--metric", "seper-steps", "--no-traces"], ["leave --no-traces out"]),
        (
            ["cot", "--dataset", "FILE", "--metric", "llm-judge:k=3"],
            ["llm-judge has no setting 'k': use llm or evaluation"],
        ),
        (["cot", "--dataset", "FILE", "--metric", "llm-judge:evaluation=x"], ["evaluation is 'x'"]),
        (["cot", "--dataset", "FILE", "--metric", "bertscore"], ["bertscore needs a model"]),
        (["cot", "--dataset", "FILE", "--metric", "bertscore:model=x,layer=-1"], ["bertscore needs a model"]),
        (
            ["cot", "--dataset", "FILE", "--metric", "bertscore:k=3"],
            ["bertscore has no setting 'k': use model or layer"],
        ),
        (["cot", "--resume", "x"], ["--resume goes on with a run as it was made: leave SYSTEM... out."]),
        (
            ["--resume", "x", "--at-once", "3", "--llm", "hf:/m", "-k", "3", "--no-memory", "--set", "a=1"],
            ["leave --llm, --k, --set, --memory/--no-memory out."],
        ),
        (["cot", "--dataset", "FILE", "--workers", "3"], ["--workers needs --ray ADDRESS"]),
        (["--resume", "nowhere"], ["There is no run in 'nowhere'"]),
        (["cot", "--dataset", "FILE", "--retry-failed"], ["--retry-failed needs --resume"]),
        (["cot", "--dataset", "FILE", "--corpus", "sample", "--replica", "http://h/v1"], ["Replicas are servers"]),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence_and_leaves_nothing(
    questions: Path, arguments: Sequence[str], said: Sequence[str]
):
    arguments = [str(questions) if one == "FILE" else one for one in arguments]
    found = CliRunner().invoke(app, ["eval", *arguments])
    assert found.exit_code == 2
    assert all(part in found.stderr for part in said), found.stderr
    assert list(questions.parent.iterdir()) == [questions]


def test_systems_are_named_and_set_up_as_they_are_written():
    specs = ["cot", "vanilla_rag:k=7,selection=mmr", "wide=vanilla_rag:k=20", "dense_rag:judge=nli:/a,b/c,k=2"]
    found = systems_of(specs, {"llm": "hf:/m", "k": "3", "preset": None}, ["fixed_lambda=0.5", "max_steps=4"])
    assert [one.label for one in found] == [*specs[:2], "wide", specs[3]]
    assert [one.graph for one in found] == ["cot", "vanilla_rag", "vanilla_rag", "dense_rag"]
    assert [one.context.get("k") for one in found] == [None, 7, 20, 2]
    assert {one.context["llm"] for one in found} == {"hf:/m"}
    assert [one.context["max_steps"] for one in found[:1]] == [4]
    assert [one.context["fixed_lambda"] for one in found[1:3]] == [0.5, 0.7], "left out where it has no effect"
    assert (found[1].context["selection"], found[3].context["judge"]) == ("mmr", "nli:/a,b/c")


def test_a_system_that_looks_nothing_up_has_no_corpus():
    found = systems_of(graph_names_that_answer(), {"corpus": "notes.index"}, [])
    assert [one.label for one in found if "corpus" not in one.context] == ["cot"]


def test_a_typed_corpus_replaces_those_of_a_file_and_a_default_does_not():
    specs = {"a": {"graph": "vanilla_rag", "corpus": "old.index"}}
    for is_typed, corpus in ((True, "new.index"), (False, "old.index")):
        (system,) = systems_of(specs, {"corpus": "new.index"}, [], corpus_is_typed=is_typed)
        assert system.context["corpus"] == corpus


def graph_names_that_answer() -> list[str]:
    return [name for name in graph_names() if name not in ("dense", "seper", "neighbourhood")]


def test_a_setting_of_ones_own_goes_before_the_shared_one():
    specs = ["a=vanilla_rag:selection=mmr,fixed_lambda=0.2", "b=vanilla_rag:selection=mmr"]
    found = systems_of(specs, {}, ["fixed_lambda=0.9"])
    assert [one.context["fixed_lambda"] for one in found] == [0.2, 0.9]


def test_a_shared_setting_that_no_system_uses_is_refused():
    with pytest.raises(UserFault, match="fixed_lambda has no effect in any system: change selection, or leave"):
        systems_of(["vanilla_rag", "long=vanilla_rag:selection=long_context"], {}, ["fixed_lambda=0.9"])


def test_an_option_that_no_system_has_is_refused():
    with pytest.raises(UserFault, match="No system has the setting 'k': use "):
        systems_of(["cot"], {"k": "3", "corpus": "sample"}, [])
    assert systems_of(["cot"], {"k": None, "corpus": "sample"}, [])


def test_runs_begun_in_the_same_second_have_folders_of_their_own(questions: Path, monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []

    def begin(folder: Path, *_: object, **options: object) -> None:
        folder.mkdir()
        begun.append(folder.name)

    monkeypatch.setattr("time.strftime", lambda form: form.replace("%Y%m%d-%H%M%S", "20260102-101500"))
    monkeypatch.setattr("dubito.cli.evaluating.evaluate_anew", begin)
    for _ in range(3):
        assert CliRunner().invoke(app, ["eval", "cot", "--dataset", str(questions)]).exit_code == 0
    assert begun == ["eval-20260102-101500.run", "eval-20260102-101500-2.run", "eval-20260102-101500-3.run"]


@pytest.mark.parametrize(("typed", "taken"), [([], 7), (["--at-once", "2"], 2)])
def test_a_resumed_run_asks_as_many_questions_at_once_as_before(
    questions: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], taken: int
):
    asked: list[int] = []
    monkeypatch.setattr("dubito.cli.evaluating._carry_out", lambda run, options, *_: asked.append(options.at_once))
    begun = ["eval", "cot", "--dataset", str(questions), "--at-once", "7", "--out", "my.run"]
    for command in (begun, ["eval", "--resume", "my.run", *typed]):
        assert CliRunner().invoke(app, command).exit_code == 0
    assert asked == [7, taken]


@pytest.fixture
def finished(questions: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that is finished and has no metrics."""
    llm = ScriptedChat(lambda *_: "It is the Lune. So the final answer is: the Lune.")
    monkeypatch.setattr("dubito.cli.evaluating.resources_with_memory", lambda *_: Resources(llm))
    begun = ["eval", "cot", "--dataset", str(questions), "--out", "my.run"]
    found = CliRunner().invoke(app, begun)
    assert found.exit_code == 0, found.stderr
    return Path("my.run").absolute()


def test_a_metric_is_added_to_a_finished_run(finished: Path, monkeypatch: pytest.MonkeyPatch):
    judge = ScriptedChat(pick=lambda _, options: options[-1])
    monkeypatch.setattr("dubito.cli.evaluating.resources_with_memory", lambda *_: Resources(judge))
    metric = "llm-judge:evaluation=reduction"
    for _ in range(2):  # the second time there is nothing left to measure
        found = CliRunner().invoke(app, ["eval", "--resume", str(finished), "--metric", metric, "--metric", metric])
        assert found.exit_code == 0, found.stderr
    run = run_folder.read(finished)
    with Store(run.results) as store:
        rated = store.measurements("llm_judge")
        asked = sum(outcome.output is not None for outcome in store.outcomes())
    assert run.metrics == (metric,)
    assert yaml.safe_load((finished / "run.yaml").read_text())["eval"]["metric"] == [metric]
    assert [value["correctness"] for value in rated.values()] == [1.0] * asked
    assert len(judge.calls) == asked


def test_a_run_whose_description_cannot_be_read_takes_a_metric(finished: Path, monkeypatch: pytest.MonkeyPatch):
    judge = ScriptedChat(pick=lambda _, options: options[-1])
    monkeypatch.setattr("dubito.cli.evaluating.resources_with_memory", lambda *_: Resources(judge))
    (finished / "run.yaml").unlink()
    (finished / "run.yaml").mkdir()
    found = CliRunner().invoke(app, ["eval", "--resume", str(finished), "--metric", "llm-judge"])
    assert found.exit_code == 0, found.stderr
    assert run_folder.read(finished).metrics == ("llm-judge",)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (["llm-judge:evaluation=both"], "my.run' has llm-judge:evaluation=direct already"),
        (["seper", "seper:cluster_rule=soft"], "leave seper or seper:cluster_rule=soft out"),
        (["seper"], "log-probabilities"),
        (["seper-steps"], "seper-steps reads the traces, and"),
        (["nonsense"], "There is no metric 'nonsense'"),
    ],
)
def test_a_metric_that_cannot_be_added_leaves_the_run_as_it_is(
    finished: Path, monkeypatch: pytest.MonkeyPatch, metrics: list[str], said: str
):
    run_folder.read(finished).with_entries(metrics=["llm-judge:evaluation=direct"], traces=False)
    before = (finished / "run.json").read_bytes()
    llm = ScriptedChat(capabilities=frozenset())
    monkeypatch.setattr("dubito.cli.evaluating.resources_with_memory", lambda *_: Resources(llm))
    added = [part for metric in metrics for part in ("--metric", metric)]
    found = CliRunner().invoke(app, ["eval", "--resume", str(finished), *added])
    assert (found.exit_code, llm.calls) == (2, [])
    assert said in found.stderr
    assert (finished / "run.json").read_bytes() == before


def test_metrics_of_passages_are_not_measured_in_a_run_that_was_kept_without_them(finished: Path, tmp_path: Path):
    kept = tmp_path / "kept.run"
    assert CliRunner().invoke(app, ["report", str(finished), "--keep", str(kept)]).exit_code == 0
    found = CliRunner().invoke(app, ["eval", "--resume", str(kept), "--metric", "seper"])
    assert found.exit_code == 2
    assert "kept without them: measure it in the run that" in found.stderr


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("seper", "log-probabilities"),
        ("seper-steps:judge=nli:./nowhere", "./nowhere"),
        ("llm-judge:llm=nonsense", "nonsense"),
        ("bertscore:model=./nowhere", "There is no BERTScore model folder"),
    ],
)
def test_what_a_metric_lacks_is_told_before_the_first_question(
    questions: Path, monkeypatch: pytest.MonkeyPatch, metric: str, said: str
):
    llm = ScriptedChat(capabilities=frozenset({"logprobs"}) if "nli" in metric else frozenset())
    opened = Resources(None if "llm=" in metric else llm)
    monkeypatch.setattr("dubito.cli.evaluating.resources_with_memory", lambda *_: opened)
    begun = ["eval", "cot", "--dataset", str(questions), "--metric", metric, "--out", "my.run"]
    for command in (begun, ["eval", "--resume", "my.run"]):
        found = CliRunner().invoke(app, command)
        assert (found.exit_code, llm.calls) == (2, [])
        assert said in found.stderr
