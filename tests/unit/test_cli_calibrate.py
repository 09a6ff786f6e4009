"""`dubito calibrate sunar` from the questions to the file, with models that follow a script."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.cli import app, calibrating
from dubito.cli.ask_many import Bar
from dubito.errors import ModelFault, UserFault
from dubito.evals.sunar_calibration import ConsistentContext, SunarCalibration
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.state.calibration import Calibration
from dubito.tests.scripted import (
    Explorer,
    ListedRetriever,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
)
from rich.console import Console
from typer.testing import CliRunner

SETTINGS = {"penalty": "none", "samples": 10, "k": 1}


@dataclass(frozen=True)
class Case:
    """A question, the answer it gets, how many of ten samples say the same, and whether it is right."""

    question: str
    answer: str
    agreeing: int
    right: bool


def cases(count: int, seed: int = 5) -> list[Case]:
    """Of right answers the samples mostly agree, of wrong ones less."""
    draw = np.random.default_rng(seed)
    made = []
    for i in range(count):
        right = bool(draw.random() < 0.7)
        agreeing = int(draw.binomial(10, 0.8 if right else 0.4))
        made.append(Case(f"What is thing {i}?", f"name{i}" if right else f"other{i}", agreeing, right))
    return made


@dataclass
class Model(Explorer):
    """Answers each case as it says; raises what `broken` has for a question."""

    given: Mapping[str, Case] = field(default_factory=dict)
    broken: Mapping[str, Exception] = field(default_factory=dict)
    seconds: float = 0.0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        question = re.findall(r"What is thing \d+\?", " ".join(one["content"] for one in messages))[-1]
        if question in self.broken:
            raise self.broken[question]
        if sampling.temperature == 0:
            return await super().complete(messages, sampling)
        assert sampling.n == 10
        case = self.given[question]
        texts = [case.answer] * case.agreeing + [f"not {i}" for i in range(10 - case.agreeing)]
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, 30))

    @property
    def questions(self) -> set[str]:
        """The questions that were answered."""
        return {question for question, _ in self.of("reason")}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


Use = Callable[..., Model]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Puts a model that knows the cases in the place of everything that is opened by name."""

    def use(given: Sequence[Case], broken: Mapping[str, Exception] | None = None) -> Model:
        known = {case.question: case for case in given}
        llm = Model(given=known, broken=broken or {}, reason=lambda question, line, names: known[question].answer)
        opened = Resources(
            llm,
            ScriptedEncoder(),
            ListedRetriever(lambda query: ["f1"]),
            judge=ScriptedJudge(),
            reranker=ScriptedReranker(lambda query, name: 0.5),
            graph=ScriptedGraph({}),
        )
        monkeypatch.setattr(resources, "_shared", opened)
        return llm

    return use


def write(folder: Path, given: Sequence[Case]) -> Path:
    path = folder / "q.jsonl"
    lines = [
        {"question": case.question, "answers": [f"name{re.findall(r'[0-9]+', case.question)[0]}"]} for case in given
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def calibrate(folder: Path, *more: str, **settings: Any) -> Any:
    assignments = [part for name, value in {**SETTINGS, **settings}.items() for part in ("--set", f"{name}={value}")]
    arguments = ["calibrate", "sunar", str(folder / "q.jsonl"), "--out", str(folder / "c.json"), *assignments, *more]
    return CliRunner().invoke(app, arguments)


def halves(count: int, holdout: float, seed: int) -> tuple[list[int], list[int]]:
    """The positions of both parts, as the documentation says they are drawn."""
    drawn = list(np.random.default_rng(seed).permutation(count))
    return drawn[round(count * holdout) :], drawn[: round(count * holdout)]


def kept_by(given: Sequence[Case], threshold: float, *, right: bool) -> int:
    return sum(case.agreeing / 10 >= threshold for case in given if case.right is right)


@pytest.mark.parametrize(("alpha", "holdout", "seed"), [("0.1", 0.5, 0), ("0.3", 0.25, 3)])
def test_threshold_and_coverage_are_those_worked_out_from_the_cases(
    tmp_path: Path, use: Use, alpha: str, holdout: float, seed: int
) -> None:
    given = cases(60)
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--alpha", alpha, "--holdout", str(holdout), "--seed", str(seed), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)

    calibration, held_back = ([given[i] for i in part] for part in halves(60, holdout, seed))
    ascending = sorted(case.agreeing / 10 for case in calibration if case.right)
    threshold = ascending[int(float(alpha) * (len(ascending) + 1)) - 1]
    assert 0 < threshold < 1
    assert (found["threshold"], found["n"]) == (threshold, len(ascending))
    unseen = [case for case in held_back if case.right]
    assert found["coverage"] == kept_by(held_back, threshold, right=True) / len(unseen)
    for name, part in (("calibration", calibration), ("held_back", held_back)):
        assert found[name] == {
            "questions": len(part),
            "failed": 0,
            "right": sum(case.right for case in part),
            "wrong": sum(not case.right for case in part),
            "kept_right": kept_by(part, threshold, right=True),
            "kept_wrong": kept_by(part, threshold, right=False),
        }
    assert found["held_back"]["kept_wrong"] < found["held_back"]["wrong"], "wrong answers are left out too"


def test_the_file_is_what_was_printed_and_loads_for_these_settings_alone(tmp_path: Path, use: Use) -> None:
    given = cases(40)
    use(given)
    write(tmp_path, given)
    found = json.loads(calibrate(tmp_path, "--alpha", "0.2", "--json").stdout)
    on_disk = json.loads((tmp_path / "c.json").read_text())
    extra = {"out": str(tmp_path / "c.json"), "kept": str(tmp_path / "c.questions.sqlite"), "failures": []}
    assert found == {**on_disk, **extra}
    assert (on_disk["technique"], on_disk["model"], on_disk["alpha"], on_disk["right"]) == (
        "sunar", "embedded", 0.2, "f1:0.5",
    )  # fmt: skip
    assert on_disk["settings"]["samples"] == 10
    assert on_disk["made_with"].keys() == {"dubito", "questions", "limit", "corpus", "holdout", "seed"}
    context = ConsistentContext(**SETTINGS)
    assert Calibration.load(tmp_path / "c.json", "sunar", context).threshold == on_disk["threshold"]
    assert SunarCalibration.load(tmp_path / "c.json", "sunar", context).alpha == 0.2
    with pytest.raises(UserFault, match="samples 10, not 3"):
        Calibration.load(tmp_path / "c.json", "sunar", ConsistentContext(**{**SETTINGS, "samples": 3}))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.json", "c.questions.sqlite", "q.jsonl"]


def test_a_person_sees_the_threshold_and_how_it_does(tmp_path: Path, use: Use) -> None:
    given = [Case(f"What is thing {i}?", f"name{i}", 8, right=True) for i in range(20)]
    given += [Case(f"What is thing {i}?", f"other{i}", 10 if i % 2 else 3, right=False) for i in range(20, 30)]
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    calibration, held_back = ([given[i] for i in part] for part in halves(30, 0.5, 0))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.splitlines()[0] == "Keep an answer whose consistency is at least 0.8."
    assert lines[1] == ["questions", "right", "kept", "wrong", "kept", "failed"]
    for line, part in ((lines[2], calibration), (lines[3], held_back)):
        right = sum(case.right for case in part)
        kept_wrong = sum(case.agreeing == 10 for case in part)
        assert line[-6:] == [str(n) for n in (15, right, right, 15 - right, kept_wrong, 0)]
    assert "Of the right answers held back it keeps 100.0%; at least 90.0% is promised" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Written to {tmp_path / 'c.json'}"
    assert "\x1b" not in done.stdout
    assert "Warning" not in done.stdout


def test_too_few_right_answers_are_told(tmp_path: Path, use: Use) -> None:
    given = cases(10)
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--holdout", "0", "--alpha", "0.05")
    right = sum(case.right for case in given)
    said = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert f"Warning: {right} right answers to calibrate on, and an alpha of 0.05 needs 19" in said
    assert "at least 0.0." in said
    assert "No right answer was held back" in said
    assert json.loads((tmp_path / "c.json").read_text())["coverage"] is None


def test_a_stricter_rule_needs_no_new_answers(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [Case(f"What is thing {i}?", f"name{i} indeed", 9, right=True) for i in range(12)]  # F1 2/3
    llm = use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path).exit_code == 0
    asked = len(llm.calls)
    monkeypatch.setattr(calibrating, "open_resources", None)  # nor is anything opened
    done = calibrate(tmp_path, "--right", "exact")
    assert done.exit_code == 2
    assert "None of the 6 questions to calibrate on was answered right" in done.stderr
    assert calibrate(tmp_path, "--alpha", "0.2", "--seed", "4").exit_code == 0
    assert len(llm.calls) == asked > 0


def test_what_is_done_is_not_asked_again(tmp_path: Path, use: Use) -> None:
    given = cases(30)
    first = use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path, "--limit", "20").exit_code == 0
    assert first.questions == {case.question for case in given[:20]}
    second = use(given)
    done = calibrate(tmp_path)
    assert second.questions == {case.question for case in given[20:]}
    assert done.stdout.splitlines()[0] == "20 of 30 questions were finished before."
    assert json.loads((tmp_path / "c.json").read_text())["calibration"]["questions"] == 15
    # other settings are other answers
    third = use(given)
    assert calibrate(tmp_path, "--limit", "5", temperature=0.3).exit_code == 0
    assert len(third.questions) == 5
    assert calibrate(tmp_path, "--limit", "5", "--corpus", str(tmp_path)).exit_code == 0
    assert len(third.of("reason")) == 10, "nor does another corpus give the same ones"
    fourth = use(given)
    assert calibrate(tmp_path, "--at-once", "1", concurrency=3).exit_code == 0
    assert fourth.calls == []


def test_a_question_that_fails_is_told_and_not_counted(tmp_path: Path, use: Use) -> None:
    given = cases(24)
    broken = {given[i].question: UserFault(f"Number {i} is too long.") for i in (2, 9)}
    use(given, broken)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["failures"] == [{"question": given[i].question, "error": f"Number {i} is too long."} for i in (2, 9)]
    assert found["calibration"]["failed"] + found["held_back"]["failed"] == 2
    right = sum(case.right for i, case in enumerate(given) if i not in {2, 9})
    assert found["calibration"]["right"] + found["held_back"]["right"] == right
    said = calibrate(tmp_path).stdout
    assert f"Failed: {given[2].question}: Number 2 is too long." in said
    mended = use(given)
    assert json.loads(calibrate(tmp_path, "--json").stdout)["failures"] == []
    assert mended.questions == {given[2].question, given[9].question}


def test_a_server_that_is_gone_ends_the_run_and_keeps_what_is_done(
    tmp_path: Path, use: Use, fast_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cases(30)
    gone = {case.question: ModelFault("http://x", "connection refused") for case in given[8:]}
    use(given, gone)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--at-once", "1", "--json")
    assert done.exit_code == 1
    message = json.loads(done.stdout)["error"]["message"]
    assert message.startswith("6 questions in a row failed. The last failure,")
    assert "http://x did not answer" in message
    assert not (tmp_path / "c.json").exists()
    later = use(given)
    assert calibrate(tmp_path).exit_code == 0
    assert later.questions == {case.question for case in given[8:]}


def test_no_answer_at_all_is_a_failure(tmp_path: Path, use: Use) -> None:
    given = cases(3)
    use(given, {case.question: UserFault("no.") for case in given})
    write(tmp_path, given)
    done = calibrate(tmp_path)
    assert done.exit_code == 1
    assert "All 3 questions failed. The first failure: no." in done.stderr
    assert not (tmp_path / "c.json").exists()


REFUSED = [
    (["--alpha", "0"], "give an alpha between 0 and 1"),
    (["--alpha", "1.2"], "give an alpha between 0 and 1"),
    (["--alpha", "much"], "--alpha"),
    (["--right", "f1:2"], "There is no rule 'f1:2'"),
    (["--holdout", "1"], "holdout is '1.0' and must be a number from 0.0 to 0.95"),
    (["--limit", "0"], "--limit"),
    (["--at-once", "0"], "--at-once"),
    (["--set", "budgt=3"], "has no setting 'budgt' (did you mean budget?)"),
    (["--set", "budget=none"], "budget is 'none' and must be a whole number"),
    (["--out", "."], "'.' exists and is not a calibration"),
    (["--out", "nowhere/c.json"], "is not a writable folder"),
    (["--out", "q.jsonl"], "'q.jsonl' exists and is not a calibration"),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_what_cannot_be_used_is_refused_before_any_model_is_called(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch, more: list[str], said: str
) -> None:
    given = cases(3)
    llm = use(given)
    before = write(tmp_path, given).read_bytes()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", "sunar", "q.jsonl", *more])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert llm.calls == []
    assert (tmp_path / "q.jsonl").read_bytes() == before


def test_a_broken_line_is_named_in_json_too(tmp_path: Path, use: Use) -> None:
    llm = use([])
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "answer": "Ada"}\n{"question": "Who else?"}\n')
    done = calibrate(tmp_path, "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "UserFault"
    assert 'line 2: "answers" is missing' in error["message"]
    assert llm.calls == []


def test_what_cannot_be_opened_is_refused_before_any_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_shared", Resources())
    write(tmp_path, cases(3))
    done = calibrate(tmp_path, "--llm", "nobody:x")
    assert done.exit_code == 2
    assert "There is no chat model named 'nobody:x'" in done.stderr
    assert not (tmp_path / "c.questions.sqlite").exists()


def test_the_file_is_named_for_the_technique_unless_told(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cases(12)
    use(given)
    write(tmp_path, given)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["calibrate", "sunar", "q.jsonl", "--set", "penalty=none"])
    assert done.exit_code == 0
    written = {file.name for file in tmp_path.iterdir()}
    assert written == {"q.jsonl", "sunar.calibration.json", "sunar.calibration.questions.sqlite"}


def test_ctrl_c_says_what_is_kept(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = cases(6)
    use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path, "--limit", "3").exit_code == 0
    monkeypatch.setattr(calibrating, "ask_unfinished", interrupt)
    done = calibrate(tmp_path, "--json")
    assert done.exit_code == 130
    assert "3 of 6 questions are finished and kept: run the same command again to go on." in done.stderr
    assert json.loads(done.stdout) == {"error": {"type": "Interrupted", "message": "Interrupted."}}


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_the_bar_tells_how_far_it_is() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    with Bar(console, 2, 10, quiet=True, as_json=False) as bar:
        bar.prepare("indexing \x1b[31mnotes", 5, 9)
        task = bar._progress.tasks[0]
        assert (task.description, task.completed, task.total, task.fields["so_far"]) == (
            "indexing notes",
            5,
            9,
            "5 of 9",
        )
        bar.begin("questions")
        bar.show_questions()
        assert task.fields["so_far"] == "2 of 10"
        bar.end(failed=False)
        assert re.fullmatch(r"3 of 10, [\d.,]+ a (second|minute), .* left", task.fields["so_far"])
        bar.end(failed=True)
        assert re.fullmatch(r"4 of 10, .* left, 1 failed", task.fields["so_far"])
        bar.end(failed=False, usage={"calls": 1200, "prompt_tokens": 5000, "completion_tokens": 34})
        assert re.fullmatch(r"5 of 10, .* left, 1,200 calls, 5,034 tokens, 1 failed", task.fields["so_far"])


@pytest.mark.parametrize(("done", "said"), [(6, "3.0 a second, 1.3 s left"), (1, "30.0 a minute, 8.0 s left")])
def test_a_pace_is_told_by_the_second_or_the_minute(monkeypatch: pytest.MonkeyPatch, done: int, said: str) -> None:
    bar = Bar(Console(file=io.StringIO()), 0, 10, quiet=True, as_json=False)
    begun = bar._begun
    monkeypatch.setattr("time.monotonic", lambda: begun + 2)
    assert bar.pace(done, 4) == said
