"""The resources that the page of `dubito ui` allows, its form, and the traces that it keeps."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from dubito.cli import app
from dubito.cli.ui import listener, page_allow_list
from dubito.errors import UserFault, extra_command
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.presenters.presenter import presenter_of
from dubito.resources.allowlist import Forbidden
from dubito.state.context import BaseContext, marks_of, names_resource
from dubito.state.df_rag import DFRagContext
from dubito.state.seakr import SeaKRContext
from dubito.state.sunar import SunarContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.ui.form import choices, form_of
from dubito.ui.history import History
from pydantic import Field
from starlette.exceptions import HTTPException
from typer.testing import CliRunner

PLAIN = page_allow_list([], None, [])

ELSEWHERE = {
    "corpus": ["/etc", "sample/../../etc", "Sample", "qdrant:http://127.0.0.1:6333#c", ""],
    "llm": [
        "vllm:http://127.0.0.1:8000/v1#m",
        "openai:http://169.254.169.254/#m",
        "hf:/models",
        "gguf:/m.gguf",
        "engine:m",
    ],
    "rephraser": ["openai:http://169.254.169.254/#m", "hf:/models"],
    "encoder": ["st:/models", "openai:https://host/v1#m"],
    "graph_encoder": ["st:/models", "colbert:/models", "openai:https://host/v1#m"],
    "judge": ["nli:/models", "embedded "],
    "reranker": ["cross:/models"],
    "first_stage": ["splade:/models", "hybrid:bm25+splade:/models"],
    "threshold_file": ["/etc/passwd"],
    "examples": ["/etc/passwd", "11"],
    "penalty_file": ["/etc/passwd"],
    "calibration": ["/etc/passwd", "~/.ssh/id_rsa"],
}


def contexts() -> dict[str, type[BaseContext]]:
    return {name: context_type(graph_named(name)) for name in graph_names()}


@pytest.mark.parametrize("graph", graph_names())
def test_every_text_setting_says_whether_it_names_a_resource(graph):
    texts = {name: marks_of(field) for name, field in contexts()[graph].model_fields.items() if field.annotation is str}
    assert {name for name, marks in texts.items() if "resource" not in marks} == set()
    assert {name for name, marks in texts.items() if marks["resource"]} <= ELSEWHERE.keys()


@pytest.mark.parametrize("graph", graph_names())
def test_what_every_graph_is_without_being_told_is_allowed(graph):
    PLAIN.check(contexts()[graph]())


@pytest.mark.parametrize("graph", graph_names())
def test_nothing_that_lies_elsewhere_can_be_named_in_any_setting(graph):
    schema = contexts()[graph]
    tried = 0
    for name, values in ELSEWHERE.items():
        for value in values if name in schema.model_fields else []:
            with pytest.raises(Forbidden, match=f"^{name} ") as refused:
                PLAIN.check(schema.unchecked({name: value}))
            assert str(refused.value).count(". ") == 0
            tried += 1
    assert tried >= 5


def test_a_setting_that_nobody_has_thought_of_may_only_be_what_it_is():
    class Newer(VanillaRagContext):
        notes: str = "none"

    PLAIN.check(Newer())
    with pytest.raises(Forbidden, match="notes '/etc' is not allowed here: use none"):
        PLAIN.check(Newer(notes="/etc"))


def test_a_new_techniques_own_resource_can_be_allowed():
    class Graded(VanillaRagContext):
        grader: str = Field(default="embedded", json_schema_extra=names_resource("judge", "embedded", "llm"))

    for value in ("embedded", "llm"):
        PLAIN.check(Graded(grader=value))
    with pytest.raises(Forbidden, match="use embedded or llm, or have it added by --allow grader=nli:x when"):
        PLAIN.check(Graded(grader="nli:x"))
    page_allow_list([], None, ["grader=nli:x"]).check(Graded(grader="nli:x"))


def test_what_was_named_is_allowed_and_comes_first(tmp_path):
    server = "vllm:http://127.0.0.1:9/v1#m"
    allowed = page_allow_list([str(tmp_path)], server, ["judge=nli:some/judge", "llm=openai:http://127.0.0.1:9/v1#n"])
    values = {name: allowed.values(name, SunarContext) for name in ("corpus", "llm", "judge")}
    assert values == {
        "corpus": [str(tmp_path), "sample"],
        "llm": [server, "openai:http://127.0.0.1:9/v1#n", "embedded"],
        "judge": ["nli:some/judge", "auto", "embedded", "llm", "llm:calibrated"],
    }
    allowed.check(SunarContext(llm=server, corpus=str(tmp_path), judge="nli:some/judge"))
    with pytest.raises(Forbidden, match=r"^corpus "):
        allowed.check(SunarContext(corpus=str(tmp_path / "inner")))
    with pytest.raises(Forbidden, match="use an empty text, or have it added by --allow calibration="):
        allowed.check(SeaKRContext(calibration="/etc/passwd"))


def test_what_the_environment_allows_comes_after_what_is_named(allow, tmp_path):
    allow(f"llm=vllm:http://127.0.0.1:9/v1#m corpus='{tmp_path}'")
    allowed = page_allow_list([], "vllm:http://127.0.0.1:8/v1#m", [])
    assert allowed.added == {
        "llm": ["vllm:http://127.0.0.1:8/v1#m", "vllm:http://127.0.0.1:9/v1#m"],
        "corpus": [str(tmp_path)],
    }
    allow("judge")
    with pytest.raises(UserFault, match="DUBITO_ALLOW takes setting=value"):
        page_allow_list([], None, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((["/nowhere"], None, []), "There is no corpus at '/nowhere'"),
        (([], "gpt", []), "There is no chat model named 'gpt'"),
        (([], None, ["judge="]), "--allow takes setting=value.*got 'judge='"),
    ],
)
def test_what_cannot_be_allowed_is_said_at_the_start(given, said):
    with pytest.raises(UserFault, match=said):
        page_allow_list(*given)


def test_a_form_has_the_settings_of_the_context_the_common_ones_first():
    form = form_of(graph_named("df_rag"), PLAIN)
    assert [one.name for one in form.common] == ["corpus", "llm", "k"]
    names = [one.name for one in form.rest]
    assert names.index("top_n") < names.index("uncertainty")
    assert names[:2] == ["evaluator", "lambdas"]
    # every setting but the preset, of which only one can be had here, and prompts, which are long texts
    assert sorted([*names, "corpus", "llm", "k", "preset", "prompts"]) == sorted(DFRagContext.model_fields)
    assert not form.answers
    assert form.about.startswith("DF-RAG plans ")
    assert form.when.startswith("The passages that are found repeat one fact")


def test_a_corpus_is_shown_by_the_end_of_its_path_unless_two_end_alike(tmp_path):
    paths = [tmp_path / "a" / "notes", tmp_path / "b" / "notes", tmp_path / "staff.index"]
    for path in paths:
        path.mkdir(parents=True)
    corpus, *_ = form_of(graph_named("vanilla_rag"), page_allow_list([str(path) for path in paths], None, [])).common
    assert corpus.options == [
        (str(paths[0]), str(paths[0])),
        (str(paths[1]), str(paths[1])),
        (str(paths[2]), "staff.index"),
        ("sample", "sample"),
    ]


def test_a_graph_is_chosen_by_what_it_is_for_and_shares_settings_with_the_one_beside_it():
    found = {choice.graph: choice for choice in choices()}
    assert list(found)[-1] == "seper"
    assert [name for name, choice in found.items() if choice.answers] == ["seper"]
    assert sorted(found) == graph_names()
    assert found["df_rag"].label == "Compare diverse evidence (DF-RAG)"
    assert found["df_rag"].shared == ["corpus", "llm", "preset"]
    assert "corpus" not in found["cot"].shared
    assert all(presenter_of(name).purpose and presenter_of(name).when for name in graph_names())


def test_an_input_knows_the_settings_words_range_and_options():
    inputs = {one.name: one for one in form_of(graph_named("df_rag"), PLAIN).rest}
    answer = inputs["max_answer_tokens"]
    assert (answer.kind, answer.value, answer.low, answer.high) == ("whole", "64", 1, 32768)
    assert (answer.title, answer.description) == ("Longest answer", "The maximum length of the answer, in tokens.")
    assert inputs["thinking"].kind == "switch"
    assert inputs["thinking"].value == "false"
    assert [one for one, _ in inputs["evaluator"].options] == ["auto", "report", "choice", "likelihood"]
    assert inputs["evaluator"].value == "auto"
    assert inputs["encoder"].options == [("embedded", "embedded")]
    assert (inputs["chunker"].kind, inputs["chunker"].value) == ("text", "words:100")
    assert "preset" not in inputs["chunker"].description


def test_a_form_begins_with_what_was_named(tmp_path):
    allowed = page_allow_list([str(tmp_path)], "vllm:http://127.0.0.1:9/v1#m", [])
    corpus, llm, _ = form_of(graph_named("sunar"), allowed).common
    assert corpus.value == str(tmp_path)
    assert llm.value == "vllm:http://127.0.0.1:9/v1#m"
    assert [one for one, _ in llm.options] == ["vllm:http://127.0.0.1:9/v1#m", "embedded"]


def test_a_form_does_not_begin_with_a_value_that_has_no_effect():
    rest = {one.name: one for one in form_of(graph_named("seakr"), page_allow_list([], None, ["judge=nli:x"])).rest}
    assert rest["judge"].value == "auto"
    assert [value for value, _ in rest["judge"].options] == ["nli:x", "auto", "embedded", "llm", "llm:calibrated"]


def test_a_preset_can_be_chosen_where_all_it_names_may_be():
    models = DFRagContext(preset="paper")
    allowed = page_allow_list([], models.llm, [f"encoder={models.encoder}"])
    form = form_of(graph_named("df_rag"), allowed)
    preset = form.common[-1]
    assert (preset.name, [one for one, _ in preset.options]) == ("preset", ["embedded", "paper"])
    rest = {one.name: one for one in form.rest}
    assert rest["chunker"].value == "preset"
    assert next(name for name, _ in rest["encoder"].options) == "preset"


@pytest.mark.parametrize("graph", graph_names())
def test_a_form_sent_as_it_is_makes_the_graphs_own_context(graph):
    form, schema = form_of(graph_named(graph), PLAIN), contexts()[graph]
    sent = {one.name: one.value for one in [*form.common, *form.rest]}
    assert schema(**cast("Any", sent)) == schema()
    assert form.answers == (graph == "seper")


LINE = b'{"type": "run", "timestamp": "2026-01-02T10:00:00.000+00:00", "graph": "%s", "question": "%s"}\n'
A, B, C, D = ("abcdefghijklmnopqrstu" + end for end in "ABCD")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path, most=10)


def test_the_oldest_traces_go_first_and_the_last_stays(history, tmp_path):
    for age, name in enumerate((A, B, C)):
        history.keep("me", name, b"12345")
        (path,) = tmp_path.glob(f"*/{name}.jsonl")
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
        history.keep("me", name, b"12345")  # as at the end of its run
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert [history.trace("me", name) for name in (B, C)] == [b"12345"] * 2
    with pytest.raises(HTTPException):
        history.trace("me", A)
    history.keep("you", D, b"x" * 11)
    assert history.trace("you", D) == b"x" * 11
    with pytest.raises(HTTPException):
        history.trace("me", C)


def test_a_browser_finds_its_own_questions_alone_and_the_latest_first(tmp_path):
    history = History(tmp_path)
    for age, (name, graph, question) in enumerate([(A, b"df_rag", b"First?"), (B, b"df_rag_chat", b"Then?")]):
        history.keep("me", name, LINE % (graph, question))
        os.utime(next(tmp_path.glob(f"*/{name}.jsonl")), (age, age))
    assert [(one.name, one.graph, one.question) for one in history.asked("me")] == [
        (B, "df_rag", "Then?"),
        (A, "df_rag", "First?"),
    ]
    assert history.asked("you") == []
    for refused in (history.trace, history.delete):
        with pytest.raises(HTTPException):
            refused("you", A)
    history.delete("me", A)
    assert [one.name for one in history.asked("me")] == [B]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"graph": 1', LINE.replace(b"2026-01-02", b"soon")])
def test_a_damaged_file_is_not_in_the_list(tmp_path, content):
    history = History(tmp_path)
    history.keep("me", A, content)
    assert history.asked("me") == []


@pytest.mark.parametrize("name", ["", "..", "../" * 7 + "x", "a/b", "a" * 23, "\x00" * 22])
def test_a_name_is_no_path(history, name):
    history.keep("me", A, b"x")
    with pytest.raises(HTTPException):
        history.trace("me", name)
    with pytest.raises(HTTPException):
        history.delete("me", name)


def test_what_cannot_be_kept_costs_no_answer(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    History(tmp_path / "file").keep("me", A, b"x")
    assert "The question is not kept" in caplog.text


def test_without_the_extra_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(sys.modules["dubito.cli.ui"], "find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["ui"])
    assert done.exit_code == 2
    assert done.stderr == f"dubito ui runs on starlette and uvicorn: run `{extra_command('ui')}`.\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_host_that_others_reach_must_be_meant(host):
    done = CliRunner().invoke(app, ["ui", "--host", host, "--port", "0"])
    assert done.exit_code == 2
    assert f"On --host {host} others can reach this server" in done.stderr
    assert "set a token in DUBITO_TOKEN, or add --everybody-may-ask to allow that." in done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path):
    with listener("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["ui", "--port", str(port)])
    assert done.exit_code == 2
    assert f"Port {port} of 127.0.0.1 cannot be used" in done.stderr
