"""The report as Markdown and as a page: what is in them, and that text of others stays text."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault, extra_command
from dubito.evals.reports import drawing, write
from dubito.evals.reports.about import command, header
from dubito.evals.reports.inputs import MOST_STEPS, first_steps
from dubito.evals.reports.page import BEGINNING
from dubito.evals.reports.plots import grid_of, time_shares
from dubito.evals.reports.words import amount, chance, number, signed
from dubito.evals.reports.write import Written, write_reports
from dubito.evals.run_folder import EvaluationRun, System
from dubito.evals.scores import NodeCost
from dubito.render.markdown import code, escaped
from dubito.tests.recorded import Element, parsed
from dubito.tests.reported import answered, asked, chunk, dse, failed, made, trace_of, unsure, usage, vanilla
from dubito.traces.recording import assembled

HOSTILE = (
    "<script>document.title='x'</script><img src=x onerror=alert(1)>"
    '" onclick="alert(1)" \'</details></style>{{ 7*7 }}| **b** `c` [d](http://e) $x$ \x1b[31m\x00\u202eetirw \ud800 ﷺ'
)
SHOWN = (
    "<script>document.title='x'</script><img src=x onerror=alert(1)>"
    '" onclick="alert(1)" \'</details></style>{{ 7*7 }}| **b** `c` [d](http://e) $x$ etirw ﷺ'
)

SYSTEMS = (
    vanilla("plain"),
    vanilla("g3", selection="gmmr", fixed_lambda=0.3),
    vanilla("g7", selection="gmmr", fixed_lambda=0.7),
    System("d", "dense", {"dse_threshold": 0.2}),
    System("s", "seakr", {"retrieval_threshold": "known"}),
    System("df", "df_rag", {"k": 3}),
)
QUESTIONS = [asked("q1", "Ada Lovelace", "Ada", gold=["d2"]), asked("q2", "Paris"), asked("q3", "1978")]


TWO_STAGES = usage(plan=(1, 4, 1, 0.2), evaluate=(0, 0, 0, 0.0), generate=(1, 6, 1, 0.3))


def everything() -> list[Any]:
    sets = [{"lambdas": [0.1, 0.2], "chunk_ids": ["a", "b"]}, {"lambdas": [0.3], "chunk_ids": ["b", "c"]}]
    selected = trace_of(("candidates", {"candidates": sets}), ("choose_lambda", {"lambda_star": 0.3}), graph="df_rag")
    found = []
    for place, name in enumerate(("q1", "q2", "q3")):
        said = ["Ada", "Paris", "1978"][place] if place else "Lovelace"
        found += [
            answered("plain", name, said, trace=trace_of(("retrieve", {}), ("generate", {"answer": said}))),
            answered("g3", name, "wrong" if place else said),
            answered("g7", name, said if place else "wrong"),
            answered("d", name, "wrong" if place == 2 else said, uncertainty=dse(0.3 * place)),
            answered("s", name, said, uncertainty=unsure("highest U", -6.5 + place, -6.0)),
            answered("df", name, said, lambda_star=0.3, supports=[], trace=selected, usage=TWO_STAGES),
        ]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[EvaluationRun, Written]:
    bench, store = made(tmp_path_factory.mktemp("runs") / "run", SYSTEMS, QUESTIONS, everything())
    with store:
        for system in ("s", "df"):
            store.measured(system, "small/q1", "seper", {"seper": 0.75, "seper_without": 0.25, "delta": 0.5})
            steps = [
                {"label": label, "what": what, "delta": delta, "seper": delta + 0.25}
                for label, what, delta in (("1", "known", 0.25), ("2", "known", 0.5), ("2", "first_stage", -0.5))
            ]
            store.measured(system, "small/q1", "seper_steps", {"steps": steps})
        return bench, write_reports(bench, store)


def page(written: Written) -> Element:
    return parsed(written.html.read_bytes())


def lines_of(written: Written, heading: str) -> list[list[str]]:
    """The cells of the Markdown table below a heading."""
    below = written.md.read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = [line for line in below.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def report(tmp_path, outcomes: Any, systems: Any = SYSTEMS[:1], questions: Any = QUESTIONS, **about: Any) -> Written:
    bench, store = made(tmp_path / "run", systems, questions, outcomes, **about)
    with store:
        return write_reports(bench, store)


def test_both_are_in_the_runs_folder(whole):
    bench, written = whole
    assert written.html == bench.folder / "report.html"
    assert written.md == bench.folder / "report.md"
    assert written.html_bytes == written.html.stat().st_size
    assert len(list((bench.folder / "plots").glob("*.png"))) == written.plots


def test_the_same_means_in_both(whole):
    _, written = whole
    heads, _, *rows = lines_of(written, "Answers")
    assert heads[:5] == ["system", "answered", "failed", "EM", "F1"]
    shown = page(written).table("Answers")
    assert shown[0] == heads
    for row, cells in zip(rows, shown[1:], strict=True):
        plain = [cell.replace("*", "").split(" ")[0] for cell in row]
        assert [re.sub(r"^(\d\.\d{3}).*", r"\1", cell) for cell in cells] == plain
    assert rows[0][:4] == ["plain", "3", "0", "**0.667 (0.00 to 1.00)**"]
    # of q1 "Lovelace" is two thirds of "Ada Lovelace" and nothing of "Ada"
    assert rows[0][4].startswith(f"**{(2 / 3 + 1 + 1) / 3:.3f} (")
    # g3 is right on none, g7 on two: with the better one of each question all is as in `plain`
    assert rows[-1][:5] == ["oracle", "3", "0", rows[0][3].replace("*", ""), rows[0][4].replace("*", "")]


def test_the_differences_are_row_less_column(whole):
    _, written = whole
    difference = ((2 / 3 + 2) - (2 / 3 + 0)) / 3
    for rows in (page(written).table("Differences in F1")[1:], lines_of(written, "Differences in F1")[2:]):
        assert rows[0][2].startswith(f"+{difference:.3f} (")
        assert rows[1][1].startswith(f"−{difference:.3f} (")


def test_the_cost_and_its_stages(tmp_path):
    spent = usage(plan=(1, 1000, 2, 0.5), generate=(3, 234, 6, 1.0))
    written = report(tmp_path, [answered("plain", "q1", "Ada", usage=spent, seconds=2.5, remembered=1,
                                         remembered_seconds=4.0)])  # fmt: skip
    assert lines_of(written, "Cost of a question")[2] == ["plain", "1", "4", "1,234", "8", "2.50", "25%", "4"]
    assert lines_of(written, "Cost by stage")[2:] == [
        ["plain", "plan", "1", "1,000", "2", "0.50"],
        ["plain", "generate", "3", "234", "6", "1"],
    ]
    assert page(written).table("Cost of a question")[1] == lines_of(written, "Cost of a question")[2]


def test_what_the_run_is(whole):
    bench, written = whole
    facts = dict(header(written.summary))
    assert facts["questions"] == "small (3 of 9)"
    assert facts["seed"] == "5"
    assert facts["dubito"] == "0.1.0"
    assert facts["corpus"] == "all paragraphs of each dataset's questions"
    assert facts["models"] == "llm embedded"
    assert facts["state"] == "18 answered, 0 failed"
    assert command(bench) == "dubito eval x"
    assert page(written).one("pre", id="command").text == "dubito eval x"
    assert "dubito eval x" in written.md.read_text()


def test_every_question_with_each_systems_outcome(whole):
    _, written = whole
    first, second, _ = page(written).every("details", class_="q")
    assert first.attributes["data-outcomes"] == "rrwrrr"
    assert second.attributes["data-outcomes"] == "rwrrrr"
    results = first.every("div", class_="result")
    assert [one.one("b").text for one in results] == [system.label for system in SYSTEMS]
    assert results[0].one("p", class_="answer").text == "Lovelace"
    assert "DSE 0.000" in results[3].one("p", class_="numbers").text
    assert "ΔSePer 0.50" in results[4].one("p", class_="numbers").text
    assert "λ* 0.3" in results[5].one("p", class_="numbers").text


def test_gold_documents_among_the_evidence_are_marked(tmp_path):
    evidence = [chunk("d1", "One"), chunk("d2", "Two")]
    shown = page(report(tmp_path, [answered("plain", "q1", "Ada", evidence=evidence)])).one("p", class_="evidence")
    assert shown.text == "Evidence: One; Two"
    assert [one.text for one in shown.every("b")] == ["Two"]


def test_an_answer_that_was_withheld_is_not_a_wrong_one(tmp_path):
    withheld = answered("plain", "q1", "", abstained=True, withheld_answer="Ada")
    question = page(report(tmp_path, [withheld])).every("details", class_="q")[0]
    assert question.attributes["data-outcomes"] == "h"
    assert question.one("p", class_="answer").text == "(withheld: not certain enough) Ada"


def steps_of(written: Written) -> Any:
    return json.loads(page(written).one("script", id="steps").text)


def test_a_trace_is_folded_into_the_page(whole):
    _, written = whole
    results = page(written).every("details", class_="q")[0].every("div", class_="result")
    number_ = int(results[0].one("details", class_="steps").attributes["data-trace"])
    steps, more = steps_of(written)[number_]
    assert [row[1] for row in steps] == ["retrieve", "generate"]
    assert steps[1] == [0, "generate", 1, 1.0, 0, 0, 0, "changed answer", ""]
    assert more == 0
    assert results[1].every("details", class_="steps") == []


def test_a_long_trace_is_told_in_part():
    trace = trace_of(*((f"n{i}", {}) for i in range(MOST_STEPS + 5)))
    told, more = first_steps(assembled(Path("t"), trace.splitlines(keepends=True)))
    assert (len(told), more) == (MOST_STEPS, 5)


# --- text of others ---


def hostile(tmp_path) -> Written:
    questions = [asked("q1", HOSTILE, question=f"What? {HOSTILE}"), asked("q2", "x")]
    label = HOSTILE.replace("\ud800", "?")  # no name has half a character
    systems = (vanilla(label), System("d", "dense", {"dse_threshold": 0.2, "note": HOSTILE}))
    bad = trace_of((HOSTILE, {HOSTILE: HOSTILE}))
    outcomes = [
        answered(label, "q1", HOSTILE, evidence=[chunk(HOSTILE, HOSTILE)], warnings=[HOSTILE], trace=bad),
        answered("d", "q1", "ok", uncertainty=dse(1.0)),
        failed("d", "q2", HOSTILE),
    ]
    return report(tmp_path, outcomes, systems, questions, command=HOSTILE)


def test_on_the_page_hostile_text_stays_text(tmp_path):
    shown = page(hostile(tmp_path))
    assert len(shown.every("script")) == 2
    assert shown.every("img") == []
    assert [one for one in shown.every() if any(name.startswith("on") for name in one.attributes)] == []
    assert shown.one("p", class_="r").text == SHOWN
    assert shown.one("p", class_="warn").text == SHOWN
    assert SHOWN[:80] in shown.one("p", class_="evidence").text
    assert shown.one("pre", id="command").text == SHOWN
    first = shown.every("details", class_="q")[0]
    assert first.every("summary")[0].every("span")[0].text == f"What? {SHOWN}"
    assert first.one("p", class_="gold").one("b").text == SHOWN


def test_in_the_pages_data_hostile_text_ends_nothing(tmp_path):
    written = hostile(tmp_path)
    ((steps, _),) = steps_of(written)
    assert steps[0][1] == SHOWN
    assert steps[0][7].startswith(f"changed {SHOWN[:110]}")
    raw = written.html.read_text().partition('id="steps">')[2].partition("</script>")[0]
    assert not set("<>&") & set(raw)


def test_only_the_pages_own_script_may_run(tmp_path):
    shown = page(hostile(tmp_path))
    (policy,) = [one for one in shown.every("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy"]
    script = next(one for one in shown.every("script") if "type" not in one.attributes)
    digest = base64.b64encode(hashlib.sha256("".join(map(str, script.children)).encode()).digest()).decode()
    wanted = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy.attributes["content"] == wanted


def test_in_markdown_hostile_text_stays_text(tmp_path):
    written = hostile(tmp_path)
    text = written.md.read_text()
    outside = re.sub(r"```sh\n.*?\n```", "", text, flags=re.DOTALL)
    assert "<script" not in re.sub(r"\\<", "", outside)
    assert not {"\x00", "\x1b", "\u202e"} & set(text)
    heads, _, row, _ = lines_of(written, "Answers")
    assert len(row) == len(heads)


def test_markdown_says_nothing_of_its_own():
    assert escaped("a|b\n*c* <d> & `e`_f") == r"a\|b \*c\* \<d\> &amp; \`e\`\_f"
    assert code("a\n```b") == "````sh\na\n```b\n````"


def test_nothing_is_fetched(whole):
    _, written = whole
    text = written.html.read_text()
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)) == []
    assert "<image" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


# --- figures ---


def test_each_figure_that_the_run_has_something_for(whole):
    bench, written = whole
    names = sorted(path.name for path in (bench.folder / "plots").iterdir())
    kinds = ("cost", "dse", "lambda", "overlap", "risk-coverage", "stages", "steps", "uncertainty")
    assert names == [f"1-small-{kind}.png" for kind in kinds]
    shown = page(written).every("figure")
    assert len(shown) == len(kinds)
    assert all(len(one.every("svg")) == 1 for one in shown)
    assert [name for name in names if f"(plots/{name})" in written.md.read_text()] == names
    assert drawing.INK not in written.html.read_text()


def test_the_shares_of_the_time_are_of_stages_that_take_some():
    seconds = {"plan": 1.0, "evaluate": 0.0, "generate": 3.0}
    stages = {node: NodeCost(1, 0, 0, each) for node, each in seconds.items()}
    assert time_shares(stages) == {"plan": 0.25, "generate": 0.75}
    assert time_shares({"generate": NodeCost(1, 0, 0, 0.0)}) == {}


def test_levels_of_diversity_are_shown_as_they_are(tmp_path):
    levels = (("q1", 0.25), ("q2", 0.3), ("q3", None))
    outcomes = [answered("df", name, "Ada", lambda_star=level, supports=[]) for name, level in levels]
    shown = page(report(tmp_path, outcomes, [System("df", "df_rag", {})]))
    assert [shown.text.count(said) for said in ("λ* 0.25", "λ* 0.3", "λ* -")] == [1, 1, 1]
    assert grid_of([0.25, 0.1 + 0.2, 0.3]) == [0.25, 0.3]
    assert grid_of([0.1 + 0.2]) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_what_the_run_has_nothing_for_is_left_out(tmp_path):
    written = report(tmp_path, [answered("plain", "q1", "Ada")])
    assert (written.plots, written.remark) == (0, "")
    assert page(written).every("figure") == []
    assert not (tmp_path / "run" / "plots").exists()


def test_a_run_without_matplotlib_has_a_report_without_plots(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "can_draw", lambda: False)
    written = report(tmp_path, [answered("d", "q1", "Ada", uncertainty=dse(0.3))], [SYSTEMS[3]])
    assert written.plots == 0
    assert extra_command("plots") in written.remark
    assert written.remark in page(written).one("header").text
    assert "pip install" in written.md.read_text()
    assert page(written).every("svg") == []


def test_labels_that_matplotlib_would_read_as_something_else(tmp_path):
    systems = [System("_$x", "dense", {"dse_threshold": 0.2}), System("$\\frac{", "seakr", {})]
    outcomes = [
        answered("_$x", "q1", "Ada", uncertainty=dse(0.3)),
        answered("$\\frac{", "q1", "Ada", uncertainty=unsure("highest U", -6.0, -6.0)),
    ]
    shown = page(report(tmp_path, outcomes, systems)).one("div", class_="figures").text
    assert "_$x" in shown
    assert "$\\frac{" in shown


# --- what a run may be ---


def test_a_run_without_outcomes_has_no_report(tmp_path):
    with pytest.raises(UserFault, match=r"has an outcome yet: resume the run"):
        report(tmp_path, [])
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_run_of_failures_says_why(tmp_path):
    spent = failed("plain", "q1", "It is down.", spent=(1, 1200, 34))
    written = report(tmp_path, [spent, failed("plain", "q2", "It is down.")])
    assert lines_of(written, "Failures")[2] == ["plain", "ModelUnavailable", "It is down.", "2", "1", "1,234"]
    shown = page(written)
    assert shown.table("Failures")[1] == ["plain", "ModelUnavailable", "It is down.", "2", "1", "1,234"]
    assert shown.every("details", class_="q")[0].one("p", class_="f").text == "ModelUnavailable: It is down."
    assert dict(header(written.summary))["state"] == "0 answered, 2 failed, 1 not asked yet"


def test_a_system_without_answers_beside_one_with(tmp_path):
    written = report(tmp_path, [answered("plain", "q1", "Ada"), failed("d", "q1")], [SYSTEMS[0], SYSTEMS[3]])
    rows = {row[0]: row for row in lines_of(written, "Answers")}
    assert rows["plain"][1:4] == ["1", "0 (+2 not asked)", "1.000 (1.00 to 1.00)"]
    assert rows["d"][1:4] == ["0", "1 (+2 not asked)", "-"]
    assert lines_of(written, "Differences in F1")[2][2] == "-"


def test_citations_have_a_table_if_they_were_asked_for(tmp_path):
    marks = [{"exists": True, "verdict": "supported"}, {"exists": False, "verdict": None}]
    cited = answered("plain", "q1", "Ada", cited_answer="Ada [1]", citations=marks)
    written = report(tmp_path, [cited], questions=QUESTIONS[:1])
    heads, _, row = lines_of(written, "Citations")
    assert heads[3:] == ["cited", "marks that exist", "marks supported"]
    assert [cell.split(" ")[0] for cell in row[3:]] == ["1.000", "0.500", "1.000"]


def test_one_question_of_one_system(tmp_path):
    written = report(tmp_path, [answered("plain", "q1", "Ada")], questions=QUESTIONS[:1])
    assert lines_of(written, "Answers")[2][3] == "1.000 (1.00 to 1.00)"
    assert "### Differences" not in written.md.read_text()
    assert "### Citations" not in written.md.read_text()


def test_a_file_of_somebody_else_is_left_alone(tmp_path):
    bench, store = made(tmp_path / "run", SYSTEMS[:1], QUESTIONS, [answered("plain", "q1", "Ada")])
    mine = tmp_path / "mine.md"
    mine.write_text("# My own\n")
    with store:
        with pytest.raises(UserFault, match="exists and is not a report: give another name"):
            write_reports(bench, store, md=mine)
        with pytest.raises(UserFault, match="exists and is not a report: give another name"):
            write_reports(bench, store, html=mine)
        with pytest.raises(UserFault, match=r"cannot be written to .* give another path"):
            write_reports(bench, store, html=tmp_path / "no" / "x.html")
        assert mine.read_text() == "# My own\n"
        again = [write_reports(bench, store).html.read_bytes() for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].startswith(BEGINNING.encode())


def test_a_run_that_says_little_of_itself(tmp_path):
    bench, store = made(tmp_path / "run", SYSTEMS[:1], QUESTIONS, [answered("plain", "q1", "Ada")], command=None,
                        begun="long ago", datasets=[])  # fmt: skip
    with store:
        written = write_reports(bench, store)
    assert dict(header(written.summary))["begun"] == "-"
    assert page(written).every("pre", id="command") == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (number(None), "-"),
        (number(-0.25, 2), "−0.25"),
        (signed(-0.0001), "0.000"),
        (signed(0.25), "+0.250"),
        (chance(0.0004), "<0.001"),
        (chance(0.04), "0.040"),
        (amount(1234.5), "1,234"),
        (amount(12.34), "12.3"),
        (amount(0.255), "0.26"),
        (amount(3), "3"),
    ],
)
def test_numbers(said: str, shown: str):
    assert said == shown


def test_steps_of_a_trace_in_another_form_are_missing_and_that_is_said(tmp_path):
    old = trace_of(("retrieve", {})).replace(b'"version": 2', b'"version": 1')
    written = report(tmp_path, [answered("plain", "q1", "Ada", trace=old)])
    assert written.remark.startswith("Steps are missing: ")
    assert written.remark in page(written).one("header").text
    assert page(written).every("details", class_="steps") == []
