"""`dubito report` and `dubito compare`, as typed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.evals.run_folder import System
from dubito.evals.store import Store
from dubito.tests.reported import answered, asked, chunk, dse, failed, made, trace_of, unsure, vanilla
from typer.testing import CliRunner

QUESTIONS = [asked("q1", "Ada"), asked("q2", "Paris"), asked("q3", "1978")]
SYSTEMS = (vanilla("plain"), System("d", "dense", {"dse_threshold": 0.2}))


def dubito(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False, env={"COLUMNS": "120"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def run(tmp_path) -> Path:
    trace = trace_of(("retrieve", {}), ("generate", {"answer": "Ada"}))
    found = [
        answered("plain", "q1", "Ada", trace=trace),
        answered("plain", "q2", "London"),
        failed("plain", "q3", "It is \x1b[31mdown."),
        *(answered("d", name, "Ada", uncertainty=dse(0.1)) for name in ("q1", "q2")),
    ]
    bench, store = made(tmp_path / "my.run", SYSTEMS, QUESTIONS, found)
    with store:
        return bench.folder


def test_the_main_figures_and_where_the_reports_are(run: Path):
    code, out, err = dubito("report", run)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "small  3 of 9 questions"
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[1:4]]
    assert rows == [
        ["system", "answered", "failed", "F1", "EM", "accuracy"],
        ["plain", "2", "1", "0.500 (0.00 to 1.00)", "0.500", "0.500"],
        ["d", "2", "0 (+1 not asked)", "0.500 (0.00 to 1.00)", "0.500", "0.500"],
    ]
    assert "No two systems differ significantly in F1 (paired permutation test, 1 pair, Holm). With 2" in out
    assert "4 answered, 1 failed, 1 not asked yet." in out
    assert f"Wrote {run / 'report.html'} (" in out
    assert (run / "report.md").read_text().startswith("<!-- dubito report -->")


def certain_and_not(folder: Path) -> Path:
    """`d` is surer of q1 than of q2, and does not know how sure it is of q3; `plain` answers q1 and q3 right."""
    found = [
        *(answered("plain", name, answer) for name, answer in (("q1", "Ada"), ("q2", "London"), ("q3", "1978"))),
        *(answered("d", name, "Ada", uncertainty=dse(value)) for name, value in (("q1", 0.2), ("q2", 0.9))),
        answered("d", "q3", "1978", uncertainty=unsure("DSE", None, 0.2)),
    ]
    bench, store = made(folder, SYSTEMS, QUESTIONS, found)
    with store:
        return bench.folder


def parts(*arguments: Any) -> list[tuple[str, float, Any, Any]]:
    code, out, err = dubito("report", *arguments, "--json")
    assert (code, err) == (0, "")
    return [
        (one["system"], one["threshold"], one["certain"] and (one["certain"]["mean"], one["certain"]["n"]),
         one["uncertain"] and (one["uncertain"]["mean"], one["uncertain"]["n"]))
        for one in json.loads(out)["datasets"][0]["parts"]
    ]  # fmt: skip


def test_all_systems_are_parted_by_the_uncertainty_of_one(tmp_path):
    run = certain_and_not(tmp_path / "my.run")
    expected = [("plain", 0.2, (1.0, 1), (0.5, 2)), ("d", 0.2, (1.0, 1), (0.5, 2))]
    assert parts(run, "--split-by", "d") == expected, "its own threshold; an unknown uncertainty is above"
    sweep = parts(run, "--split-by", "d", "--split-at", "1,0.1")
    assert sweep[:2] == [("plain", 0.1, None, (pytest.approx(2 / 3), 3)), ("plain", 1.0, (0.5, 2), (1.0, 1))]
    # the reference is of another run, which asked fewer questions
    other, store = made(
        tmp_path / "other.run", [vanilla("first")], QUESTIONS, [answered("first", "q2", "x", uncertainty=dse(0.1))]
    )
    store.close()
    elsewhere = parts(run, "--split-by", "first", "--split-run", other.folder)
    assert elsewhere == [("plain", 0.2, (0.0, 1), None), ("d", 0.2, (0.0, 1), None)]
    out = dubito("report", run, "--split-by", "d", "--metric", "exact_match")[1]
    table = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert ["system", "up to 0.2 (n)", "above 0.2 (n)"] in table
    assert ["plain", "1.000 (1)", "0.500 (2)"] in table
    assert "EM by the uncertainty of d" in (run / "report.md").read_text()
    assert parts(run) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--split-by", "third"], "has no system 'third': use plain or d."),
        (["--split-by", "plain"], "plain measured no uncertainty in"),
        (["--split-at", "0.2"], "need the system to part the questions by: give --split-by too."),
        (["--split-run", "other.run"], "need the system to part the questions by: give --split-by too."),
        (["--split-by", "d", "--split-at", "low"], "--split-at low is no list of numbers: write it like"),
        (["--split-by", "d", "--split-at", "nan"], "give some with --split-at, such as --split-at 0.2,0.5."),
    ],
)
def test_a_split_that_cannot_be_made_is_told_in_a_sentence(tmp_path, options: list[str], said: str):
    code, _, err = dubito("report", certain_and_not(tmp_path / "my.run"), *options)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def test_a_split_by_a_run_of_other_questions_is_told(tmp_path):
    run, other = certain_and_not(tmp_path / "my.run"), tmp_path / "other.run"
    found = [answered("first", "q9", "x", uncertainty=dse(0.1))]
    made(other, [vanilla("first")], [asked("q9", "x")], found)[1].close()
    code, _, err = dubito("report", run, "--split-by", "first", "--split-run", other)
    assert (code, err.count("\n")) == (2, 1)
    assert f"first answered no question of '{run}': --split-run needs a run of the same datasets" in err


def test_differences_beyond_chance_are_named(tmp_path):
    questions = [asked(f"q{i}", "right") for i in range(8)]
    found = [answered(*one) for i in range(8) for one in (("plain", f"q{i}", "wrong"), ("d", f"q{i}", "right"))]
    bench, store = made(tmp_path / "run", SYSTEMS, questions, found)
    with store:
        out = dubito("report", bench.folder)[1]
    # all of 8 in one direction: 2 of the 256 ways to swap them are as far apart
    assert "Significant differences in F1 (paired permutation test, 1 pair, Holm): d over plain by +1.000 (" in out
    told = json.loads(dubito("report", bench.folder, "--against", "d", "--json")[1])
    assert [pair["difference"]["mean"] for pair in told["datasets"][0]["differences"]] == [-1]
    assert "| plain | 8 | **−1.000** | −1.000 to −1.000 | 0.008 |" in (bench.folder / "report.md").read_text()


def test_systems_without_a_common_question_are_not_tested(tmp_path):
    systems = [*SYSTEMS, vanilla("third")]
    found = [answered("plain", "q1", "Ada"), answered("d", "q1", "Ada"), answered("third", "q2", "Paris")]
    bench, store = made(tmp_path / "run", systems, QUESTIONS, found)
    store.close()
    one = "(paired permutation test, 1 pair, Holm). With 1 question p cannot fall below 1.00: ask at least 6."
    nothing = "No two systems answered the same question: nothing to compare."
    for against, said in (
        ([], f"No two systems differ significantly in F1 {one}"),
        (["--against", "third"], nothing),
        (["--against", "d"], f"No system differs significantly from d in F1 {one}"),
    ):
        assert said in " ".join(dubito("report", bench.folder, *against)[1].split())
    assert "corrected for 1 pair by Holm. With 1" in (bench.folder / "report.md").read_text()


def test_json_is_one_object_and_nothing_else(run: Path):
    code, out, err = dubito("report", run, "--json", "--metric", "exact_match")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert {name: told[name] for name in ("answered", "failed", "left", "metric", "standard")} == {
        "answered": 4,
        "failed": 1,
        "left": 1,
        "metric": "exact_match",
        "standard": "squad",
    }
    (dataset,) = told["datasets"]
    plain, doubting = dataset["systems"]
    assert plain["label"] == "plain"
    assert plain["metrics"]["f1"]["mean"] == 0.5
    assert plain["metrics"]["f1"]["n"] == 2
    assert doubting["left"] == 1
    none = {"n": 2, "mean": 0, "low": 0, "high": 0}
    assert dataset["differences"] == [{"first": "plain", "second": "d", "n": 2, "difference": none, "p": 1}]
    assert told["together"] is None, "there is one dataset"
    assert dataset["failures"][0]["questions"] == 1
    assert dataset["uncertainty"][0]["certain"] == {"above": None, "up_to": 0.2, "questions": 2, "score": 0.5}
    assert dataset["cost"][0]["stages"]["generate"]["calls"] == 1


def test_the_reports_go_where_they_are_wanted(run: Path, tmp_path):
    html, md = tmp_path / "x.html", tmp_path / "y (2).md"
    code, out, _ = dubito("report", run, "--html", html, "--md", md)
    assert code == 0
    assert html.read_bytes().startswith(b"<!doctype html>")
    plots = tmp_path / "y (2)-plots"
    assert f"in {plots}." in out
    assert [path.name for path in plots.iterdir() if f"(y%20%282%29-plots/{path.name})" not in md.read_text()] == []
    assert not (run / "report.html").exists()


def test_a_folder_that_is_missing_is_told_before_anything_is_computed(run: Path, tmp_path, monkeypatch):
    monkeypatch.setattr("dubito.evals.reports.write.summary_of", None)
    for option in ("--html", "--md"):
        code, _, err = dubito("report", run, option, tmp_path / "no" / "x")
        assert (code, err.count("\n")) == (2, 1)
        assert "The report cannot be written to" in err


def test_a_trace_can_be_taken_out(run: Path, tmp_path):
    path = tmp_path / "q1.jsonl"
    for name in ("q1", "small/q1"):
        code, out, _ = dubito("report", run, "--trace", "plain", name, path)
        assert (code, out.startswith(f"Wrote {path} (")) == (0, True)
    assert not (run / "report.html").exists()
    code, out, _ = dubito("trace", path)
    assert code == 0
    assert "generate" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "gone", "q1", "x.jsonl"], "The run has no system 'gone': use plain or d."),
        (
            ["--trace", "plain", "q9", "x.jsonl"],
            "The run has no question 'q9': give an id from the report's page.",
        ),
        (["--trace", "plain", "q2", "x.jsonl"], "There is no trace of 'q2' for plain"),
        (["--trace", "plain", "q1", "no/x.jsonl"], "The trace cannot be written to 'no/x.jsonl'"),
        (
            ["--trace", "plain", "q1", "x.jsonl", "--metric", "f1", "--against", "d"],
            "--trace writes a trace and no report: leave --metric, --against out.",
        ),
        (["--keep", "x", "--html", "x.html"], "--keep writes the run and no report: leave --html out."),
        (["--metric", "meteor"], "has the metric 'meteor': use exact_match, f1"),
        (["--standard", "none"], "Invalid value for '--standard'"),
        (["--html", "no/x.html"], "The report cannot be written to 'no/x.html'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run: Path, tmp_path, monkeypatch, arguments: list[str], said: str):
    monkeypatch.chdir(tmp_path)
    code, _, err = dubito("report", run, *arguments)
    assert code == 2
    assert said in err
    code, out, _ = dubito("report", run, *arguments, "--json")
    assert said in json.loads(out)["error"]["message"]


def test_a_trace_replaces_no_other_file(run: Path, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    code, _, err = dubito("report", run, "--trace", "plain", "q1", mine)
    assert (code, mine.read_text()) == (2, "mine")
    assert "exists and is not a trace: give another name." in err


@pytest.mark.parametrize("verb", [["report"], ["compare", "{}"]])
def test_folders_that_are_no_runs(tmp_path, verb: list[str]):
    (tmp_path / "empty").mkdir()
    verb = [one.format(tmp_path / "empty") for one in verb]
    assert "There is no run in" in dubito(*verb, tmp_path / "empty")[2]
    bench, store = made(tmp_path / "old", SYSTEMS, QUESTIONS)
    with store:
        pass
    manifest = json.loads((bench.folder / "run.json").read_text())
    (bench.folder / "run.json").write_text(json.dumps({**manifest, "version": 99}))
    code, _, err = dubito("report", bench.folder)
    assert code == 2
    assert "is a run of version 99" in err


@pytest.fixture
def later(tmp_path) -> Path:
    found = [answered("plain", "q1", "London"), answered("plain", "q2", "Paris", seconds=3.0)]
    bench, store = made(tmp_path / "later.run", (vanilla("plain", k=9), vanilla("new")), QUESTIONS, found, seed=6)
    with store:
        return bench.folder


def test_two_runs_side_by_side(run: Path, later: Path):
    code, out, err = dubito("compare", run, later)
    assert (code, err) == (0, "")
    assert "3 questions in both, 0 only in A, 0 only in B." in out
    assert "Only A has d." in out
    assert "Only B has new." in out
    lines = [line.split() for line in out.splitlines()]
    assert ["seed", "5", "6"] in lines
    assert ["k", "-", "9"] in lines
    assert "plain  2 questions answered in both, 1 failed in A, 0 in B" in out
    (change,) = [line for line in lines if line[:1] == ["F1"]]
    assert change[:5] == ["F1", "2", "0.500", "0.500", "0.000"]
    assert change[-1] == "1.000"
    assert ["seconds", "1", "2", "+1"] in lines
    wrong, right = out.index("From right to wrong: 1 question"), out.index("From wrong to right: 1 question")
    assert "What is q1?" in out[wrong:right]
    assert "What is q2?" in out[right:]


def made_with(folder: Path, standard: str) -> Path:
    """A run in which an answer and its gold answer have no word that counts: F1 is 1 in SQuAD and 0 in LongBench."""
    bench, store = made(folder, SYSTEMS[:1], [asked("q1", "A")], [answered("plain", "q1", "The")], standard=standard)
    with store:
        return bench.folder


@pytest.mark.parametrize(
    ("own", "more", "f1"),
    [("squad", [], 1.0), ("longbench", [], 0.0), ("longbench", ["--standard", "squad"], 1.0)],
)
def test_a_report_has_the_standard_of_its_run_or_the_one_that_is_typed(tmp_path, own: str, more: list[str], f1: float):
    told = json.loads(dubito("report", made_with(tmp_path / "x.run", own), *more, "--json")[1])
    assert told["standard"] == (more[-1] if more else own)
    assert told["datasets"][0]["systems"][0]["metrics"]["f1"]["mean"] == f1


def f1_of(*arguments: Any) -> list[float]:
    changes = json.loads(dubito("compare", *arguments, "--json")[1])["systems"][0]["changes"]
    return next([change["first"], change["second"]] for change in changes if change["metric"] == "f1")


def test_a_comparison_has_the_standard_of_both_runs(tmp_path):
    runs = [made_with(tmp_path / name, "longbench") for name in ("x.run", "y.run")]
    assert f1_of(*runs) == [0.0, 0.0]
    assert f1_of(*runs, "--standard", "squad") == [1.0, 1.0]


def test_runs_with_different_standards_are_compared_by_one_that_is_typed(tmp_path):
    runs = [made_with(tmp_path / f"{standard}.run", standard) for standard in ("squad", "longbench")]
    code, _, err = dubito("compare", *runs)
    assert code == 2
    assert "has the standard squad, and" in err
    assert "name one for both, such as --standard squad." in " ".join(err.split())
    assert f1_of(*runs, "--standard", "longbench") == [0.0, 0.0]


def test_a_comparison_as_json(run: Path, later: Path):
    code, out, err = dubito("compare", run, later, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["questions"] == {"both": 3, "first_alone": 0, "second_alone": 0}
    (system,) = told["systems"]
    assert system["to_wrong"] == [{"id": "small/q1", "question": "What is q1?"}]
    assert system["settings"] == {"k": [None, "9"]}
    assert {change["metric"] for change in system["changes"]} >= {"f1", "exact_match", "rouge_l", "bleu", "cover_em"}


def test_a_changed_corpus_is_a_difference_where_both_runs_know_theirs(tmp_path):
    def settings(*known: dict[str, str]) -> list[Any]:
        folders = []
        for number, known_by in enumerate(known):
            folder = tmp_path / f"{len(known_by)}{number}.run"
            made(folder, SYSTEMS, QUESTIONS, [answered("plain", "q1", "Ada")], known_by=known_by)[1].close()
            folders.append(folder)
        plain, other = json.loads(dubito("compare", *folders, "--json")[1])["systems"]
        return [plain["settings"], other["settings"]]

    both = settings({"plain": "1f", "d": "1f"}, {"plain": "2e", "d": "1f"})
    assert both == [{"content of the corpus": ["1f", "2e"]}, {}]
    assert settings({"plain": "1f"}, {}) == [{}, {}]


def test_a_run_is_kept_without_passages_and_read_like_the_run(tmp_path):
    evidence = [chunk("a", text="a secret passage")]
    found = [
        answered("plain", "q1", "Ada", evidence=evidence, rephrasings=["a reworded passage"]),
        failed("plain", "q2", "It is down."),
        answered("d", "q1", "Ada", evidence=evidence, uncertainty=dse(0.1)),
    ]
    bench, store = made(tmp_path / "my.run", SYSTEMS, QUESTIONS, found)
    with store:
        store.measured("plain", "small/q1", "seper", {"seper": 0.5, "seper_without": 0.25, "delta": 0.25})
    kept = tmp_path / "kept.run"
    code, out, err = dubito("report", bench.folder, "--keep", kept)
    assert (code, err) == (0, "")
    assert f"read it with dubito report {kept}" in out
    assert sorted(path.name for path in kept.iterdir()) == ["outcomes.jsonl", "questions.jsonl", "run.json"]
    assert "passage" not in (kept / "outcomes.jsonl").read_text()
    figures = [json.loads(dubito("report", folder, "--json")[1])["datasets"] for folder in (bench.folder, kept)]
    assert figures[0] == figures[1]
    assert [system["answered"] for system in figures[1][0]["systems"]] == [1, 1]
    # asked on, it takes the kept outcomes in
    with Store(kept / "results.sqlite", new=True) as resumed:
        assert resumed.ended() == {("plain", "small/q1"): True, ("plain", "small/q2"): False, ("d", "small/q1"): True}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"system": "plain", "question": "small/q1", "output": {}}'])
def test_a_kept_run_that_was_edited_says_where(run: Path, tmp_path, line: str):
    kept = tmp_path / "kept.run"
    dubito("report", run, "--keep", kept)
    with (kept / "outcomes.jsonl").open("a") as file:
        file.write(line + "\n")
    code, _, err = dubito("report", kept)
    assert code == 2
    assert err.strip() == f"Line 6 of '{kept / 'outcomes.jsonl'}' is no outcome of a run: fetch the file anew."


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(["run.json", "questions.jsonl", "results.sqlite"], id="a run"),
        pytest.param(["run.json", "questions.jsonl", "outcomes.jsonl", "results.sqlite"], id="a kept run asked on"),
        pytest.param(["questions.jsonl"], id="questions of one's own"),
        pytest.param(["outcomes.jsonl"], id="outcomes of something else"),
    ],
)
def test_a_run_is_kept_over_nothing_but_a_kept_run(run: Path, tmp_path, there: list[str]):
    taken = tmp_path / "taken"
    taken.mkdir()
    for name in there:
        (taken / name).write_text("mine")
    code, _, err = dubito("report", run, "--keep", taken)
    assert (code, err.count("\n")) == (2, 1)
    assert "give another name." in err if there == ["outcomes.jsonl"] else "name another folder." in err
    assert {path.name: path.read_text() for path in taken.iterdir()} == dict.fromkeys(there, "mine")


def test_what_an_interrupted_keep_leaves_is_no_run_and_can_be_kept_again(run: Path, tmp_path, monkeypatch):
    kept = tmp_path / "kept"

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "outcomes", interrupted)
        dubito("report", run, "--keep", kept)
    assert not kept.exists()
    dubito("report", run, "--keep", kept)
    for name in ("run.json", "questions.jsonl"):
        (kept / name).unlink()
    assert dubito("report", run, "--keep", kept)[0] == 0
    assert dubito("report", kept)[0] == 0


def test_half_a_character_in_an_output_is_kept(tmp_path):
    plan = ["\ud800 \udc80 é"]
    bench, store = made(tmp_path / "my.run", SYSTEMS[:1], QUESTIONS, [answered("plain", "q1", "Ada", plan=plan)])
    store.close()
    kept = tmp_path / "kept.run"
    assert dubito("report", bench.folder, "--keep", kept)[0] == 0
    with Store(kept / "results.sqlite") as read:
        assert [outcome.output["plan"] for outcome in read.outcomes() if outcome.output] == [plan]
