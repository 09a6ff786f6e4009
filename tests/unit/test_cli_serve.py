"""`dubito serve` with a stand-in for vLLM: its commands, its bad input, and that it leaves no process behind."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.cli import app, vllm_commands
from typer.testing import CliRunner

# what is found of a vLLM server from outside: /health on its port, a log, an engine process in the same group
VLLM = """#!{python}
import http.server, os, subprocess, sys, time
words = sys.argv[1:]
port = int(words[words.index("--port") + 1])
print("INFO starting on", port, flush=True)
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(os.path.join({notes!r}, str(port)), "w").write(str(engine.pid))
if "--die" in words and "--kv-transfer-config" in words:
    while not os.path.exists(os.path.join({notes!r}, str(port - 1))):
        time.sleep(0.05)
    print("(Worker) WARNING 1-1 This can cause OSError: too many open files.", flush=True)
    print("(Worker) ERROR 1-1 RuntimeError: no room for 3 GiB.", flush=True)
    print("Engine \\x1b[31mfailed", flush=True)
    sys.exit(3)
if "--wait" in words:
    time.sleep(600)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    notes = tmp_path / "notes"
    notes.mkdir()
    executable = tmp_path / "bin" / "vllm"
    executable.parent.mkdir()
    executable.write_text(VLLM.format(python=sys.executable, notes=str(notes)))
    executable.chmod(0o755)
    return executable


@pytest.fixture
def on_path(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{vllm.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Small Model 1.5B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 30}))
    return folder


@pytest.fixture
def port() -> int:
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            found: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", found + 1))
            except (OSError, OverflowError):
                continue
            return found


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_commands, "GPU_DEVICES", ())
    for name in ("DUBITO_VLLM", "DUBITO_DEBUG", "PYTHONPATH", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_NUM_OF_RESERVED_CPU"):
        monkeypatch.delenv(name, raising=False)


def dubito(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["serve", *map(str, arguments)])


# ---------------------------------------------------------------- commands


def planned(*arguments: object) -> list[dict[str, Any]]:
    done = (
        dubito(*arguments, "--dry-run", "--json")
        if "--" not in arguments
        else dubito("--dry-run", "--json", *arguments)
    )
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["commands"]
    return found


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_a_plain_server_is_one_command(model: Path) -> None:
    (plain,) = planned(model)
    assert plain["command"] == [
        *("vllm", "serve", str(model), "--served-model-name", "Small-Model-1.5B", "--host", "127.0.0.1"),
        *("--dtype", "float32", "--enforce-eager", "--block-size", "32", "--port", "8000"),
    ]
    assert plain["environment"] == {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}


def test_hidden_states_come_from_a_second_server_on_the_next_port(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    more = ("--port", 9000, "--host", "0.0.0.0", "--states-folder", tmp_path)
    plain, states = planned(*more, "--hidden-states", model, "--", "--max-model-len", "512")
    assert states["command"][:3] == plain["command"][:3]
    assert [value(one["command"], "--port") for one in (plain, states)] == ["9000", "9001"]
    for one in (plain, states):
        assert value(one["command"], "--host") == "0.0.0.0"
        assert one["command"][-2:] == ["--max-model-len", "512"]
        assert one["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert "--speculative-config" not in plain["command"]
    assert "PYTHONPATH" not in plain["environment"]
    assert json.loads(value(states["command"], "--speculative-config")) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [15]}},
    }
    transfer = json.loads(value(states["command"], "--kv-transfer-config"))
    assert transfer["kv_role"] == "kv_producer"
    assert transfer["kv_connector_extra_config"] == {"shared_storage_path": str(tmp_path / "dubito-states-9000")}
    ours, others = states["environment"]["PYTHONPATH"].split(os.pathsep)
    assert others == "/mine"
    source = (Path(ours) / f"{transfer['kv_connector_module_path']}.py").read_text()
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    assert transfer["kv_connector"] in classes


def test_what_vllm_loads_needs_nothing_of_dubito() -> None:
    source = (vllm_commands.PLUGIN / "dubito_hidden_states.py").read_text()
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            rooms.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.partition(".")[0] for alias in node.names}
    assert rooms <= {"__future__", "pathlib", "typing", "vllm"}


def test_a_dry_run_prints_what_a_shell_can_run(model: Path) -> None:
    done = dubito(model, "--hidden-states", "--dry-run")
    shown = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True, check=True)
    assert shown.stderr == ""
    first, second = done.stdout.splitlines()
    assert first.startswith(f"VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_NUM_OF_RESERVED_CPU=0 vllm serve '{model}' ")
    assert "PYTHONPATH=" in second


def test_a_gpu_is_shared_and_needs_no_help(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_commands, "GPU_DEVICES", (str(tmp_path),))
    (plain,) = planned(model)
    assert plain["environment"] == {}
    assert not {"--dtype", "--enforce-eager", "--gpu-memory-utilization"} & set(plain["command"])
    for one in planned(model, "--hidden-states"):
        assert value(one["command"], "--gpu-memory-utilization") == "0.45"
    for one in planned("--hidden-states", model, "--", "--gpu-memory-utilization=0.3"):
        assert "--gpu-memory-utilization" not in one["command"]


def test_what_is_given_to_vllm_is_not_given_twice(model: Path) -> None:
    (plain,) = planned(model, "--", "--dtype", "bfloat16", "--served-model-name", "mine")
    assert plain["command"].count("--dtype") == plain["command"].count("--served-model-name") == 1


@pytest.mark.parametrize(
    ("config", "options", "layer"),
    [
        ({"num_hidden_layers": 33}, (), 16),
        ({"text_config": {"num_hidden_layers": 40}}, (), 20),
        ({"num_hidden_layers": 30}, ("--layer", 29), 29),
        ({}, ("--layer", 7), 7),
    ],
)
def test_the_layer_is_the_middle_one_unless_it_is_given(
    model: Path, config: dict[str, Any], options: tuple[object, ...], layer: int
) -> None:
    (model / "config.json").write_text(json.dumps(config))
    draft = json.loads(value(planned(model, "--hidden-states", *options)[1]["command"], "--speculative-config"))
    assert draft["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [layer]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("/nowhere",), "There is no model in /nowhere: give a model's folder, or its name on a hub."),
        (("./nowhere",), "There is no model in nowhere"),
        (("{tmp}",), "{tmp} is not a model folder: it has no config.json."),
        (("{model}", "--layer", "3"), "add --hidden-states"),
        (("{model}", "--states-folder", "{tmp}"), "add --hidden-states"),
        (("{model}", "--hidden-states", "--layer", "30"), "has 30 layers: --layer is from 1 to 29, not 30."),
        (("{model}", "--hidden-states", "--layer", "0"), "See --help."),
        (("{model}", "--port", "0"), "See --help."),
        (("{model}", "--hidden-states", "--port", "65535"), "choose a smaller --port"),
        (("{model}", "--", "--port", "1"), "--port is set by dubito serve itself"),
        (("{model}", "--", "--host=::"), "--host is set by dubito serve itself"),
        (("--hidden-states", "{model}", "--", "--kv-transfer-config={{}}"), "--kv-transfer-config is set by"),
        (("{model}", "--hidden-states", "--states-folder", "{tmp}/no"), "There is no folder {tmp}/no"),
        (("{model}", "--vllm", "no-such-vllm"), "vLLM was not found as no-such-vllm"),
        (("{model}", "--vllm", "{tmp}"), "vLLM was not found as {tmp}"),
        (("{model}", "--host", "no.such.invalid"), "Port 8000 of no.such.invalid cannot be used"),
        (
            ("acme/unheard-of", "--hidden-states"),
            "The number of layers of acme/unheard-of is not known here: add --layer N",
        ),
        ((), "Missing argument 'MODEL'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, model: Path, on_path: None, arguments: tuple[str, ...], said: str
) -> None:
    done = dubito(*(word.format(tmp=tmp_path, model=model) for word in arguments))
    assert done.exit_code == 2
    assert said.format(tmp=tmp_path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_configuration_is_named(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    done = dubito(model, "--hidden-states", "--dry-run")
    assert done.exit_code == 2
    assert f"{model / 'config.json'} cannot be read as a model's configuration" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode, **__: not mode & os.W_OK)
    done = dubito(model, "--hidden-states", "--states-folder", tmp_path)
    assert done.exit_code == 2
    assert f"The folder {tmp_path} cannot be written" in done.stderr


@pytest.mark.parametrize(("offset", "more"), [(0, ""), (1, " (--hidden-states takes {port} and {next})")])
def test_a_port_in_use_is_named(model: Path, vllm: Path, port: int, offset: int, more: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + offset))
        taken.listen()
        options = ["--hidden-states"] if offset else []
        done = dubito(model, "--vllm", vllm, "--port", port, *options)
    assert done.exit_code == 2
    named = more.format(port=port, next=port + 1)
    expected = f"Port {port + offset} of 127.0.0.1 cannot be used (Address already in use): give another --port{named}"
    assert done.stderr == f"{expected} or --host.\n"


# ---------------------------------------------------------------- processes


class Serve:
    """`dubito serve` as a process of its own."""

    def __init__(self, tmp_path: Path, vllm: Path, model: Path, port: int) -> None:
        self.notes, self.folder, self.port = tmp_path / "notes", tmp_path / "states", port
        self.folder.mkdir()
        self.command = [
            *(sys.executable, "-m", "dubito", "serve", str(model), "--vllm", str(vllm), "--hidden-states"),
            *("--port", str(port), "--states-folder", str(self.folder)),
        ]
        self.environment = {**os.environ, "DUBITO_CACHE_DIR": str(tmp_path / "cache")}
        self.process: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*self.command, *more], stdout=pipe, stderr=pipe, text=True, env=self.environment, start_new_session=True
        )
        return self.process

    def engines(self) -> list[int]:
        """The processes that the two servers have started, once they have."""
        found = [self.notes / str(port) for port in (self.port, self.port + 1)]
        wait_for(lambda: all(path.is_file() and path.read_text() for path in found))
        return [int(path.read_text()) for path in found]

    def ended(self, expected: int) -> tuple[str, str]:
        assert self.process is not None
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == expected, err
        return out, err


def wait_for(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Is it more than an entry in the table of processes that nobody has asked for?"""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def serve(tmp_path: Path, vllm: Path, model: Path, port: int) -> Iterator[Serve]:
    served = Serve(tmp_path, vllm, model, port)
    yield served
    if served.process is not None and served.process.poll() is None:
        served.process.terminate()
        served.process.communicate(timeout=60)


def test_it_says_by_which_name_to_use_it_and_ends_everything(serve: Serve, tmp_path: Path) -> None:
    old = serve.folder / f"dubito-states-{serve.port}"
    old.mkdir()
    (old / "cmpl-1.safetensors").write_bytes(b"left by a server that was killed")
    (serve.folder / "model.safetensors").write_bytes(b"somebody's")
    process = serve.start()
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    plain, states = f"http://127.0.0.1:{serve.port}/v1", f"http://127.0.0.1:{serve.port + 1}/v1"
    assert lines[0].startswith("Ready after ")
    assert lines[0].endswith(f": the model at {plain}, the hidden states of layer 15 at {states}.\n")
    assert lines[1] == f"Use it by: --llm 'vllm:{plain}#Small-Model-1.5B&states={states}&layer=15'\n"
    logs = [tmp_path / "cache" / "serve" / f"vllm-{port}.log" for port in (serve.port, serve.port + 1)]
    assert lines[2] == f"Logs: {logs[0]}, {logs[1]}\n"
    assert lines[3] == "Ctrl-C ends both.\n"
    assert logs[1].read_text().startswith("INFO starting")
    assert list(old.iterdir()) == []
    assert stat.S_IMODE(old.stat().st_mode) == 0o700  # the files hold the tokens of prompts
    engines = serve.engines()
    assert all(running(pid) for pid in engines)

    process.send_signal(signal.SIGTERM)
    out, err = serve.ended(0)
    assert out == ""
    assert err == "Starting vLLM, which takes a minute or more ...\nEnding vLLM ...\n"
    assert not any(running(pid) for pid in engines)
    assert [path.name for path in serve.folder.iterdir()] == ["model.safetensors"]


def test_ctrl_c_before_all_is_ready_ends_it_as_an_interruption(serve: Serve) -> None:
    process = serve.start("--", "--wait")
    engines = serve.engines()
    process.send_signal(signal.SIGINT)
    out, err = serve.ended(130)
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted."
    assert not any(running(pid) for pid in engines)
    assert list(serve.folder.iterdir()) == []


def test_a_server_that_dies_at_the_start_is_shown_with_the_end_of_its_log(serve: Serve) -> None:
    serve.start("--", "--die")
    out, err = serve.ended(1)
    assert out == ""
    *log, sentence = err.splitlines()
    assert log[-1] == "Engine failed"  # without its colour
    url = f"http://127.0.0.1:{serve.port + 1}/v1"
    assert sentence.startswith(
        f"{url}: vLLM ended with exit code 3 before it was ready (RuntimeError: no room for 3 GiB); "
    )
    assert not any(running(pid) for pid in serve.engines())
    assert list(serve.folder.iterdir()) == []


def test_a_server_that_is_killed_later_takes_the_other_and_its_orphans_along(serve: Serve) -> None:
    process = serve.start("--json")
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["layer"] == 15
    assert told["llm"].endswith(f"#Small-Model-1.5B&states=http://127.0.0.1:{serve.port + 1}/v1&layer=15")
    os.kill(told["servers"][1]["pid"], signal.SIGKILL)
    out, err = serve.ended(1)
    assert out == "", "standard output has had its one object"
    assert "vLLM ended with exit code -9 while it served" in err.splitlines()[-1]
    assert not any(running(pid) for pid in [*serve.engines(), told["servers"][0]["pid"]])
