"""A trace read back: the tree, the comparison, the page, and what cannot be read."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app
from dubito.errors import ContextOverflow, UserFault
from dubito.graphs.registry import graph_names
from dubito.presenters import presenter as presenter_module
from dubito.presenters.blocks import Cell, Row, Table, Words, num
from dubito.presenters.presenter import (
    Presenter,
    figures_of,
    outcome_of,
    presenter_of,
    retrieval_steps,
    summary_of,
    why,
)
from dubito.render import trace_page as page
from dubito.render.arcs import HALF, layout
from dubito.render.cards import MOST_CHUNKS, MOST_ITEMS, cards
from dubito.render.timeline import lanes
from dubito.tests.json_lines import write_lines
from dubito.tests.recorded import RUNS, Element, lines, parsed, record, trace_of, vanilla_run
from dubito.traces.events import NodeEnd
from dubito.traces.recording import read
from dubito.traces.steps import NodeRun, Steps
from dubito.traces.writer import VERSION, Trace
from typer.testing import CliRunner

HOSTILE = (
    "<script>document.title='x'</script><img src=x onerror=alert(1)>"
    '" onclick="alert(1)" \'</details></style>{{ 7*7 }}'
)

TEXTS = {
    *("title", "text", "texts", "content", "message", "question", "query", "plan"),
    *("answer", "answers", "response", "responses", "ablation", "warnings"),
}
"""The keys of a trace whose values come from models, documents and people."""

START = "2026-01-02T03:04:{:06.3f}+00:00"


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    for name in RUNS:
        (folder / f"{name}.jsonl").write_bytes(trace_of(name))
    return {name: folder / f"{name}.jsonl" for name in RUNS}


def dubito(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def shown(path: Path) -> Element:
    return parsed(page.render(read(path)))


def drawing(tree: Element, within: str = "") -> Element:
    """The figure of the graph, or of a subgraph of that name."""
    label = f"within {within}:" if within else "the graph:"
    [found] = [one for one in tree.every("svg", class_="graph") if one.attributes["aria-label"].startswith(label)]
    return found


def written(path: Path, *found: dict[str, Any], version: int = VERSION, **more: Any) -> Path:
    """A trace by hand: a line of each event, `at` being its second."""
    run = {"type": "run", "at": 0, "version": version, "dubito": "0", "graph": "made_up", "context": {"k": 2}}
    events = ({**run, "question": "Why?", **more}, *found)
    stamped = [{**line, "timestamp": START.format(line["at"])} for line in events]
    write_lines(path, stamped)
    return path


def start(node: str, task: str, at: float, *within: str, **given_: Any) -> dict[str, Any]:
    return {"type": "node_start", "at": at, "node": node, "task": task, "namespace": list(within), "input": given_}


def end(node: str, task: str, at: float, *within: str, error: Any = None, **update: Any) -> dict[str, Any]:
    place = {"node": node, "task": task, "namespace": list(within)}
    return {"type": "node_end", "at": at, **place, "seconds": 0.0, "update": update, "error": error}


def call(node: str, task: str, at: float, seconds: float, *, prompt: int = 7, written_: int = 3) -> dict[str, Any]:
    cost = {"prompt_tokens": prompt, "completion_tokens": written_, "seconds": seconds}
    asked = {"messages": [{"role": "user", "content": "say"}], "max_tokens": 5}
    made = {"verb": "complete", "model": "m", "request": asked, "reply": {"texts": ["said"], "finish": ["stop"]}}
    return {"type": "llm_call", "at": at, "node": node, "task": task, "namespace": [], **made, **cost}


def over(answer: str = "so", at: float = 9, **output: Any) -> dict[str, Any]:
    return {"type": "end", "at": at, "seconds": at, "output": {"answer": answer, "warnings": [], **output}}


BRANCHED = (
    start("plan", "a", 1),
    start("fetch", "b", 1),
    end("fetch", "b", 1.5),
    call("plan", "a", 3, 1.5),
    end("plan", "a", 3),
    *(start("judge", f"j{i}", 3, number=i) for i in range(3)),
    *(call("judge", f"j{i}", 4 + i, 1, prompt=10, written_=1) for i in range(3)),
    *(end("judge", f"j{i}", 4 + i) for i in range(3)),
    start("judge", "again", 6),
    end("judge", "again", 7),
    start("inner", "i", 7),
    start("look", "l", 7.5, "inner:i"),
    end("look", "l", 8, "inner:i"),
    end("inner", "i", 8),
)
"""Two nodes side by side, three runs of one at once, one more of it, a subgraph."""


def steps_of(found: Sequence[dict[str, Any]]) -> Counter[str]:
    """How many rounds of parallel runs each node of a trace has, counted another way: runs that are open at once."""
    rounds: Counter[str] = Counter()
    open_: Counter[tuple[str, str]] = Counter()
    for line in found:
        if line["type"] == "node_start":
            key = (line["node"], "/".join(line["namespace"]))
            rounds[line["node"]] += not open_[key]
            open_[key] += 1
        elif line["type"] == "node_end":
            open_[line["node"], "/".join(line["namespace"])] -= 1
    return rounds


def test_the_steps_of_a_trace(tmp_path):
    found = read(written(tmp_path / "t.jsonl", *BRANCHED, over()))
    assert [(step.node, len(step.runs), step.round) for step in found.steps] == [
        ("plan", 1, 1),
        ("fetch", 1, 1),
        ("judge", 3, 2),
        ("judge", 1, 3),
        ("inner", 1, 4),
    ]
    assert [step.seconds for step in found.steps] == pytest.approx([2, 0.5, 3, 1, 1])
    assert [len(step.calls) for step in found.steps] == [1, 0, 3, 0, 0]
    *_, (inner_path, inner), (path, look) = found.walk()
    assert (inner_path, path, look.node, look.within) == ((), ("inner",), "look", inner.number)
    assert found.seconds == pytest.approx(9)
    assert found.ended
    assert found.output is not None


def test_a_second_run_of_a_subgraph_has_its_number(traces):
    paths = {step.path for around, step in read(traces["sunar"]).walk() if around}
    assert paths == {("neighbourhood",), ("neighbourhood 2",)}


def test_the_wiring_of_the_graph_and_of_its_subgraphs_is_recorded(traces):
    run = RUNS["sunar"]()
    header = lines(traces["sunar"])[0]
    assert set(header["wiring"]) == {"", "neighbourhood"}
    assert {tuple(edge) for edge in header["wiring"][""]} == {
        (edge.source, edge.target, edge.conditional) for edge in run.graph.get_graph().edges
    }
    assert ["select_batch", "score_batch", True] in header["wiring"]["neighbourhood"]
    assert ["update_frontier", "select_batch", False] in header["wiring"]["neighbourhood"]


def test_the_tree_has_a_line_a_step_with_its_cost(tmp_path):
    code, out, _ = dubito("trace", written(tmp_path / "t.jsonl", *BRANCHED, over(warnings=["odd"])))
    assert code == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert ["├─ plan", "2.0 s", "1", "7", "3", "(beside fetch)"] in rows
    assert ["├─ fetch", "0.5 s", "(beside plan)"] in rows
    assert ["├─ judge ×3", "3.0 s", "3", "30", "3"] in rows
    assert ["├─ judge", "1.0 s"] in rows
    assert ["└─ inner", "1.0 s"] in rows
    assert ["└─ look", "0.5 s"] in rows
    assert "Warning: odd" in out
    assert out.rstrip().endswith("6 steps, 4 model calls, 37 tokens read, 6 written, 9.0 s")


@pytest.mark.parametrize("name", RUNS)
def test_the_tree_says_of_each_step_what_the_screen_said(name, tmp_path):
    run, live = RUNS[name](), []
    steps = Steps(run.graph.name, run.graph, run.context)
    with Trace(tmp_path / "t.jsonl", run) as recorder:
        for event in run:
            recorder.on(event)
            step = steps.on(event)
            if isinstance(event, NodeEnd) and step is not None and not step.running:
                live.append((step.node, step.graph, summary_of(step)))
    recording = read(tmp_path / "t.jsonl")
    told = [(step.node, step.graph, summary_of(step)) for _, step in recording.walk()]
    assert sorted(map(str, told)) == sorted(map(str, live))


def test_tree_and_cards_show_the_words_of_a_step(traces):
    recording = read(traces["df_rag"])
    shown_words = {card.name: card.words for card in cards(recording)}
    assert shown_words["candidates"].endswith("distinct chunk sets at 10 levels of diversity λ")
    assert shown_words["choose_lambda"].startswith("λ* = ")
    assert shown_words["prepare"] == ""
    [hidden, *_] = [card for card in cards(read(traces["neighbourhood"])) if card.name == "score_batch"]
    assert hidden.words == ""
    tree_text = " ".join(re.sub(r"[│├└]", " ", dubito("trace", traces["df_rag"])[1]).split())
    assert all(words in tree_text for words in shown_words.values())


@pytest.mark.parametrize(
    "broken",
    [
        ('"candidates":', '"kandidates":'),
        ('"lambda_star":', '"lambda_star": "high", "was":'),
        ('"evaluations": [{', '"evaluations": ["odd", {'),
        ('"evaluations": [{', '"evaluations": 5, "were": [{'),
        ('"evaluations": [{', '"plan": [], "evaluations": [{'),  # by several at once
        ('"context": {', '"context": {"of_tomorrow": 1, '),
        ('"graph": "df_rag"', '"graph": "df_rag_2"'),
    ],
)
def test_what_another_version_wrote_is_a_tree_all_the_same(broken, traces, tmp_path):
    text = traces["df_rag"].read_text(encoding="utf-8")
    assert broken[0] in text
    (tmp_path / "t.jsonl").write_text(text.replace(*broken), encoding="utf-8")
    code, out, err = dubito("trace", tmp_path / "t.jsonl")
    assert (code, err) == (0, "")
    assert re.search(r"├─ choose_lambda +\d+\.\d s", out)


def test_a_real_fault_is_shown(tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(ContextOverflow):
        record(vanilla_run(faults=[ContextOverflow("Too long: use fewer chunks.")]), path)
    _, out, _ = dubito("trace", path)
    assert "failed: Too long: use fewer chunks." in " ".join(out.split())
    assert "The run ended with a fault: Too long: use fewer chunks." in out
    tree = shown(path)
    assert not tree.every(id="answer")
    assert tree.one(id="state").text == "The run ended with a fault: Too long: use fewer chunks."
    assert tree.every("details", class_="step")[-1].one("em").text == "failed"


def test_two_traces_of_a_question_are_compared(tmp_path):
    near = {"evidence": [{"id": "x", "title": "X"}, {"id": "y", "title": "Y"}]}
    far = {"evidence": [{"id": "y", "title": "Y"}, {"id": "z", "title": "Z"}]}
    a = written(
        tmp_path / "a.jsonl", start("plan", "a", 1), call("plan", "a", 2, 1), end("plan", "a", 2), over("so", 4, **near)
    )
    more = (start("check", "c", 2), end("check", "c", 3))
    b = written(
        tmp_path / "b.jsonl",
        start("plan", "a", 1),
        end("plan", "a", 2),
        *more,
        over("not so", 6, **far),
        context={"k": 3},
    )
    code, out, _ = dubito("trace", a, b)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["k", "2", "3"] in rows
    assert ["A", "so"] in rows
    assert ["B", "not", "so"] in rows
    assert ["1", "-", "X"] in rows
    assert ["2", "1", "Y"] in rows
    assert ["-", "2", "Z"] in rows
    assert ["plan"] in rows
    assert ["+", "check"] in rows
    assert ["steps", "1", "2", "+1"] in rows
    assert ["model", "calls", "1", "0", "-1"] in rows
    assert ["tokens", "read", "7", "0", "-7"] in rows
    assert ["seconds", "4.0", "6.0", "+2.0"] in rows


def test_a_trace_compared_with_itself_has_no_differences(traces):
    _, out, _ = dubito("trace", traces["df_rag"], traces["df_rag"])
    assert "the same: the Lune" in out
    assert "Settings\nthe same" in out
    assert not [line for line in out.splitlines() if line.startswith(("+ ", "- "))]


def test_traces_of_two_questions_are_not_compared(tmp_path):
    a, b = written(tmp_path / "a.jsonl", over()), written(tmp_path / "b.jsonl", over(), question="How?")
    assert dubito("trace", a, b) == (
        2,
        "",
        "The traces are of different questions ('Why?' and 'How?'): give two traces of the same question.\n",
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b'{"title": "a", "text": "b"}\n', "is not a trace"),
        (b"[1, 2]\n", "is not a trace"),
        (b"plain words\n", "is not a trace"),
        (b"\x00\xff\x80 binary", "is not a trace"),
        (b'{"type": "run", "version": 1, "timestamp": "2026', "is not a trace"),
        (b'{"type": "run", "version": 2}\n', "is not a trace"),
        (b"[" * 100_000 + b"\n", "is not a trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    code, out, err = dubito("trace", path)
    assert (code, out) == (2, "")
    assert said in err
    assert "dubito ask --trace" in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    code, _, err = dubito("trace", tmp_path / "none.jsonl")
    assert (code, err.count("\n")) == (2, 1)
    assert "There is no trace" in err
    code, _, err = dubito("trace", tmp_path)
    assert code == 2
    assert "cannot be read (Is a directory)" in err


@pytest.mark.parametrize(("offset", "remedy"), [(1, "update dubito."), (-1, "record the run anew.")])
def test_a_trace_of_another_form_is_refused(tmp_path, offset, remedy):
    code, _, err = dubito("trace", written(tmp_path / "t.jsonl", over(), version=VERSION + offset))
    assert code == 2
    assert f"this dubito reads form {VERSION}: {remedy}" in err


@pytest.mark.parametrize(
    "broken", ["not JSON", "[]", '{"type": "node_start"}', '{"type": "node_end", "timestamp": "x"}']
)
def test_a_broken_line_within_a_trace_is_named(tmp_path, broken):
    path = written(tmp_path / "t.jsonl", *BRANCHED, over())
    kept = path.read_text().splitlines()
    kept[4] = broken
    path.write_text("\n".join(kept) + "\n")
    code, _, err = dubito("trace", path)
    assert code == 2
    assert err.startswith(f"Line 5 of '{path}' is not a line of a trace")


def test_a_last_line_without_its_break_is_whole(tmp_path):
    path = written(tmp_path / "t.jsonl", *BRANCHED, over())
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    found = read(path)
    assert (found.ended, found.cut) == (True, False)


def test_lines_of_a_kind_that_is_not_known_are_passed_over(tmp_path):
    path = written(tmp_path / "t.jsonl", {"type": "news", "at": 1}, over())
    assert read(path).ended


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_killed_is_shown_as_far_as_it_got(traces, tmp_path, name):
    """Cut within and behind every line but the first."""
    whole = traces[name].read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "cut.jsonl"
    before = -1
    for begin, stop in pairwise(ends):
        for at in (begin, (begin + stop) // 2):
            path.write_bytes(whole[:at])
            found = read(path)
            count = sum(len(step.runs) for _, step in found.walk())
            assert count >= before
            before = count
            assert (found.ended, found.cut) == (False, at != begin)
            assert not [one for one in figures_of(found) if isinstance(one, Words) and "differs" in one.text]
    html = page.render(found).decode()
    assert "This trace is incomplete: it ends in the middle of a line" in html
    path.write_bytes(whole[: ends[-2]])
    code, out, _ = dubito("trace", path)
    assert code == 0
    assert "This trace is incomplete" in out


def test_what_was_under_way_when_the_run_was_killed_is_marked(tmp_path):
    path = written(tmp_path / "t.jsonl", *BRANCHED[:4])
    _, out, _ = dubito("trace", path)
    assert re.search(r"plan +2\.0 s +1 +7 +3 +\(beside fetch\) not finished", out)
    assert re.search(r"fetch +0\.5 s +\(beside plan\)\n", out)
    card_elements = shown(path).every("details", class_="step")
    assert [card.one("span", class_="number").text for card in card_elements] == ["1", "2"]
    assert ["not finished" in card.every("summary")[0].text for card in card_elements] == [True, False]


@pytest.mark.parametrize("name", RUNS)
def test_the_page_has_a_card_a_step_and_every_model_call(traces, name):
    found, tree = lines(traces[name]), shown(traces[name])
    card_elements = tree.every("details", class_="step")
    assert Counter(card.every("summary")[0].one("b").text for card in card_elements) == steps_of(found)
    assert sorted(int(card.attributes["id"].removeprefix("s")) for card in card_elements) == list(
        range(1, len(card_elements) + 1)
    )
    calls = [line for line in found if line["type"] == "llm_call"]
    drawn = tree.one("section", id="steps").every("details", class_="call")
    assert len(drawn) == len(calls)
    said = Counter(" ".join(text.split()) for one in calls for text in one["reply"].get("texts", ()))
    asked = Counter(" ".join(turn["content"].split()) for one in calls for turn in one["request"]["messages"])
    assert Counter(one.text for call in drawn for one in call.every("pre")) == said + asked
    assert tree.one(id="answer").text == found[-1]["output"]["answer"]
    facts = {one.one("dt").text: one.one("dd").text for one in tree.one(id="cost").every("div")}
    assert facts["steps"] == str(len(card_elements))
    assert facts["model calls"] == str(len(calls))
    assert facts["tokens read"] == str(sum(one["prompt_tokens"] for one in calls))
    assert facts["tokens written"] == str(sum(one["completion_tokens"] for one in calls))


@pytest.mark.parametrize("name", RUNS)
def test_the_figure_counts_the_runs_of_every_node(traces, name):
    found, tree = lines(traces[name]), shown(traces[name])
    started = [line for line in found if line["type"] == "node_start"]
    for sub in found[0]["wiring"]:
        ran = Counter(line["node"] for line in started if around(line) == sub)
        if not ran:  # a rung that was not tried
            assert name == "escalate"
            continue
        svg = drawing(tree, sub)
        drawn = {group.one("text").text for group in svg.every("g", class_="ran")}
        assert drawn == {f"{node} ×{count}" for node, count in ran.items()}
        wired = {node for edge in found[0]["wiring"][sub] for node in edge[:2]}
        idle = {group.one("text").text for group in svg.every("g", class_="idle")}
        assert idle == wired - ran.keys() - {"__start__", "__end__"}
        told = set(svg.attributes["aria-label"].partition(": ")[2].split(", "))
        assert told == {f"{node} ran {count}×" for node, count in ran.items()} | {f"{one} did not run" for one in idle}


def around(line):
    """The name of the subgraph that a line is of."""
    return "|".join(run.partition(":")[0] for run in line["namespace"])


def test_the_edges_that_were_taken(traces):
    svg = drawing(shown(traces["sunar"]))
    taken = Counter(edge.text for edge in svg.every("path", class_="taken"))
    # once: from start, prepare and rerank_all_evidence; twice: the loop of decompose, neighbourhood and record_hop
    assert taken == {"taken once": 5, "taken 2 times": 3}
    # to keep_sequential_answer and from it to the end or to check_certainty, to which no other edge was taken either;
    # to cite from three nodes, and from it; to chain_of_query from prepare and record_hop, and from it
    assert len(svg.every("path", class_="not")) == 5 + 4 + 5


def test_every_technique_has_a_presenter(traces):
    for name in graph_names():
        assert presenter_of(name).name != name
        assert presenter_of(name).about
    for name, path in traces.items():
        section = shown(path).one("section", id="technique")
        assert section.one("h2").text == presenter_of(name).name
        assert section.one("p", class_="lead").text == presenter_of(name).about


REASONED = "The model reasoned in 3 sentences"
IT_ENDED = "it ended because a sentence gave the answer."
WHY = {
    "vanilla_rag": "The answer was written from 2 chunks: T0; T1.",
    "df_rag": "The question was planned in 2 steps. Of 5 different chunk sets, the one of λ* = 0.3 supports the plan "
    "best, with 5; the chunks most similar to the question (λ = 1) have 1. The answer was written from T0; T5; T6.",
    "dense": "The answer was asked for again with each of 3 chunks rephrased in turn: 2 of 3 responses mean the same. "
    "DSE 0.42 (uncertain: above 0.2). The wording of T2 changes it most.",
    "dense_rag": "3 contexts were measured, the first with DSE 1.10. It ended because the rounds of refinement are "
    "used up; the answer is that of the most certain context: DSE 0.56 (uncertain: above 0.2).",
    "sunar": "The question was answered by 2 sub-questions: Who is the founder? → Ada; Where was Ada born? → "
    "Lancaster. From that followed the Wyre; reading the best evidence of all sub-questions again changed it.",
    "neighbourhood": "Of 6 documents that were scored, the best 2 are the evidence, 1 of them neighbours of good "
    "documents. Batches whose sampled answers differ in meaning were scored lower. The answer was written from Tn1; "
    "Tb1.",
    "seakr": f"{REASONED} and looked something up for 1 of them; {IT_ENDED} It read Tb. The answer from the snippets "
    "was the more certain one.",
    "cot": f"{REASONED}; {IT_ENDED}",
    "ircot": f"{REASONED} and looked something up for each of them; {IT_ENDED} It read Ta; Tb; Tc.",
    "flare": f"{REASONED} and looked something up for 1 of them; {IT_ENDED} It read Tb.",
    "iter_retgen": "2 iterations of searching and answering gave: the Lune, then the Lune.",
    "escalate": "cot: 0.693 is above 0.500: not certain enough; vanilla_rag: 0 is at most 0.500: certain enough.",
    "seper": "",
}


@pytest.mark.parametrize("name", RUNS)
def test_a_few_sentences_say_how_the_answer_came_about(name, traces):
    recording = read(traces[name])
    assert why(recording) == WHY[name]
    assert why(replace(recording, output=None)) == ""
    assert why(replace(recording, output={"answer": "cut off"})) == ""


@pytest.mark.parametrize("name", RUNS)
def test_a_presenter_that_fails_leaves_the_plain_steps(name, traces, monkeypatch):
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    recording = read(traces[name])
    failing = Presenter(
        name,
        steps={step.node: fail for _, step in recording.walk()},
        figures=fail,
        outcome=fail,
        retrieval_steps=fail,
    )
    settings = recording.steps[0].settings
    monkeypatch.setattr(presenter_module, "presenter_of", lambda graph: failing)
    for _, step in recording.walk():
        summary = summary_of(step)
        assert summary.blocks == [Words("(its details cannot be shown)", "warn")]
    assert recording.output is not None
    assert outcome_of(name, recording.output, settings) == [Words("(its figures cannot be shown)", "warn")]
    assert "differs from the one known here" in shown(traces[name]).one("section", id="technique").text
    with pytest.raises(UserFault, match=rf"holds a {name} that differs from the one known here: record the run anew"):
        retrieval_steps(recording)


def test_a_graph_without_a_panel_has_its_steps_alone(tmp_path):
    tree = shown(written(tmp_path / "t.jsonl", *BRANCHED, over()))
    assert not tree.every("section", id="technique")
    assert not tree.every("section", id="path")
    assert len(tree.every("details", class_="step")) == 6
    hints = [one.every("summary")[0].text for one in tree.every("details", class_="task")]
    assert hints == [f"run {i + 1}, number {i} · {i + 1}.0 s" for i in range(3)]


@pytest.mark.parametrize("name", RUNS)
def test_a_page_can_be_read_aloud(traces, name):
    """Its language, headings without gaps, a name for every drawing, a heading for every fold."""
    tree = shown(traces[name])
    assert tree.one("html").attributes["lang"] == "en"
    levels = [int(one.tag[1]) for one in tree.every() if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(other <= one + 1 for one, other in pairwise(levels))
    for one in tree.every("svg"):
        assert one.attributes["role"] == "img"
        assert one.attributes["aria-label"].strip()
    for one in tree.every("details"):
        inside = [child for child in one.children if isinstance(child, Element)]
        assert inside[0].tag == "summary"
        assert inside[0].text
    ids = [one.attributes["id"] for one in tree.every() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    assert {one.attributes["href"].removeprefix("#") for one in tree.every("a")} <= set(ids)


@pytest.mark.parametrize(
    ("texts", "matrix", "stacks"),
    [
        (["x" * 19, "y" * 26], False, True),  # 45 characters together
        (["x" * 19, "y" * 25], False, False),
        (["x" * 18] * 3, False, False),  # three short names: wide, but each is read at a glance
        (["x" * 50, "y"], True, False),
    ],
)
def test_a_table_of_words_stacks_on_a_phone_where_it_is_too_wide(texts, matrix, stacks):
    table = Table(["a"] * len(texts), [Row([Cell(text) for text in texts])], matrix=matrix)
    assert table.stacks is stacks
    assert not Table(table.columns, [Row([num(1.0, text) for text in texts])]).stacks


def test_a_stacked_cell_has_the_name_of_its_column(traces):
    table = next(one for one in shown(traces["seakr"]).every("table") if "stack" in one.attributes["class"].split())
    columns = [one.text for one in table.one("thead").every("th")]
    for row in table.one("tbody").every("tr"):
        assert [cell.attributes["data-of"] for cell in row.every("td")] == columns


def test_the_numbers_of_a_model_call_and_a_reply_that_was_cut_off(tmp_path):
    asked: list[dict[str, Any]] = [
        {"verb": "choose", "request": {"options": ["yes"]}, "reply": {"probabilities": {"yes": 0.75}}},
        {"verb": "score", "request": {"continuations": ["so"]}, "reply": {"mean_logprobs": [-1.5]}},
        {"verb": "introspect", "request": {}, "reply": {"texts": ["a", ""], "finish": ["length", "stop"], "layer": 9}},
    ]
    calls = [{**call("a", "1", 2, 1), **one, "request": {"messages": [], **one["request"]}} for one in asked]
    tree = shown(written(tmp_path / "t.jsonl", start("a", "1", 1), *calls, end("a", "1", 3), over()))
    choice, scores, cut = (one.text for one in tree.every("details", class_="call"))
    assert choice.endswith("probability of 'yes' 0.75")
    assert scores.endswith("mean log-probability of 'so' -1.5")
    assert cut.endswith("reply 1, cut offa reply 2(empty) layer 9")


def test_equal_values_are_shown_once(tmp_path):
    long = "word " * 100
    steps = (
        start("a", "1", 1, text=long),
        end("a", "1", 2),
        start("b", "2", 2, text=long),
        end("b", "2", 3, short="x"),
    )
    tree = shown(written(tmp_path / "t.jsonl", *steps, over()))
    assert [pre.text for pre in tree.every("pre")] == [long.strip()]
    assert tree.one(id="s2").one("a").attributes["href"] == "#s1"
    assert "short x" in tree.one(id="s2").text


def test_of_a_long_value_the_first_items_are_shown_where_it_changed_alone(tmp_path):
    numbers = list(range(1000, 1000 + 3 * MOST_ITEMS))
    chunks = {f"c{i}": {"id": f"c{i}", "title": f"T{i}", "text": "t"} for i in range(MOST_CHUNKS + 1)}
    steps = (
        start("a", "1", 1),
        end("a", "1", 2, numbers=numbers, chunks=chunks),
        start("b", "2", 2, numbers=numbers, chunks=chunks),
        end("b", "2", 3),
    )
    first, second = shown(written(tmp_path / "t.jsonl", *steps, over())).every("details", class_="step")
    assert f"numbers {len(numbers)} items, the first {MOST_ITEMS} here" in first.text
    assert first.one("pre").text == str(numbers[:MOST_ITEMS]).replace("[", "[ ").replace("]", " ]")
    assert f"chunks {len(chunks)} chunks, the first {MOST_CHUNKS} here" in first.text
    assert len(first.every("li")) == MOST_CHUNKS
    assert f"numbers {len(numbers)} items last changed in step 1" in second.text
    assert f"chunks {len(chunks)} entries last changed in step 1" in second.text
    assert {link.attributes["href"] for link in second.every("a")} == {"#s1"}
    assert not second.every("pre")


def test_the_timeline_lies_where_the_steps_ran(tmp_path):
    tree = shown(written(tmp_path / "t.jsonl", *BRANCHED, over(at=10))).one("section", id="timeline")
    rows = {row.one("a").text: row for row in tree.every(class_="row")}
    assert list(rows) == ["plan 2.0 s", "fetch 0.5 s", "judge ×3 3.0 s", "judge 1.0 s", "inner 1.0 s", "look 0.5 s"]

    def place(bar: Element) -> tuple[float, float, int]:
        found = re.fullmatch(r"left:([\d.]+)%;width:([\d.]+)%;top:(\d+)px;height:\d+px", bar.attributes["style"])
        assert found is not None
        return float(found[1]), float(found[2]), int(found[3])

    assert [place(bar) for bar in rows["plan 2.0 s"].every("i", class_="run")] == [(10, 20, 0)]
    assert [place(bar) for bar in rows["plan 2.0 s"].every("i", class_="ask")] == [(15, 15, 0)]
    judged = [place(bar) for bar in rows["judge ×3 3.0 s"].every("i", class_="run")]
    assert [bar[:2] for bar in judged] == [(30, 10), (30, 20), (30, 30)]
    assert len({bar[2] for bar in judged}) == 3
    assert rows["plan 2.0 s"].one("a").attributes["href"] == "#s1"
    marks = [(one.attributes["style"], one.text) for one in tree.one("div", class_="marks").every("i")]
    # none at 10 s, where its words would stand beyond the edge
    assert marks == [(f"left:{10 * second}.000%", f"{second}.0 s") for second in (0, 2, 4, 6, 8)]


def test_runs_that_overlap_have_lanes_of_their_own():
    spans = [(0, 4), (1, 2), (2, 3), (2.5, 5), (4, None)]
    tasks = [NodeRun(str(i), begun, {}, end=over_) for i, (begun, over_) in enumerate(spans)]
    assert lanes(tasks, 9) == [0, 1, 1, 2, 0]


@pytest.mark.parametrize("name", RUNS)
def test_hostile_text_in_every_place_of_a_state(traces, tmp_path, name):
    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {one: spoiled(item, one) for one, item in value.items()}
        if isinstance(value, list):
            return [spoiled(one, key) for one in value]
        return HOSTILE if isinstance(value, str) and key in TEXTS else value

    path = tmp_path / "t.jsonl"
    found = [spoiled(line) for line in lines(traces[name])]
    write_lines(path, found)
    tree = shown(path)
    assert tree.one("h1").text == tree.one(id="answer").text == " ".join(HOSTILE.split())
    assert not [one for one in tree.every() if one.tag in {"script", "img", "iframe", "object", "link", "form"}]
    assert not [name for one in tree.every() for name in one.attributes if name.startswith("on") or name == "src"]
    assert all(one.attributes["href"].startswith("#") for one in tree.every("a"))
    assert "differs from the one known here" not in tree.text
    code, out, _ = dubito("trace", path)
    assert code == 0
    assert HOSTILE[:20] in out


def test_control_characters_and_half_characters_do_no_harm(tmp_path):
    path = tmp_path / "t.jsonl"
    record(vanilla_run(("half \ud800 \x00\x1b[31m \u202eback", "two"), "an\x07swer"), path)
    html = page.render(read(path)).decode()
    assert not set(html) & {"\x00", "\x1b", "\x07", "\u202e"}
    _, out, _ = dubito("trace", path)
    assert "\x1b" not in out
    assert "answer" in out


def test_the_page_is_written_and_written_anew(traces, tmp_path):
    target = tmp_path / "page.html"
    for _ in range(2):
        code, out, _ = dubito("trace", traces["dense"], "--html", target)
        assert code == 0
        assert out.startswith(f"Wrote {target} (")
    assert target.read_bytes() == page.render(read(traces["dense"]))


def test_a_page_takes_the_place_of_nothing_else(traces, tmp_path):
    copy = tmp_path / "t.jsonl"
    copy.write_bytes(traces["dense"].read_bytes())
    code, _, err = dubito("trace", copy, "--html", copy)
    assert (code, err) == (2, f"'{copy}' exists and is not a page: give another name.\n")
    assert copy.read_bytes() == traces["dense"].read_bytes()


@pytest.mark.parametrize("name", ["none/page.html", "."])
def test_a_page_that_cannot_be_written_is_refused(traces, tmp_path, name):
    code, _, err = dubito("trace", traces["dense"], "--html", tmp_path / name)
    assert code == 2
    assert "give another path." in err
    assert err.count("\n") == 1


def test_more_traces_than_can_be_shown_are_refused(traces, tmp_path):
    three = [traces[name] for name in ("dense", "df_rag", "sunar")]
    assert "shows one trace or compares two, and got 3" in dubito("trace", *three)[2]
    assert "give only one" in dubito("trace", *three[:2], "--html", tmp_path / "p.html")[2]
    assert not (tmp_path / "p.html").exists()


def test_a_layout_leads_down_with_long_edges_on_the_right_and_back_edges_on_the_left():
    loop = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "a"), ("c", "c"), ("c", "a_node_with_a_long_name")]
    drawn = layout([("__start__", "a"), *loop, ("elsewhere", "a")], "__start__")
    assert list(drawn.nodes) == ["__start__", "a", "b", "c", "a_node_with_a_long_name"]
    places = list(drawn.nodes.values())
    assert len({x for x, *_ in places}) == 1
    assert all(lower - upper > 2 * HALF for (_, upper, _), (_, lower, _) in pairwise(places))
    assert drawn.edges.keys() == {("__start__", "a"), *loop} - {("c", "c")}
    centre, wide = places[-1][0], places[-1][2] / 2
    bends = {edge: float(path.split()[1].rpartition("C")[2]) for edge, path in drawn.edges.items() if "C" in path}
    assert bends.keys() == {("a", "c"), ("c", "a")}
    assert bends["c", "a"] < centre - wide < centre + wide < bends["a", "c"]
    assert wide < centre < drawn.width - wide
