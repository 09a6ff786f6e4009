from datetime import datetime, timedelta
from typing import TypedDict

import pytest
from dubito.cli.watch import follow
from dubito.errors import ContextOverflow, UserFault
from dubito.presenters.words import duration
from dubito.render.facts import cost_words
from dubito.render.timeline import timeline
from dubito.state.flow import Question
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.recorded import RUNS, lines, record, vanilla_run
from dubito.tests.scripted import ANSWERED, QUESTION
from dubito.traces import writer
from dubito.traces.events import AnswerPiece, ModelCall, NodeEnd, NodeStart
from dubito.traces.recording import assembled, read
from dubito.traces.run import Run
from dubito.traces.steps import Steps
from dubito.traces.writer import VERSION, Trace
from langgraph.graph import END, START, StateGraph


def test_a_trace_holds_every_step_and_model_call_of_the_run(tmp_path):
    run = vanilla_run()
    found = record(run, tmp_path / "run.jsonl")
    header, *middle, last = found
    assert {name: header[name] for name in ("type", "version", "graph", "question")} == {
        "type": "run",
        "version": VERSION,
        "graph": "vanilla_rag",
        "question": QUESTION,
    }
    assert header["dubito"]
    assert header["context"]["k"] == 2
    assert [(line["type"], line["node"]) for line in middle] == [
        ("node_start", "prepare"),
        ("node_end", "prepare"),
        ("node_start", "retrieve"),
        ("node_end", "retrieve"),
        ("node_start", "generate"),
        ("llm_call", "generate"),
        ("answer_begin", "generate"),
        ("node_end", "generate"),
    ]
    start, call, begin, end = middle[-4:]
    assert start["task"] == call["task"] == begin["task"] == end["task"]
    assert start["input"]["question"] == QUESTION
    assert call["verb"] == "complete"
    assert QUESTION in call["request"]["messages"][-1]["content"]
    assert call["reply"]["texts"] == ["the Lune"]
    assert (call["prompt_tokens"], call["completion_tokens"]) == (7, 3)
    assert end["update"]["answer"] == "the Lune"
    assert end["error"] is None
    assert end["seconds"] >= call["seconds"] > 0
    assert last["type"] == "end"
    assert last["output"] == run.output
    assert set(run.output) == ANSWERED
    times = [datetime.fromisoformat(line["timestamp"]) for line in found]
    assert times == sorted(times)
    assert all(time.utcoffset() == timedelta(0) for time in times)


def test_each_line_is_on_disk_before_the_next_event(tmp_path):
    run, path = vanilla_run(), tmp_path / "run.jsonl"
    with Trace(path, run) as trace:
        assert [line["type"] for line in lines(path)] == ["run"]
        written = 1
        for event in run:
            trace.on(event)
            written += isinstance(event, NodeStart | NodeEnd | ModelCall | AnswerPiece)
            assert len(lines(path)) == written


def test_the_time_to_the_first_token_is_in_the_trace(tmp_path):
    path = tmp_path / "run.jsonl"
    follow(vanilla_run(), path, None)
    recording = read(path)
    (generate,) = [step for step in recording.steps if step.node == "generate"]
    assert recording.first_token is not None
    assert generate.start - recording.start <= recording.first_token <= recording.seconds
    assert generate.runs[0].answered == recording.start + recording.first_token
    assert cost_words(recording).endswith(f"first token of the answer after {duration(recording.first_token)}")
    (row,) = [row for row in timeline(recording).rows if row.name == "generate"]
    assert [span.kind for span in row.spans] == ["run", "call", "first"]
    without = [line for line in path.read_bytes().splitlines(keepends=True) if b"answer_begin" not in line]
    assert "first token" not in cost_words(assembled(path, without))


def test_a_fault_is_in_the_nodes_line_and_in_the_last_one(tmp_path):
    run = vanilla_run(faults=[ContextOverflow("Too long: use fewer chunks.")])
    with pytest.raises(ContextOverflow):
        follow(run, tmp_path / "run.jsonl", None)
    *_, node, last = lines(tmp_path / "run.jsonl")
    assert (node["type"], node["node"]) == ("node_end", "generate")
    assert node["error"] == last["error"] == {"type": "ContextOverflow", "message": "Too long: use fewer chunks."}
    assert "output" not in last


def test_an_interrupted_run_has_a_last_line_too(tmp_path):
    run, path = vanilla_run(), tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt), Trace(path, run):
        raise KeyboardInterrupt
    assert lines(path)[-1]["error"]["type"] == "Interrupted"


def test_text_that_is_no_text_and_numbers_that_are_no_json_are_written_as_json(tmp_path):
    run, path = vanilla_run(("half a pair: \ud800", "Zürich")), tmp_path / "run.jsonl"
    with Trace(path, run) as trace:
        trace.on(
            ModelCall(namespace=(), at=0.0, node="n", task="t", call={"reply": {"mean_logprobs": [float("-inf"), -1]}})
        )
        for event in run:
            trace.on(event)
    found = lines(path)
    assert found[1]["reply"] == {"mean_logprobs": [None, -1]}
    assert [chunk["text"] for chunk in found[-1]["output"]["evidence"]] == ["half a pair: \ud800", "Zürich"]
    assert "Zürich" in path.read_text(encoding="utf-8")


def test_a_trace_is_overwritten_and_nothing_else_is(tmp_path):
    follow(vanilla_run(), tmp_path / "run.jsonl", None)
    follow(vanilla_run(), tmp_path / "run.jsonl", None)
    assert [line["type"] for line in lines(tmp_path / "run.jsonl")].count("run") == 1
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"title": "a", "text": "b"}\n')
    with pytest.raises(UserFault, match="is not a trace"):
        Trace(corpus, vanilla_run())
    assert corpus.read_text() == '{"title": "a", "text": "b"}\n'
    (tmp_path / "empty.jsonl").touch()
    follow(vanilla_run(), tmp_path / "empty.jsonl", None)


@pytest.mark.parametrize("name", ["none/run.jsonl", "."])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(UserFault, match="give another path"):
        Trace(tmp_path / name, vanilla_run())


class Words(TypedDict, total=False):
    question: str
    words: list[str]


def test_steps_of_subgraphs_carry_their_namespace(tmp_path):
    inner = StateGraph(Words)
    inner.add_node("split", lambda state: {"words": state["question"].split()})
    inner.add_edge(START, "split")
    inner.add_edge("split", END)
    outer = StateGraph(Words, context_schema=VanillaRagContext, input_schema=Question, output_schema=Words)
    outer.add_node("count", inner.compile())
    outer.add_edge(START, "count")
    outer.add_edge("count", END)
    follow(Run(outer.compile(name="words"), "a b", VanillaRagContext()), tmp_path / "run.jsonl", None)
    steps = [line for line in lines(tmp_path / "run.jsonl") if line["type"].startswith("node")]
    assert [(line["type"], line["node"]) for line in steps] == [
        ("node_start", "count"),
        ("node_start", "split"),
        ("node_end", "split"),
        ("node_end", "count"),
    ]
    assert steps[0]["namespace"] == steps[-1]["namespace"] == []
    assert steps[1]["namespace"] == steps[2]["namespace"] == [f"count:{steps[0]['task']}"]


@pytest.mark.parametrize("name", RUNS)
def test_long_values_that_earlier_lines_give_are_left_out_and_read_back(name, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MOST_ITEMS", 0)
    run, inputs = RUNS[name](), {}
    with Trace(tmp_path / "t.jsonl", run) as trace:
        for event in run:
            trace.on(event)
            if isinstance(event, NodeStart):
                inputs[event.task] = event.input
    assert any("left_out" in line for line in lines(tmp_path / "t.jsonl"))
    for _, step in read(tmp_path / "t.jsonl").walk():
        for node_run in step.runs:
            assert {**node_run.input, "usage": None} == {**inputs[node_run.id], "usage": None}, step.node


def test_what_ended_without_a_start_is_passed_over():
    steps = Steps("vanilla_rag")
    assert {steps.on(event) for event in vanilla_run() if not isinstance(event, NodeStart)} == {None}
