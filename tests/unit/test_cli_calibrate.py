"""`dubito calibrate vanilla_rag` from the questions to the file, with models that follow a script."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.cli import app, calibrating, evaluating
from dubito.cli.ask_many import Bar
from dubito.errors import ModelFault, UserFault
from dubito.evals import run_folder
from dubito.evals.answer_calibration import JudgedAnswer, hash_of, part_of
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Tokens
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.state.calibration import AnswerCalibration, percent
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import KnownCorpus, ListedRetriever, ScriptedChat, ScriptedEncoder, ScriptedJudge
from dubito.uncertainty import risk_control
from rich.console import Console
from typer.testing import CliRunner

SETTINGS = {"uncertainty": "disagreement", "k": 1}


@dataclass(frozen=True)
class Case:
    """A question, the answer it gets, how many of ten samples say the same, and whether it is right."""

    question: str
    answer: str
    agreeing: int
    right: bool


def cases(count: int, seed: int = 5, first: int = 0) -> list[Case]:
    """Of right answers the samples mostly agree, of wrong ones less. first: the number of the first question."""
    draw = np.random.default_rng(seed)
    made = []
    for i in range(first, first + count):
        right = bool(draw.random() < 0.7)
        agreeing = int(draw.binomial(10, 0.8 if right else 0.4))
        made.append(Case(f"What is thing {i}?", f"name{i}" if right else f"other{i}", agreeing, right))
    return made


@dataclass
class Model(ScriptedChat):
    """Answers each case as it says; raises what `broken` has for a question."""

    name: str = "embedded"
    given: Mapping[str, Case] = field(default_factory=dict)
    broken: Mapping[str, Exception] = field(default_factory=dict)
    seconds: float = 0.0
    questions: list[str] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        question = re.findall(r"What is thing \d+\?", " ".join(one["content"] for one in messages))[-1]
        if question in self.broken:
            raise self.broken[question]
        await self._begin("complete", messages)
        case = self.given[question]
        if sampling.temperature == 0:
            self.questions.append(question)
            return Reply((Completion(case.answer, "stop"),), Tokens(7, 3))
        assert sampling.n == 10
        texts = [case.answer] * case.agreeing + [f"not {i}" for i in range(10 - case.agreeing)]
        return Reply(tuple(Completion(text, "stop") for text in texts), Tokens(7, 30))


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
        llm = Model(given=known, broken=broken or {})
        opened = Resources(llm, ScriptedEncoder(), ListedRetriever(lambda query: ["f1"]), judge=ScriptedJudge())
        monkeypatch.setattr(resources, "_shared", opened)
        return llm

    return use


@pytest.fixture
def read_corpora(monkeypatch: pytest.MonkeyPatch) -> Use:
    """The same, but the corpus is read; called again, as a new process would read it."""

    def use(given: Sequence[Case]) -> Model:
        llm = Model(given={case.question: case for case in given})

        def opened(*_: Any) -> Resources:
            return Resources(llm, ScriptedEncoder(), judge=ScriptedJudge())

        monkeypatch.setattr(resources, "_shared", opened())
        monkeypatch.setattr(evaluating, "resources_with_memory", opened)
        return llm

    return use


SEARCH = ["--set", "first_stage=bm25", "--set", "uncertainty=disagreement"]


def corpus(folder: Path, word: str) -> Path:
    texts = [{"id": str(i), "title": f"t{i}", "text": f"The {word} passage about thing {i}."} for i in range(5)]
    return write_lines(folder / "notes.jsonl", texts)


def run_json(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    return {"exit_code": done.exit_code, **json.loads(done.stdout)}


def test_answers_from_a_corpus_that_has_changed_are_asked_anew(tmp_path: Path, read_corpora: Use) -> None:
    given = cases(40)
    command = ["calibrate", "vanilla_rag", str(write(tmp_path, given)), "--out", str(tmp_path / "c.json")]
    command += ["--keep", "0.9", "--corpus", str(corpus(tmp_path, "old")), *SEARCH]
    ask = ["ask", "What is thing 3?", "--calibration", str(tmp_path / "c.json")]
    read_corpora(given)
    before = run_json(*command)
    assert run_json(*ask)["certificate"]["holds"]
    corpus(tmp_path, "new")
    llm = read_corpora(given)
    assert "made with another corpus" in run_json(*ask)["error"]["message"]
    after = run_json(*command)
    assert len(llm.questions) == 40
    assert after["corpus"] != before["corpus"]
    assert run_json(*ask)["certificate"]["holds"]
    corpus(tmp_path, "old")
    again = read_corpora(given)
    assert run_json(*command)["corpus"] == before["corpus"]
    assert again.questions == [], "the first answers are kept"


def test_an_evaluation_keeps_which_corpus_its_answers_are_from(tmp_path: Path, read_corpora: Use) -> None:
    given = cases(40)
    run = str(tmp_path / "run")
    read_corpora(given)
    evaluation = ["eval", "vanilla_rag", "--dataset", str(write(tmp_path, given)), "--out", run]
    done = CliRunner().invoke(app, [*evaluation, "--corpus", str(corpus(tmp_path, "old")), *SEARCH])
    assert done.exit_code == 0, done.output
    corpus(tmp_path, "new")
    read_corpora(given)
    calibration = tmp_path / "c.json"
    assert (
        CliRunner().invoke(app, ["calibrate", "vanilla_rag", run, "--keep", "0.9", "--out", str(calibration)]).exit_code
        == 0
    )
    ask = ["ask", "What is thing 3?", "--calibration", str(calibration)]
    assert "made with another corpus" in run_json(*ask)["error"]["message"]
    corpus(tmp_path, "old")
    read_corpora(given)
    assert run_json(*ask)["certificate"]["holds"]


def test_the_pooled_corpus_of_an_evaluation_is_known_again(tmp_path: Path, read_corpora: Use) -> None:
    given = cases(40)
    questions = [
        {
            "_id": str(i),
            "question": case.question,
            "answer": f"name{i}",
            "context": [[f"t{i}", [f"A passage about thing {i}."]]],
            "supporting_facts": [[f"t{i}", 0]],
        }
        for i, case in enumerate(given)
    ]
    (tmp_path / "dev.json").write_text(json.dumps(questions))
    read_corpora(given)
    dataset = f"hotpotqa:{tmp_path / 'dev.json'}"
    out = ["--out", str(tmp_path / "c.json")]
    calibration = ["--calibration", str(tmp_path / "c.json")]
    for made_from, holds in (("pooled", True), ("own", False)):
        run = str(tmp_path / made_from)
        done = CliRunner().invoke(
            app, ["eval", "vanilla_rag", "--dataset", dataset, "--corpus", made_from, "--out", run, *SEARCH]
        )
        assert done.exit_code == 0, done.output
        said = CliRunner().invoke(app, ["calibrate", "vanilla_rag", run, "--keep", "0.9", *out])
        assert said.exit_code == 0, said.output
        assert ("The certificate will not hold." in " ".join(said.stdout.split())) is not holds
        corpus_of_ask = [] if holds else ["--corpus", str(corpus(tmp_path, "other"))]
        output = run_json("ask", "What is thing 3?", *calibration, *corpus_of_ask)
        assert output["certificate"]["holds"] is holds


def test_an_evaluation_goes_on_with_the_corpus_that_it_was_begun_with_alone(tmp_path: Path, read_corpora: Use) -> None:
    given = cases(4)
    run = tmp_path / "run"
    read_corpora(given[:3])  # the fourth fails
    evaluation = ["eval", "vanilla_rag", "--dataset", str(write(tmp_path, given)), "--out", str(run)]
    CliRunner().invoke(app, [*evaluation, "--corpus", str(corpus(tmp_path, "old")), *SEARCH])
    corpus(tmp_path, "new")
    resumed = ["eval", "--resume", str(run), "--retry-failed"]
    read_corpora(given)
    assert "is no longer the one that" in run_json(*resumed)["error"]["message"]
    corpus(tmp_path, "old")
    read_corpora(given)
    assert run_json(*resumed)["exit_code"] == 0


def test_a_corpus_that_could_be_opened_only_later_is_known_then(tmp_path: Path, read_corpora: Use) -> None:
    given = cases(4)
    run = tmp_path / "run"
    (tmp_path / "notes.jsonl").write_text("{")
    evaluation = ["eval", "vanilla_rag", "--dataset", str(write(tmp_path, given)), "--out", str(run)]
    read_corpora(given)
    assert run_json(*evaluation, "--corpus", str(tmp_path / "notes.jsonl"), *SEARCH)["exit_code"] != 0
    assert run_folder.read(run).known_by == {}
    for word in ("new", "newer"):
        corpus(tmp_path, word)
        read_corpora(given)
        ended = run_json("eval", "--resume", str(run), "--retry-failed")
        assert list(run_folder.read(run).known_by) == ["vanilla_rag"]
        # all are answered: the corpus is not read any more
        assert (ended["exit_code"], ended["answered"]) == (0, 4)


def test_an_evaluation_takes_the_settings_of_a_calibration_and_tells_which_questions_it_was_made_from(
    tmp_path: Path, read_corpora: Use
) -> None:
    given = cases(40)
    read_corpora([*given, *cases(10, first=100)])
    where = ["--corpus", str(corpus(tmp_path, "old"))]
    command = ["calibrate", "vanilla_rag", str(write(tmp_path, given)), "--out", str(tmp_path / "c.json"), *where]
    run_json(*command, "--keep", "0.9", "--holdout", "0", *SEARCH)
    dataset = str(write(tmp_path, [*given[:4], *cases(10, first=100)]))
    evaluate = ["eval", "vanilla_rag", "cot", "--dataset", dataset, *where, "--calibration", str(tmp_path / "c.json")]
    found = run_json(*evaluate, "--out", str(tmp_path / "run"))
    contexts = [one["context"] for one in json.loads((tmp_path / "run" / "run.json").read_text())["systems"]]
    assert [one["uncertainty"] for one in contexts] == ["disagreement", "own"]
    assert contexts[0]["first_stage"] == "bm25"
    (one,) = found["datasets"][0]["given"]
    assert (one["system"], one["n"], one["uncertified"], one["calibrated_on"]) == ("vanilla_rag", 14, 0, 4)
    other = run_json("eval", "cot", "--dataset", dataset, *where, "--calibration", str(tmp_path / "c.json"))
    assert "is a calibration of vanilla_rag, and no system has this graph" in other["error"]["message"]


def test_a_check_is_of_the_same_corpus_and_the_same_rule_for_right_answers(tmp_path: Path, read_corpora: Use) -> None:
    given = [*cases(40), *(Case(f"What is thing {i}?", f"name{i} indeed", 10, right=True) for i in range(40, 60))]
    found = ["calibrate", "vanilla_rag", str(write(tmp_path, given)), *SEARCH, "--corpus"]
    read_corpora(given)
    made = run_json(
        *found, str(corpus(tmp_path, "old")), "--keep", "0.9", "--right", "exact", "--out", str(tmp_path / "c.json")
    )
    assert made["right"] == "exact"
    check = ["--check", str(tmp_path / "c.json"), "--out", str(tmp_path / "new.json")]
    given = [*cases(40, first=100), *(Case(f"What is thing {i}?", f"name{i} indeed", 10, right=True) for i in (98, 99))]
    write(tmp_path, given)
    read_corpora(given)
    checked = run_json(*found, str(tmp_path / "notes.jsonl"), *check)
    assert checked["right"] == sum(case.right for case in given[:40]), "by the calibration's rule"
    asked_by = read_corpora(given)
    other_rule = run_json(*found, str(tmp_path / "notes.jsonl"), *check, "--right", "f1:0.5")
    assert "counts answers as right by exact, not f1:0.5: leave --right out" in other_rule["error"]["message"]
    (tmp_path / "b").mkdir()
    other_corpus = run_json(*found, str(corpus(tmp_path / "b", "other")), *check)
    assert "was made with another corpus" in other_corpus["error"]["message"]
    assert asked_by.questions == []


def write(folder: Path, given: Sequence[Case]) -> Path:
    lines = [
        {"question": case.question, "answers": [f"name{re.findall(r'[0-9]+', case.question)[0]}"]} for case in given
    ]
    return write_lines(folder / "q.jsonl", lines)


@pytest.mark.parametrize(
    ("llm", "is_kept"),
    [
        ("vllm:http://b:1/v1#m&states=http://a:2/v1", True),
        ("vllm:http://a:1/v1#m&states=http://b:2/v1", False),  # it may have been started for another layer
        ("vllm:http://a:1/v1#m&states=http://a:2/v1&layer=4", False),
    ],
)
def test_outcomes_are_kept_for_hidden_states_of_one_place(llm: str, is_kept: bool) -> None:
    first = VanillaRagContext(llm="vllm:http://a:1/v1#m&states=http://a:2/v1")
    other = first.model_copy(update={"llm": llm})
    assert (calibrating._key("vanilla_rag", first) == calibrating._key("vanilla_rag", other)) == is_kept


def calibrate(folder: Path, *more: str, guarantee: Sequence[str] = ("--keep", "0.9"), **settings: Any) -> Any:
    assignments = [part for name, value in {**SETTINGS, **settings}.items() for part in ("--set", f"{name}={value}")]
    arguments = ["calibrate", "vanilla_rag", str(folder / "q.jsonl"), "--out", str(folder / "c.json")]
    return CliRunner().invoke(app, [*arguments, *guarantee, *assignments, *more])


def halves(count: int, holdout: float, seed: int) -> tuple[list[int], list[int]]:
    """The positions of both parts, as the documentation says they are drawn."""
    drawn = list(np.random.default_rng(seed).permutation(count))
    return drawn[round(count * holdout) :], drawn[: round(count * holdout)]


def counts(given: Sequence[Case], threshold: float) -> dict[str, int]:
    """What a threshold of the disagreement does with the cases."""
    answered = [case for case in given if 1 - case.agreeing / 10 <= threshold]
    return {
        "questions": len(given),
        "right": sum(case.right for case in given),
        "answered": len(answered),
        "errors": sum(not case.right for case in answered),
    }


@pytest.mark.parametrize(("keep", "holdout", "seed"), [("0.9", 0.5, 0), ("0.7", 0.25, 3)])
def test_what_keeps_right_answers_is_worked_out_from_the_cases(
    tmp_path: Path, use: Use, keep: str, holdout: float, seed: int
) -> None:
    given = cases(60)
    use(given)
    write(tmp_path, given)
    more = ["--holdout", str(holdout), "--seed", str(seed), "--json"]
    done = calibrate(tmp_path, *more, guarantee=["--keep", keep])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)

    calibration, held_back = ([given[i] for i in part] for part in halves(60, holdout, seed))
    descending = sorted((1 - case.agreeing / 10 for case in calibration if case.right), reverse=True)
    threshold = descending[int((1 - float(keep)) * (len(descending) + 1) + 1e-9) - 1]
    assert 0 < threshold < 1
    assert (found["threshold"], found["guarantee"], found["alpha"]) == (
        pytest.approx(threshold), "kept", pytest.approx(1 - float(keep)),
    )  # fmt: skip
    assert {name: found[name] for name in ("answered", "errors")} == {
        name: counts(calibration, threshold + 1e-9)[name] for name in ("answered", "errors")
    }
    assert found["held_back"] == counts(held_back, threshold + 1e-9)
    assert found["held_back"]["errors"] < found["held_back"]["questions"] - found["held_back"]["right"]


def test_a_certified_risk_holds_for_the_true_error_rate_of_the_cases(tmp_path: Path, use: Use) -> None:
    given = cases(200)
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--json", guarantee=["--risk", "0.2"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["guarantee"], found["alpha"], found["confidence"]) == ("risk", 0.2, 0.9)
    # right answers agree with probability 0.8, wrong ones with 0.4: counted over many more cases
    everyone = counts(cases(20_000, seed=6), found["threshold"] + 1e-9)
    assert everyone["errors"] / everyone["answered"] <= 0.2
    assert found["held_back"]["answered"] > 10, "and it answers"


def test_with_labels_that_say_nothing_no_risk_is_certified(tmp_path: Path, use: Use) -> None:
    given = [replace(case, agreeing=cases(200, seed=9)[i].agreeing) for i, case in enumerate(cases(200))]
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, guarantee=["--risk", "0.1"])
    assert done.exit_code == 2
    assert "No threshold can be certified for a risk of 0.1 with confidence 0.9: of 150 questions" in done.stderr
    advice = "Give more questions, a larger --risk or another uncertainty (--set uncertainty=semantic_entropy)."
    assert advice in done.stderr
    with_entropy = calibrate(tmp_path, guarantee=["--risk", "0.1"], uncertainty="semantic_entropy")
    assert "Give more questions or a larger --risk." in with_entropy.stderr
    assert not (tmp_path / "c.json").exists()


def test_another_try_with_the_same_questions_is_told_to_need_a_higher_confidence(tmp_path: Path, use: Use) -> None:
    given = [replace(case, agreeing=5) for case in cases(80)]
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--confidence", "0.8", guarantee=["--risk", "0.1"])
    assert "Ask new questions for it." in done.stderr
    assert done.stderr.endswith("all of them need --confidence 1 - 0.2 / tries, such as 0.9 for two.\n")


def test_the_number_of_questions_that_a_refusal_names_suffices(tmp_path: Path, use: Use) -> None:
    def asked(count: int) -> Any:
        given = [replace(case, answer=f"name{i}", agreeing=9) for i, case in enumerate(cases(count))]
        use(given)
        write(tmp_path, given)
        return calibrate(tmp_path, guarantee=["--risk", "0.1"])

    refused = asked(35)
    assert refused.exit_code == 2
    assert "give at least 36 questions in all, 9 of them held back (--holdout 0.25), or a larger" in refused.stderr
    assert asked(36).exit_code == 0


def test_several_signals_are_combined_by_weights_learned_from_other_questions_than_the_test(
    tmp_path: Path, use: Use
) -> None:
    """The weights are scikit-learn's, on the standardised signals of the part of the questions that is learned from."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    given = cases(200)
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--json", guarantee=["--risk", "0.2"], uncertainty="combined")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["signal"] == "probability of an error"

    used = [given[i] for i in halves(200, 0.25, 0)[0]]
    drawn = np.random.default_rng(0).permutation(len(used))
    learned, tested = ([used[i] for i in part] for part in (drawn[:30], drawn[30:]))

    def signals(case: Case) -> list[float]:
        shares = np.array([case.agreeing / 10] * (case.agreeing > 0) + [0.1] * (10 - case.agreeing))
        return [float(-(shares * np.log(shares)).sum()), 1 - case.agreeing / 10]

    rows = np.array([signals(case) for case in learned])
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    fit = linear_model.LogisticRegression(C=1.0, tol=1e-10, max_iter=1000)
    fit.fit((rows - mean) / spread, [not case.right for case in learned])
    weights = found["combination"]["weights"]
    assert list(weights) == ["semantic entropy", "disagreement"]
    assert list(weights.values()) == pytest.approx(fit.coef_[0] / spread, rel=1e-4)
    expected = fit.predict_proba((np.array([signals(case) for case in tested]) - mean) / spread)[:, 1]
    assert found["uncertainties"] == pytest.approx(expected, rel=1e-4), "those of the questions to test on"
    sure = [case for case, value in zip(tested, expected, strict=True) if value <= found["threshold"] + 1e-6]
    assert len(sure) > 20
    assert sum(not case.right for case in sure) / len(sure) < 0.2
    said = " ".join(calibrate(tmp_path, guarantee=["--risk", "0.2"], uncertainty="combined").stdout.split())
    assert "Give an answer whose probability of an error is at most" in said
    assert "It is combined from several signals with the weights" in said


def test_weights_need_right_and_wrong_answers_to_learn_from(tmp_path: Path, use: Use) -> None:
    given = [replace(case, right=True, answer=f"name{i}") for i, case in enumerate(cases(100))]
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, guarantee=["--risk", "0.2"], uncertainty="combined")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "The 15 answers to learn the weights of the signals from need both right and wrong ones" in done.stderr


def test_the_file_is_what_was_printed_and_loads_for_these_settings_alone(tmp_path: Path, use: Use) -> None:
    given = cases(40)
    use(given)
    write(tmp_path, given)
    found = json.loads(calibrate(tmp_path, "--json").stdout)
    on_disk = json.loads((tmp_path / "c.json").read_text())
    assert found["out"] == str(tmp_path / "c.json")
    assert {name: found[name] for name in on_disk if name != "sha256"} == {
        name: value for name, value in on_disk.items() if name != "sha256"
    }
    assert (on_disk["technique"], on_disk["model"], on_disk["signal"], on_disk["right"]) == (
        "vanilla_rag", "embedded", "disagreement", "f1:0.5",
    )  # fmt: skip
    assert on_disk["settings"]["answer_samples"] == 10
    assert on_disk["made_with"].keys() == {"dubito", "questions", "limit", "holdout", "seed"}
    context = VanillaRagContext(**SETTINGS, judge="embedded")
    assert AnswerCalibration.load(tmp_path / "c.json", "vanilla_rag", context).threshold == on_disk["threshold"]
    other = VanillaRagContext(**SETTINGS, judge="embedded", answer_samples=3)
    with pytest.raises(UserFault, match="answer_samples 10, not 3"):
        AnswerCalibration.load(tmp_path / "c.json", "vanilla_rag", other)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.json", "c.questions.sqlite", "q.jsonl"]


def test_ask_takes_the_graph_and_the_settings_of_the_calibration(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cases(40)
    use(given)
    monkeypatch.setattr(Resources, "known_by", KnownCorpus.known_by)
    write(tmp_path, given)
    assert calibrate(tmp_path, answer_temperature=0.7).exit_code == 0
    calibration = ["--calibration", str(tmp_path / "c.json")]

    def ask(case: Case, *more: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["ask", case.question, "--json", *calibration, *more])
        return dict(json.loads(done.stdout))

    sure = next(case for case in given if case.agreeing == 10)
    unsure = next(case for case in given if case.agreeing < 3)
    answer = ask(sure)
    assert (answer["answer"], answer["abstained"], answer["certificate"]["holds"]) == (sure.answer, False, True)
    assert answer["graph"] == "vanilla_rag"
    assert {name: answer["context"][name] for name in ("uncertainty", "k", "answer_temperature")} == {
        "uncertainty": "disagreement", "k": 1, "answer_temperature": 0.7,
    }  # fmt: skip
    withheld = ask(unsure)
    assert (withheld["answer"], withheld["withheld_answer"]) == ("", unsure.answer)
    refused = ask(sure, "--set", "answer_samples=3")["error"]["message"]
    assert "holds for answer_samples 10, not 3: use the settings it was made with" in refused
    assert "holds for vanilla_rag, not df_rag" in ask(sure, "--graph", "df_rag")["error"]["message"]
    missing = CliRunner().invoke(app, ["ask", "Who?", "--calibration", str(tmp_path / "none.json")])
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "There is no calibration at" in missing.stderr


def test_a_person_sees_the_threshold_and_how_it_does(tmp_path: Path, use: Use) -> None:
    given = [Case(f"What is thing {i}?", f"name{i}", 8, right=True) for i in range(20)]
    given += [Case(f"What is thing {i}?", f"other{i}", 10 if i % 2 else 3, right=False) for i in range(20, 30)]
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--holdout", "0.5")
    assert (done.exit_code, done.stderr) == (0, "")
    calibration, held_back = ([given[i] for i in part] for part in halves(30, 0.5, 0))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.splitlines()[0] == "Give an answer whose disagreement is at most 0.200."
    assert " ".join(lines[1]).startswith("At least 90% of the right answers are given, on average")
    table = next(i for i, line in enumerate(lines) if line[:2] == ["questions", "right"])
    for line, part in ((lines[table + 1], calibration), (lines[table + 2], held_back)):
        assert line[-4:] == [str(value) for value in counts(part, 0.21).values()]
    assert "is 0.50, and 0.5 is chance" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1] == f"Written to {tmp_path / 'c.json'}"
    assert "\x1b" not in done.stdout
    assert "Warning" not in done.stdout


def test_too_few_right_answers_are_told(tmp_path: Path, use: Use) -> None:
    given = cases(10)
    use(given)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--holdout", "0", guarantee=["--keep", "0.95"])
    right = sum(case.right for case in given)
    assert done.exit_code == 2
    assert f"{right} right answers to calibrate on: to leave out 0.05 of them takes 19" in done.stderr


def test_a_stricter_rule_needs_no_new_answers(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [Case(f"What is thing {i}?", f"name{i} indeed", 9, right=True) for i in range(12)]  # F1 2/3
    llm = use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path).exit_code == 0
    asked = len(llm.calls)
    monkeypatch.setattr(calibrating, "open_resources", None)  # nor is anything opened
    done = calibrate(tmp_path, "--right", "exact")
    assert done.exit_code == 2
    assert "None of the 9 questions to calibrate on was answered right" in done.stderr
    assert calibrate(tmp_path, "--seed", "4", guarantee=["--keep", "0.8"]).exit_code == 0
    assert len(llm.calls) == asked > 0


def test_what_is_done_is_not_asked_again(tmp_path: Path, use: Use) -> None:
    given = cases(30)
    first = use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path, "--limit", "20").exit_code == 0
    assert set(first.questions) == {case.question for case in given[:20]}
    second = use(given)
    done = calibrate(tmp_path)
    assert set(second.questions) == {case.question for case in given[20:]}
    assert done.stdout.splitlines()[0] == "20 of 30 questions were finished before."
    assert json.loads((tmp_path / "c.json").read_text())["n"] == 22
    # other settings are other answers
    third = use(given)
    assert calibrate(tmp_path, "--limit", "5", guarantee=["--keep", "0.5"], answer_temperature=0.3).exit_code == 0
    assert len(third.questions) == 5
    assert calibrate(tmp_path, "--limit", "5", "--corpus", str(tmp_path), guarantee=["--keep", "0.5"]).exit_code == 0
    assert len(third.questions) == 10, "nor does another corpus give the same ones"
    fourth = use(given)
    assert calibrate(tmp_path, "--at-once", "1", concurrency=3).exit_code == 0
    assert fourth.calls == []


def test_a_question_that_fails_is_told_and_counts_as_wrong(tmp_path: Path, use: Use) -> None:
    given = cases(24)
    broken = {given[i].question: UserFault(f"Number {i} is too long.") for i in (2, 9)}
    use(given, broken)
    write(tmp_path, given)
    done = calibrate(tmp_path, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["failures"] == [{"question": given[i].question, "error": f"Number {i} is too long."} for i in (2, 9)]
    assert found["failed"] == 2
    used = [given[i] for i in halves(24, 0.25, 0)[0]]
    unknown = [case.question in broken for case in used]
    assert [value is None for value in found["uncertainties"]] == unknown
    assert found["hashes"] == [hash_of(case.question) for case in used]
    assert found["n"] + found["held_back"]["questions"] == 24
    said = calibrate(tmp_path).stdout
    assert "Warning: 2 questions failed; each counts as a wrong answer that is given." in " ".join(said.split())
    assert f"Failed: {given[2].question}: Number 2 is too long." in said
    mended = use(given)
    assert json.loads(calibrate(tmp_path, "--json").stdout)["failures"] == []
    assert set(mended.questions) == {given[2].question, given[9].question}


def test_failed_questions_leave_less_room_for_wrong_answers(tmp_path: Path, use: Use) -> None:
    """Of 40 sure answers all are right; a fifth of all questions fails, which no threshold escapes."""
    given = [Case(f"What is thing {i}?", f"name{i}", 10, right=True) for i in range(50)]
    use(given, {case.question: UserFault("It is too long.") for case in given[::5]})
    write(tmp_path, given)
    done = calibrate(tmp_path, "--holdout", "0", guarantee=["--risk", "0.2"])
    assert done.exit_code == 2
    assert "No threshold can be certified for a risk of 0.2" in done.stderr
    found = json.loads(calibrate(tmp_path, "--holdout", "0", "--json", guarantee=["--risk", "0.4"]).stdout)
    assert (found["answered"], found["errors"]) == (found["n"], 10)


def test_a_repeated_question_counts_once(tmp_path: Path, use: Use) -> None:
    given = cases(40)
    use(given)
    write(tmp_path, [*given, *given[:10]])
    found = json.loads(calibrate(tmp_path, "--json").stdout)
    assert found["n"] + found["held_back"]["questions"] == 40


def test_questions_that_were_calibrated_on_check_nothing(tmp_path: Path, use: Use) -> None:
    given = cases(60)
    use(given)
    write(tmp_path, given[:40])
    assert calibrate(tmp_path, "--holdout", "0").exit_code == 0
    check = ["--out", str(tmp_path / "checked.json")]
    calibration = ["--check", str(tmp_path / "c.json")]
    refused = calibrate(tmp_path, *check, guarantee=calibration)
    assert refused.exit_code == 2
    assert "All of these questions were calibrated on, so they check nothing: ask others." in refused.stderr
    write(tmp_path, given[40:])
    new = json.loads(calibrate(tmp_path, *check, "--json", guarantee=calibration).stdout)
    write(tmp_path, given[30:])
    mixed = json.loads(calibrate(tmp_path, *check, "--json", guarantee=calibration).stdout)
    assert mixed == {**new, "calibrated_on": 10}
    said = "10 questions of these were calibrated on, and are left out."
    assert said in " ".join(calibrate(tmp_path, *check, guarantee=calibration).stdout.split())


def test_any_threshold_gives_a_failed_question_a_wrong_answer() -> None:
    """Also one below all new uncertainties, of a calibration on others."""
    answers = [JudgedAnswer(0.9, right=True), JudgedAnswer(0.9, right=False, failed=True)]
    assert part_of(answers, 0.5) == (2, 1, 1, 1)


@pytest.mark.parametrize(("share", "said"), [(0.2, "20%"), (0.004, "0.4%"), (0.999, "99.9%")])
def test_a_promise_is_not_rounded(share: float, said: str) -> None:
    assert percent(share) == said


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
    assert set(later.questions) == {case.question for case in given[8:]}


def test_no_answer_at_all_is_a_failure(tmp_path: Path, use: Use) -> None:
    given = cases(3)
    use(given, {case.question: UserFault("no.") for case in given})
    write(tmp_path, given)
    done = calibrate(tmp_path)
    assert done.exit_code == 1
    assert "All 3 questions failed. The first failure: no." in done.stderr
    assert not (tmp_path / "c.json").exists()


REFUSED = [
    (["--risk", "0"], "--risk is 0: give a number between 0 and 1"),
    (["--keep", "1.2"], "--keep is 1.2: give a number between 0 and 1"),
    (["--risk", "0.1", "--confidence", "1"], "--confidence is 1: give a number between 0 and 1"),
    (["--risk", "much"], "--risk"),
    (["--risk", "0.1"], "vanilla_rag measures no uncertainty of its own: set uncertainty=semantic_entropy"),
    ([], "Name one guarantee: --risk 0.1"),
    (["--risk", "0.1", "--keep", "0.9"], "Name one guarantee: --risk 0.1"),
    (["--risk", "0.1", "--right", "exact", "--check", "c.json"], "by its own guarantee: leave --risk, --keep and"),
    (["--risk", "0.1", "--system", "plain"], "leave it out for escalate, and for a file of questions."),
    (
        ["--risk", "0.1", "--set", "calibration=c.json", "--set", "uncertainty=disagreement"],
        "leave the setting calibration out",
    ),
    (
        ["--risk", "0.1", "--set", "calibration=c.json"],
        "calibration needs an uncertainty, and vanilla_rag measures none",
    ),
    (["--right", "f1:2"], "There is no rule 'f1:2'"),
    (["--holdout", "1"], "holdout is '1.0' and must be a number from 0.0 to 0.95"),
    (["--limit", "0"], "--limit"),
    (["--at-once", "0"], "--at-once"),
    (["--set", "budgt=3"], "has no setting 'budgt'"),
    (["--set", "k=none"], "k is 'none' and must be a whole number"),
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
    done = CliRunner().invoke(app, ["calibrate", "vanilla_rag", "q.jsonl", *more])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert llm.calls == []
    assert (tmp_path / "q.jsonl").read_bytes() == before


def test_a_graph_without_answers_is_refused(tmp_path: Path, use: Use) -> None:
    use(cases(3))
    write(tmp_path, cases(3))
    done = CliRunner().invoke(app, ["calibrate", "seper", str(tmp_path / "q.jsonl"), "--risk", "0.2"])
    assert done.exit_code == 2
    assert "seper measures chunks and gives no answers to calibrate" in done.stderr


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
    done = CliRunner().invoke(
        app, ["calibrate", "vanilla_rag", "q.jsonl", "--keep", "0.8", "--set", "uncertainty=disagreement"]
    )
    assert done.exit_code == 0
    written = {file.name for file in tmp_path.iterdir()}
    assert written == {"q.jsonl", "vanilla_rag.calibration.json", "vanilla_rag.calibration.questions.sqlite"}


def test_ctrl_c_says_what_is_kept(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    given = cases(6)
    use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path, "--limit", "3", guarantee=["--keep", "0.5"]).exit_code == 0
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


def test_after_a_preparation_the_bar_tells_of_the_questions_that_are_left() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    with Bar(console, 9, 10, quiet=True, as_json=False) as bar:
        task = bar._progress.tasks[0]
        bar.prepare("indexing notes", 9, 9)
        assert (task.description, task.completed, task.fields["so_far"]) == ("questions", 9, "9 of 10")
        bar.end(failed=False)
        bar.prepare("seper", 10, 10)
        assert (task.description, task.fields["so_far"]) == ("seper", "10 of 10")


@pytest.mark.parametrize(("done", "said"), [(6, "3.0 a second, 1.3 s left"), (1, "30.0 a minute, 8.0 s left")])
def test_a_pace_is_told_by_the_second_or_the_minute(monkeypatch: pytest.MonkeyPatch, done: int, said: str) -> None:
    bar = Bar(Console(file=io.StringIO()), 0, 10, quiet=True, as_json=False)
    begun = bar._begun
    monkeypatch.setattr("time.monotonic", lambda: begun + 2)
    assert bar.pace(done, 4) == said


def test_the_share_of_wrong_answers_among_all_questions_is_kept_on_average(tmp_path: Path, use: Use) -> None:
    given = cases(40)
    use(given)
    write(tmp_path, given)
    found = json.loads(calibrate(tmp_path, "--holdout", "0", "--json", guarantee=["--average", "0.1"]).stdout)
    # the largest threshold with at most 0.1 · 41 − 1, so 3 errors, at the ten disagreements
    largest = max(t / 10 for t in range(11) if counts(given, t / 10 + 1e-9)["errors"] <= 3)
    assert (found["guarantee"], found["threshold"]) == ("average", pytest.approx(largest))


def test_new_questions_that_look_alike_and_others_that_do_not(tmp_path: Path, use: Use) -> None:
    given = cases(120)
    use(given)
    write(tmp_path, given)
    assert calibrate(tmp_path, guarantee=["--risk", "0.3"]).exit_code == 0
    file = str(tmp_path / "c.json")
    before = (tmp_path / "c.json").read_bytes()
    later = cases(120, seed=8, first=200)
    unlike = [replace(case, agreeing=3) for case in later]
    wrong = [replace(case, answer="other", right=False) if i % 2 else case for i, case in enumerate(later)]
    for fresh, alike, too_many in ((later, True, False), (wrong, True, True), (unlike, False, False)):
        use(fresh)
        (tmp_path / "n").mkdir(exist_ok=True)
        (tmp_path / "n" / "c.questions.sqlite").unlink(missing_ok=True)
        write(tmp_path / "n", fresh)
        done = calibrate(tmp_path / "n", "--json", guarantee=["--check", file])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["alike"], found["too_many_errors"]) == (alike, too_many)
        threshold = json.loads(before)["threshold"]
        assert {name: found[name] for name in counts(fresh, 0)} == counts(fresh, threshold + 1e-9)
    assert "differ from those of the calibration" in calibrate(tmp_path / "n", guarantee=["--check", file]).stdout
    assert not (tmp_path / "n" / "c.json").exists()


def test_a_plan_says_how_many_questions_it_takes(tmp_path: Path, use: Use) -> None:
    given = cases(100)
    use(given)
    write(tmp_path, given)
    easy = json.loads(calibrate(tmp_path, "--plan", "0.5", "--json", guarantee=["--risk", "0.2"]).stdout)
    assert easy["right"] == sum(case.right for case in given) / 100
    assert 30 < easy["questions"] < 2000
    none_held = calibrate(tmp_path, "--plan", "0.5", "--holdout", "0", "--json", guarantee=["--risk", "0.2"])
    to_calibrate_on = json.loads(none_held.stdout)["questions"]
    total = easy["questions"]
    assert total - round(total / 4) == to_calibrate_on, "a quarter is held back"
    said = " ".join(calibrate(tmp_path, "--plan", "0.5", guarantee=["--risk", "0.2"]).stdout.split())
    assert f"about {total:,} questions, {round(total / 4)} of them held back (--holdout 0.25)" in said
    never = calibrate(tmp_path, "--plan", "0.99", guarantee=["--risk", "0.05"])
    assert "No number of questions is enough" in never.stdout
    assert not (tmp_path / "c.json").exists()
    assert calibrate(tmp_path, "--plan", "0.5").exit_code == 2


def test_a_plan_that_the_search_does_not_reach_is_not_called_impossible(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cases(100)
    use(given)
    write(tmp_path, given)
    monkeypatch.setattr(risk_control, "MOST_QUESTIONS", 20)
    found = calibrate(tmp_path, "--plan", "0.5", guarantee=["--risk", "0.2"]).stdout
    assert "It takes more than about 13,333 questions, 3,333 of them held back" in " ".join(found.split())
