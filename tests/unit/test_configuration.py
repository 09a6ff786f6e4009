"""Settings are the same everywhere: the built-in default, the configuration file, the environment, the context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dubito.cli import app, bars
from dubito.cli.ui import page_allow_list
from dubito.config import config
from dubito.errors import UserFault
from dubito.evals.run_folder import read
from dubito.graphs import df_rag, vanilla_rag
from dubito.graphs.registry import context_type, graph_named, graph_names
from dubito.graphs.tool import as_tool
from dubito.resources.allowlist import Forbidden, process_allow_list
from dubito.server_url import key_for
from dubito.settings import Settings, settings
from dubito.state.context import all_contexts
from dubito.state.df_rag import DFRagContext, DFRagState
from dubito.state.seakr import SeaKRContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import QUESTION, chat, resources
from dubito.tests.stub_server import Stub, serving
from dubito.ui.form import form_of
from langgraph.graph import START, StateGraph
from typer.testing import CliRunner

SERVER = "vllm:http://127.0.0.1:9/v1#m"
INPUT: Any = {"question": QUESTION}


def forget() -> None:
    for read_once in (config, settings, process_allow_list):
        read_once.cache_clear()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def write(text: str, name: str = "dubito.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    forget()
    return path


def dubito(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


# --- the order ---


def test_each_place_has_the_word_over_those_before_it(monkeypatch):
    assert DFRagContext().k == 5
    write("k = 6")
    assert DFRagContext().k == 6
    write("k = 6\n[df_rag]\nk = 7")
    assert (DFRagContext().k, VanillaRagContext().k) == (7, 6)
    monkeypatch.setenv("DUBITO_K", "8")
    assert (DFRagContext().k, VanillaRagContext().k) == (8, 8)
    assert DFRagContext(k=9).k == 9
    monkeypatch.setenv("DUBITO_K", "")
    assert DFRagContext().k == 7, "an empty variable is none"


@pytest.mark.parametrize("context", [None, {}, {"max_answer_tokens": 9}, VanillaRagContext])
async def test_a_graph_in_ones_own_program_has_it_too(context):
    write("k = 3")
    given = context() if isinstance(context, type) else context
    graph: Any = vanilla_rag.build(resources(chat())).compile()
    assert len((await graph.ainvoke(INPUT, context=given))["evidence"]) == 3
    assert len(graph.invoke(INPUT, context={**(given if isinstance(given, dict) else {}), "k": 2})["evidence"]) == 2


def test_an_agents_tool_has_it_too():
    write("k = 3")
    tool = as_tool("vanilla_rag", {"max_answer_tokens": 9}, resources=resources(chat()))
    told = tool.invoke({"type": "tool_call", "name": "vanilla_rag", "id": "1", "args": {"question": QUESTION}})
    assert len(told.artifact["evidence"]) == 3


def test_studios_form_begins_with_it(monkeypatch):
    write("[df_rag]\nk = 7")
    monkeypatch.setenv("DUBITO_LLM", SERVER)
    shown = (graph_named("df_rag").get_context_jsonschema() or {})["properties"]
    assert (shown["k"]["default"], shown["llm"]["default"], shown["corpus"]["default"]) == (7, SERVER, "sample")


def test_the_command_line_has_it_and_the_last_word():
    write('k = 7\n[ask]\ngraph = "vanilla_rag"')
    other = write("[vanilla_rag]\nk = 8", "other.toml")
    listed = {"dubito.toml": dubito("settings", "vanilla_rag", "--json")}
    listed["other"] = dubito("settings", "vanilla_rag", "--json", "--config", str(other))
    listed["typed"] = dubito("settings", "vanilla_rag", "--json", "--set", "k=9")
    k = {name: one(done, "k") for name, done in listed.items()}
    assert {name: (entry["value"], entry["source"]) for name, entry in k.items()} == {
        "dubito.toml": (7, "file"),
        "other": (8, "file"),
        "typed": (9, "option"),
    }
    assert config().path == Path("dubito.toml"), "what --config names is forgotten at the command's end"


def test_a_preset_fills_only_what_is_not_configured(monkeypatch):
    monkeypatch.setenv("DUBITO_LLM", SERVER)
    paper = DFRagContext(preset="paper")
    assert (paper.llm, paper.chunker) == (SERVER, "words:300")


def test_what_is_configured_for_all_is_left_out_where_it_has_no_effect():
    write('judge = "llm"\nfixed_lambda = 0.2')
    assert SeaKRContext().judge == "auto"
    assert SeaKRContext(estimator="semantic_entropy").judge == "llm"
    assert VanillaRagContext().fixed_lambda == 0.7
    assert VanillaRagContext(selection="mmr").fixed_lambda == 0.2
    with pytest.raises(UserFault, match="fixed_lambda has no effect"):
        VanillaRagContext(fixed_lambda=0.3)


def test_every_graph_has_a_table_of_its_own():
    for name in graph_names():
        assert vars(context_type(graph_named(name)))["graph"] == name


def test_no_setting_of_a_graph_shares_its_variable_with_the_process():
    process = {"config", "debug", "vllm", *Settings.model_fields}
    assert not process & {name for context in all_contexts() for name in context.model_fields}


# --- what cannot be used ---


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kk = 3", "dubito.toml: kk is unknown (did you mean k?)."),
        ("[df_rga]\nk = 3", "dubito.toml: the table [df_rga] is unknown (did you mean df_rag?)"),
        ("[df_rag]\nevaluater = 3", "dubito.toml: [df_rag] evaluater is unknown (did you mean evaluator?)."),
        ("[df_rag]\nk = 'many'", "dubito.toml: [df_rag] k is 'many' and must be a whole number from 1 to 1000."),
        ("k = [3]", "dubito.toml: k is a list and must be a whole number from 1 to 1000."),
        ("k = 3\nk = 4\nsamples = 3", "'dubito.toml' is not TOML: Cannot overwrite a value (at line 2, column "),
        ("llm = 'openai:https://me:canary@h/v1#m'", "dubito.toml: llm: A server's URL must not hold a user name"),
        ("api_key = 'canary'", "dubito.toml: api_key is a secret: delete it from the file, and keep it in the "),
        ("[process]\ntoken = 'canary'", "dubito.toml: [process] token is a secret: delete it from the file"),
        ("[process]\ntimeout_s = 'soon'", "dubito.toml: [process] timeout_s is 'soon': Input should be a valid number"),
        ("[process]\ntimeout = 3", "dubito.toml: [process] timeout is unknown (did you mean timeout_s?)."),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(text, sentence):
    write(text)
    done = dubito("settings", "df_rag")
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "canary" not in done.output + done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_yaml_file_is_told_with_its_line():
    write("k: 3\nllm: [", "dubito.yaml")
    assert "'dubito.yaml' is not YAML: " in (told := dubito("settings").stderr)
    assert "(at line 2" in told
    write("- k", "dubito.yaml")
    assert "'dubito.yaml' is not a configuration file" in dubito("settings").stderr
    write("k: 3\nseakr:\n  samples: 4\n", "dubito.yaml")
    assert (SeaKRContext().samples, VanillaRagContext().k) == (4, 3)


def test_files_that_cannot_be_read_are_told(folder, monkeypatch):
    write("k = 3")
    write("k: 3", "dubito.yaml")
    assert "dubito.toml or dubito.yaml: there may be one configuration file in a folder" in dubito("settings").stderr
    assert one(dubito("settings", "--config", "dubito.yaml", "--json"), "k")["value"] == 3
    for name, said in [("none.toml", "No such file"), (str(folder), "Is a directory"), ("x.ini", "must end in .toml")]:
        Path("x.ini").write_text("k=3")
        monkeypatch.setenv("DUBITO_CONFIG", name)
        forget()
        with pytest.raises(UserFault, match=said):
            config()
    contents = {
        "not UTF-8": b"llm = '\xe9'",
        "is longer than 1,000,000 bytes": b"#" * 1_000_001,
        "is nested too deeply": b"k = " + b"[" * 50_000,
    }
    for said, content in contents.items():
        Path("wrong.toml").write_bytes(content)
        monkeypatch.setenv("DUBITO_CONFIG", "wrong.toml")
        forget()
        with pytest.raises(UserFault, match=said):
            config()


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("llm = 'vllm:http://127.0.0.1:8000/v1#m'\nencoder = 'openai:http://localhost:81/v1#e'", ""),
        ("llm = 'vllm:HTTP://localhost.evil.example:8000/v1#m'", "HTTP://localhost.evil.example:8000"),
        (
            "[process]\notlp_endpoint = 'https://spans.example'\n[sunar]\nllm = 'https://10.0.0.7/v1#m'",
            "https://10.0.0.7, https://spans.example",
        ),
    ],
)
def test_a_file_that_nobody_named_is_announced_with_the_servers_on_other_machines(text, servers, monkeypatch, caplog):
    write(text)
    config()
    said = f"dubito.toml, which lies in this folder, sends questions and passages to {servers}. If that is right"
    assert [one.startswith(said) for one in caplog.messages] == [True] * bool(servers)
    caplog.clear()
    monkeypatch.setenv("DUBITO_CONFIG", "dubito.toml")
    forget()
    config()
    assert not caplog.messages


def test_a_wrong_variable_is_told_by_its_name(monkeypatch):
    monkeypatch.setenv("DUBITO_K", "many")
    with pytest.raises(UserFault, match="DUBITO_K is 'many' and must be a whole number from 1 to 1000"):
        graph_named("df_rag").invoke(INPUT)


@pytest.mark.parametrize("context", [{"kk": 3}, {"self": 3}])
async def test_a_wrong_setting_is_a_sentence_in_python(context):
    graph = graph_named("df_rag")
    said = f"df_rag has no setting '{next(iter(context))}'"
    with pytest.raises(UserFault, match=said):
        graph.invoke(INPUT, context=context)
    with pytest.raises(UserFault, match=said):
        next(graph.stream(INPUT, context=context))
    with pytest.raises(UserFault, match=said):
        await graph.ainvoke(INPUT, context=context)
    with pytest.raises(UserFault, match=said):
        as_tool("df_rag", context)


# --- a server for others ---


def test_what_the_operator_configures_is_allowed_for_its_graph_alone(monkeypatch):
    monkeypatch.setenv("DUBITO_ALLOW", "")
    write(f"[dense_rag]\nllm = '{SERVER}'")
    allowed = process_allow_list()
    allowed.check(context_type(graph_named("dense_rag"))())
    for context in (SeaKRContext(llm=SERVER), DFRagContext(corpus="/etc/passwd")):
        with pytest.raises(Forbidden):
            allowed.check(context)


async def test_what_is_configured_for_a_graph_is_allowed_in_its_subgraphs(monkeypatch):
    monkeypatch.setenv("DUBITO_ALLOW", "")
    write(f"[vanilla_rag]\nllm = '{SERVER}'\n[df_rag]\nevaluator = 'report'")
    parent: Any = StateGraph(DFRagState, context_schema=VanillaRagContext)
    parent.add_node("df_rag", df_rag.build(resources(chat())).compile())
    parent.add_edge(START, "df_rag")
    graph = parent.compile()
    assert (await graph.ainvoke(INPUT, context={}))["answer"] == "the Lune"
    with pytest.raises(Forbidden):
        await graph.ainvoke(INPUT, context={"llm": f"{SERVER}2"})


def test_the_page_begins_with_it():
    write(f"k = 7\nllm = '{SERVER}'")
    allowed = page_allow_list([], None, ["encoder=st:sentence-transformers/multi-qa-mpnet-base-cos-v1"])
    inputs = {entry.name: entry for entry in form_of(graph_named("vanilla_rag"), allowed).common}
    assert "preset" in inputs, "both may be chosen, and so may the preset's own model"
    assert (inputs["k"].value, inputs["llm"].value) == ("7", SERVER)
    assert {SERVER, "preset"} <= dict(inputs["llm"].options).keys()


# --- keys, and the settings of the process ---


def test_a_key_is_named_by_its_variable_in_a_file_that_is_named(monkeypatch):
    text = '[keys]\n"api.example.com" = "MY_KEY"'
    write(text)
    monkeypatch.setenv("MY_KEY", "canary")
    with pytest.raises(UserFault, match="so that no folder decides where keys go"):
        key_for("https://api.example.com/v1", None)
    monkeypatch.setenv("DUBITO_CONFIG", "dubito.toml")
    forget()
    assert key_for("https://api.example.com/v1", None) == "canary"
    assert key_for("https://other.example.com/v1", None) == ""
    monkeypatch.setenv("DUBITO_KEYS", "api.example.com=of-the-environment")
    forget()
    assert key_for("https://api.example.com/v1", None) == "of-the-environment"
    for wrong in ("sk-canary", "CANARY1234567890"):
        write(text.replace("MY_KEY", wrong))
        with pytest.raises(UserFault, match="must be the name of an environment variable") as fault:
            key_for("https://api.example.com/v1", None)
        assert "canary" not in str(fault.value).lower()


def test_the_file_has_settings_of_the_process_below_the_environment(monkeypatch):
    write("[process]\ntimeout_s = 7\noutage_s = 8\nallow = ['corpus=/a b', 'llm=x']")
    monkeypatch.setenv("DUBITO_OUTAGE_S", "9")
    assert (settings().timeout_s, settings().outage_s) == (7, 9)
    assert settings().allow == "'corpus=/a b' llm=x"


# --- dubito settings ---


def one(done: Any, name: str) -> Any:
    return next(entry for entry in json.loads(done.stdout)["settings"] if entry["name"] == name)


def test_every_setting_is_listed_with_its_source(monkeypatch):
    write("[seakr]\nsamples = 4\njudge = 'llm'")
    monkeypatch.setenv("DUBITO_CONCURRENCY", "3")
    done = dubito("settings", "seakr", "--json", "--set", "max_steps=2")
    found = {entry["name"]: entry for entry in json.loads(done.stdout)["settings"]}
    assert set(found) == set(SeaKRContext.model_fields)
    names = ("samples", "concurrency", "max_steps", "llm", "corpus", "judge")
    assert [(found[name]["source"], found[name]["place"]) for name in names] == [
        ("file", "dubito.toml: [seakr] samples"),
        ("environment", "DUBITO_CONCURRENCY"),
        ("option", "--set"),
        ("preset", "preset embedded"),
        ("default", "default"),
        ("default", "default"),
    ]
    assert found["samples"]["allowed"].startswith("a whole number from ")
    assert found["judge"]["without_effect"] == "No effect with estimator=auto"
    lines = dubito("settings", "seakr").stdout.splitlines()
    assert any(line.startswith("samples ") and " 4 " in line and "dubito.toml" in line for line in lines)


# --- long work, described in a file, told in a pipe ---


@pytest.fixture
def questions(folder: Path) -> str:
    lines = [json.dumps({"question": f"Who was number {n}?", "answers": ["a"]}) + "\n" for n in range(4)]
    (folder / "questions.jsonl").write_text("".join(lines))
    return "questions.jsonl"


def test_a_run_is_described_in_a_file_and_repeated_from_its_folder(questions):
    with serving(Stub()) as stub:
        write(
            f"llm = 'openai:{stub.url}#stub'\n[cot]\nmax_steps = 2\n[seper]\nsamples = 3\n"
            f"[eval]\nmetric = ['seper-steps']\ndataset = ['{questions}']\nlimit = 2\nseed = 5\n"
            "corpus = 'sample'\nat_once = 2\nout = 'one.run'\n"
            "[eval.systems]\nshort = {graph = 'cot', max_steps = 1}\nlong = {graph = 'cot'}\n",
            "plan.toml",
        )
        first = dubito("eval", "--config", "plan.toml", "--json")
        assert first.exit_code == 0, first.stderr
        again = dubito("eval", "--config", "one.run/run.yaml", "--out", "two.run", "--json")
        assert again.exit_code == 0, again.stderr
        other = dubito(
            "eval", "--config", "one.run/run.yaml", "--out", "other.run", "--seed", "6", "--set", "max_steps=3"
        )
        assert other.exit_code == 0, other.stderr
    one, two, three = (read(Path(name)) for name in ("one.run", "two.run", "other.run"))
    assert [(system.label, system.context["max_steps"]) for system in one.systems] == [("short", 1), ("long", 2)]
    assert (two.systems, two.questions) == (one.systems, one.questions)
    assert len(one.questions) == 2
    same = {"id", "begun", "command"}
    assert {k: v for k, v in two.about.items() if k not in same} == {
        k: v for k, v in one.about.items() if k not in same
    }
    described = [yaml.safe_load((run.folder / "run.yaml").read_text()) for run in (one, two)]
    assert described[0] == described[1]
    assert (described[0]["eval"]["metric"], described[0]["seper"]["samples"]) == (["seper-steps"], 3)
    assert three.seed == 6, "what is typed has the last word"
    assert [system.context["max_steps"] for system in three.systems] == [3, 3]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("limits = 3", "[eval] limits is unknown (did you mean limit?)."),
        ("limit = 'few'", "[eval] limit cannot be used: "),
        ("limit = 0", "[eval] limit cannot be used: "),
        ("[eval.systems]\na = 'cot'", "[eval.systems] a must be a table with a graph and its settings"),
        ("[eval.systems]\na = {graph = 'cto'}", "There is no graph named 'cto'"),
        ("[eval.systems]\na = {graph = 'cot', kk = 3}", "cot has no setting 'kk'"),
    ],
)
def test_a_wrong_description_of_a_run_is_told(questions, table, said):
    write(f"[eval]\ndataset = ['{questions}']\ncorpus = 'sample'\n{table}", "plan.toml")
    done = dubito("eval", "--config", "plan.toml")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_a_command_s_table_is_that_of_each_of_its_techniques(questions):
    write("[calibrate]\nrigth = 'exact'")
    for technique in ("seakr", "sunar"):
        done = dubito("calibrate", technique, questions)
        assert done.stderr == "dubito.toml: [calibrate] rigth is unknown (did you mean right?).\n"


@pytest.mark.parametrize("more", [[], ["--json"], ["--quiet"]])
def test_long_work_in_a_pipe_says_where_it_is(questions, monkeypatch, more):
    monkeypatch.setattr(bars, "EVERY_S", 0.1)
    with serving(Stub()) as stub:
        stub.seconds = 0.15
        stub.fails = lambda body, number: 400 if "number 0" in str(body) else 200
        given = ["--dataset", questions, "--corpus", "sample", "--llm", f"openai:{stub.url}#stub", "--at-once", "1"]
        done = dubito("eval", "cot:max_steps=1", *given, *more)
    lines = [line for line in done.stderr.splitlines() if "remaining" in line]
    if "--quiet" in more:
        assert lines == []
        return
    assert any(
        all(part in line for part in ("questions: 2 of 4", "left", "calls", "tokens", "1 failed", "2 remaining"))
        for line in lines
    ), done.stderr
    if more:
        assert json.loads(done.stdout)


def test_an_index_says_where_it_is(folder, monkeypatch):
    (folder / "notes.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": f"note {n}"}) + "\n" for n in range(9))
    )
    monkeypatch.setattr(bars, "EVERY_S", 0.05)
    with serving(Stub()) as stub:
        stub.seconds = 0.5
        given = ["notes.jsonl", "--out", "notes.index", "--encoder", f"openai:{stub.url}#stub"]
        done = dubito("index", *given)
    assert done.exit_code == 0, done.stderr
    assert " embedding the first chunks" in done.stderr
